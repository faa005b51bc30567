"""Weights that are not finite stop a training, are never saved, and are never gone on from."""

from __future__ import annotations

import copy

import pytest
import torch

from navrl.cli import main
from navrl.config import as_dict, load_config
from navrl.errors import ConfigError
from navrl.io.checkpoint.checkpoint_file import load_checkpoint
from navrl.rl.finite import DivergedError
from navrl.training.distributed.team import Team
from navrl.training.trainers import make_trainer

SMALL = (
    "preset=smoke",
    "env.num_envs=32",
    "env.num_worlds=2",
    "env.num_obstacles=10",
    "env_dyn.num_obstacles=0",
    "max_frame_num=1024",
    "flight.episodes=8",
    "flight.interim_episodes=8",
    "flight.worlds=1",
    "flight.recorded=0",
    "flight.animation=false",
    "processes=1",
)
PPO = ("algo.training_frame_num=8", "algo.num_minibatches=2")
SAC = (
    "algo=sac",
    "sac.training_frame_num=8",
    "sac.batch_size=64",
    "sac.warmup=256",
    "sac.capacity=1000",
    "sac.critic_width=32",
)
# weights without a gradient, here those of moving obstacles, become 0 / 0
DIVERGES = "algo.adam_epsilon=0"


def trainer_of(*overrides):
    return make_trainer(load_config([*SMALL, *overrides]), Team())


def state_of(trainer):
    """What a checkpoint holds, as the loop puts it together."""
    return copy.deepcopy(
        trainer.shared_state() | {"ranks": [trainer.own_state()], "config": as_dict(trainer.config)}
    )


@pytest.mark.slow
def test_an_update_that_spoils_a_weight_stops_with_iteration_and_parameter():
    trainer = trainer_of(*PPO, DIVERGES)
    with pytest.raises(DivergedError, match=r"^iteration 1: .*'dynamic.0.weight' \(6400 of 6400\)"):
        trainer.learn(trainer.collect())
    with pytest.raises(DivergedError, match="iteration 1"):
        trainer.shared_state()


def test_an_update_of_sac_that_spoils_a_weight_stops_with_iteration_and_parameter():
    trainer = trainer_of(*SAC)
    with torch.no_grad():
        trainer.sac.critic.weights[0].view(-1)[5] = torch.nan
    with pytest.raises(DivergedError, match=r"^iteration 1: .*'critic.weights.0'"):
        trainer.learn(trainer.collect())
    with pytest.raises(DivergedError, match="iteration 1"):
        trainer.shared_state()


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize(
    ("overrides", "parts", "name"),
    [
        (PPO, ("model_state_dict", "lidar.0.weight"), "network.lidar.0.weight"),
        (PPO, ("normaliser", "running_mean"), "normaliser.running_mean"),
        (SAC, ("model_state_dict", "alpha.bias"), "network.alpha.bias"),
        (SAC, ("sac", "critic", "weights.0"), "critic.weights.0"),
        (SAC, ("sac", "target", "biases.1"), "target.biases.1"),
        (SAC, ("sac", "log_temperature"), "log_temperature"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_checkpoint_with_a_bad_weight_is_refused_by_name_and_nothing_is_loaded(
    overrides, parts, name, bad
):
    trainer = trainer_of(*overrides)
    state, before = state_of(trainer), copy.deepcopy(trainer.network.state_dict())
    tensor = state
    for part in parts:
        tensor = tensor[part]
    tensor.view(-1)[-1] = bad
    state["model_state_dict"]["critic.bias"] += 1
    with pytest.raises(
        ConfigError, match=rf"checkpoint of iteration 0: parameter '{name}' holds NaN or infinite"
    ):
        trainer.load(state)
    assert all(
        torch.equal(before[key], value) for key, value in trainer.network.state_dict().items()
    )


@pytest.mark.slow
def test_a_training_that_diverges_ends_with_an_error_and_leaves_good_checkpoints_only(
    tmp_path, capsys
):
    arguments = [
        *SMALL,
        *PPO,
        DIVERGES,
        "headless=true",
        "save_interval=1",
        f"run_folder={tmp_path / 'run'}",
    ]
    assert main(["train", *arguments]) != 0
    assert "iteration 1: an update has diverged: parameter" in capsys.readouterr().err
    checkpoints = [*(tmp_path / "run" / "checkpoints").glob("checkpoint_*.pt")]
    assert checkpoints
    for path in checkpoints:
        assert all(
            tensor.isfinite().all() for tensor in load_checkpoint(path)["model_state_dict"].values()
        )
