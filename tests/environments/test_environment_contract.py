"""The contract test that ships with the package: right environments pass, wrong ones fail."""

from __future__ import annotations

import pytest
import torch

from navrl.errors import ActionError, ConfigError, StateError
from navrl.observation import ObservationLayout, Part
from navrl.rl.action_space import Box, Discrete, action_space_from, as_mapping
from navrl.testing import EnvironmentContract
from point_environment import Point


class TestPoint(EnvironmentContract):
    def make(self):
        return Point()


class KeepsFlags(Point):
    """Only ever raises flags, never lowers them."""

    def step(self, action, *, out):
        old = out.terminated.clone()
        super().step(action, out=out)
        out.terminated |= old
        return out


class WritesElsewhere(Point):
    def step(self, action, *, out):
        return super().step(action, out=self.make_step())


class ForgetsToBegin(Point):
    """Goes on from where the old episode ended."""

    def begin(self, mask):
        if self._counter.length.sum() == 0 and not hasattr(self, "begun"):
            super().begin(mask)
        self.begun = True


class LosesTheLastObservation(Point):
    def step(self, action, *, out):
        super().step(action, out=out)
        out.final_packed.copy_(out.packed)
        return out


class CountsForEver(Point):
    """Does not begin to count anew."""

    def step(self, action, *, out):
        length = self._counter.length.clone()
        super().step(action, out=out)
        self._counter.length = length + 1
        return out


class DrawsFromNowhere(Point):
    """Uses random numbers that no seed decides."""

    def begin(self, mask):
        self.position = torch.where(mask, torch.rand(self.num_envs), self.position)


class SavesHalf(Point):
    """Leaves the random numbers out of its state."""

    def load_state_dict(self, state):
        drawn = self.generator.get_state()
        super().load_state_dict(state)
        self.generator.set_state(drawn)


class ReusesRows(Point):
    def observe(self):
        if not hasattr(self, "rows"):
            self.__dict__["rows"] = super().observe()
        return self.observation.pack(self.look(), self.rows)


class ChangesActions(Point):
    def advance(self, action):
        return super().advance(action.mul_(0.5))


class TakesAnything(Point):
    def step(self, action, *, out):
        return super().step(action[: self.num_envs], out=out)


class SaysTheWrongShape(Point):
    def reset(self, *, seed=None):
        return super().reset(seed=seed)[:, :1]


class GoesToNan(Point):
    def advance(self, action):
        reward, ended = super().advance(action)
        return reward / 0 * 0, ended


@pytest.mark.parametrize(
    ("wrong", "test"),
    [
        (KeepsFlags, "a_step_fills_the_buffers_that_it_was_given"),
        (WritesElsewhere, "a_step_fills_the_buffers_that_it_was_given"),
        (GoesToNan, "a_step_fills_the_buffers_that_it_was_given"),
        (KeepsFlags, "buffers_do_not_matter"),
        (ForgetsToBegin, "where_an_episode_ends_the_last_observation_is_kept_apart"),
        (LosesTheLastObservation, "where_an_episode_ends_the_last_observation_is_kept_apart"),
        (CountsForEver, "return_and_length_of_an_episode_are_the_sum_and_number_of_its_steps"),
        (DrawsFromNowhere, "equal_seeds_give_equal_episodes"),
        (SavesHalf, "a_saved_state_continues_bit_for_bit"),
        (ReusesRows, "rows_that_were_returned_are_never_written_again"),
        (ChangesActions, "an_action_is_not_changed"),
        (TakesAnything, "actions_of_a_wrong_shape_are_refused"),
        (SaysTheWrongShape, "reset_returns_one_finite_row_for_each_environment"),
    ],
)
def test_the_contract_fails_for_an_environment_that_breaks_it(wrong, test):
    contract = EnvironmentContract()
    contract.make = wrong
    with pytest.raises(AssertionError):
        getattr(contract, f"test_{test}")()


def test_the_contract_says_when_no_episode_ever_ends():
    contract = EnvironmentContract()
    contract.make, contract.episode_steps = lambda: Point(time_limit=0), 1
    with pytest.raises(AssertionError, match="no episode ended"):
        contract.test_where_an_episode_ends_the_last_observation_is_kept_apart()


def test_a_time_limit_truncates_and_an_end_terminates():
    env = Point(2, time_limit=3)
    env.reset(seed=0)
    env.position = torch.tensor([0.0, 1.9])
    step = env.step(torch.tensor([[0.0], [1.0]]), out=env.make_step())
    assert step.terminated.tolist() == [False, True]
    for _ in range(2):
        env.step(torch.zeros(2, 1), out=step)
    assert step.truncated.tolist() == [True, False]
    assert step.terminated.tolist() == [False, False]


def test_actions_of_a_wrong_shape_name_what_is_expected():
    with pytest.raises(ActionError, match=r"\(3, 1\); expected \(4, 1\)"):
        Point().step(torch.zeros(3, 1), out=Point().make_step())


def test_a_state_of_another_environment_is_refused_by_the_names_it_lacks():
    with pytest.raises(StateError, match=r"lacks \['_counter'"):
        Point().load_state_dict({})


@pytest.mark.parametrize("space", [Box.of(2), Box.unbounded(1), Discrete(3), Box((-1.0,), (4.0,))])
def test_an_action_space_survives_a_file(space):
    assert action_space_from(as_mapping(space)) == space


@pytest.mark.parametrize(
    "make",
    [
        lambda: Box((), ()),
        lambda: Box((1.0,), (1.0,)),
        lambda: Box((1.0,), (2.0, 3.0)),
        lambda: Discrete(1),
        lambda: action_space_from({"low": 3}),
        lambda: ObservationLayout((Part("a", (1,)), Part("a", (2,)))),
    ],
)
def test_impossible_spaces_are_refused(make):
    with pytest.raises(ConfigError, match="expected"):
        make()
