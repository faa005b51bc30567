"""Fly a node through episodes: the simulator measures, the node commands, over a real transport.

In lock-step the simulated time waits for every answer of the node; otherwise it runs at a given
speed, and the robot flies its last command until another arrives, as a robot does.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from navrl.deploy.node_messages import Arm, Array, Clock, Command, Message
from navrl.deploy.rehearsal.link import Link, LinkSettings
from navrl.deploy.rehearsal.simulated_robot import SimulatedRobot
from navrl.deploy.transports.transport import Transport
from navrl.errors import TransportError

COMMAND_TIMEOUT = 0.5  # s: without a command for so long the robot stands still
ANSWER_WITHIN = 60.0  # s that a node has to answer in lock-step
REPEAT_AFTER = 0.2  # s after which an unanswered question is asked again
PAUSE = 1.0  # s of simulated time between episodes


@dataclass
class Rehearsed:
    """How the rehearsed episodes ended."""

    endings: list[str] = field(default_factory=list)  # success, static_collision, ...
    worlds: list[int] = field(default_factory=list)
    lost: int = 0  # messages that the link lost on purpose
    held: int = 0  # simulated steps in which the robot stood still for want of a command
    answers_ms: list[float] = field(default_factory=list)  # from question to command, lock-step

    @property
    def success(self) -> Array:
        """1 for each episode that reached its goal, else 0."""
        return np.array([float(ending == "success") for ending in self.endings])

    def share(self, ending: str) -> float:
        """Return the share of the episodes that ended so."""
        return self.endings.count(ending) / max(len(self.endings), 1)


class Rehearsal:
    """Plays the robot for a node.

    Args:
        robot: the simulator.
        transport: to the node.
        link: what happens to messages on their way.
        speed: simulated seconds in each second; 0: lock-step.
        alive: raises a TransportError if the node has ended.
        seed: of losses and jitter.
    """

    def __init__(
        self,
        robot: SimulatedRobot,
        transport: Transport,
        link: LinkSettings | None = None,
        *,
        speed: float = 0.0,
        alive: Callable[[], None] = lambda: None,
        seed: int = 0,
    ) -> None:
        self.robot, self.transport, self.speed, self.alive = robot, transport, speed, alive
        self.link = link or LinkSettings()
        self.link.check()
        self._sensors: dict[str, Link[Message]] = {
            topic: Link(self.link, seed + number)
            for number, topic in enumerate(("odometry", "scan", "tracks"))
        }
        self._commands: Link[Command] = Link(self.link, seed + 100)
        self._links: list[Link[Any]] = [*self._sensors.values(), self._commands]
        self._time = 0.0
        self.result = Rehearsed()

    def run(
        self, episodes: int, progress: Callable[[int, str], None] = lambda episode, ending: None
    ) -> Rehearsed:
        """Fly episodes 0, 1, ... and return how they ended.

        Raises:
            TransportError: the node does not answer, or has ended.
        """
        for episode in range(episodes):
            ending = self._fly(episode)
            self.result.endings.append(ending)
            self.result.worlds.append(self.robot.world)
            progress(episode, ending)
        self.result.lost = sum(link.lost for link in self._links)
        return self.result

    def _fly(self, episode: int) -> str:
        robot = self.robot
        robot.begin(episode)
        for link in self._links:
            link.clear()
        self._time += PAUSE
        arm, goal = Arm(self._stamp, True), robot.goal_message(self._stamp)
        for message in (*robot.measured(self._stamp), arm, goal):
            self.transport.send(message)
        velocity, heard, step = np.zeros(3), self._time, 0
        begun, first = time.monotonic(), self._time
        while not robot.ending:
            self._time = first + step * robot.dt
            self._measure(step)
            self._exchange(step, begun + (self._time - first) / self.speed if self.speed else 0.0)
            for command in self._commands.arrived(self._time):
                velocity, heard = command.velocity, self._time
            if self._time - heard > COMMAND_TIMEOUT:
                velocity = np.zeros(3)
                self.result.held += 1
            robot.fly(velocity)
            step += 1
        return robot.ending

    @property
    def _stamp(self) -> float:
        """The time by the robot's clock."""
        return self._time + self.link.skew

    def _measure(self, step: int) -> None:
        """Measure, and put the measurements on their way."""
        if self.link.perfect and step % self.robot.repeat:
            return  # the node decides before it could use them
        for message in self.robot.measured(self._stamp):
            self._sensors[message.topic].send(message, self._time)

    def _exchange(self, step: int, due: float) -> None:
        """Deliver what has arrived by now; take the node's command."""
        if step % self.robot.repeat == 0 or self.speed:
            for link in self._sensors.values():
                for message in link.arrived(self._time)[-1:]:
                    self.transport.send(message)
            self.transport.send(Clock(self._time))
        if self.speed:
            self._listen(due)
        elif step % self.robot.repeat == 0:
            self._commands.send(self._answer(), self._time)

    def _listen(self, due: float) -> None:
        """Take commands until the wall clock has come to this step."""
        self.alive()
        while True:
            left = due - time.monotonic()
            for message in self.transport.receive(max(left, 0.0)):
                if isinstance(message, Command):
                    self._commands.send(message, self._time)
            if left <= 0:
                return

    def _answer(self) -> Command:
        """Wait for the command of this moment; ask again if it does not come."""
        asked = time.monotonic()
        repeat = asked + REPEAT_AFTER
        while True:
            for message in self.transport.receive(REPEAT_AFTER):
                if isinstance(message, Command) and abs(message.stamp - self._time) < 1e-6:
                    self.result.answers_ms.append(1e3 * (time.monotonic() - asked))
                    return message
            self.alive()
            now = time.monotonic()
            if now - asked > ANSWER_WITHIN:
                raise TransportError(
                    f"the node has not answered for {ANSWER_WITHIN:g} s; is it armed, not in a dry "
                    "run, and does it take its time from the simulation (--sim-time)?"
                )
            if now > repeat:
                self.transport.send(Clock(self._time))
                repeat = now + REPEAT_AFTER
