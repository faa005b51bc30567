"""Collectors: one contract for all of them, and the simulator's own beside TorchRL's."""

from __future__ import annotations

import copy
import importlib
import sys
import warnings

import pytest
import torch
from collector_parts import (
    FRAMES,
    NUMBER,
    STEPS,
    collecting_threads,
    navigation,
    random_policy,
    same,
    settings,
    steer,
    torchrls,
)
from tensordict.nn import TensorDictModule
from torch import nn
from torchrl.collectors import BaseCollector
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
from torchrl.envs import ExplorationType
from torchrl.objectives.value import GAE

from navrl import CompressedDataCollector, PipelinedDataCollector
from navrl.adapters.collectors import NavigationCollector
from navrl.adapters.torchrl import episodes
from navrl.errors import CollectorError, ConfigError, MissingExtraError, StateError
from navrl.sim.env import NavigationEnv


def whole(batch):
    return batch.to_tensordict() if hasattr(batch, "to_tensordict") else batch


@pytest.fixture(scope="module")
def expected():
    """The batches of TorchRL's own collector, from the same seed with the same policy."""
    collector = torchrls()
    batches = list(collector)
    collector.shutdown()
    return batches


class CollectorContract:
    """What every collector promises; a new one inherits these tests by overriding `make`."""

    def make(self, **options):
        raise NotImplementedError

    def test_it_gives_as_many_frames_as_were_asked_for(self):
        batches = list(self.make(batches=3))
        assert [tuple(batch.batch_size) for batch in batches] == [(NUMBER, STEPS)] * 3

    def test_it_gives_what_torchrls_collector_gives(self, expected):
        batches = [whole(batch) for batch in self.make()]
        assert all(same(batch, other) for batch, other in zip(batches, expected, strict=True))

    def test_it_is_true_whether_it_has_a_length_or_not(self):
        assert self.make()

    def test_a_batch_that_is_kept_does_not_change(self, expected):
        kept = list(self.make())
        assert same(whole(kept[0]), expected[0])

    def test_it_goes_on_after_a_break(self, expected):
        collector = self.make()
        for _ in collector:
            break
        assert [
            same(whole(batch), other) for batch, other in zip(collector, expected[1:], strict=True)
        ] == [True, True]

    def test_shutting_down_twice_is_as_good_as_once(self):
        collector = self.make()
        next(iter(collector))
        collector.shutdown()
        collector.shutdown()
        assert collecting_threads() == []

    def test_an_error_of_the_policy_reaches_the_caller(self):
        def fail(tensordict):
            if tensordict["collector", "traj_ids"].max() >= NUMBER:  # in a second episode
                raise ZeroDivisionError("the policy is broken")
            return steer(tensordict)

        with pytest.raises((ZeroDivisionError, CollectorError), match="the policy is broken"):
            list(self.make(policy=fail, batches=10))
        assert collecting_threads() == []


class TestTheContractOfTorchRLs(CollectorContract):
    def make(self, **options):
        return torchrls(**options)


class TestTheContractOfTheSimulators(CollectorContract):
    def make(self, **options):
        return navigation(**options)


class TestTheContractOfAPipelinedOne(CollectorContract):
    def make(self, **options):
        return PipelinedDataCollector(navigation(**options), policy=None)


class TestTheContractOfAPipelinedOneThatReusesItsBatch(CollectorContract):
    def make(self, **options):
        return PipelinedDataCollector(
            navigation(return_same_td=True, **options), prefetch_count=1, policy=None
        )


class TestTheContractOfAPipelinedTorchRLs(CollectorContract):
    def make(self, **options):
        return PipelinedDataCollector(torchrls(return_same_td=True, **options), policy=None)


class TestTheContractOfAPipelinedGenerator(CollectorContract):
    def make(self, **options):
        return PipelinedDataCollector(
            (batch for batch in navigation(return_same_td=True, **options)), policy=None
        )


class TestTheContractOfACompressedOne(CollectorContract):
    def make(self, **options):
        return CompressedDataCollector(navigation(return_same_td=True, **options))


class TestTheContractOfACompressedOneThatIsSwitchedOff(CollectorContract):
    def make(self, **options):
        return CompressedDataCollector(navigation(return_same_td=True, **options), compress=False)


class TestTheContractOfAPipelinedCompressedOne(CollectorContract):
    def make(self, **options):
        return PipelinedDataCollector(
            CompressedDataCollector(navigation(return_same_td=True, **options)), policy=None
        )


# ---------------------------------------------------------------------- beside TorchRL's own


def test_it_is_one_of_torchrls_collectors():
    assert isinstance(navigation(), BaseCollector)


def test_the_batch_has_torchrls_layout():
    ours, theirs = next(iter(navigation())), next(iter(torchrls()))
    assert ours.names == theirs.names == [None, "time"]
    assert ours.device == theirs.device
    assert set(ours.keys(True)) == set(theirs.keys(True))


def test_random_actions_and_their_log_probabilities_are_torchrls_too():
    batches = []
    for make in (navigation, torchrls):
        collector = make(random_policy())
        torch.manual_seed(5)
        batches.append(list(collector))
    assert all(same(ours, theirs) for ours, theirs in zip(*batches, strict=True))
    assert (batches[0][0]["action_log_prob"] != 0).all()


@pytest.mark.parametrize("split", [True, False])
def test_trajectories_are_split_as_torchrl_splits_them(split):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ours, theirs = list(navigation(split_trajs=split)), list(torchrls(split_trajs=split))
    assert all(same(a, b) for a, b in zip(ours, theirs, strict=True))
    assert ("collector", "mask") in ours[-1].keys(True) or not split


def test_resetting_with_each_batch_begins_new_trajectories_as_torchrl_does():
    ours = list(navigation(reset_at_each_iter=True))
    theirs = list(torchrls(reset_at_each_iter=True))
    assert all(
        torch.equal(a["collector", "traj_ids"], b["collector", "traj_ids"])
        for a, b in zip(ours, theirs, strict=True)
    )
    assert not ours[-1]["next", "truncated"].any()  # nobody is old enough
    assert (ours[1]["state"][:, 0, 5:8] == 0).all()  # and all begin at rest


def test_postprocessing_makes_what_is_handed_out():
    collector = navigation(
        postproc=lambda batch: batch.select("action").set("twice", 2 * batch["action"])
    )
    batches = list(collector)
    assert {tuple(batch.keys()) for batch in batches} == {("action", "twice")}
    assert all((batch["twice"] == 2 * batch["action"]).all() for batch in batches)


def test_torchrls_hooks_are_called_around_each_batch():
    collector, called = navigation(batches=2), []
    collector.pre_collect_hook = lambda: called.append("before")
    collector.post_collect_hook = called.append
    batches = list(collector)
    assert called[0] == called[2] == "before"
    assert called[1] is batches[0]
    assert called[3] is batches[1]


def test_a_partial_reset_begins_new_trajectories_only_where_asked():
    collector = navigation(batches=2)
    batches = iter(collector)
    before = next(batches)
    chosen = torch.tensor([1, 4])
    collector.reset(chosen)
    after = next(batches)
    fresh = after["collector", "traj_ids"][:, 0] > before["collector", "traj_ids"].max()
    assert fresh.nonzero().flatten().tolist() == chosen.tolist()
    assert (after["state"][chosen, 0, 5:8] == 0).all()
    others = [
        drone
        for drone in range(NUMBER)
        if drone not in chosen and not before["next", "done"][drone, -1]
    ]
    assert torch.equal(after["state"][others, 0], before["next", "state"][others, -1])


def test_the_same_batch_is_handed_out_again_only_if_asked_for():
    first, second = list(navigation(batches=2, return_same_td=True))
    assert first is second
    assert first["lidar"].data_ptr() == second["lidar"].data_ptr()
    first, second = list(navigation(batches=2))
    assert first["lidar"].data_ptr() != second["lidar"].data_ptr()


def test_what_is_done_to_a_batch_does_not_spoil_the_next_one(expected):
    for batch, other in zip(navigation(return_same_td=True), expected, strict=True):
        assert same(batch.exclude("advantage"), other)
        batch["advantage"] = batch["next", "reward"].clone()
        batch["next", "reward"] = torch.zeros(NUMBER, STEPS, 1)  # another tensor in its place
        batch["action"] = torch.zeros(NUMBER, STEPS, 3)
        batch["done"].fill_(True)  # or the same one, written
        batch["lidar"].fill_(7)
        batch.lock_()


def test_evaluation_flies_by_the_mean_and_training_does_not():
    def actions(kind):
        return next(iter(navigation(random_policy(), exploration_type=kind)))

    mean, drawn = actions(ExplorationType.MEAN), actions(ExplorationType.RANDOM)
    assert torch.equal(mean["action"], mean["loc"])
    assert not torch.equal(drawn["action"], drawn["loc"])


def test_without_a_policy_actions_are_random_within_the_limits():
    collector = navigation(None)
    actions = next(iter(collector))["action"]
    assert actions.abs().max() <= collector.env.settings.env.action_limit
    assert actions.std() > 0.5


def test_statistics_of_ended_episodes_come_by_name():
    data = torch.cat(list(navigation(batches=5)), dim=1)
    lengths = episodes(data)["length"]
    assert len(lengths) >= 2 * NUMBER
    assert (lengths > 0).all()
    assert (data["next", "stats"][~data["next", "done"].squeeze(-1)] == 0).all()


def test_a_trajectory_number_names_one_episode_of_one_drone():
    data = torch.cat(list(navigation(batches=5)), dim=1)
    ids, done = data["collector", "traj_ids"], data["next", "done"].squeeze(-1)
    changes = ids[:, 1:] != ids[:, :-1]
    assert torch.equal(changes, done[:, :-1])
    assert len(ids.unique()) == NUMBER + int(changes.sum())


def test_a_batch_goes_through_gae_and_a_replay_buffer():
    value = TensorDictModule(nn.Linear(8, 1), ["state"], ["state_value"])
    batch = next(iter(navigation()))
    GAE(gamma=0.99, lmbda=0.95, value_network=value, average_gae=True)(batch)
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(FRAMES), batch_size=8)
    buffer.extend(batch.reshape(-1))
    sample = buffer.sample()
    assert sample["advantage"].shape == (8, 1)
    assert len(buffer) == FRAMES


def test_the_speed_is_measured_over_the_time_of_collecting():
    collector = navigation(batches=2)
    assert collector.fps == 0
    list(collector)
    assert 0 < collector.fps < 1e8


def test_it_continues_bit_for_bit_from_its_state():
    collector = navigation(random_policy(), batches=6)
    batches = iter(collector)
    next(batches)
    state = collector.state_dict()
    torch.manual_seed(3)
    following = [next(batches) for _ in range(3)]
    restored = navigation(random_policy(seed=9), batches=4)
    restored.load_state_dict(state)
    torch.manual_seed(3)
    assert all(same(ours, theirs) for ours, theirs in zip(restored, following, strict=True))


def test_a_state_of_something_else_is_refused():
    with pytest.raises(StateError, match="lacks env_state_dict"):
        navigation().load_state_dict({"frames": 3})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("observation", torch.zeros(1, 2)),
        ("traj_ids", [1, 2]),
        ("traj_pool", {}),
        ("frames", "many"),
        ("policy_state_dict", {"module.0.module.linear.weight": torch.full((3, 8), 7.0)}),
        ("env_state_dict", {}),
    ],
)
def test_a_state_of_which_a_part_does_not_fit_changes_nothing(name, value):
    collector = navigation(random_policy(), batches=9)
    batches = iter(collector)
    wrong = copy.deepcopy({**collector.state_dict(), name: value})
    next(batches)
    before = copy.deepcopy(collector.state_dict())
    with pytest.raises(StateError):
        collector.load_state_dict(wrong)
    after = collector.state_dict()
    assert all(
        torch.equal(after["policy_state_dict"][key], kept)
        for key, kept in before["policy_state_dict"].items()
    )
    assert after["frames"] == before["frames"]
    assert torch.equal(after["observation"], before["observation"])
    assert torch.equal(after["traj_ids"], before["traj_ids"])
    for key, kept in before["env_state_dict"].items():
        now = after["env_state_dict"][key]
        assert torch.equal(now, kept) if isinstance(kept, torch.Tensor) else now == kept


@pytest.mark.parametrize("make", [navigation, torchrls], ids=["navrl", "torchrl"])
def test_after_one_more_step_everything_depends_on_the_seed_alone(make):
    def flown(seed, batches_before):
        collector = make(batches=6)
        batches = iter(collector)
        for _ in range(batches_before):
            next(batches)
        collector.set_seed(seed)
        batch = next(batches)
        collector.shutdown()
        assert batch["next", "done"][:, 0].all()
        return batch[:, 1:].exclude("collector")

    assert same(flown(4, 0), flown(4, 2))
    assert not torch.equal(flown(4, 0)["state"], flown(5, 0)["state"])


@pytest.mark.parametrize("options", [{}, {"reset_at_each_iter": True}], ids=["cut", "reset"])
def test_a_seed_means_the_same_to_both_collectors_and_both_return_torchrls_next_seed(options):
    ours, theirs = navigation(batches=4, **options), torchrls(batches=4, **options)
    assert ours.set_seed(7) == theirs.set_seed(7) != 7
    assert ours.set_seed(7, static_seed=True) == theirs.set_seed(7, static_seed=True) == 7
    batches = iter(theirs)
    for number, batch in enumerate(ours):
        assert same(batch, next(batches))
        if number == 1:
            assert ours.set_seed(8) == theirs.set_seed(8)
    theirs.shutdown()


def test_a_seed_that_has_not_been_used_is_part_of_the_state():
    collector, restored = navigation(), navigation()
    collector.set_seed(4)
    restored.load_state_dict(collector.state_dict())
    assert all(same(ours, theirs) for ours, theirs in zip(restored, collector, strict=True))


def test_episodes_that_a_seed_cut_have_no_statistics():
    collector = navigation()
    collector.set_seed(4)
    batch = next(iter(collector))
    assert batch["next", "truncated"][:, 0].all()
    assert len(episodes(batch)["length"]) == int(batch["next", "done"].sum()) - NUMBER


# ---------------------------------------------------------------------- options of TorchRL's
# collector


def test_the_first_frames_are_flown_at_random_if_asked_for():
    policy = random_policy()
    torch.manual_seed(1)
    ours = [batch.clone() for batch in navigation(policy, init_random_frames=FRAMES)]
    theirs = torchrls(policy, init_random_frames=FRAMES)
    torch.manual_seed(1)
    for batch, expected in zip(ours, theirs, strict=True):
        assert torch.equal(batch["action"], expected["action"])
        assert torch.equal(batch["next", "state"], expected["next", "state"])
    theirs.shutdown()
    assert "action_log_prob" not in ours[0]
    assert ours[1]["action_log_prob"].any()


def test_a_replay_buffer_gets_the_batches():
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(3 * NUMBER), batch_size=4)
    collector = navigation(batches=3, replay_buffer=buffer)
    assert list(collector) == [None] * 3
    assert len(buffer) == 3 * NUMBER
    assert buffer.sample()["lidar"].shape[:2] == (4, STEPS)


@pytest.mark.parametrize("reuse", [False, True])
def test_batches_are_put_on_the_storing_device(reuse):
    first, second = list(navigation(batches=2, storing_device="meta", return_same_td=reuse))
    assert first["lidar"].device.type == second["next", "reward"].device.type == "meta"
    assert (first is second) == reuse


@pytest.mark.parametrize(
    ("option", "told"),
    [
        ("max_frames_per_traj", "does not take max_frames_per_traj: set env.max_episode_length"),
        ("compile_policy", "torch.compile"),
        ("total_frame", "Did you mean 'total_frames'?"),
        ("interruptor", "does not take interruptor"),
    ],
)
def test_an_option_that_it_does_not_take_is_named(option, told):
    with pytest.raises(ConfigError, match=told.replace("?", r"\?")):
        navigation(**{option: 3})


@pytest.mark.parametrize("form", ["module", "state_dict", "tensordict"])
def test_weights_are_copied_into_the_policy(form):
    from tensordict import TensorDict

    policy, other = random_policy(0), random_policy(1)
    forms = {
        "module": other,
        "state_dict": other.state_dict(),
        "tensordict": TensorDict.from_module(other),
    }
    navigation(policy).update_policy_weights_(forms[form])
    assert all(
        torch.equal(a, b) for a, b in zip(policy.parameters(), other.parameters(), strict=True)
    )
    assert not any(
        a.data_ptr() == b.data_ptr()
        for a, b in zip(policy.parameters(), other.parameters(), strict=True)
    )


def test_a_number_of_frames_that_does_not_fit_is_rounded_up_and_said():
    with pytest.warns(UserWarning, match="batches will have 16 frames"):
        collector = NavigationCollector(settings(), steer, frames_per_batch=NUMBER + 1)
    assert next(iter(collector)).shape == (NUMBER, 2)


def test_a_collector_that_was_shut_down_says_so():
    collector = navigation()
    collector.shutdown()
    with pytest.raises(CollectorError, match="shut down"):
        next(iter(collector))


def test_a_simulator_that_waits_for_resets_is_refused():
    with pytest.raises(ConfigError, match="auto_reset=True"):
        NavigationCollector(
            NavigationEnv(settings(), auto_reset=False), steer, frames_per_batch=FRAMES
        )


def test_a_policy_that_gives_no_action_is_refused():
    with pytest.raises(CollectorError, match="expected it to write 'action'"):
        next(
            iter(
                navigation(
                    lambda tensordict: tensordict.set("velocity", tensordict["state"][:, :3])
                )
            )
        )


def test_without_torchrl_the_import_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "torchrl.collectors", None)
    monkeypatch.delitem(sys.modules, "navrl.adapters.collectors")
    with pytest.raises(MissingExtraError, match=r"pip install 'navrl\[torchrl\]'"):
        importlib.import_module("navrl.adapters.collectors")
