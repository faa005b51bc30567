"""The table of environments: what `env=NAME` may name."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

from navrl.config import Config
from navrl.environments.task import Task
from navrl.errors import ConfigError, nearest_name
from navrl.rl.networks.build import MakeFeatures

__all__ = ["ENVIRONMENTS", "NOTHING_GIVEN", "Given", "find_task"]

# A class that takes the configuration, imported when it is asked for. Add your own here, or leave
# the table alone and use `env=python env.target=my_module:make_env`.
ENVIRONMENTS = {
    "navigation": "navrl.environments.navigation_task:NavigationTask",
    "gymnasium": "navrl.environments.foreign:GymnasiumTask",
    "torchrl": "navrl.environments.foreign:PythonTask",
    "rsl_rl": "navrl.environments.foreign:PythonTask",
    "python": "navrl.environments.foreign:PythonTask",
}


@dataclass(frozen=True)
class Given:
    """What a caller in Python made itself, instead of naming it in the settings."""

    env: Any = None  # an environment, or a function that makes one
    network: MakeFeatures | None = None  # makes the features of the policy's network


NOTHING_GIVEN = Given()


def find_task(config: Config, env: Any = None) -> Task:
    """Return the task that the settings name.

    Args:
        config: the settings.
        env: an environment, or a function that makes one; None: the one that `env.name` names.

    Raises:
        ConfigError: there is no such task, or its settings are incomplete.
    """
    if env is not None:
        from navrl.environments.foreign import GivenTask

        return GivenTask(config, env)
    name = config.env.name
    if name not in ENVIRONMENTS:
        raise ConfigError(
            f"env.name is {name!r}; expected one of {', '.join(ENVIRONMENTS)}."
            f"{nearest_name(name, ENVIRONMENTS)}"
        )
    module, _, kind = ENVIRONMENTS[name].partition(":")
    task: Task = getattr(importlib.import_module(module), kind)(config)
    return task
