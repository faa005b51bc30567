"""Robot: the keys of a robot file, with units, limits and the settings that each one sets."""

from __future__ import annotations

import copy
import dataclasses
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from navrl.errors import ConfigError, shown
from navrl.sim.settings import AIRFRAME, MODELS, WEAKEST, NavigationSettings

__all__ = ["MEASURING", "ROBOT_KEYS", "Key", "Robot", "differences", "keys_of", "robot_of"]

STEP = 0.016  # s, about the length of a simulated step where a control rate is given
SLOWEST = 64  # simulated steps in a decision, at most
NAME = re.compile(r"[A-Za-z0-9_-]{1,60}")


def _key(
    default: Any, about: str, unit: str = "", limits: Any = None, setting: str = "", size: int = 0
) -> Any:
    """Return a field of a robot: its default, meaning, unit, limits, and the setting it sets.

    Args:
        default: of the Hummingbird.
        about: for templates and tables.
        unit: of the value.
        limits: (lowest, highest) of a number, or the words to choose from.
        setting: dotted key that takes the value as it is; empty: `Robot.settings` computes it.
        size: how many numbers there are in a list.
    """
    details = {"about": about, "unit": unit, "limits": limits, "setting": setting, "size": size}
    if isinstance(default, tuple):
        return field(default=default, metadata={**details, "size": size or len(default)})
    return field(default=default, metadata=details)


@dataclass(frozen=True)
class Response:
    """Keys `response.*`: how the robot follows velocity commands."""

    model: str = _key(
        "hummingbird",
        "hummingbird: built-in constants; quadrotor: those below; first_order: a time constant",
        limits=MODELS,
        setting="drone.model_name",
    )
    time_constant: float = _key(
        0.3,
        "to 63 % of a commanded velocity (first_order)",
        "s",
        (0.001, 10),
        "drone.time_constant",
    )
    damping: float = _key(0.2, "of speed and rotation by the air", "1/s", (0, 10), "drone.damping")
    mass: float = _key(
        0.716, "of the body; this and all below: model quadrotor", "kg", (0.001, 1000), "drone.mass"
    )
    inertia: tuple[float, ...] = _key(
        (0.007, 0.007, 0.012), "about x, y, z of the body", "kg m²", (1e-6, 1e5), "drone.inertia"
    )
    arm: float = _key(0.17, "from the centre to a rotor", "m", (0.001, 10), "drone.arm")
    rotor_thrust: float = _key(
        6.003, "the most that one of the four rotors gives", "N", (0.001, 1e4), "drone.rotor_thrust"
    )
    rotor_moment: float = _key(
        0.016, "drag moment of a rotor / thrust", "m", (0.0001, 1), "drone.rotor_moment"
    )
    rotor_time_constant: float = _key(
        0.0285, "of a rotor's speed", "s", (0.0001, 1), "drone.rotor_time_constant"
    )
    velocity_gain: float = _key(
        2.2, "acceleration / velocity error", "1/s", (0.01, 100), "drone.velocity_gain"
    )
    attitude_gain: tuple[float, ...] = _key(
        (100.0, 100.0, 2.92),
        "angular acceleration / attitude error",
        "1/s²",
        (0.001, 1e5),
        "drone.attitude_gain",
    )
    rate_gain: tuple[float, ...] = _key(
        (14.3, 14.3, 2.08),
        "angular acceleration / angular rate",
        "1/s",
        (0.001, 1e5),
        "drone.rate_gain",
    )


@dataclass(frozen=True)
class Lidar:
    """Keys `lidar.*`."""

    rays: int = _key(36, "around the full circle", limits=(3, 360))
    beams: int = _key(4, "above each other", limits=(1, 64), setting="sensor.lidar_vbeams")
    field_of_view: float = _key(
        360.0,
        "around the heading; rays outside report nothing",
        "degrees",
        (1, 360),
        "sensor.lidar_hfov",
    )
    elevations: tuple[float, ...] = _key(
        (-10.0, 20.0),
        "of the lowest and the highest beam",
        "degrees",
        (-85, 85),
        "sensor.lidar_vfov",
    )
    range: float = _key(4.0, "of a ray", "m", (0.5, 20), "sensor.lidar_range")
    noise: float = _key(0.0, "standard deviation of a ray", "m", (0, 1), "sensor.noise")
    dropout: float = _key(
        0.0, "probability that a ray reports nothing", "", (0, 1), "sensor.dropout"
    )
    rate: float = _key(
        0.0, "of scans; 0: one for every decision", "Hz", (0, 1000), "sensor.lidar_rate"
    )
    sees_moving: bool = _key(
        False, "whether rays hit moving obstacles", setting="env_dyn.visible_to_lidar"
    )


@dataclass(frozen=True)
class Detector:
    """Keys `detector.*`: what reports moving obstacles."""

    range: float = _key(
        0.0, "of obstacles; 0: as the LiDAR's", "m", (0, 40), "sensor.detection_range"
    )
    obstacles: int = _key(
        5, "that the policy is told of, nearest first", "", (1, 32), "env.num_observed"
    )
    misses: float = _key(
        0.0, "probability to miss an obstacle", "", (0, 1), "sensor.detection_dropout"
    )
    noise: float = _key(
        0.0, "standard deviation of a position", "m", (0, 10), "sensor.detection_noise"
    )


@dataclass(frozen=True)
class Robot:
    """A robot: the content of a robot file. The defaults are the Hummingbird.

    Raises:
        ConfigError: a value is out of its limits, or two contradict each other.
    """

    name: str = _key("hummingbird", "letters, digits, - and _")
    radius: float = _key(
        0.3, "an obstacle that is nearer is hit", "m", (0.01, 2), "env.collision_radius"
    )
    height: float = _key(0.0, "of the body, a cylinder; 0: LiDAR rays tell of hits", "m", (0, 5))
    speed: float = _key(
        2.0, "the most along each axis of the goal frame", "m/s", (0.01, 50), "env.action_limit"
    )
    vertical_speed: float = _key(
        0.0, "the most up and down; 0: as speed", "m/s", (0, 50), "drone.vertical_speed"
    )
    acceleration: float = _key(
        0.0, "the most; 0: no limit", "m/s²", (0, 1000), "drone.max_acceleration"
    )
    planar: bool = _key(
        False, "two dimensions: no vertical command, heights ignored", setting="env.planar"
    )
    control_rate: float = _key(0.0, "of decisions; 0: as the preset says", "Hz", (0.32, 1000))
    response: Response = field(default_factory=Response)
    lidar: Lidar = field(default_factory=Lidar)
    detector: Detector = field(default_factory=Detector)

    def __post_init__(self) -> None:
        for key in keys_of():
            key.check(key.of(self))
        if not NAME.fullmatch(self.name):
            raise ConfigError(
                f"name is {shown(self.name)}; expected letters, digits, - and _, at most 60 of them"
            )
        self._check_response()
        low, high = self.lidar.elevations
        if self.lidar.beams > 1 and low >= high:
            raise ConfigError(
                f"lidar.elevations is [{low:g}, {high:g}] degrees; expected the lowest first"
            )

    def _check_response(self) -> None:
        model, default = self.response.model, Response()
        if self.planar and model != "first_order":
            raise ConfigError(
                f"planar is true and response.model is {model}; expected first_order for a robot "
                "that moves in two dimensions"
            )
        changed = [n for n in AIRFRAME if getattr(self.response, n) != getattr(default, n)]
        if model != "quadrotor" and changed:
            raise ConfigError(
                f"response.{changed[0]} is set, but response.model={model} does not read it; "
                "expected response.model: quadrotor"
            )
        thrust, weight = 4 * self.response.rotor_thrust, 9.81 * self.response.mass
        if model == "quadrotor" and thrust < WEAKEST * weight:
            raise ConfigError(
                f"response.rotor_thrust is {self.response.rotor_thrust:g} N: four rotors give "
                f"{thrust:g} N, the weight is {weight:.3g} N; expected at least {WEAKEST:g} times "
                "the weight"
            )

    def settings(self) -> dict[str, Any]:
        """Return the settings of this robot by dotted key; those of time only with a control
        rate.
        """
        values = {key.setting: key.plain(self) for key in keys_of() if key.setting}
        values["drone.robot"] = self.name
        values["sensor.lidar_hres"] = 360.0 / self.lidar.rays
        values["env.collision"] = "cylinder" if self.height else "rays"
        values["env.collision_height"] = self.height
        if self.control_rate:
            repeat = min(max(1, round(1 / (self.control_rate * STEP))), SLOWEST)
            values["env.action_repeat"] = repeat
            values["sim.dt"] = 1 / (self.control_rate * repeat)
        return values

    def applied_to(self, task: NavigationSettings) -> NavigationSettings:
        """Return a copy of a task for this robot."""
        own = copy.deepcopy(task)
        for key, value in self.settings().items():
            own.set(key, copy.copy(value))
        return own

    def as_dict(self) -> dict[str, Any]:
        """Return the robot as plain values, as in its file."""
        return _plain(dataclasses.asdict(self))


@dataclass(frozen=True)
class Key:
    """One key of a robot file."""

    name: str  # dotted
    default: Any
    about: str
    unit: str
    limits: Any  # (lowest, highest), words, or None
    setting: str
    size: int

    def of(self, robot: Robot) -> Any:
        """Return the value that a robot has."""
        value: Any = robot
        for part in self.name.split("."):
            value = getattr(value, part)
        return value

    def plain(self, robot: Robot) -> Any:
        """Return the value as a setting takes it."""
        return _plain(self.of(robot))

    def told(self, value: Any) -> str:
        """Return a value with its unit."""
        if isinstance(value, list | tuple):
            text = f"[{', '.join(f'{one:g}' for one in value)}]"
        elif isinstance(value, bool):
            text = str(value).lower()
        else:
            text = f"{value:g}" if isinstance(value, int | float) else str(value)
        return f"{text} {self.unit}".rstrip()

    @property
    def expected(self) -> str:
        """What values the key takes, in words."""
        unit = f" {self.unit}" if self.unit else ""
        if isinstance(self.default, bool):
            return "true or false"
        if isinstance(self.default, str):
            return f"one of {', '.join(self.limits)}" if self.limits else "a name"
        low, high = (f"{limit:g}" for limit in self.limits)
        several = f"{self.size} numbers, each " if self.size else ""
        none = "0, or " if self.default == 0 and self.limits[0] > 0 else ""
        return f"{several}{none}{low} to {high}{unit}"

    def check(self, value: Any) -> None:
        """Raise a ConfigError if the key does not take a value."""
        if not self._fits(value):
            unit = f" {self.unit}" if self.unit and isinstance(value, int | float) else ""
            raise ConfigError(f"{self.name} is {shown(value)}{unit}; expected {self.expected}")

    def _fits(self, value: Any) -> bool:
        if isinstance(self.default, bool) or isinstance(value, bool):
            return isinstance(value, bool) and isinstance(self.default, bool)
        if isinstance(self.default, str):
            return isinstance(value, str) and (not self.limits or value in self.limits)
        if self.size:
            each = isinstance(value, tuple) and len(value) == self.size
            return each and all(self._in_limits(one) for one in value)
        if isinstance(self.default, int) and not isinstance(value, int):
            return False
        return self._in_limits(value) or (self.default == 0 and value == 0)

    def _in_limits(self, value: Any) -> bool:
        number = isinstance(value, int | float) and not isinstance(value, bool)
        return number and bool(self.limits[0] <= value <= self.limits[1])


def keys_of() -> list[Key]:
    """Return all keys of a robot file, in the order in which they are written."""
    return [*_KEYS]


def _walk(kind: type, prefix: str) -> Iterator[Key]:
    for part in dataclasses.fields(kind):
        name = f"{prefix}{part.name}"
        if part.name in _GROUPS and not prefix:
            yield from _walk(_GROUPS[part.name], f"{name}.")
        else:
            yield Key(name, part.default, **part.metadata)


_GROUPS = {"response": Response, "lidar": Lidar, "detector": Detector}
_KEYS = tuple(_walk(Robot, ""))

# Every setting that a robot file sets. A policy's are those of its training.
ROBOT_KEYS = (
    *(key.setting for key in _KEYS if key.setting),
    "drone.robot",
    "sensor.lidar_hres",
    "env.collision",
    "env.collision_height",
    "env.action_repeat",
    "sim.dt",
)

# Errors of measurement: keys of a robot file, and their settings. They make no other robot.
MEASURING = {
    key.name: key.setting
    for key in _KEYS
    if key.name in ("lidar.noise", "lidar.dropout", "detector.misses", "detector.noise")
}


def robot_of(task: NavigationSettings) -> Robot:
    """Return the robot of a task; what the task has beyond a robot file's limits is an error."""
    values = task.as_dict()
    parts: dict[str, dict[str, Any]] = {"": {}, **{name: {} for name in _GROUPS}}
    for key in _KEYS:
        if key.setting:
            group, name = key.setting.split(".")
            above, _, last = key.name.rpartition(".")
            parts[above][last] = _frozen(values[group][name])
    parts["lidar"]["rays"] = round(360 / task.sensor.lidar_hres)
    return Robot(
        name=task.drone.robot,
        height=task.env.collision_height if task.env.collision == "cylinder" else 0.0,
        control_rate=1 / (task.sim.dt * task.env.action_repeat),
        response=Response(**parts["response"]),
        lidar=Lidar(**parts["lidar"]),
        detector=Detector(**parts["detector"]),
        **parts[""],
    )


def differences(trained: Robot, other: Robot) -> list[str]:
    """Return where another robot differs from the one that a policy was trained for, in words.

    A control rate of 0, which leaves it to the preset, differs from none.
    """
    return [
        f"{key.name} {key.told(key.of(other))} (trained with {key.told(key.of(trained))})"
        for key in _KEYS
        if key.name != "name" and not _equal(key, key.of(trained), key.of(other))
    ]


def _equal(key: Key, one: Any, other: Any) -> bool:
    if key.name == "control_rate" and not (one and other):
        return True
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-6, abs_tol=1e-9)
    return bool(one == other)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(one) for name, one in value.items()}
    return [*value] if isinstance(value, tuple) else value


def _frozen(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return tuple(float(one) for one in value)
    return value
