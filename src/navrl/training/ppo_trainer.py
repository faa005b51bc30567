"""One process's part of PPO: its environments, its copy of the policy, and the state of both."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from navrl.config import Config
from navrl.environments.table import find_task
from navrl.environments.task import Task
from navrl.errors import ConfigError, StateError
from navrl.evaluation import Flights
from navrl.rl.accelerate import AppliedNetwork, accelerate
from navrl.rl.action_space import Discrete
from navrl.rl.averaged import AveragedWeights
from navrl.rl.collect import Collector, Rollout
from navrl.rl.distributions.action_distribution import distribution_for
from navrl.rl.environment import Environment
from navrl.rl.finite import check_finite
from navrl.rl.mirror import Mirror
from navrl.rl.networks.build import MakeFeatures, build_policy_network, is_navigation
from navrl.rl.policy import NetworkPolicy
from navrl.rl.ppo import PPO, imitation_weight
from navrl.training.distributed.episode_means import episode_means
from navrl.training.distributed.team import Team
from navrl.training.divergence import DivergenceGuard, checkpoint_name, named
from navrl.training.evaluation import evaluate_together
from navrl.training.pipelined import PipelinedCollector
from navrl.training.progress import Progress
from navrl.training.resume.training_state import WEIGHTS, rank_states, upgraded_state

ORDER_SEED = 0x5EED0DE5  # keeps the shuffling apart from the random actions
SHARED = ("iteration", WEIGHTS, "optimizer", "normaliser", "best")


class PPOTrainer(Progress):
    """Collects, learns and evaluates in step with the rest of the team.

    Args:
        config: the settings.
        team: the processes that train together.
        task: what is trained; None: the one that the settings name.
        network: makes the features of the policy's network; None: as the settings say.
    """

    def __init__(
        self,
        config: Config,
        team: Team,
        task: Task | None = None,
        network: MakeFeatures | None = None,
    ) -> None:
        self.config, self.team = config, team
        self.task = task or find_task(config)
        self.env = self.make_environment()
        self._check_teacher()
        self.distribution = distribution_for(self.env.action)
        device = torch.device(config.device)
        self.network = self._new_network(network).to(device)
        self.applied = accelerate(self.network)
        decay = config.algo.average
        self.average = AveragedWeights(self.network, decay) if decay else None
        self.generator = torch.Generator(device).manual_seed(config.seed * 1024 + team.rank)
        self.ppo = self._new_ppo()
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

    def _new_network(self, features: MakeFeatures | None) -> nn.Module:
        """Return a network with the same initial weights on every rank."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.config.seed)
            return build_policy_network(
                self.config.network, self.env.observation, self.env.action, features
            )

    def _new_ppo(self) -> PPO:
        config, team = self.config, self.team
        order = torch.Generator().manual_seed(ORDER_SEED ^ (config.seed * 1024 + team.rank))
        return PPO(
            self.network,
            self.applied,
            self.distribution,
            config.algo,
            order,
            all_reduce=team.all_reduce,
            processes=team.size,
            mirror=self._mirror(),
        )

    def make_environment(self) -> Environment:
        """Return the environments of this process."""
        return self.task.make(self.team.rank, self.team.size)

    def _mirror(self) -> Mirror | None:
        share = self.config.algo.mirror_share
        if share and not is_navigation(self.env.observation, self.env.action):
            raise ConfigError(
                f"algo.mirror_share is {share}; observations of {self.task.name} have no known "
                "reflection, only those of the navigation task have: leave it out"
            )
        return Mirror(self.env.observation) if share else None

    def _check_teacher(self) -> None:
        """Raise a ConfigError if the policy is to imitate a teacher that there is not."""
        weight = self.config.algo.imitation
        if not weight:
            return
        if isinstance(self.env.action, Discrete):
            raise ConfigError(
                f"algo.imitation is {weight}; actions of {self.task.name} are choices, and only "
                "continuous actions can be drawn to a teacher's: leave it out"
            )
        if type(self.env).advise is Environment.advise:
            raise ConfigError(
                f"algo.imitation is {weight}; {self.task.name} has no teacher (its environment has "
                "no method advise): leave it out"
            )

    @property
    def policy_network(self) -> nn.Module:
        """The network that is evaluated and kept as the model: the average, if there is one."""
        return self.network if self.average is None else self.average.network

    @property
    def optimizers(self) -> list[torch.optim.Optimizer]:
        """The optimiser, for the checkpoint saver."""
        return [self.ppo.optimizer]

    def collect(self) -> Rollout:
        """Return the next batch, or the one that was collected while the policy learnt."""
        if self._pipeline is None:
            self._set_progress(self.iteration)
            statistics = self.ppo.normaliser.statistics()
            return self.collector.collect(*statistics, advised=self._advised(self.iteration))
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
        if self.average is not None:
            self.average.update(self.network, self.iteration)
        if self._pipeline is not None:
            self._pipeline.wait()  # so that nothing runs while the policy is evaluated or saved
        self.iteration += 1
        return report | episode_means(batch.episodes, self.env.statistics, self.team)

    def _begin_batch(self, pipeline: PipelinedCollector, iteration: int) -> None:
        """Begin to collect the batch of an iteration with the present policy, in the background."""
        self._set_progress(iteration)
        self._began = self._rollout_state()
        pipeline.begin(self.ppo.normaliser.statistics(), advised=self._advised(iteration))

    def _set_progress(self, iteration: int) -> None:
        self.env.set_progress(iteration / self.iterations)

    def _advised(self, iteration: int) -> bool:
        """Return whether the policy imitates a teacher in an iteration."""
        return imitation_weight(self.config.algo, iteration / self.iterations) > 0

    def evaluate(self) -> dict[str, Flights]:
        """Play episodes with the mean action; the leader gets all of them by condition."""
        applied = self.applied if self.average is None else self.average.applied
        policy = NetworkPolicy(applied, self.env.observation, self.distribution)
        episodes = evaluate_together(self.task, policy, self.env, self.team)
        if self.task.restarts:
            self.collector.restart(self.env.reset())
        return episodes

    # ------------------------------------------------------------------ saving

    def own_state(self) -> dict[str, Any]:
        """Return the state of this rank: its environment and its generators."""
        return (self._began or self._rollout_state()) | {"order": self.ppo.generator.get_state()}

    def _rollout_state(self) -> dict[str, Any]:
        """Return what a batch starts from, beside the weights."""
        return {"env": self.env.state_dict(), "actions": self.generator.get_state()}

    def shared_state(self) -> dict[str, Any]:
        """Return the state that all ranks have in common; live tensors.

        Raises:
            DivergedError: the last update made a parameter NaN or infinite.
        """
        self.guard.refuse_diverged()
        options: dict[str, Any] = {}
        if self._pipeline is not None:
            options["ahead"] = self._pipeline.state_dict()
        if self.average is not None:
            options["average"] = self.average.state_dict()
        return options | {
            "iteration": self.iteration,
            WEIGHTS: self.network.state_dict(),
            "optimizer": self.ppo.optimizer.state_dict(),
            "normaliser": self.ppo.normaliser.state_dict(),
            "best": self.best,
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state; bit for bit if the environment could save its own."""
        state = upgraded_state(state)
        ranks = state.get("ranks")
        if not isinstance(ranks, list) or not all(name in state for name in SHARED):
            raise StateError(
                "the checkpoint holds no training state; expected one that navrl train wrote"
            )
        check_finite(
            named(network=state[WEIGHTS], normaliser=state["normaliser"]), checkpoint_name(state)
        )
        own = rank_states(state, self.team.size)[self.team.rank]
        self._load_own(own, state["iteration"])
        self.network.load_state_dict(state[WEIGHTS])
        if self.average is not None:
            self.average.load_state_dict(state.get("average", state[WEIGHTS]))
        # a copy, because the optimiser keeps the tensors it gets
        self.ppo.optimizer.load_state_dict(copy.deepcopy(state["optimizer"]))
        self.ppo.normaliser.load_state_dict(state["normaliser"])
        self.iteration, self.best = state["iteration"], state["best"]
        self.collector = self._collector(self.applied)
        if self._pipeline is not None:
            ahead = state.get("ahead") if own is not None else None
            self._set_progress(self.iteration)
            self._began = self._rollout_state() if ahead else None
            self._pipeline.load_state_dict(ahead)

    def _load_own(self, own: Mapping[str, Any] | None, iteration: int) -> None:
        """Load the state of this rank; without one, begin new episodes with new random numbers."""
        seed = self.config.seed * 1024 + self.team.rank + iteration
        if own is None or own["env"] is None:
            self.env.reset(seed=seed)
        else:
            self.env.load_state_dict(own["env"])
        if own is None:
            self.generator.manual_seed(seed)
            self.ppo.generator.manual_seed(ORDER_SEED ^ seed)
        else:
            self.generator.set_state(own["actions"])
            self.ppo.generator.set_state(own["order"])

    def _collector(self, applied: AppliedNetwork) -> Collector:
        steps = self.config.algo.training_frame_num
        rows = self.env.observe()
        return Collector(self.env, rows, applied, steps, self.distribution, self.generator)
