"""The controls of the live view."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from navrl.render.palette import OUTCOME_NAMES

__all__ = ["Choice", "Controls"]

WORLDS = 32  # that can be chosen: those of an evaluation
SPEEDS = ("0.25x", "0.5x", "1x", "2x", "4x")


@dataclass(frozen=True)
class Choice:
    """What is flown; another choice starts another flight."""

    policy: str
    scenario: str
    world: int
    shield: bool


class Controls:
    """The panel of a viser server: what is flown, and what is shown of it.

    Args:
        server: a `viser.ViserServer`.
        policies: names to choose from; the first is chosen.
        scenarios: names to choose from.
        first: what is chosen at the start.
        drones: that can be followed.
    """

    def __init__(
        self,
        server: Any,
        policies: Sequence[str],
        scenarios: Sequence[str],
        first: Choice,
        drones: int,
    ) -> None:
        gui = server.gui
        self._policy = gui.add_dropdown("Policy", tuple(policies), initial_value=first.policy)
        self._scenario = gui.add_dropdown(
            "Scenario", tuple(scenarios), initial_value=first.scenario
        )
        last = max(WORLDS - 1, first.world)
        self._world = gui.add_slider("World", 0, last, step=1, initial_value=first.world)
        self._shield = gui.add_checkbox("Shield", first.shield)
        self._drone = gui.add_slider("Drone", 0, max(drones - 1, 1), step=1, initial_value=0)
        self._rays = gui.add_checkbox("Rays", True)
        self._paused = gui.add_checkbox("Pause", False)
        self._speed = gui.add_dropdown("Speed", SPEEDS, initial_value="1x")
        self._status = gui.add_markdown("")
        self._drones = drones

    @property
    def choice(self) -> Choice:
        """What is flown."""
        return Choice(
            self._policy.value,
            self._scenario.value,
            int(self._world.value),
            bool(self._shield.value),
        )

    @property
    def drone(self) -> int:
        """The drone whose rays and goal are shown."""
        return min(int(self._drone.value), self._drones - 1)

    @property
    def rays(self) -> bool:
        """Whether rays are shown."""
        return bool(self._rays.value)

    @property
    def paused(self) -> bool:
        """Whether time stands still."""
        return bool(self._paused.value)

    @property
    def speed(self) -> float:
        """Seconds of flight in a second."""
        return float(self._speed.value.removesuffix("x"))

    def tell(
        self, policy: str, counts: Counter[str], goal: Iterable[float], problem: str = ""
    ) -> None:
        """Show what flies, how its flights ended and where the followed drone goes."""
        ended = [f"- {words}: {counts[name]}" for name, words in OUTCOME_NAMES.items()]
        place = ", ".join(f"{value:.1f}" for value in goal)
        drag = (
            f"Goal of drone {self.drone}: ({place}) m. Drag its arrows to send the drone elsewhere."
        )
        lines = [f"**{policy}**", "", f"Flights ended: {counts.total()}", *ended, "", drag]
        text = "\n".join([f"**{problem}**", ""] * bool(problem) + lines)
        if text != self._status.content:
            self._status.content = text
