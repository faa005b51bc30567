"""Tests that any environment can be held to: subclass `EnvironmentContract` in your own suite.

    class TestMyEnvironment(EnvironmentContract):
        def make(self):
            return MyEnvironment(num_envs=4, seed=0)

Run it with pytest. A test that fails says what training would have got wrong.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from navrl.rl.action_space import Discrete
from navrl.rl.environment import Environment, Step

__all__ = ["EnvironmentContract"]


class EnvironmentContract:
    """What training relies on, one fact a test.

    `make` returns a new environment, equal each time; with two environments or more the tests see
    most. `deterministic = False` leaves out what needs equal seeds to give equal episodes.

    >>> import navrl
    >>> from navrl.adapters.navigation_environment import NavigationEnvironment
    >>> from navrl.testing import EnvironmentContract
    >>> class TestNavigation(EnvironmentContract):
    ...     def make(self):
    ...         settings = navrl.NavigationSettings.of(env__num_envs=4, env__num_worlds=1)
    ...         return NavigationEnvironment(navrl.NavigationEnv(settings))
    >>> TestNavigation().test_an_action_is_not_changed()  # pytest runs all of them
    """

    deterministic = True
    episode_steps = 1000  # within which some episode ends, whatever is done

    def make(self) -> Environment:
        """Return a new environment, not yet reset."""
        raise NotImplementedError("a subclass of EnvironmentContract says what is tested: make()")

    # ------------------------------------------------------------------ observations

    def test_reset_returns_one_finite_row_for_each_environment(self) -> None:
        """A row has the width that the description says."""
        env = self.make()
        rows = env.reset(seed=1)
        assert rows.dtype == torch.float32
        assert tuple(rows.shape) == (env.num_envs, env.observation.width)
        assert torch.isfinite(rows).all()

    def test_the_parts_of_an_observation_have_the_shapes_that_are_described(self) -> None:
        """`observation.split` finds every part by its name."""
        env = self.make()
        parts = env.observation.split(env.reset(seed=1))
        for part in env.observation.parts:
            assert tuple(parts[part.name].shape[1:]) == (part.shape or (1,))

    def test_images_are_scaled_to_the_range_from_0_to_1(self) -> None:
        """Encoders of images take values from 0 to 1."""
        env = self.make()
        parts = env.observation.split(env.reset(seed=1))
        for part in env.observation.parts:
            if part.kind == "image":
                assert parts[part.name].min() >= 0
                assert parts[part.name].max() <= 1

    def test_rows_that_were_returned_are_never_written_again(self) -> None:
        """Rollouts keep them while the environment goes on."""
        env = self.make()
        rows = env.reset(seed=1)
        kept = rows.clone()
        step = env.make_step()
        for number in range(5):
            env.step(an_action(env, number), out=step)
        env.reset()
        assert torch.equal(rows, kept)

    def test_observe_returns_what_the_last_step_has_shown(self) -> None:
        """Nothing moves between two steps."""
        env = self.make()
        rows = env.reset(seed=1)
        assert torch.equal(env.observe(), rows)
        step = env.step(an_action(env, 0), out=env.make_step())
        assert torch.equal(env.observe(), step.packed)
        assert torch.equal(env.observe(), step.packed)

    # ------------------------------------------------------------------ stepping

    def test_a_step_fills_the_buffers_that_it_was_given(self) -> None:
        """Whatever was in them before: flags and rewards of an earlier step must not stay."""
        env = self.make()
        env.reset(seed=1)
        step = env.make_step()
        fill_with_garbage(step)
        addresses = {name: getattr(step, name).data_ptr() for name in BUFFERS}
        assert env.step(an_action(env, 0), out=step) is step
        assert {name: getattr(step, name).data_ptr() for name in BUFFERS} == addresses
        assert torch.isfinite(used(env, step.packed)).all()
        assert torch.isfinite(step.reward).all()
        ended = step.terminated | step.truncated
        assert not ended.all() or env.num_envs == 1, "the flags of the buffers were not written"

    def test_actions_at_both_bounds_are_taken(self) -> None:
        """A policy reaches them."""
        env = self.make()
        env.reset(seed=1)
        step = env.make_step()
        for extreme in extreme_actions(env):
            env.step(extreme, out=step)
            assert torch.isfinite(used(env, step.packed)).all()

    def test_an_action_is_not_changed(self) -> None:
        """The learner needs it as it was drawn."""
        env = self.make()
        env.reset(seed=1)
        action = an_action(env, 0)
        kept = action.clone()
        env.step(action, out=env.make_step())
        assert torch.equal(action, kept)

    def test_actions_of_a_wrong_shape_are_refused(self) -> None:
        """They would be spread over the batch in silence."""
        env = self.make()
        env.reset(seed=1)
        action = an_action(env, 0)
        wrong = torch.cat([action, action])
        try:
            env.step(wrong, out=env.make_step())
        except Exception:
            return
        raise AssertionError(f"a step has taken actions of shape {tuple(wrong.shape)}")

    # ------------------------------------------------------------------ episodes

    def test_return_and_length_of_an_episode_are_the_sum_and_number_of_its_steps(self) -> None:
        """Counted anew for every episode."""
        env = self.make()
        assert {"return", "length"} <= set(env.statistics)
        env.reset(seed=1)
        step, total = env.make_step(), torch.zeros(env.num_envs)
        length, ended_before, checked = torch.zeros(env.num_envs), None, 0
        for number in range(2 * self.episode_steps):
            env.step(an_action(env, number), out=step)
            total, length = total + step.reward, length + 1
            ended = step.terminated | step.truncated
            if ended.any():
                found = dict(zip(env.statistics, step.statistics[ended].T, strict=True))
                assert torch.equal(found["length"], length[ended])
                assert torch.allclose(found["return"], total[ended], rtol=1e-3, atol=1e-3)
                total[ended], length[ended] = 0, 0
                checked += int(ended.sum())
                if ended_before is not None and (ended & ended_before).any():
                    return  # a second episode was counted too
                ended_before = ended if ended_before is None else ended | ended_before
        assert checked, f"no episode ended within {2 * self.episode_steps} steps: see episode_steps"

    def test_where_an_episode_ends_the_last_observation_is_kept_apart(self) -> None:
        """`final_packed` is of the old episode, `packed` of the new one."""
        env = self.make()
        env.reset(seed=1)
        step, ended = self.first_end(env)
        last, first = (used(env, rows[ended]) for rows in (step.final_packed, step.packed))
        assert torch.isfinite(last).all()
        assert not torch.equal(last, first), (
            "packed is still the last observation of the old episode: begin the next one at once"
        )

    # ------------------------------------------------------------------ chance and state

    def test_equal_seeds_give_equal_episodes(self) -> None:
        """In two environments, and in one that is reset again."""
        if not self.deterministic:
            return
        first, second = self.make(), self.make()
        assert_same_steps(steps_after_reset(first, seed=7), steps_after_reset(second, seed=7))
        assert_same_steps(steps_after_reset(first, seed=8), steps_after_reset(second, seed=8))
        assert_same_steps(steps_after_reset(first, seed=7), steps_after_reset(second, seed=7))

    def test_buffers_do_not_matter(self) -> None:
        """A step into used buffers gives what a step into new ones gives."""
        if not self.deterministic:
            return
        env = self.make()
        assert_same_steps(
            steps_after_reset(env, seed=7), steps_after_reset(env, seed=7, garbage=True)
        )

    def test_a_saved_state_continues_bit_for_bit(self) -> None:
        """Or there is none: `state_dict` returns None."""
        env = self.make()
        env.reset(seed=3)
        step = env.make_step()
        for number in range(10):
            env.step(an_action(env, number), out=step)
        state = env.state_dict()
        if state is None:
            return
        rows = env.observe()
        expected = next_steps(env)
        other = self.make()
        other.load_state_dict(state)
        assert torch.equal(other.observe(), rows)
        assert_same_steps(next_steps(other), expected)
        env.load_state_dict(state)
        assert_same_steps(next_steps(env), expected)

    def first_end(self, env: Environment) -> tuple[Step, Tensor]:
        """Return the first step in which an episode ends, and where."""
        step = env.make_step()
        for number in range(2 * self.episode_steps):
            env.step(an_action(env, number), out=step)
            ended = step.terminated | step.truncated
            if ended.any():
                return step, ended
        raise AssertionError(f"no episode ended within {2 * self.episode_steps} steps")


BUFFERS = ("packed", "final_packed", "reward", "terminated", "truncated", "statistics")


def an_action(env: Environment, number: int) -> Tensor:
    """Return an action of all environments, inside the bounds; equal numbers give equal actions."""
    generator = torch.Generator().manual_seed(number)
    if isinstance(env.action, Discrete):
        return torch.randint(env.action.count, (env.num_envs,), generator=generator)
    unit = torch.rand(env.num_envs, env.action.size, generator=generator)
    low = torch.tensor(env.action.low).clamp(min=-1e3)
    return low + unit * (torch.tensor(env.action.high).clamp(max=1e3) - low)


def extreme_actions(env: Environment) -> list[Tensor]:
    """Return the lowest and the highest action that an environment takes."""
    if isinstance(env.action, Discrete):
        return [torch.full((env.num_envs,), choice) for choice in (0, env.action.count - 1)]
    bounds = (torch.tensor(env.action.low), torch.tensor(env.action.high))
    return [bound.clamp(-10.0, 10.0).repeat(env.num_envs, 1) for bound in bounds]


def fill_with_garbage(step: Step) -> None:
    """Leave in the buffers what no step would."""
    for name in BUFFERS:
        buffer = getattr(step, name)
        buffer.fill_(True if buffer.dtype == torch.bool else float("nan"))


def steps_after_reset(
    env: Environment, *, seed: int, garbage: bool = False
) -> list[dict[str, Any]]:
    """Return thirty steps after a reset."""
    env.reset(seed=seed)
    return next_steps(env, garbage=garbage)


def next_steps(env: Environment, *, garbage: bool = False) -> list[dict[str, Any]]:
    """Return thirty steps from here on: what is valid of each."""
    step, steps = env.make_step(), []
    for number in range(30):
        if garbage:
            fill_with_garbage(step)
        env.step(an_action(env, 100 + number), out=step)
        ended = step.terminated | step.truncated
        flags = {name: getattr(step, name).clone() for name in ("terminated", "truncated")}
        seen = {
            "packed": used(env, step.packed).clone(),
            "final_packed": used(env, step.final_packed[ended]).clone(),
        }
        statistics = step.statistics[ended].nan_to_num()  # NaN: the environment does not say
        steps.append({**seen, **flags, "reward": step.reward.clone(), "statistics": statistics})
    return steps


def used(env: Environment, rows: Tensor) -> Tensor:
    """Return rows without their padding, which is never written or read."""
    return rows[:, : env.observation.width - env.observation.padding]


def assert_same_steps(first: list[dict[str, Any]], second: list[dict[str, Any]]) -> None:
    """Fail at the first difference between two runs, by its name."""
    for number, (one, other) in enumerate(zip(first, second, strict=True)):
        for name in one:
            assert torch.equal(one[name], other[name]), f"{name} differs in step {number}"
