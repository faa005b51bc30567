"""PPO of skrl under its SequentialTrainer, as fast as the speed benchmark runs it.

Time-outs are bootstrapped; Isaac Lab leaves that off, but then skrl's advantages would run on from
one episode into the next.
"""

from __future__ import annotations

from typing import Any

import torch
from skrl.agents.torch.ppo import PPO
from skrl.memories.torch import RandomMemory
from skrl.resources.schedulers.torch import KLAdaptiveLR
from skrl.trainers.torch import SequentialTrainer

from _learning_peers.course import Run
from _learning_peers.recipes import Recipe, recipe_for
from _training_peers.skrl_trainer import DroneWrapper, NavigationModel
from navrl.sim.env import NavigationEnv


class Agent:
    """One iteration is one run of the trainer, as long as a rollout."""

    def __init__(self, run: Run) -> None:
        self.run, algo = run, run.config.algo
        self.recipe = recipe = recipe_for(run.learner, run.recipe, algo)
        self.simulator = NavigationEnv(run.task(), seed=run.seed * 1024)
        env = DroneWrapper(self.simulator)
        self.frames = self.simulator.num_envs * recipe.steps
        self.network = run.network()
        model = NavigationModel(env, self.network)
        self.agent = PPO(
            models={"policy": model, "value": model},
            memory=RandomMemory(memory_size=recipe.steps, num_envs=self.simulator.num_envs),
            observation_space=env.observation_space,
            action_space=env.action_space,
            device="cpu",
            cfg=_configuration(recipe, algo.gamma, algo.gae_lambda),
        )
        self.agent.optimizer = torch.optim.Adam(
            self.network.parameters(), lr=recipe.learning_rate, eps=recipe.adam_epsilon, fused=True
        )
        if recipe.target_kl:
            self.agent.scheduler = KLAdaptiveLR(self.agent.optimizer, kl_threshold=recipe.target_kl)
        options = {
            "timesteps": recipe.steps,
            "disable_progressbar": True,
            "close_environment_at_exit": False,
        }
        self.trainer = SequentialTrainer(env=env, agents=self.agent, cfg=options)

    def iterate(self, decisions: int) -> int:
        progress = decisions / self.run.decisions
        self.simulator.set_collision_penalty(self.run.collision_penalty(decisions))
        self.agent.cfg.entropy_loss_scale = self.recipe.entropy_at(progress)
        if not self.recipe.target_kl:
            for group in self.agent.optimizer.param_groups:
                group["lr"] = self.recipe.rate(progress)
        self.trainer.train()
        return self.frames

    def state(self) -> dict[str, Any]:
        return {
            "network": self.network.state_dict(),
            "optimizer": self.agent.optimizer.state_dict(),
        }

    def load(self, state: dict[str, Any]) -> None:
        self.network.load_state_dict(state["network"])
        self.agent.optimizer.load_state_dict(state["optimizer"])


def _configuration(recipe: Recipe, discount: float, trace: float) -> dict[str, Any]:
    return {
        "rollouts": recipe.steps,
        "learning_epochs": recipe.epochs,
        "mini_batches": recipe.minibatches,
        "learning_rate": recipe.learning_rate,
        "grad_norm_clip": recipe.gradient_norm,
        "ratio_clip": recipe.clip,
        "value_clip": recipe.value_clip,
        "entropy_loss_scale": recipe.entropy,
        "value_loss_scale": recipe.value_coefficient,
        "discount_factor": discount,
        "gae_lambda": trace,
        "time_limit_bootstrap": True,
        "experiment": {"write_interval": 0, "checkpoint_interval": 0},
    }


def make(run: Run) -> Agent:
    torch.manual_seed(run.seed)
    return Agent(run)
