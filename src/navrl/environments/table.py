"""The table of environments: what `env=NAME` may name."""

from __future__ import annotations

import importlib

from navrl.config import Config
from navrl.environments.task import Task
from navrl.errors import ConfigError, nearest_name

__all__ = ["ENVIRONMENTS", "find_task"]

# A class that takes the configuration, imported when it is asked for. Add your own here, or leave
# the table alone and use `env=python env.target=my_module:make_env`.
ENVIRONMENTS = {
    "navigation": "navrl.environments.navigation_task:NavigationTask",
    "gymnasium": "navrl.environments.foreign:GymnasiumTask",
    "torchrl": "navrl.environments.foreign:PythonTask",
    "rsl_rl": "navrl.environments.foreign:PythonTask",
    "python": "navrl.environments.foreign:PythonTask",
}


def find_task(config: Config) -> Task:
    """Return the task that the settings name.

    Raises:
        ConfigError: there is no such task, or its settings are incomplete.
    """
    name = config.env.name
    if name not in ENVIRONMENTS:
        raise ConfigError(
            f"env.name is {name!r}; expected one of {', '.join(ENVIRONMENTS)}."
            f"{nearest_name(name, ENVIRONMENTS)}"
        )
    module, _, kind = ENVIRONMENTS[name].partition(":")
    task: Task = getattr(importlib.import_module(module), kind)(config)
    return task
