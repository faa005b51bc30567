"""PPO of rsl_rl under its OnPolicyRunner on our VecEnv, as fast as the speed benchmark runs it."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from rsl_rl.runners import OnPolicyRunner
from tensordict import TensorDict
from torch import Tensor

from _learning_peers.course import Run
from _learning_peers.recipes import recipe_for
from _training_peers.rsl_rl_runner import Actor, Critic
from navrl.adapters.navigation_environment import NavigationEnvironment
from navrl.adapters.rsl_rl import RslRlVecEnv
from navrl.sim.env import NavigationEnv


class RowsVecEnv(RslRlVecEnv):
    """Our VecEnv with whole rows in one group, which saves a copy for each part."""

    def _groups(self, rows: Tensor) -> TensorDict:
        return TensorDict({"rows": rows}, [self.num_envs])


class Runner:
    """One iteration of the runner at a time."""

    def __init__(self, run: Run) -> None:
        self.run, algo, task = run, run.config.algo, run.task()
        self.recipe = recipe = recipe_for(run.learner, run.recipe, algo)
        self.simulator = NavigationEnv(task, seed=run.seed * 1024)
        self.simulator.reset()
        length = -(-task.env.max_episode_length // task.env.action_repeat)
        env = RowsVecEnv(NavigationEnvironment(self.simulator), max_episode_length=length)
        self.frames = env.num_envs * recipe.steps
        algorithm = {
            "class_name": "rsl_rl.algorithms:PPO",
            "num_learning_epochs": recipe.epochs,
            "num_mini_batches": recipe.minibatches,
            "clip_param": recipe.clip,
            "use_clipped_value_loss": recipe.value_clip > 0,
            "value_loss_coef": recipe.value_coefficient,
            "entropy_coef": recipe.entropy,
            "learning_rate": recipe.learning_rate,
            "max_grad_norm": recipe.gradient_norm,
            "gamma": algo.gamma,
            "lam": algo.gae_lambda,
            "schedule": "adaptive" if recipe.target_kl else "fixed",
            "desired_kl": recipe.target_kl or None,
        }
        configuration = {
            "num_steps_per_env": recipe.steps,
            "save_interval": 2**62,
            "check_for_nan": False,
            "obs_groups": {"actor": ["rows"], "critic": ["rows"]},
            "actor": {
                "class_name": Actor,
                "limit": task.env.action_limit,
                "network": run.network(),
            },
            "critic": {"class_name": Critic},
            "algorithm": algorithm,
        }
        self.runner = OnPolicyRunner(env, configuration, log_dir=None, device="cpu")
        self.ppo = self.runner.alg
        self.ppo.critic.actors.append(self.ppo.actor)
        self.network = self.ppo.actor.network  # a copy: the runner copies its configuration
        self.ppo.optimizer = torch.optim.Adam(
            self.network.parameters(), lr=recipe.learning_rate, eps=recipe.adam_epsilon, fused=True
        )
        self.runner.logger.log = lambda **_: None

    def iterate(self, decisions: int) -> int:
        progress = decisions / self.run.decisions
        self.simulator.set_collision_penalty(self.run.collision_penalty(decisions))
        self.ppo.entropy_coef = self.recipe.entropy_at(progress)
        if not self.recipe.target_kl:
            self._set_rate(self.recipe.rate(progress))
        self.runner.learn(1)
        return self.frames

    def _set_rate(self, rate: float) -> None:
        self.ppo.learning_rate = rate
        for group in self.ppo.optimizer.param_groups:
            group["lr"] = rate

    def state(self) -> dict[str, Any]:
        return {
            "network": self.network.state_dict(),
            "optimizer": self.ppo.optimizer.state_dict(),
            "learning_rate": self.ppo.learning_rate,
        }

    def load(self, state: dict[str, Any]) -> None:
        self.network.load_state_dict(state["network"])
        self.ppo.optimizer.load_state_dict(state["optimizer"])
        self._set_rate(state["learning_rate"])


def make(run: Run) -> Runner:
    # the critic has no parameters of its own
    warnings.filterwarnings("ignore", message="`parameters` is an empty generator")
    return Runner(run)
