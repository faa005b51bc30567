"""Answer a recorded flight again, and compare the commands with the recorded ones."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from navrl.deploy.node.node_core import NodeCore, State
from navrl.deploy.node_messages import Command, Diagnostics, Message

TOLERANCE = 1e-3  # m/s: a log keeps scans and tracks in single precision


@dataclass
class Playback:
    """How the commands of a flight compare with those that the node gives now."""

    commands: int = 0  # those sent again are not counted
    differing: int = 0  # by more than `TOLERANCE`
    largest: float = 0.0  # m/s
    first: float | None = None  # s, time of the first difference
    states: dict[str, int] = field(default_factory=dict)  # of the node now


def play(core: NodeCore, flight: Iterable[tuple[float, Message]]) -> Playback:
    """Give a node the messages of a flight, and return how its commands compare.

    A node that was armed when it started has no message that says so: it is armed here if the
    flight moved. Commands that a dry run did not send are taken as such here too. A command that
    was sent again is no decision, and is passed over.
    """
    messages = list(flight)
    moved = any(isinstance(m, Command) and m.velocity.any() for _, m in messages)
    if moved and not any(m.topic == "arm" for _, m in messages):
        core.armed = True
    reports = [m.values.get("dry_run") for _, m in messages if isinstance(m, Diagnostics)]
    core.sends = "false" in reports if reports else moved
    found, last = Playback(), None
    for now, message in messages:
        if isinstance(message, Command):
            if last is None or not _again(message, last):
                _compare(core, message, found)
            last = message
        elif not isinstance(message, Diagnostics):
            core.take(message, now)
    found.states = {
        str(state): core.counts[str(state)] for state in State if core.counts[str(state)]
    }
    return found


def _again(command: Command, last: Command) -> bool:
    return command.stamp == last.stamp and np.array_equal(command.velocity, last.velocity)


def _compare(core: NodeCore, recorded: Command, found: Playback) -> None:
    decision = core.decide(recorded.stamp)
    difference = float(np.abs(decision.velocity - recorded.velocity).max())
    found.commands += 1
    found.largest = max(found.largest, difference)
    if difference > TOLERANCE:
        found.differing += 1
        found.first = recorded.stamp if found.first is None else found.first
