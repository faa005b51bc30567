"""Inputs as they will be when the command that answers them acts.

ahead = CarryForward(response, elevations, reach, delay=0.08)
ahead.sent.add(now, command)                     # every command, when it is sent
inputs = ahead(Measured(...), now)               # what the next decision should be given
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from navrl.deploy.latency.own_motion import Array, Response, SentCommands
from navrl.deploy.latency.scan_kernel import move_scans

JOINED = 1.0  # m: neighbouring hits that differ by less in distance belong to one surface
NEAREST = 0.02  # m, of a ray
STILL = 1e-9  # m: a smaller shift leaves a scan as it is


@dataclass(frozen=True)
class Measured:
    """The inputs of N robots, and when each of them was measured, in s."""

    position: Array  # (N, 3) m
    velocity: Array  # (N, 3) m/s
    lidar: Array  # (N, azimuths, beams) m
    bearing: Array  # (N,) rad, of azimuth 0
    obstacles: Array  # (N, K, 8)
    moved_at: float  # of position and velocity
    scanned_at: float
    tracked_at: float


def response_of(contract: Mapping[str, Any], lag: float) -> Response:
    """Return how the robot of a contract follows commands; `lag` where the contract has none."""
    robot = contract["robot"]
    return Response(
        float(robot.get("velocity_lag_s", lag)),
        float(robot.get("damping_per_s", 0.0)),
        float(robot.get("turning_delay_s", 0.0)),
    )


class CarryForward:
    """Carries measurements forward to the time when the next command acts.

    The robot moves by the commands that were already sent, moving obstacles keep their velocity,
    and scans are seen from the new place, as if everything in them stood still.

    Args:
        response: how the robot follows commands.
        elevations: of the LiDAR's beams, degrees.
        reach: of the LiDAR, m.
        delay: s from sending a command until the robot receives it.
        longest: s; nothing is carried further than this.
    """

    def __init__(
        self,
        response: Response,
        elevations: Sequence[float],
        reach: float,
        *,
        delay: float = 0.0,
        longest: float = 0.5,
    ) -> None:
        self.response, self.reach, self.delay, self.longest = response, reach, delay, longest
        self.sent = SentCommands(delay + response.turning)
        angles = np.radians(np.asarray(elevations, np.float64))
        self._sines, self._cosines = np.sin(angles), np.cos(angles)

    def __call__(self, measured: Measured, now: float) -> Measured:
        """Return the inputs as they will be when a command that is sent now arrives."""
        acts = now + self.delay
        position, velocity = self._own(measured, self._until(acts, measured.moved_at))
        here, _ = self._own(measured, self._until(acts, measured.scanned_at))
        there, _ = self._own(measured, measured.scanned_at)
        obstacles = measured.obstacles.copy()
        ahead = self._until(acts, measured.tracked_at) - measured.tracked_at
        obstacles[..., :3] += ahead * obstacles[..., 3:6]
        return Measured(
            position,
            velocity,
            self._moved_scan(measured, here - there, there[:, 2]),
            measured.bearing,
            obstacles,
            self._until(acts, measured.moved_at),
            self._until(acts, measured.scanned_at),
            self._until(acts, measured.tracked_at),
        )

    def warm_up(self, azimuths: int) -> None:
        """Compile what moves scans of so many azimuths."""
        free = np.full((1, azimuths, len(self._sines)), self.reach)
        rest = np.zeros((1, 3))
        none = Measured(rest, rest, free, np.zeros(1), np.zeros((1, 1, 8)), 0.0, 0.0, 0.0)
        self._moved_scan(none, np.ones((1, 3)), np.ones(1))

    def _until(self, acts: float, measured_at: float) -> float:
        """Return how far a measurement is carried: never back, never further than `longest`."""
        return min(max(acts, measured_at), measured_at + self.longest)

    def _own(self, measured: Measured, time: float) -> tuple[Array, Array]:
        """Return where the robots are at a time; before the odometry, by its velocity."""
        position, velocity, begin = measured.position, measured.velocity, measured.moved_at
        if time <= begin:
            return position + max(time - begin, -self.longest) * velocity, velocity
        return self.response.moved(position, velocity, self.sent.between(begin, time))

    def _moved_scan(self, measured: Measured, shift: Array, height: Array) -> Array:
        """Return the scans as they are seen from places shifted by `shift`, (N, 3)."""
        if np.abs(shift).max(initial=0.0) < STILL:
            return measured.lidar
        ranges = np.ascontiguousarray(measured.lidar, np.float64)
        out, levels = np.empty_like(ranges), np.empty(ranges.shape[1])
        move_scans(
            ranges,
            np.ascontiguousarray(measured.bearing, np.float64),
            np.ascontiguousarray(shift),
            np.ascontiguousarray(height),
            self._sines,
            self._cosines,
            self.reach,
            JOINED,
            levels,
            out,
        )
        return np.maximum(out, NEAREST)
