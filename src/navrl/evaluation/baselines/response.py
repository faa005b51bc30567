"""How a drone follows velocity commands, as two numbers a pilot can predict with."""

from __future__ import annotations

from typing import NamedTuple

from navrl.sim.settings import NavigationSettings

__all__ = ["Response", "response_of"]


class Response(NamedTuple):
    """A linear model of the drone under its controller.

    The wanted acceleration is gain (command - velocity); the attitude follows it with a first-order
    lag, and the air slows the drone down.
    """

    gain: float  # 1/s
    lag: float  # s, of the attitude; 0: none
    damping: float  # 1/s


def response_of(task: NavigationSettings) -> Response:
    """Return the model of the drone of a task."""
    if task.drone.model_name == "first_order":
        return Response(1.0 / task.drone.time_constant, 0.0, 0.0)
    return Response(task.drone.velocity_gain, 0.16, task.drone.damping)
