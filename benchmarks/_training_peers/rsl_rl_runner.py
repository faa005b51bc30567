"""PPO of rsl_rl under its OnPolicyRunner, with its own Beta distribution.

Chosen for speed: packed observations in one group; actor and critic share the network, and the
critic takes its value from the pass that the actor has just made on the same observations; fused
Adam; no log folder, no check for NaN, fixed learning rate. Its value loss is the squared error,
which costs no more than the others' Huber loss.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
from rsl_rl.env import VecEnv
from rsl_rl.models import MLPModel
from rsl_rl.modules.distribution import BetaDistribution
from rsl_rl.runners import OnPolicyRunner
from tensordict import TensorDict
from torch import Tensor, nn

from _training_peers.task import Task, make_network
from navrl.sim.env import NavigationEnv


class DroneVecEnv(VecEnv):
    """The simulator as rsl_rl wants it."""

    def __init__(self, task: Task) -> None:
        self.simulator = NavigationEnv(task.settings(), seed=0)
        self.num_envs, self.num_actions, self.device, self.cfg = task.drones, 3, "cpu", {}
        self.max_episode_length = self.simulator.settings.env.max_episode_length
        self.episode_length_buf = torch.zeros(task.drones, dtype=torch.long)
        self.simulator.reset()
        self.result = self.simulator.step(torch.zeros(task.drones, 3))

    def get_observations(self) -> TensorDict:
        return TensorDict({"rows": self.result.packed}, [self.num_envs])

    def step(self, actions: Tensor) -> tuple[TensorDict, Tensor, Tensor, dict[str, Tensor]]:
        # new tensors: the runner still needs the old ones
        self.result = self.simulator.step(actions)
        result = self.result
        return self.get_observations(), result.reward, result.done, {"time_outs": result.truncated}


class Actor(MLPModel):
    """The whole network; `last` keeps its heads and the observations they belong to."""

    def __init__(
        self,
        obs: TensorDict,
        obs_groups: dict[str, Any],
        obs_set: str,
        output_dim: int,
        limit: float,
        network: nn.Module | None = None,
    ) -> None:
        nn.Module.__init__(self)
        self.network, self.obs_normalization = network or make_network(), False
        self.distribution = BetaDistribution(output_dim, (-limit, limit))
        self.last: tuple[Any, Any] = (None, None)

    def forward(
        self,
        obs: TensorDict,
        masks: Any = None,
        hidden_state: Any = None,
        stochastic_output: bool = False,
    ) -> Tensor:
        heads = self.network(obs["rows"])
        self.last = obs, heads
        self.distribution.update(heads[:, :6].view(-1, 2, 3))
        return self.distribution.sample()


class Critic(MLPModel):
    """The value head of the actor's network; it has no parameters of its own."""

    def __init__(
        self, obs: TensorDict, obs_groups: dict[str, Any], obs_set: str, output_dim: int
    ) -> None:
        nn.Module.__init__(self)
        self.obs_normalization = False
        self.actors: list[Actor] = []  # in a list, so that its parameters are not counted twice

    def forward(
        self,
        obs: TensorDict,
        masks: Any = None,
        hidden_state: Any = None,
        stochastic_output: bool = False,
    ) -> Tensor:
        last, heads = self.actors[0].last
        return (heads if obs is last else self.actors[0].network(obs["rows"]))[:, 6:]


class Runner:
    """One iteration of the runner at a time; it reports its own times to the logger."""

    def __init__(self, task: Task) -> None:
        env = DroneVecEnv(task)
        limit = env.simulator.settings.env.action_limit
        algorithm = {
            "class_name": "rsl_rl.algorithms:PPO",
            "num_learning_epochs": task.epochs,
            "gamma": task.discount,
            "num_mini_batches": task.minibatches,
            "clip_param": task.clip,
            "entropy_coef": task.entropy,
            "learning_rate": task.learning_rate,
            "max_grad_norm": task.gradient_norm,
            "lam": task.trace,
            "schedule": "fixed",
            "desired_kl": None,
        }
        groups = {"actor": ["rows"], "critic": ["rows"]}
        configuration = {
            "num_steps_per_env": task.steps,
            "save_interval": 2**62,
            "check_for_nan": False,
            "obs_groups": groups,
            "actor": {"class_name": Actor, "limit": limit},
            "critic": {"class_name": Critic},
            "algorithm": algorithm,
        }
        self.runner = OnPolicyRunner(env, configuration, log_dir=None, device="cpu")
        ppo = self.runner.alg
        ppo.critic.actors.append(ppo.actor)
        ppo.optimizer = torch.optim.Adam(ppo.actor.parameters(), lr=task.learning_rate, fused=True)
        self.runner.logger.log = self._note
        self.times = (0.0, 0.0)

    def _note(self, *, collect_time: float, learn_time: float, **_: Any) -> None:
        self.times = collect_time, learn_time

    def iterate(self) -> tuple[float, float]:
        self.runner.learn(1)
        return self.times


def make(task: Task) -> Runner:
    # the critic's own are none
    warnings.filterwarnings("ignore", message="`parameters` is an empty generator")
    return Runner(task)
