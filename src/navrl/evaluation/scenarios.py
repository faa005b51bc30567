"""The settings of scenarios: those of the table in `names.py` over those of the user's task."""

from __future__ import annotations

from collections.abc import Collection
from itertools import product

from navrl.config import FlightSettings
from navrl.errors import ConfigError, nearest_name
from navrl.evaluation.names import SCENARIOS
from navrl.evaluation.policy_lookup import Policy
from navrl.evaluation.tasks import flight_task
from navrl.sim.robots import ROBOT_KEYS
from navrl.sim.settings import NavigationSettings

__all__ = ["parse_scenarios", "scenario_tasks"]


def parse_scenarios(text: str) -> list[str]:
    """Return the names in a comma-separated list.

    Raises:
        ConfigError: a name is unknown, or there is none.
    """
    names = list(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    for name in names:
        if name not in SCENARIOS:
            known = ", ".join(SCENARIOS)
            raise ConfigError(
                f"scenario {name!a:.60} is unknown; expected some of {known}."
                f"{nearest_name(name, SCENARIOS)}"
            )
    if not names:
        raise ConfigError(f"no scenario is named; expected some of {', '.join(SCENARIOS)}")
    return names


def scenario_tasks(
    names: Collection[str],
    task: NavigationSettings,
    flight: FlightSettings,
    policy: Policy | None = None,
    typed: Collection[str] = (),
) -> dict[str, NavigationSettings]:
    """Return the settings of every condition to fly: `standard`, or `grid 300+60` for a cell.

    Args:
        names: of scenarios.
        task: of the user's configuration.
        flight: how many episodes, in which worlds.
        policy: gives the settings of its sensor.
        typed: dotted keys that the user typed.

    Raises:
        ConfigError: a scenario lacks something that the user must give.

    >>> import navrl
    >>> from navrl.config import FlightSettings
    >>> from navrl.evaluation import scenario_tasks
    >>> flight = FlightSettings(episodes=64)
    >>> tasks = scenario_tasks(["crossing"], navrl.NavigationSettings(), flight)
    >>> tasks["crossing"].env.num_envs, tasks["crossing"].env.num_obstacles
    (64, 350)
    """
    kept = (_changed(task) - set(ROBOT_KEYS)) | set(typed)
    tasks: dict[str, NavigationSettings] = {}
    for name in names:
        scenario = SCENARIOS[name]
        if name == "own" and not task.env.world_files:
            raise ConfigError("--scenario own needs worlds: add env.world_files=[my.yaml]")
        for values in product(*scenario.cells.values()):
            cell = dict(zip(scenario.cells, values, strict=True))
            flown = flight_task(task, flight, policy, typed)
            for key, value in {**scenario.settings, **cell}.items():
                if key not in kept:
                    flown.set(key, value)
            label = f"{name} {'+'.join(map(str, values))}" if values else name
            tasks[label] = flown
    return tasks


def _changed(task: NavigationSettings) -> set[str]:
    """Return the keys of a task that are not at their defaults: a preset or the user set them."""
    default = NavigationSettings().as_dict()
    return {
        f"{group}.{name}"
        for group, values in task.as_dict().items()
        for name, value in values.items()
        if value != default[group][name]
    }
