"""Serve the live view: fly in real time, draw, follow the controls."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from typing import Any

from navrl.config import Config
from navrl.errors import NavrlError, missing_extra
from navrl.evaluation.names import POLICIES
from navrl.evaluation.policy_lookup import Policy, load_policy
from navrl.view.live.controls import Choice, Controls
from navrl.view.live.flight import LiveFlight, viewable_scenarios
from navrl.view.live.newest import NewestPolicy
from navrl.view.live.scene import LiveScene

__all__ = ["View", "serve"]

FRAME = 0.05  # s between drawings
LOOK = 2.0  # s between looks at the files of a run
BEHIND = 0.5  # s of flight that a slow machine may owe before it is forgiven


@dataclass
class View:
    """What is watched: a policy by its reference, or the newest of a run."""

    reference: str
    config: Config
    scenario: str
    run: Path | None = None
    typed: Collection[str] = ()
    world: int = 0
    drones: int = 16
    shield: bool = False
    host: str = "127.0.0.1"
    port: int = 8080
    stopped: Callable[[], bool] = field(default=lambda: False)  # asked before each drawing


def serve(view: View, announce: Callable[[str], None] = lambda address: None) -> None:
    """Serve the live view until it is stopped.

    Args:
        view: what is watched.
        announce: called with the address once the page can be opened.

    Raises:
        ConfigError: the policy or the scenario cannot be watched.
        MissingExtraError: viser is not installed.
        OSError: the port cannot be used.
    """
    try:
        import viser
    except ImportError as error:
        raise missing_extra("the live view needs viser", "view3d") from error
    session = _Session(view)
    with redirect_stdout(StringIO()):  # its banner; `announce` has the address
        server = viser.ViserServer(host=view.host, port=view.port, label="navrl", verbose=False)
    try:
        session.open(server)
        announce(f"http://{server.get_host()}:{server.get_port()}")
        session.fly()
    finally:
        server.stop()


class _Session:
    """One flight at a time, as the controls ask for it."""

    def __init__(self, view: View) -> None:
        self.view = view
        self.newest = NewestPolicy(view.run) if view.run is not None else None
        self.policy = (self.newest.take() if self.newest else None) or self._load(view.reference)
        self.chosen = Choice(view.reference, view.scenario, view.world, view.shield)
        self.flight = self._begin(self.policy, self.chosen)
        self.problem = ""

    def _load(self, reference: str) -> Policy:
        network = self.view.config.network.target or None
        return load_policy(reference, self.view.config.task, network=network)

    def _begin(self, policy: Policy, chosen: Choice) -> LiveFlight:
        return LiveFlight(
            policy,
            chosen.scenario,
            self.view.config,
            self.view.typed,
            world=chosen.world,
            drones=self.view.drones,
            shield=chosen.shield,
        )

    def open(self, server: Any) -> None:
        """Draw the scene and the controls."""
        self.server = server
        server.initial_camera.position = (0.0, 38.0, 26.0)
        server.initial_camera.look_at = (0.0, 0.0, 0.0)
        policies = dict.fromkeys([self.view.reference, *(n for n in POLICIES if n != "oracle")])
        scenarios = viewable_scenarios(self.view.config)
        self.scene = LiveScene(server)
        self.controls = Controls(server, [*policies], scenarios, self.chosen, self.view.drones)
        self.scene.open(self.flight)

    def fly(self) -> None:
        """Fly in real time and draw until stopped."""
        now = looked = time.monotonic()
        owed = 0.0  # s of flight
        while not self.view.stopped():
            self._follow_controls()
            then, now = now, time.monotonic()
            if self.newest is not None and now - looked > LOOK:
                looked = now
                self._take_newer()
            if not self.controls.paused:
                owed = min(owed + (now - then) * self.controls.speed, BEHIND)
            while owed >= self.flight.seconds_per_step:
                self.flight.step()
                owed -= self.flight.seconds_per_step
            self._draw()
            time.sleep(max(0.0, FRAME - (time.monotonic() - now)))

    def _follow_controls(self) -> None:
        """Start another flight if another one was chosen; move a goal that was dragged."""
        wanted = self.controls.choice
        if wanted != self.chosen:
            self._change(wanted)
        goal = self.scene.take_goal()
        if goal is not None:
            self.flight.set_goal(self.controls.drone, goal)

    def _change(self, wanted: Choice) -> None:
        before, self.chosen = self.chosen, wanted
        try:
            if wanted.policy != before.policy:
                self.policy = self._load_chosen(wanted.policy)
            self.flight = self._begin(self.policy, wanted)
        except NavrlError as error:
            self.problem = str(error)
            return
        self.problem = ""
        self.scene.open(self.flight)

    def _load_chosen(self, name: str) -> Policy:
        if self.newest is not None and name == self.view.reference:
            self.newest = NewestPolicy(self.view.run or Path())
            return self.newest.take() or self.policy
        return self._load(name)

    def _take_newer(self) -> None:
        """Fly on with the newest policy of the run, if it is the one that flies."""
        if self.newest is None or self.chosen.policy != self.view.reference:
            return
        newer = self.newest.take_quietly()
        if newer is not None:
            self.policy = newer
            self.flight.change_policy(newer)

    def _draw(self) -> None:
        drone = self.controls.drone
        with self.server.atomic():
            moment = self.flight.moment(drone)
            self.scene.show(moment, followed=drone, rays=self.controls.rays)
            goal = moment.goal[drone]
            self.controls.tell(self._told(), self.flight.counts, goal, self.problem)

    def _told(self) -> str:
        iteration = self.policy.card.get("iteration")
        told = self.chosen.policy if self.newest else self.policy.name
        told += " + shield" if self.chosen.shield else ""
        return f"{told}, iteration {iteration}" if iteration is not None else told
