"""What a node receives and sends, whatever carries it: SI units, the world frame, stamps in s.

`stamp` is when the values were measured, by the sender's clock.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from navrl.errors import MessageError, shown

Array = NDArray[np.float64]
UPRIGHT = (1.0, 0.0, 0.0, 0.0)


@dataclass(frozen=True)
class Message:
    """Base of all messages; `topic` names the kind."""

    topic: ClassVar[str] = ""
    stamp: float


@dataclass(frozen=True)
class Odometry(Message):
    """Where the robot is and how fast it moves, in the frame `frame`."""

    topic: ClassVar[str] = "odometry"
    position: Array  # (3,) m
    velocity: Array  # (3,) m/s, in `frame`, not in the body's
    attitude: Array = field(default_factory=lambda: np.array(UPRIGHT))  # (4,) w, x, y, z
    frame: str = "map"
    body_frame: str = "base_link"


@dataclass(frozen=True)
class Goal(Message):
    """Where to fly; the start is where the robot is when this arrives."""

    topic: ClassVar[str] = "goal"
    position: Array  # (3,) m
    frame: str = "map"


@dataclass(frozen=True)
class Scan(Message):
    """Ranges in the policy's own layout."""

    topic: ClassVar[str] = "scan"
    ranges: Array  # (azimuths, beams) m, counter-clockwise from `bearing`
    bearing: float  # rad, of azimuth 0 in the world


@dataclass(frozen=True)
class LevelScan(Message):
    """Ranges in one horizontal plane, as a 2-D laser scanner gives them, in the body frame."""

    topic: ClassVar[str] = "level_scan"
    ranges: Array  # (M,) m; not finite where nothing was hit
    first_angle: float  # rad from the body's x axis
    step: float  # rad, counter-clockwise if positive
    frame: str = "base_link"


@dataclass(frozen=True)
class Points(Message):
    """Hits of any LiDAR or depth camera, in the world frame or in the robot's body frame."""

    topic: ClassVar[str] = "points"
    points: Array  # (P, 3) m
    frame: str = "map"


@dataclass(frozen=True)
class Rays(Message):
    """End points of cast rays, azimuth-major from the goal's bearing; a miss ends at the range."""

    topic: ClassVar[str] = "rays"
    points: Array  # (azimuths * beams, 3) m, world


@dataclass(frozen=True)
class Tracks(Message):
    """Moving obstacles: x, y, z, vx, vy, vz, width, height of each."""

    topic: ClassVar[str] = "tracks"
    obstacles: Array  # (K, 8); K may be 0
    frame: str = "map"


@dataclass(frozen=True)
class Arm(Message):
    """Arm or disarm the node."""

    topic: ClassVar[str] = "arm"
    on: bool


@dataclass(frozen=True)
class EmergencyStop(Message):
    """Stop until it is released and the node armed again."""

    topic: ClassVar[str] = "emergency_stop"
    on: bool


@dataclass(frozen=True)
class Clock(Message):
    """The time of a simulation, for a node that takes its time from there."""

    topic: ClassVar[str] = "clock"


@dataclass(frozen=True)
class Command(Message):
    """What the robot shall fly."""

    topic: ClassVar[str] = "command"
    velocity: Array  # (3,) m/s, world
    state: str = ""  # of the node, a word of `State`
    frame: str = "map"
    yaw: float = 0.0  # rad, of the robot when the command was made


@dataclass(frozen=True)
class Diagnostics(Message):
    """How the node is."""

    topic: ClassVar[str] = "diagnostics"
    level: int  # 0 fine, 1 warning, 2 error, 3 stale input
    message: str
    values: dict[str, str] = field(default_factory=dict)


INPUTS: tuple[type[Message], ...] = (
    Odometry,
    Goal,
    Scan,
    LevelScan,
    Points,
    Rays,
    Tracks,
    Arm,
    EmergencyStop,
    Clock,
)
OUTPUTS: tuple[type[Message], ...] = (Command, Diagnostics)
BY_TOPIC = {kind.topic: kind for kind in (*INPUTS, *OUTPUTS)}

# Shapes of the arrays, by topic and field; None is any length.
SHAPES: dict[tuple[str, str], tuple[int | None, ...]] = {
    ("odometry", "position"): (3,),
    ("odometry", "velocity"): (3,),
    ("odometry", "attitude"): (4,),
    ("goal", "position"): (3,),
    ("scan", "ranges"): (None, None),
    ("level_scan", "ranges"): (None,),
    ("points", "points"): (None, 3),
    ("rays", "points"): (None, 3),
    ("tracks", "obstacles"): (None, 8),
    ("command", "velocity"): (3,),
}


def from_values(values: Mapping[str, Any]) -> Message:
    """Return the message that plain values describe, as JSON carries them.

    Raises:
        MessageError: the topic or a field is unknown, missing, or of another type or shape.
    """
    topic = values.get("topic")
    kind = BY_TOPIC.get(topic) if isinstance(topic, str) else None
    if kind is None:
        known = ", ".join(BY_TOPIC)
        raise MessageError(f"the topic is {shown(topic)}; expected one of {known}")
    known_fields = {part.name: part for part in dataclasses.fields(kind)}
    given = {name: value for name, value in values.items() if name != "topic"}
    unknown = [name for name in given if name not in known_fields]
    missing = [
        name
        for name, part in known_fields.items()
        if name not in given
        and part.default is dataclasses.MISSING
        and part.default_factory is dataclasses.MISSING
    ]
    if unknown or missing:
        raise MessageError(
            f"{topic} has unknown fields {unknown} and lacks {missing}; expected "
            f"{', '.join(known_fields)}"
        )
    return kind(**{name: _value(kind, name, value) for name, value in given.items()})


def to_values(message: Message) -> dict[str, Any]:
    """Return a message as plain values for JSON."""
    values: dict[str, Any] = {"topic": message.topic}
    for part in dataclasses.fields(message):
        value = getattr(message, part.name)
        values[part.name] = value.tolist() if isinstance(value, np.ndarray) else value
    return values


def _value(kind: type[Message], name: str, value: Any) -> Any:
    shape = SHAPES.get((kind.topic, name))
    if shape is not None:
        return _array(f"{kind.topic}.{name}", value, shape)
    kinds = {"on": bool, "frame": str, "body_frame": str, "message": str, "state": str}
    if name == "values":
        if isinstance(value, dict):
            return {str(key): str(item) for key, item in value.items()}
        raise MessageError(f"{kind.topic}.values is {shown(value)}; expected strings by name")
    expected = kinds.get(name, float)
    if expected is float:
        if isinstance(value, int | float) and not isinstance(value, bool):
            return int(value) if name == "level" else float(value)
    elif isinstance(value, expected):
        return value
    raise MessageError(f"{kind.topic}.{name} is {shown(value)}; expected {expected.__name__}")


def _array(name: str, value: Any, shape: tuple[int | None, ...]) -> Array:
    try:
        array = np.asarray(value, np.float64)
    except (TypeError, ValueError) as error:
        raise MessageError(f"{name} is {shown(value)}; expected numbers") from error
    if array.size == 0 and None in shape:
        array = array.reshape([0 if size is None else size for size in shape])
    fits = array.ndim == len(shape) and all(
        wanted in (None, found) for wanted, found in zip(shape, array.shape, strict=False)
    )
    if not fits:
        wanted = tuple("any" if size is None else size for size in shape)
        raise MessageError(f"{name} has the shape {array.shape}; expected {wanted}")
    return array


def rotated(attitude: Array, vectors: Array) -> Array:
    """Return body-frame vectors, (..., 3), in the world, for an attitude w, x, y, z."""
    w, x, y, z = attitude / np.linalg.norm(attitude)
    matrix = np.array(
        [
            [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
            [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
            [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
        ]
    )
    return vectors @ matrix.T


def yaw_of(attitude: Array) -> float:
    """Return the heading of an attitude w, x, y, z, in rad counter-clockwise from the x axis."""
    w, x, y, z = attitude / np.linalg.norm(attitude)
    return math.atan2(2 * (w * z + x * y), 1 - 2 * (y * y + z * z))
