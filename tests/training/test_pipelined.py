"""Collecting ahead in a training: which weights acted, and a resumed run that ends as if nothing
had happened.
"""

from __future__ import annotations

import copy

import pytest
import torch

from navrl.config import load_config
from navrl.errors import ConfigError
from navrl.io.checkpoint.checkpoint_file import load_checkpoint, save_checkpoint
from navrl.rl.distributions import beta
from navrl.training.distributed.team import Team
from navrl.training.ppo_trainer import PPOTrainer

SMALL = (
    "preset=smoke",
    "env.num_envs=32",
    "env.num_worlds=2",
    "env.num_obstacles=10",
    "env_dyn.num_obstacles=8",
    "algo.training_frame_num=8",
    "algo.num_minibatches=2",
    "max_frame_num=1280",
    "env.max_episode_length=20",
    "curriculum.final_collision=50",
    "use_pipelined_collector=true",
)


def trainer_of(*overrides):
    return PPOTrainer(load_config([*SMALL, *overrides]), Team())


def acted(trainer, batch, weights):
    """Tell whether the log-densities of a batch are those of given weights."""
    judge = copy.deepcopy(trainer.network)
    judge.load_state_dict(weights)
    with torch.no_grad():
        heads = judge(batch.rows[:-1].flatten(0, 1))
        density, _ = beta.log_prob_and_entropy(heads, batch.action.flatten(0, 1))
    return torch.allclose(density, batch.log_prob.flatten(), atol=1e-3)


def state_of(trainer):
    return trainer.shared_state() | {"ranks": [trainer.own_state()]}


def test_each_batch_is_flown_with_the_weights_from_before_the_last_update():
    trainer = trainer_of(
        "algo.feature_extractor.learning_rate=0.05", "algo.actor.learning_rate=0.05"
    )
    versions = [copy.deepcopy(trainer.network.state_dict())]
    for number in range(trainer.iterations):
        batch = trainer.collect()
        assert acted(trainer, batch, versions[max(0, number - 1)])
        if number > 1:
            assert not acted(trainer, batch, versions[number])
        kept = batch.rows.clone()
        trainer.learn(batch)
        assert torch.equal(batch.rows, kept)  # while the next one was flown
        versions.append(copy.deepcopy(trainer.network.state_dict()))


def test_batches_follow_one_another():
    trainer = trainer_of()
    first = trainer.collect()
    trainer.learn(first)
    assert torch.equal(first.rows[-1], trainer.collect().rows[0])


@pytest.mark.slow
@pytest.mark.parametrize("learnt", [0, 1, 3, 5])
def test_a_run_goes_on_from_a_file_bit_for_bit(learnt, tmp_path):
    first, second = trainer_of(), trainer_of()
    for _ in range(learnt):
        first.learn(first.collect())
    save_checkpoint(state_of(first), tmp_path / "state.pt")
    second.load(load_checkpoint(tmp_path / "state.pt"))
    for trainer in (first, second):
        while trainer.iteration < trainer.iterations:
            trainer.report = trainer.learn(trainer.collect())
    if learnt < first.iterations:
        assert first.report == pytest.approx(second.report, abs=0, rel=0, nan_ok=True)
    for name, value in first.network.state_dict().items():
        assert torch.equal(value, second.network.state_dict()[name])
    assert torch.equal(first.own_state()["actions"], second.own_state()["actions"])


def test_a_trainer_that_is_ahead_can_be_set_back():
    trainer = trainer_of()
    trainer.learn(trainer.collect())
    state = copy.deepcopy(state_of(trainer))
    following = trainer.collect().rows.clone()
    trainer.load(state)
    assert torch.equal(trainer.collect().rows, following)


def test_what_goes_wrong_while_flying_ahead_reaches_the_training(monkeypatch):
    trainer = trainer_of()
    batch = trainer.collect()

    def fall(*_, **__):
        raise OSError("the simulator fell over")

    monkeypatch.setattr(trainer.env, "step", fall)
    with pytest.raises(OSError, match="fell over"):
        trainer.learn(batch)


def test_an_algorithm_that_does_not_collect_ahead_refuses_the_setting():
    with pytest.raises(ConfigError, match="use_pipelined_collector is true; algo=sac"):
        load_config(["algo=sac", "use_pipelined_collector=true"])
