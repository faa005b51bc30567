"""The example of an observation of one's own keeps the contract, and adds what it says."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

import navrl
from navrl.testing import EnvironmentContract

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
from own_observation import RemembersAction, make


class TestRemembersAction(EnvironmentContract):
    def make(self) -> RemembersAction:
        return make(num_envs=4, action_repeat=1)  # lengths are in simulated steps


def test_the_last_command_follows_the_parts_of_the_simulator():
    env = make(4)
    first = env.observation.split(env.reset(seed=0))
    assert not first["previous_action"].any()
    action = torch.tensor([[1.0, 0.5, -1.0]]).repeat(4, 1)
    step = env.step(action, out=env.make_step())
    parts = env.observation.split(step.packed)
    assert torch.equal(parts["previous_action"], action / 2)
    assert set(first) == {"lidar", "dynamic_obstacle", "state", "direction", "previous_action"}


@pytest.mark.slow
def test_it_is_trained(tmp_path):
    run = navrl.train(
        [
            "env=python",
            "env.num_envs=16",
            "algo.training_frame_num=8",
            "algo.num_minibatches=2",
            "max_frame_num=256",
            "flight.episodes=4",
            "flight.interim_episodes=4",
            "registry.name=''",
        ],
        env=make,
        folder=tmp_path / "run",
    )
    assert run.folder.is_dir()
