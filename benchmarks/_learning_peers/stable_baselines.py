"""PPO of Stable-Baselines3 on our VecEnv, as fast as the speed benchmark runs it."""

from __future__ import annotations

from typing import Any

import torch
from stable_baselines3 import PPO

from _learning_peers.course import Run
from _learning_peers.recipes import recipe_for
from _training_peers.stable_baselines import NavigationPolicy, Quiet
from navrl.adapters.stable_baselines3 import NavigationVecEnv


class StableBaselines:
    """PPO's two halves of an iteration, called in turn as its `learn` does."""

    def __init__(self, run: Run) -> None:
        self.run, algo = run, run.config.algo
        self.recipe = recipe = recipe_for(run.learner, run.recipe, algo)
        self.env = NavigationVecEnv(run.task(), seed=run.seed * 1024, flat=True)
        self.frames = self.env.num_envs * recipe.steps
        self.network = run.network()
        self.model = PPO(
            NavigationPolicy,
            self.env,
            n_steps=recipe.steps,
            batch_size=self.frames // recipe.minibatches,
            n_epochs=recipe.epochs,
            learning_rate=lambda left: recipe.rate(1 - left),
            clip_range=recipe.clip,
            clip_range_vf=recipe.value_clip or None,
            ent_coef=recipe.entropy,
            vf_coef=recipe.value_coefficient,
            max_grad_norm=recipe.gradient_norm,
            gamma=algo.gamma,
            gae_lambda=algo.gae_lambda,
            policy_kwargs={
                "network": self.network,
                "optimizer_kwargs": {"fused": True, "eps": recipe.adam_epsilon},
            },
            seed=run.seed,
            device="cpu",
            verbose=0,
        )
        _, self.callback = self.model._setup_learn(2**62, Quiet())

    def iterate(self, decisions: int) -> int:
        model, progress = self.model, decisions / self.run.decisions
        self.env.simulator.set_collision_penalty(self.run.collision_penalty(decisions))
        model.ent_coef = self.recipe.entropy_at(progress)
        model._current_progress_remaining = 1 - min(1.0, progress)
        model.collect_rollouts(
            model.env, self.callback, model.rollout_buffer, n_rollout_steps=self.recipe.steps
        )
        model.train()
        return self.frames

    def state(self) -> dict[str, Any]:
        return {
            "network": self.network.state_dict(),
            "optimizer": self.model.policy.optimizer.state_dict(),
        }

    def load(self, state: dict[str, Any]) -> None:
        self.network.load_state_dict(state["network"])
        self.model.policy.optimizer.load_state_dict(state["optimizer"])


def make(run: Run) -> StableBaselines:
    torch.distributions.Distribution.set_default_validate_args(False)
    return StableBaselines(run)
