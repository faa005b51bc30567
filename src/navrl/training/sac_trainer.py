"""SAC on the navigation task: one process, its environment, and a compressed replay buffer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from navrl.config import Config
from navrl.environments.table import find_task
from navrl.environments.task import Task
from navrl.errors import ConfigError, StateError
from navrl.evaluation import Flights
from navrl.io.replay.frame_store import FrameStore
from navrl.rl.accelerate import accelerate
from navrl.rl.distributions.action_distribution import distribution_for
from navrl.rl.finite import check_finite
from navrl.rl.networks.build import is_navigation
from navrl.rl.networks.navigation import build_network
from navrl.rl.policy import NetworkPolicy
from navrl.rl.sac import SAC, TwinCritic
from navrl.rl.transitions import TransitionCollector, Transitions, n_step_return
from navrl.training.distributed.episode_means import episode_means
from navrl.training.distributed.team import Team
from navrl.training.divergence import DivergenceGuard, checkpoint_name, named
from navrl.training.evaluation import evaluate_together
from navrl.training.progress import Progress
from navrl.training.resume.training_state import WEIGHTS, upgraded_state

STREAMS = {"actions": 0x5AC, "noise": 0x5AC1, "batches": 0x5AC2}  # seeds of the generators
OUTCOME = ("reward", "terminated", "ended")
# Columns of the replay, by the names that checkpoints have for them: parts of an observation.
COLUMNS = {"lidar": "lidar", "dynamic": "dynamic_obstacle", "state": "state"}
PARTS = ("iteration", WEIGHTS, "sac", "best")
LEARNT = (
    "policy_loss",
    "value_loss",
    "entropy",
    "value_mean",
    "gradient_norm",
    "temperature",
    "learning_rate",
)
UNKNOWN = ("kl", "explained_variance")  # metrics of the display that SAC does not have


def _random_streams(seed: int, device: torch.device) -> dict[str, torch.Generator]:
    return {
        name: torch.Generator(torch.device("cpu") if name == "batches" else device).manual_seed(
            stream ^ (seed * 1024)
        )
        for name, stream in STREAMS.items()
    }


class SACTrainer(Progress):
    """Collects, stores, learns and evaluates, as a `Trainer` does."""

    def __init__(self, config: Config, team: Team, task: Task | None = None) -> None:
        if team.size != 1:
            raise ConfigError(f"processes is {team.size}; expected 1 for algo=sac")
        self.config, self.team, self.settings = config, team, config.sac
        self.task = task or find_task(config)
        self.env = self.task.make(team.rank, team.size)
        if not is_navigation(self.env.observation, self.env.action):
            raise ConfigError(
                f"algo=sac trains the navigation task; {self.task.name} is trained with algo=ppo"
            )
        self.distribution = distribution_for(self.env.action, squashed=True)
        device = torch.device(config.device)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(config.seed)
            network = build_network(config.network, self.env.observation).to(device)
            self.layout = network.layout
            scale = torch.ones(self.layout.width)
            scale[self.layout.slices["state"]] = network.scale.cpu()
            critic = TwinCritic(self.layout.width, self.settings.critic_width, scale).to(device)
        self.network: nn.Module = network
        self.applied = accelerate(network)
        streams = _random_streams(config.seed, device)
        self._actions, self._batches = streams["actions"], streams["batches"]
        self.sac = SAC(
            self.network, self.applied, critic, self.settings, streams["noise"], self._observe
        )
        self.replay = FrameStore(self.settings.capacity, streams=config.env.num_envs)
        self.collector = self._collector()
        self.iteration = 0
        self.best: dict[str, float] | None = None
        self._owed = 0.0  # updates that the collected steps allow
        self.guard = DivergenceGuard()

    @property
    def policy_network(self) -> nn.Module:
        """The network that is evaluated and kept as the model."""
        return self.network

    @property
    def optimizers(self) -> list[torch.optim.Optimizer]:
        """The three optimisers, for the checkpoint saver."""
        return self.sac.optimizers

    def collect(self) -> Transitions:
        """Return the next batch: random actions during warm-up, then the current policy's."""
        self.env.set_progress(self.iteration / self.iterations)
        return self.collector.collect(at_random=self.frames < self.settings.warmup)

    def learn(self, batch: Transitions) -> dict[str, float]:
        """Store a batch, update the policy from the replay buffer, and return metrics."""
        self.replay.extend(self._frames(batch))
        self.iteration += 1
        with self.guard.iteration(self.iteration):
            reports = self._update()
            self.sac.check_parameters()
        report = dict.fromkeys(UNKNOWN, float("nan"))
        for name in LEARNT:
            values = [each[name] for each in reports if name in each]
            report[name] = sum(values) / len(values) if values else float("nan")
        report |= {"updates": float(len(reports)), "remembered": float(len(self.replay))}
        return report | episode_means(batch.episodes, self.env.statistics, self.team)

    def _update(self) -> list[dict[str, float]]:
        """Make as many updates as `sac.replay_ratio` allows; return their metrics."""
        reports = []
        if len(self.replay) >= max(
            self.settings.batch_size, min(self.settings.warmup, self.settings.capacity)
        ):
            self._owed += (
                self.frames_per_iteration * self.settings.replay_ratio / self.settings.batch_size
            )
            progress = self.iteration / self.iterations
            while self._owed >= 1:
                self._owed -= 1
                reports.append(self.sac.update(self._sample(), progress))
        return reports

    def evaluate(self) -> dict[str, Flights]:
        """Fly unseen worlds with the squashed mean action; return all flights by condition."""
        policy = NetworkPolicy(self.applied, self.env.observation, self.distribution)
        return evaluate_together(self.task, policy, self.env, self.team)

    # ------------------------------------------------------------------ replay

    def _frames(self, batch: Transitions) -> dict[str, Tensor]:
        """Return a batch as frames of the replay buffer, the drones in turn."""
        frames = {
            f"{prefix}{name}": part.flatten(0, 1)
            for prefix, rows in (("", batch.rows), ("next/", batch.next_rows))
            for name, part in self._parts(rows).items()
        }
        others = {
            "action": batch.action,
            "reward": batch.reward,
            "terminated": batch.terminated,
            "ended": batch.done,
        }
        return frames | {name: values.flatten(0, 1) for name, values in others.items()}

    def _parts(self, rows: Tensor) -> dict[str, Tensor]:
        """Return the parts of observations by name: each has its own way to be compressed."""
        return {column: rows[..., self.layout.slices[name]] for column, name in COLUMNS.items()}

    def _sample(self) -> dict[str, Tensor]:
        """Return random transitions with their n-step returns and bootstrap observations."""
        replay, settings = self.replay, self.settings
        count, drones = len(replay), self.config.env.num_envs
        oldest = replay.cursor if count == replay.capacity else 0
        age = torch.randint(count, (settings.batch_size,), generator=self._batches)
        # frames of one drone are `drones` apart
        ages = age[:, None] + drones * torch.arange(settings.n_step)
        known = ages < count
        places = (oldest + torch.where(known, ages, age[:, None])) % replay.capacity
        outcome = {
            key: values.view_as(places)
            for key, values in replay.get(places.flatten(), OUTCOME).items()
        }
        reward, discount, last = n_step_return(
            outcome["reward"], outcome["terminated"], outcome["ended"], known, settings.gamma
        )
        batch = replay.get(places[:, 0], (*COLUMNS, "action"))
        batch |= replay.get(
            places.gather(1, last[:, None])[:, 0], [f"next/{name}" for name in COLUMNS]
        )
        return {
            name: values.to(self.config.device)
            for name, values in (batch | {"reward": reward, "discount": discount}).items()
        }

    @staticmethod
    def _observe(batch: Mapping[str, Tensor], prefix: str) -> Tensor:
        return torch.cat([batch[f"{prefix}{name}"] for name in COLUMNS], 1)

    # ------------------------------------------------------------------ saving

    def own_state(self) -> dict[str, Any]:
        """Return the state of this rank: environment, generators, replay buffer."""
        return {
            "env": self.env.state_dict(),
            "actions": self._actions.get_state(),
            "batches": self._batches.get_state(),
            "owed": self._owed,
            "replay": self.replay.state_dict() if self.settings.save_replay else None,
        }

    def shared_state(self) -> dict[str, Any]:
        """Return the actor, the critics and their optimisers; live tensors.

        Raises:
            DivergedError: the last update made a parameter NaN or infinite.
        """
        self.guard.refuse_diverged()
        return {
            "iteration": self.iteration,
            WEIGHTS: self.network.state_dict(),
            "sac": self.sac.state_dict(),
            "best": self.best,
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Load a saved state; training continues bit for bit if it holds the replay buffer."""
        state = upgraded_state(state)
        ranks = state.get("ranks")
        if (
            not isinstance(ranks, list)
            or len(ranks) != 1
            or not all(name in state for name in PARTS)
        ):
            raise StateError(
                "the checkpoint holds no state of algo=sac; expected one that `navrl train "
                "algo=sac` wrote"
            )
        sac = state["sac"]
        critics = named(critic=sac["critic"], target=sac["target"]) | {
            "log_temperature": sac["log_temperature"]
        }
        check_finite(named(network=state[WEIGHTS]) | critics, checkpoint_name(state))
        own = ranks[0]
        self.env.load_state_dict(own["env"])
        self._actions.set_state(own["actions"])
        self._batches.set_state(own["batches"])
        self._owed = own["owed"]
        if own["replay"] is not None:
            self.replay.load_state_dict(own["replay"])
        self.network.load_state_dict(state[WEIGHTS])
        self.sac.load_state_dict(state["sac"])
        self.iteration, self.best = state["iteration"], state["best"]
        self.collector = self._collector()

    def _collector(self) -> TransitionCollector:
        def scale(unit: Tensor) -> Tensor:
            return self.distribution.to_environment(unit).cpu()

        steps = self.settings.training_frame_num
        return TransitionCollector(
            self.env, self.env.observe(), self.applied, steps, scale, self._actions
        )
