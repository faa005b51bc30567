"""PPO on the navigation task: one rank's environment, its copy of the policy, and their state."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from navrl.config import Config
from navrl.errors import ConfigError, StateError
from navrl.evaluate import Flights
from navrl.rl.accelerate import AppliedNetwork, accelerate
from navrl.rl.collect import Collector, Rollout
from navrl.rl.finite import check_finite
from navrl.rl.networks.navigation import build_network
from navrl.rl.policy import NetworkPilot, to_velocity
from navrl.rl.ppo import PPO
from navrl.sim.env import NavigationEnv
from navrl.train.distributed.split import (
    collision_penalty,
    episode_means,
    frames_per_iteration,
    split_task,
    total_iterations,
)
from navrl.train.distributed.team import Team
from navrl.train.divergence import DivergenceGuard, checkpoint_name, named
from navrl.train.evaluation import PeriodicEvaluation
from navrl.train.pipelined import PipelinedCollector
from navrl.train.resume.training_state import WEIGHTS, upgraded_state

ORDER_SEED = 0x5EED0DE5  # keeps the shuffling apart from the random actions
SHARED = ("iteration", WEIGHTS, "optimizer", "normaliser", "best")


class PPOTrainer:
    """Collects, learns and evaluates in step with the other ranks."""

    def __init__(self, config: Config, team: Team) -> None:
        self.config, self.team = config, team
        self.task = split_task(config.task, team)
        self.env = NavigationEnv(self.task, seed=config.seed * 1024 + team.rank)
        device = torch.device(config.device)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(config.seed)  # the same initial weights on every rank
            self.network = build_network(config.network, self.env.layout).to(device)
        self.applied = accelerate(self.network)
        self.generator = torch.Generator(device).manual_seed(config.seed * 1024 + team.rank)
        order = torch.Generator().manual_seed(ORDER_SEED ^ (config.seed * 1024 + team.rank))
        self.ppo = PPO(
            self.network,
            self.applied,
            config.algo,
            order,
            all_reduce=team.all_reduce,
            processes=team.size,
        )
        self.env.reset()
        self.collector = self._collector(self.applied)
        self._pipeline = (
            PipelinedCollector(self.network, self._collector)
            if config.use_pipelined_collector
            else None
        )
        self._began: dict[str, Any] | None = None  # what the pending batch was started from
        self.iteration = 0
        self.best: dict[str, float] | None = None
        self.guard = DivergenceGuard()
        self._evaluation = PeriodicEvaluation(config, team)

    @property
    def optimizers(self) -> list[torch.optim.Optimizer]:
        """The optimiser, for the checkpoint saver."""
        return [self.ppo.optimizer]

    @property
    def frames_per_iteration(self) -> int:
        """Steps of all drones, over all processes, in one batch."""
        return frames_per_iteration(self.config)

    @property
    def iterations(self) -> int:
        """Number of iterations of the whole training."""
        return total_iterations(self.config)

    @property
    def frames(self) -> int:
        """Steps of all drones so far."""
        return self.iteration * self.frames_per_iteration

    def collect(self) -> Rollout:
        """Return the next batch; a pipelined one was collected during the last update."""
        if self._pipeline is None:
            self._set_penalty(self.iteration)
            return self.collector.collect(*self.ppo.normaliser.statistics())
        if not self._pipeline.pending:
            self._begin_batch(self._pipeline, self.iteration)
        self._began = None
        return self._pipeline.take()

    def learn(self, batch: Rollout) -> dict[str, float]:
        """Update the policy from the batches of all ranks; return the same metrics on each."""
        if self._pipeline is not None and self.iteration + 1 < self.iterations:
            self._begin_batch(self._pipeline, self.iteration + 1)
        with self.guard.iteration(self.iteration + 1):
            report = self.ppo.update(batch, self.iteration / self.iterations)
        if self._pipeline is not None:
            self._pipeline.wait()  # so that nothing runs while the policy is evaluated or saved
        self.iteration += 1
        return report | episode_means(batch.episodes, self.team)

    def _begin_batch(self, pipeline: PipelinedCollector, iteration: int) -> None:
        """Start to collect the batch of an iteration with the current policy."""
        self._set_penalty(iteration)
        self._began = self._flying()
        pipeline.begin(self.ppo.normaliser.statistics())

    def _set_penalty(self, iteration: int) -> None:
        self.env.set_collision_penalty(collision_penalty(self.config, iteration / self.iterations))

    def evaluate(self) -> dict[str, Flights]:
        """Fly unseen worlds with the mean action; return all flights by condition on rank 0."""
        return self._evaluation.fly(NetworkPilot(self.applied, self.task.env.action_limit))

    # ------------------------------------------------------------------ saving

    def own_state(self) -> dict[str, Any]:
        """Return the state of this rank: its environment and its generators."""
        return (self._began or self._flying()) | {"order": self.ppo.generator.get_state()}

    def _flying(self) -> dict[str, Any]:
        """Return what a batch starts from, beside the weights."""
        return {"env": self.env.state_dict(), "actions": self.generator.get_state()}

    def shared_state(self) -> dict[str, Any]:
        """Return the state that all ranks have in common; live tensors.

        Raises:
            DivergedError: the last update made a parameter NaN or infinite.
        """
        self.guard.refuse_diverged()
        ahead = {} if self._pipeline is None else {"ahead": self._pipeline.state_dict()}
        return ahead | {
            "iteration": self.iteration,
            WEIGHTS: self.network.state_dict(),
            "optimizer": self.ppo.optimizer.state_dict(),
            "normaliser": self.ppo.normaliser.state_dict(),
            "best": self.best,
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Load a saved state; training continues bit for bit."""
        state = upgraded_state(state)
        ranks = state.get("ranks")
        if not isinstance(ranks, list) or not all(name in state for name in SHARED):
            raise StateError(
                "the checkpoint holds no training state; expected one that navrl train wrote"
            )
        if len(ranks) != self.team.size:
            raise ConfigError(
                f"the checkpoint was written by {len(ranks)} processes, this training has "
                f"{self.team.size}; resume with processes={len(ranks)}"
            )
        check_finite(
            named(network=state[WEIGHTS], normaliser=state["normaliser"]), checkpoint_name(state)
        )
        own = ranks[self.team.rank]
        self.env.load_state_dict(own["env"])
        self.generator.set_state(own["actions"])
        self.ppo.generator.set_state(own["order"])
        self.network.load_state_dict(state[WEIGHTS])
        # a copy, because the optimiser keeps the tensors it gets
        self.ppo.optimizer.load_state_dict(copy.deepcopy(state["optimizer"]))
        self.ppo.normaliser.load_state_dict(state["normaliser"])
        self.iteration, self.best = state["iteration"], state["best"]
        self.collector = self._collector(self.applied)
        if self._pipeline is not None:
            self._set_penalty(self.iteration)
            self._began = self._flying() if state.get("ahead") else None
            self._pipeline.load_state_dict(state.get("ahead"))

    def _collector(self, applied: AppliedNetwork) -> Collector:
        limit = self.task.env.action_limit

        def scale(unit: Tensor) -> Tensor:
            return to_velocity(unit, limit)

        steps = self.config.algo.training_frame_num
        return Collector(self.env, self.env.observe_packed(), applied, steps, scale, self.generator)
