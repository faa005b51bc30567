"""`robot=NAME` or `robot=my_robot.yaml` among the overrides: the settings that it stands for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from navrl.sim.settings import NavigationSettings

if TYPE_CHECKING:
    from navrl.sim.robots import Robot

__all__ = ["named_robot", "with_robot", "without_robot"]

ROBOT = "robot="


def named_robot(overrides: Sequence[str]) -> Robot | None:
    """Return the robot that overrides name, the last one of several, or None.

    Raises:
        ConfigError: there is no such robot, or its file cannot be used.
    """
    from navrl.sim.robots import load_robot

    named = [word for word in overrides if _names_robot(word)]
    return load_robot(named[-1].removeprefix(ROBOT).strip("'\"")) if named else None


def without_robot(overrides: Sequence[str]) -> list[str]:
    """Return the overrides that do not name a robot."""
    return [word for word in overrides if not _names_robot(word)]


def with_robot(overrides: Sequence[str]) -> list[str]:
    """Return overrides with the settings of the robot first, so that typed ones win over them.

    Settings that are at their defaults are left out, except for those that a preset may change. A
    LiDAR of another range moves the distance at which rewards for clearance are zero with it.
    """
    robot = named_robot(overrides)
    if robot is None:
        return [*overrides]
    settings, defaults = robot.settings(), NavigationSettings().as_dict()
    reach = settings["sensor.lidar_range"]
    if reach != defaults["sensor"]["lidar_range"]:
        settings["reward.log_reference"] = reach
    kept = {
        key: value
        for key, value in settings.items()
        if key in _OF_PRESETS or value != defaults[key.split(".")[0]][key.split(".")[1]]
    }
    return [*(f"{key}={_word(value)}" for key, value in kept.items()), *without_robot(overrides)]


_OF_PRESETS = ("drone.robot", "env.action_repeat", "sim.dt")


def _names_robot(word: Any) -> bool:
    return isinstance(word, str) and word.startswith(ROBOT)


def _word(value: Any) -> str:
    """Return a value as an override has it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return f"[{','.join(map(repr, value))}]"
    return value if isinstance(value, str) else repr(value)
