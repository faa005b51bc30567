"""Path length, control effort and SPL of flights, from positions and velocities over time."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["EFFORT_SECONDS", "FlightMeter", "spl", "time_ratio"]

EFFORT_SECONDS = 0.08  # between velocities that the effort compares, whatever the decision rate
REACHED = 1.0  # m from the goal: the path to the goal ends here


class FlightMeter:
    """Measures the flights of all drones while they fly.

    Args:
        position: where the drones start, (N, 3).
        velocity: their velocities, (N, 3).
        target: their goals, (N, 3).
        seconds: between two updates.
    """

    def __init__(self, position: Tensor, velocity: Tensor, target: Tensor, seconds: float) -> None:
        self._position, self._velocity, self._target = position, velocity, target
        self._stride = max(1, round(EFFORT_SECONDS / seconds))  # updates between velocities
        self._seconds = self._stride * seconds
        self._updates = 0
        number = len(position)
        self._path, self._changes = torch.zeros(number), torch.zeros(number)
        self._intervals = torch.zeros(number)
        self._away = torch.ones(number, dtype=torch.bool)

    def update(self, position: Tensor, velocity: Tensor, flying: Tensor) -> None:
        """Count one more decision.

        Args:
            position: where the drones are now, (N, 3).
            velocity: their velocities, (N, 3).
            flying: where the episode goes on, (N,).
        """
        self._updates += 1
        moved = (position - self._position).norm(dim=1)
        self._path += torch.where(self._away, moved, 0.0)
        self._away &= (position - self._target).norm(dim=1) >= REACHED
        self._position = position
        if self._updates % self._stride == 0:
            change = (velocity - self._velocity).norm(dim=1) / self._seconds
            self._changes += torch.where(flying, change, 0.0)
            self._intervals += flying
            self._velocity = velocity

    def measures(self) -> dict[str, Tensor]:
        """Return `path_to_goal` in m and `effort` in m/s², (N,) each.

        The path ends where a flight first comes within 1 m of its goal. The effort is the mean of
        |dv/dt|; it is NaN for a flight shorter than the time between two velocities.
        """
        effort = torch.where(self._intervals > 0, self._changes / self._intervals, torch.nan)
        return {"path_to_goal": self._path.clone(), "effort": effort}


def spl(success: Tensor, distance: Tensor, path: Tensor) -> Tensor:
    """Return success weighted by path length, (N,): success x shortest / max(path, shortest).

    The shortest path is the straight line from the start to within 1 m of the goal.
    """
    shortest = (distance - REACHED).clamp_min(1e-6)
    return success * shortest / torch.maximum(path, shortest)


def time_ratio(seconds: Tensor, distance: Tensor, speed: float) -> Tensor:
    """Return the time to the goal over that of a straight flight at the speed limit, (N,).

    It is NaN for trips below 2 m, where getting up to speed takes most of the time.
    """
    ratio = seconds * speed / (distance - REACHED)
    return torch.where(distance < 2 * REACHED, torch.nan, ratio)
