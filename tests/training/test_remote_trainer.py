"""PPO from batches of workers in this process: what is learned from, counted and saved."""

from __future__ import annotations

import sys

import pytest
import torch
from remote_workers import WorkersHere

import navrl
from navrl.config import load_config
from navrl.errors import ConfigError, MissingExtraError
from navrl.training.distributed.team import Team
from navrl.training.ppo_trainer import PPOTrainer
from navrl.training.remote.remote_trainer import RemoteTrainer
from navrl.training.remote.worker import Worker
from navrl.training.trainers import make_trainer
from point_environment import Point

SMALL = (
    "env=python",
    "env.target=point_environment:make_point",
    "env.num_envs=8",
    "algo.training_frame_num=16",
    "algo.training_epoch_num=2",
    "algo.num_minibatches=2",
    "max_frame_num=1280",
    "network.hidden=[8]",
    "flight.interim_episodes=4",
    "processes=1",
)
REMOTE = (*SMALL, "collect=ray", "collect.workers=2")


@pytest.fixture
def trainer_of():
    made = []

    def make(*overrides, workers=WorkersHere):
        made.append(RemoteTrainer(load_config([*REMOTE, *overrides]), Team(), make_workers=workers))
        return made[-1]

    yield make
    for one in made:
        one.close()


def state_of(trainer):
    return trainer.shared_state() | {"ranks": [trainer.own_state()]}


def test_an_iteration_has_as_many_frames_as_one_of_local_collection(trainer_of):
    trainer = trainer_of()
    batch = trainer.collect()
    assert batch.reward.shape == (16, 8)
    report = trainer.learn(batch)
    assert (report["collect/frames"], trainer.frames) == (128, 128)
    assert report["episodes"] == len(batch.episodes)


@pytest.mark.slow
def test_fresh_batches_have_weights_of_one_and_stale_ones_less(trainer_of):
    trainer = trainer_of(
        "algo.actor.learning_rate=0.05", "algo.feature_extractor.learning_rate=0.05"
    )
    first = trainer.collect()
    torch.testing.assert_close(first.importance, torch.ones_like(first.importance))
    reports = [trainer.learn(first)] + [trainer.learn(trainer.collect()) for _ in range(5)]
    assert max(report["collect/staleness"] for report in reports) >= 1
    assert min(report["collect/importance"] for report in reports) < 0.999


@pytest.mark.slow
def test_the_policy_learns_to_stay_near_the_middle(trainer_of):
    trainer = trainer_of("max_frame_num=5120", "algo.training_epoch_num=4")
    rewards = [trainer.learn(trainer.collect())["reward_mean"] for _ in range(trainer.iterations)]
    assert sum(rewards[-5:]) > sum(rewards[:5]) + 0.5


class Halting(Worker):
    """The second worker raises after its first batch."""

    def collect(self, message):
        if self.worker == 1 and self.number:
            raise OSError("the simulator fell over")
        return super().collect(message)


def halting(config, run, stream):
    return WorkersHere(config, run, stream, make=Halting)


@pytest.mark.slow
def test_training_goes_on_with_the_workers_that_are_left(trainer_of):
    trainer = trainer_of(workers=halting)
    for _ in range(6):
        report = trainer.learn(trainer.collect())
    assert trainer.iteration == 6
    assert report["collect/workers"] == 1
    assert "1 of 2 workers" in trainer.collection
    assert any("the simulator fell over" in sentence for sentence in trainer.news())


class OneBatch(WorkersHere):
    """One batch comes, and no other."""

    def start(self, worker):
        if worker == 0 and not self.workers[0].number:
            super().start(worker)


def test_frames_that_are_missing_at_the_deadline_do_not_count(trainer_of):
    trainer = trainer_of("collect.first_deadline=0.01", workers=OneBatch)
    collection = trainer._open()
    with collection._changed:
        assert collection._changed.wait_for(lambda: collection._inbox, 60)
    report = trainer.learn(trainer.collect())
    assert (report["collect/short"], trainer.frames) == (1, 64)
    other = trainer_of()
    other.load(state_of(trainer))
    assert (other.iteration, other.frames) == (1, 64)


@pytest.mark.slow
def test_a_run_goes_on_from_its_state_with_new_episodes(trainer_of):
    first, second = trainer_of(), trainer_of()
    for _ in range(3):
        first.learn(first.collect())
    state = state_of(first)
    assert state["ranks"][0]["env"] is None
    second.load(state)
    for name, value in first.network.state_dict().items():
        assert torch.equal(value, second.network.state_dict()[name])
    assert second.learn(second.collect())["collect/staleness"] == 0
    assert second.iteration == 4


@pytest.mark.slow
def test_a_run_may_change_between_local_and_remote_collection(trainer_of):
    local = PPOTrainer(load_config([*SMALL]), Team())
    local.learn(local.collect())
    remote = trainer_of()
    remote.load(state_of(local))
    remote.learn(remote.collect())
    local.load(state_of(remote))
    local.learn(local.collect())
    assert local.iteration == 3


def test_objects_of_the_caller_are_refused():
    config = load_config([*REMOTE])
    with pytest.raises(ConfigError, match=r"collect=ray.*env.target"):
        make_trainer(config, Team(), network=lambda layout: torch.nn.Identity())


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        (["collect.workers=2"], "no effect without collect=ray"),
        (["collect=ray", "collect.workers=3"], "a multiple of the 3 workers"),
        (["collect=ray", "processes=2"], "one process learns"),
        (["collect=ray", "use_pipelined_collector=true"], "leave it out"),
        (["collect=ray", "collect.deadline=0"], "collect.deadline is 0"),
        (["collect=ray", "collect.address=''"], "collect.address is empty"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(overrides, told):
    with pytest.raises(ConfigError, match=told):
        load_config([*SMALL, *overrides])


def test_sac_is_refused():
    with pytest.raises(ConfigError, match="algo=ppo, not sac"):
        load_config(["algo=sac", "collect=ray"])


def test_an_environment_as_an_object_is_refused_before_a_run_is_made(tmp_path):
    with pytest.raises(ConfigError, match="collect is ray, and the environment"):
        navrl.train(["collect=ray"], env=Point(4), folder=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_without_ray_the_error_says_what_to_install_before_a_run_is_made(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(
        MissingExtraError, match=r"collect=ray needs Ray: pip install 'navrl\[ray\]'"
    ):
        navrl.train([*REMOTE], folder=tmp_path / "run")
    assert not (tmp_path / "run").exists()
