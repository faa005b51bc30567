"""The navigation task: our own simulator as an entry of the table of environments."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from navrl.adapters.navigation_environment import NavigationEnvironment
from navrl.config import PERIODIC_EVALUATION_OFFSET, Config
from navrl.deploy.shielded_pilot import ShieldedPilot
from navrl.environments.shield_teacher import MakeTeacher, find_teacher
from navrl.environments.task import Task
from navrl.errors import ConfigError
from navrl.evaluation import Act, Flights, conditions, evaluate, simulator_compiler
from navrl.evaluation.report import summary
from navrl.rl.accelerate import accelerate
from navrl.rl.action_space import Box
from navrl.rl.environment import Environment
from navrl.rl.networks.build import MakeFeatures, build_policy_network
from navrl.sim.env import NavigationEnv
from navrl.sim.settings import NavigationSettings
from navrl.sim.step import observation_layout
from navrl.sim.worlds.world_pool import build_pool

__all__ = ["NavigationTask", "TrainingEnvironment", "split_task"]

PERIODIC_SEED = 1 << 41  # random streams that only these evaluations use
TEACHER = "teacher"  # of a saved state


class TrainingEnvironment(NavigationEnvironment):
    """The simulator of a training, in which collisions may cost more as it goes on."""

    def __init__(
        self, simulator: NavigationEnv, config: Config, make_teacher: MakeTeacher | None = None
    ) -> None:
        super().__init__(simulator)
        self._config = config
        self._teacher = None if make_teacher is None else make_teacher(simulator)

    def state_dict(self) -> dict[str, Any]:
        """Return everything needed to continue bit for bit, and which model the teacher is."""
        model = getattr(self._teacher, "identity", "")
        return super().state_dict() | ({TEACHER: model} if model else {})

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved state.

        Raises:
            ConfigError: the teacher is another model than it was.
        """
        before, now = state.get(TEACHER, ""), getattr(self._teacher, "identity", "")
        if before and now and before != now:
            raise ConfigError(
                f"teacher {self._config.teacher!a:.200} is another model now than when this run "
                "began; type teacher=FILE with that one"
            )
        super().load_state_dict({name: part for name, part in state.items() if name != TEACHER})

    def advise(self, rows: Tensor, action: Tensor) -> Tensor | None:
        """Return the commands of the teacher, (N, 3); see `navrl.environments.shield_teacher`."""
        return None if self._teacher is None else self._teacher(rows, action)

    def set_progress(self, progress: float) -> None:
        """Change what a collision costs, by the curriculum."""
        self.simulator.set_collision_penalty(collision_penalty(self._config, progress))


class ShieldedTraining(TrainingEnvironment):
    """A training behind the shield: every action that it changes costs a reward.

    `return` in the statistics is without that cost.
    """

    def __init__(
        self, simulator: NavigationEnv, config: Config, make_teacher: MakeTeacher | None = None
    ) -> None:
        super().__init__(simulator, config, make_teacher)
        self._shield = ShieldedPilot(lambda observation: observation["state"], simulator)

    def step(self, action: Tensor, *, out: Any) -> Any:
        """Fly all drones for one decision with what the shield makes of their actions."""
        result = self._shield.filtered(self.simulator.observe(), action.detach())
        super().step(torch.from_numpy(result.velocity).float(), out=out)
        out.reward -= self._config.shield_penalty * torch.from_numpy(result.intervened).float()
        return out


class NavigationTask(Task):
    """Drones that fly to goals among obstacles, evaluated in worlds that no training uses."""

    name, units, compiles = "navigation", "drones", True

    def __init__(self, config: Config) -> None:
        self.config = config
        flight = copy.copy(config.flight)
        flight.episodes, flight.map_seed = (
            flight.interim_episodes,
            flight.map_seed + PERIODIC_EVALUATION_OFFSET,
        )
        self._tasks: dict[str, NavigationSettings] = conditions(config.task, flight)
        self._environments: dict[str, NavigationEnv] = {}
        taught = config.algo.imitation > 0  # else no teacher is looked for
        self._make_teacher = find_teacher(config.teacher, config.task) if taught else None

    def make(self, rank: int, size: int) -> Environment:
        """Return the drones of one process."""
        settings = split_task(self.config.task, rank, size)
        simulator = NavigationEnv(settings, seed=self.config.seed * 1024 + rank)
        simulator.reset()
        return self._training(simulator)

    def _training(self, simulator: NavigationEnv) -> TrainingEnvironment:
        kind = ShieldedTraining if self.config.shield else TrainingEnvironment
        return kind(simulator, self.config, self._make_teacher)

    @property
    def conditions(self) -> list[str]:
        """Labels of the conditions a policy is evaluated under, the hardest last."""
        return [*conditions(self.config.task, self.config.flight)]

    def evaluate(self, act: Act, env: Environment, rank: int, size: int) -> dict[str, Flights]:
        """Fly one process's share of unseen worlds: made once, the same flights each time."""
        seed = PERIODIC_SEED + 1024 * self.config.flight.seed + rank
        flown = {}
        for label, task in self._tasks.items():
            if label not in self._environments:
                self._environments[label] = NavigationEnv(
                    split_task(task, rank, size), seed=seed, auto_reset=False
                )
            self._environments[label].reset(seed=seed)
            flown[label] = evaluate(self._environments[label], act)
        return flown

    def summary(self, episodes: Flights) -> dict[str, Any]:
        """Return shares with standard errors between worlds, and means over the successes."""
        return summary(episodes)

    def record(self, env: Environment) -> dict[str, Any]:
        """Return what a model file says about the task."""
        return {"task": self.config.task.as_dict()}

    def new_network(self, make: MakeFeatures | None = None) -> nn.Module:
        """Return a network with random weights; `make` replaces the features of the settings."""
        limit = self.config.env.action_limit
        layout = observation_layout(self.config.task)
        return build_policy_network(self.config.network, layout, Box.of(3, -limit, limit), make)

    def rollout_metadata(self) -> dict[str, Any]:
        """Return what a file of experience says about the task."""
        task = self.config.task
        return {
            "lidar_range": task.sensor.lidar_range,
            "action_limit": task.env.action_limit,
            "seconds_per_step": task.sim.dt * task.env.action_repeat,
            "task": task.as_dict(),
        }

    def compile(self) -> None:
        """Run every kernel of a training once, on the smallest task that it can have."""
        task = copy.deepcopy(self.config.task)
        task.env.num_envs = 1
        task.env.num_worlds = 1
        task.env.obstacles_per_world = [0]
        task.env.world_files = []
        task.env_dyn.num_obstacles, task.env_dyn.obstacles_per_world = 8, []
        if simulator_compiler.start():
            build_pool(task, 0)
            width = observation_layout(task).width
            self._run_network(torch.zeros(1, width))
            simulator_compiler.wait()
        env = self._training(NavigationEnv(task))
        rows = env.observe()
        env.advise(rows, torch.zeros(1, 3))
        env.step(torch.zeros(1, 3), out=env.make_step())
        self._run_network(rows)

    def _run_network(self, rows: Tensor) -> None:
        """Run the network forward and backward."""
        with torch.random.fork_rng(devices=[]):
            network = self.new_network()
        applied = accelerate(network)
        applied.infer(rows)
        applied(rows).sum().backward()


def split_task(task: NavigationSettings, rank: int, size: int) -> NavigationSettings:
    """Return the settings of one process's part of a task: its drones, its worlds."""
    own = copy.deepcopy(task)
    if own.env.num_envs % size:
        raise ConfigError(
            f"env.num_envs is {own.env.num_envs}; expected a multiple of the {size} processes"
        )
    own.env.num_envs //= size
    own.sim.num_threads = 1 if size > 1 else own.sim.num_threads
    own.env.action_frame = "goal"
    if not own.env.same_map and own.env.num_worlds >= size:
        first, last = (own.env.num_worlds * number // size for number in (rank, rank + 1))
        own.env.num_worlds = last - first
        own.env.map_seed += first
        for counts in (
            own.env.obstacles_per_world,
            own.env_dyn.obstacles_per_world,
            own.env.world_files,
        ):
            _rotate(counts, first)
    return own


def _rotate(values: list[Any], places: int) -> None:
    """Let a cycled list begin where this process's worlds begin."""
    if values:
        places %= len(values)
        values[:] = values[places:] + values[:places]


def collision_penalty(config: Config, progress: float) -> float:
    """Return what a collision costs after a share of the training, by the curriculum."""
    ramp, first = config.curriculum, config.reward.collision
    last = first if ramp.final_collision is None else ramp.final_collision
    return first + min(1.0, progress / ramp.collision_until) * (last - first)
