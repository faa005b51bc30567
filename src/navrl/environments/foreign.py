"""Tasks of other libraries, and of the user: Gymnasium by id, anything else by a Python name."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from torch import nn

from navrl.config import Config
from navrl.environments.recognise import as_environment, call_factory, is_environment
from navrl.environments.task import Task
from navrl.errors import ConfigError
from navrl.evaluation.episodes import play_episodes, summary_of_episodes
from navrl.evaluation.flights import Act, Flights
from navrl.rl.action_space import as_mapping
from navrl.rl.environment import Environment
from navrl.rl.networks.build import MakeFeatures, build_policy_network
from navrl.targets import find_target

__all__ = ["ForeignTask", "GivenTask", "GymnasiumTask", "PythonTask", "name_of"]

# of evaluations during training and after it; all seeds of training are lower
EVALUATION_SEED, FINAL_SEED = 1 << 29, 1 << 30
EPISODES = 64  # of an evaluation, unless the user says otherwise; as in conf/env/_general.yaml
STREAMS = 1 << 16  # seeds of one process: at most so many environments


def name_of(env: Any) -> str:
    """Return what an environment, or a function that makes one, is called."""
    identity = getattr(getattr(env, "spec", None), "id", None)  # Gymnasium's
    name = str(identity or getattr(env, "__name__", None) or type(env).__name__)
    return "environment" if name == "<lambda>" else name


class ForeignTask(Task):
    """A task that a factory makes: `make_environments(num_envs, seed)`."""

    def __init__(
        self, config: Config, name: str, factory: Callable[[int, int], Environment]
    ) -> None:
        self.config, self.name = config, name
        self.factory = factory
        self._evaluation: Environment | None = None

    def make(self, rank: int, size: int) -> Environment:
        """Return the environments that one process trains in."""
        count = self.config.env.num_envs
        if count % size:
            raise ConfigError(
                f"env.num_envs is {count}; expected a multiple of the {size} processes"
            )
        seed = (self.config.seed * 1024 + rank) * STREAMS % EVALUATION_SEED
        env = self.factory(count // size, seed)
        env.reset(seed=seed)
        self.exact = env.state_dict() is not None
        return env

    @property
    def conditions(self) -> list[str]:
        """There is one: the task itself."""
        return [self.name]

    def evaluate(self, act: Act, env: Environment, rank: int, size: int) -> dict[str, Flights]:
        """Return one process's share of the episodes of an evaluation; the same ones each time."""
        share = max(1, math.ceil(self.config.flight.interim_episodes / size))
        if self._evaluation is None:
            seed = EVALUATION_SEED + rank * STREAMS
            self._evaluation = self.factory(min(share, env.num_envs), seed)
        seed = EVALUATION_SEED + (self.config.flight.seed * 1024 + rank) * STREAMS % EVALUATION_SEED
        return {self.name: play_episodes(self._evaluation, act, share, seed=seed)}

    def summary(self, episodes: Flights) -> dict[str, Any]:
        """Return the numbers of an evaluation for files and logs."""
        return summary_of_episodes(episodes)

    def record(self, env: Environment) -> dict[str, Any]:
        """Return what a model file says about the task."""
        settings = self.config.env
        return {
            "environment": {
                "name": settings.name,
                "id": settings.id,
                "target": settings.target,
                "options": dict(settings.options),
                "num_envs": settings.num_envs,
            },
            "observation": env.observation.as_list(),
            "action": as_mapping(env.action),
        }

    def new_network(self, make: MakeFeatures | None = None) -> nn.Module:
        """Return a network with random weights; `make` replaces the features of the settings."""
        env = self.factory(1, 0)
        return build_policy_network(self.config.network, env.observation, env.action, make)


class GymnasiumTask(ForeignTask):
    """`env=gymnasium env.id=HalfCheetah-v5`: copies of a registered environment."""

    def __init__(self, config: Config) -> None:
        if not config.env.id:
            raise ConfigError("env.id is empty; expected a Gymnasium id, such as HalfCheetah-v5")
        super().__init__(config, config.env.id, self._make)

    def _make(self, num_envs: int, seed: int) -> Environment:
        from navrl.environments.from_gymnasium import make_gymnasium

        return make_gymnasium(self.config.env.id, num_envs, self.config.env.options)


class PythonTask(ForeignTask):
    """`env=python env.target=my_module:make_env`: whatever a factory of the user makes."""

    def __init__(self, config: Config) -> None:
        if not config.env.target:
            raise ConfigError(
                "env.target is empty; expected what makes the environment, such as "
                "my_module:make_env. A run that was trained with an object from Python needs it "
                "again: navrl.train(..., env=...), navrl.evaluate(..., env=...)"
            )
        super().__init__(config, config.env.target, self._make)

    def _make(self, num_envs: int, seed: int) -> Environment:
        factory = find_target("env.target", self.config.env.target)
        return call_factory(factory, num_envs, seed, self.config.env.options)


class GivenTask(ForeignTask):
    """An environment that the caller has made, or a function that makes one."""

    def __init__(self, config: Config, env: Any) -> None:
        if isinstance(env, str):
            raise ConfigError(
                f"env is {env!r}; expected an environment or a function that makes one. By name: "
                f"overrides=['env=gymnasium', 'env.id={env}']"
            )
        self._given: Environment | None = None
        if is_environment(env) or not callable(env):
            self._given = as_environment(env)
            config.env.num_envs = self._given.num_envs
            self.restarts = True
        super().__init__(config, name_of(env), self._make)
        self._env = env

    def _make(self, num_envs: int, seed: int) -> Environment:
        if self._given is not None:
            return self._given
        return call_factory(self._env, num_envs, seed, self.config.env.options)

    def evaluate(self, act: Act, env: Environment, rank: int, size: int) -> dict[str, Flights]:
        """Return the episodes of an evaluation; in the training's own environment if need be."""
        if self._given is not None:
            self._evaluation = self._given
        return super().evaluate(act, env, rank, size)
