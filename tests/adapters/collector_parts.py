"""Small simulators, policies and collectors for the tests of collectors."""

from __future__ import annotations

import threading
import warnings

import torch
from tensordict.nn import (
    ProbabilisticTensorDictModule,
    ProbabilisticTensorDictSequential,
    TensorDictModule,
)
from torch import nn
from torchrl.collectors import Collector
from torchrl.envs import ExplorationType

from navrl.adapters.collectors import NavigationCollector
from navrl.adapters.torchrl import TorchRLNavigationEnv
from navrl.sim.settings import NavigationSettings

NUMBER = 8  # drones
STEPS = 5
FRAMES = NUMBER * STEPS
LENGTH = 12  # steps of the longest episode: every batch or two episodes end


def settings():
    return NavigationSettings.of(
        env__num_envs=NUMBER,
        env__num_worlds=1,
        env__max_episode_length=LENGTH,
        env__num_obstacles=40,
        env_dyn__num_obstacles=4,
        sim__num_threads=1,
    )


def steer(tensordict):
    """Fly in a direction that depends on what is seen: the same for the same observations."""
    tensordict["action"] = 2 * torch.tanh(
        tensordict["state"][..., :3] + tensordict["lidar"].mean((-1, -2))
    )
    return tensordict


class Independent(torch.distributions.Independent):
    def __init__(self, loc, scale):
        super().__init__(torch.distributions.Normal(loc, scale), 1)


class Heads(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 3)

    def forward(self, state):
        loc = torch.tanh(self.linear(state))
        return loc, torch.full_like(loc, 0.3)


def random_policy(seed=0):
    """Return a policy that draws actions and writes their log-probabilities."""
    torch.manual_seed(seed)
    return ProbabilisticTensorDictSequential(
        TensorDictModule(Heads(), ["state"], ["loc", "scale"]),
        ProbabilisticTensorDictModule(
            in_keys=["loc", "scale"],
            out_keys=["action"],
            distribution_class=Independent,
            return_log_prob=True,
            log_prob_key="action_log_prob",
            default_interaction_type=ExplorationType.RANDOM,
        ),
    )


def navigation(policy=steer, *, batches=3, **options):
    return NavigationCollector(
        settings(), policy, frames_per_batch=FRAMES, total_frames=batches * FRAMES, **options
    )


def torchrls(policy=steer, *, batches=3, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return Collector(
            TorchRLNavigationEnv(settings()),
            policy,
            frames_per_batch=FRAMES,
            total_frames=batches * FRAMES,
            trust_policy=True,
            **options,
        )


def same(first, second):
    """Tell whether two TensorDicts have the same keys, shapes, types and bits."""
    keys = set(first.keys(True, True))
    return keys == set(second.keys(True, True)) and all(
        first.get(key).dtype == second.get(key).dtype
        and first.get(key).shape == second.get(key).shape
        and torch.equal(first.get(key), second.get(key))
        for key in keys
    )


def collecting_threads():
    return [thread for thread in threading.enumerate() if thread.name == "navrl-collector"]
