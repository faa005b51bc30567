"""The newest usable message of each kind, and what is wrong with the inputs."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from navrl.deploy.node.node_settings import NodeSettings
from navrl.deploy.node.scans import ScanLayout, from_level_scan, from_points, from_rays, from_scan
from navrl.deploy.node_messages import (
    Array,
    Goal,
    LevelScan,
    Message,
    Odometry,
    Points,
    Rays,
    Scan,
    Tracks,
)
from navrl.deploy.tracks import TRACK
from navrl.errors import MessageError

# Kinds of messages that say the same thing share a slot: the newest one counts.
SLOTS: dict[type[Message], str] = {
    Odometry: "odometry",
    Goal: "goal",
    Scan: "scan",
    LevelScan: "scan",
    Points: "scan",
    Rays: "scan",
    Tracks: "tracks",
}
LONGEST_SIDE = 100.0  # m: a larger obstacle is refused


@dataclass
class Slot:
    """The newest message of a kind, when it arrived, and why a newer one was refused."""

    message: Message | None = None
    received: float = 0.0  # s, by the node's clock
    problem: str = ""


class Inbox:
    """Checks messages as they arrive and keeps the newest of each kind."""

    def __init__(self, settings: NodeSettings, layout: ScanLayout) -> None:
        self.settings, self.layout = settings, layout
        self.slots = {name: Slot() for name in dict.fromkeys(SLOTS.values())}
        self.counts: Counter[str] = Counter()  # of refused and of late messages, by slot

    def take(self, message: Message, now: float) -> bool:
        """Keep a message if it can be used and is the newest of its kind; tell whether it was."""
        name = SLOTS.get(type(message))
        if name is None:
            return False
        slot = self.slots[name]
        try:
            self._check(message, now)
        except MessageError as error:
            slot.problem = f"{name} was refused: {error}"
            self.counts[f"{name} refused"] += 1
            return False
        if slot.message is not None and message.stamp < slot.message.stamp:
            self.counts[f"{name} late"] += 1
            return False
        slot.message, slot.received, slot.problem = message, now, ""
        return True

    # ------------------------------------------------------------------ the state of the inputs

    @property
    def needed(self) -> list[str]:
        """Slots that must be filled and fresh."""
        return ["odometry", "scan"] + (["tracks"] if self.settings.needs_tracks else [])

    def missing(self) -> list[str]:
        """Return what has never arrived."""
        return [
            name
            for name in self.needed
            if self.slots[name].message is None and not self.slots[name].problem
        ]

    def problem(self) -> str:
        """Return why the newest message of a needed kind was refused, or nothing."""
        told = [self.slots[name].problem for name in (*self.needed, "goal")]
        return "; ".join(text for text in told if text)

    def stale(self, now: float) -> str:
        """Return which inputs are too old, by their stamps or by their arrival, or nothing."""
        told = []
        for name in self.needed:
            age = self._age(name, now)
            if not -self.settings.max_ahead <= age <= self.settings.max_age:
                told.append(f"{name} is {age:.2f} s old, at most {self.settings.max_age:g} allowed")
        return "; ".join(told)

    def age(self, now: float) -> float:
        """Return the age of the oldest needed input, s; at least 0."""
        return max(0.0, *(self._age(name, now) for name in self.needed))

    def ages(self, now: float) -> dict[str, float]:
        """Return the age of every needed input that has arrived."""
        return {n: self._age(n, now) for n in self.needed if self.slots[n].message is not None}

    def measured_at(self, name: str, now: float) -> float:
        """Return when an input was measured, by the node's clock: at the latest when it arrived.

        What stands in the world already, points and the ends of rays, is as old as the odometry
        that makes ranges of it.
        """
        message = self.slots[name].message
        if isinstance(message, Rays) or (
            isinstance(message, Points) and message.frame == self.settings.world_frame
        ):
            name = "odometry"
        return now - self._age(name, now) if message is not None else now

    def _age(self, name: str, now: float) -> float:
        slot = self.slots[name]
        assert slot.message is not None
        return max(now - slot.message.stamp, now - slot.received)

    # ------------------------------------------------------------------ the inputs

    @property
    def odometry(self) -> Odometry | None:
        """The newest odometry."""
        message = self.slots["odometry"].message
        return message if isinstance(message, Odometry) else None

    def tracks(self) -> Array:
        """Return the moving obstacles, (K, 8), K at least 1."""
        message = self.slots["tracks"].message
        rows = message.obstacles if isinstance(message, Tracks) else np.zeros((0, TRACK))
        return rows if len(rows) else np.zeros((1, TRACK))

    def ranges(self, bearing: float) -> tuple[Array, float]:
        """Return the scan in the policy's layout, and the bearing of its azimuth 0.

        Raises:
            MessageError: the scan has other rays than the policy.
        """
        scan, odometry = self.slots["scan"].message, self.odometry
        assert odometry is not None
        if isinstance(scan, Scan):
            return from_scan(self.layout, scan, bearing)
        position, attitude = odometry.position, odometry.attitude
        if isinstance(scan, LevelScan):
            return from_level_scan(self.layout, scan, attitude, bearing), bearing
        if isinstance(scan, Rays):
            return from_rays(self.layout, scan, position), bearing
        assert isinstance(scan, Points)
        frame = self.settings.world_frame
        return from_points(self.layout, scan, position, attitude, bearing, frame), bearing

    # ------------------------------------------------------------------ checks

    def _check(self, message: Message, now: float) -> None:
        if not np.isfinite(message.stamp):
            raise MessageError("its stamp is not a number")
        ahead = message.stamp - now
        if ahead > self.settings.max_ahead and not isinstance(message, Goal):
            raise MessageError(f"it is stamped {ahead:.2f} s in the future; synchronise the clocks")
        if isinstance(message, Odometry):
            self._check_odometry(message)
        elif isinstance(message, Goal):
            self._check_frame(message.frame)
            _check_within("position", message.position, self.settings.max_position)
        elif isinstance(message, Tracks):
            self._check_tracks(message)
        elif isinstance(message, Points):
            self._check_frame(message.frame, body=True)
            _check_mostly_finite("points", message.points)
        elif isinstance(message, Scan):
            self._check_scan(message)
        elif isinstance(message, LevelScan):
            self._check_body(message.frame)
        elif isinstance(message, Rays):
            _check_within("points", message.points, self.settings.max_position + 1e3)

    def _check_odometry(self, message: Odometry) -> None:
        self._check_frame(message.frame)
        _check_within("position", message.position, self.settings.max_position)
        _check_within("velocity", message.velocity, self.settings.max_speed)
        size = float(np.linalg.norm(message.attitude))
        if not abs(size - 1) < 1e-2:
            raise MessageError(
                f"its attitude has the length {size:.3g}; expected a unit quaternion"
            )

    def _check_tracks(self, message: Tracks) -> None:
        self._check_frame(message.frame)
        _check_within("obstacles", message.obstacles, self.settings.max_position)
        used = message.obstacles[message.obstacles[:, 6] > 0]
        if len(used) and used[:, 6:8].max() > LONGEST_SIDE:
            raise MessageError(f"an obstacle is larger than {LONGEST_SIDE:g} m")

    def _check_scan(self, message: Scan) -> None:
        ranges = message.ranges
        if ranges.shape != self.layout.shape:
            raise MessageError(f"it has the shape {ranges.shape}; expected {self.layout.shape}")
        if not np.isfinite(ranges).all() or not np.isfinite(message.bearing):
            raise MessageError("it holds NaN or infinity; a ray that hits nothing has the range")
        if ranges.min() < 0:
            raise MessageError("it has ranges below 0; expected metres from the robot")
        if not ranges.any():
            raise MessageError(
                f"every ray is 0; expected {self.layout.reach:g} m where nothing is hit"
            )

    def _check_body(self, frame: str) -> None:
        odometry = self.odometry
        if odometry is not None and frame != odometry.body_frame:
            raise MessageError(
                f"its frame is {frame!r}; expected the odometry's {odometry.body_frame!r}"
            )

    def _check_frame(self, frame: str, *, body: bool = False) -> None:
        odometry = self.odometry
        allowed = [self.settings.world_frame]
        if body and odometry is not None:
            allowed.append(odometry.body_frame)
        if frame not in allowed:
            raise MessageError(
                f"its frame is {frame!r}; expected {' or '.join(map(repr, allowed))}"
            )


def _check_within(name: str, values: Array, limit: float) -> None:
    if not np.isfinite(values).all():
        raise MessageError(f"its {name} holds NaN or infinity")
    if values.size and np.abs(values).max() > limit:
        raise MessageError(f"its {name} has {np.abs(values).max():.3g}; expected at most {limit:g}")


def _check_mostly_finite(name: str, values: Array) -> None:
    """Raise if points are given and none is finite: clouds mark misses with NaN."""
    if len(values) and not np.isfinite(values).all(1).any():
        raise MessageError(f"none of its {len(values)} {name} is finite")
