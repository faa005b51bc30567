"""A node at work: receive, decide at the trained rate, send, report, log."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from navrl.deploy.node.node_core import Decision, NodeCore, State
from navrl.deploy.node_messages import Clock, Diagnostics, Message
from navrl.deploy.transports.transport import Transport

REPORT_S = 1.0  # s between diagnostics; a change of state is reported at once
LEVELS = {
    State.FLYING: 0,
    State.ARRIVED: 0,
    State.DISARMED: 1,
    State.WAITING: 1,
    State.STALE: 3,
    State.INVALID: 2,
    State.EMERGENCY: 2,
}


class Log(Protocol):
    """Keeps what a node received and sent."""

    def write(self, message: Message, now: float) -> None:
        """Keep a message, at the time it arrived or was sent."""


class NodeLoop:
    """Runs a node on a transport.

    Args:
        core: that decides.
        transport: that carries messages.
        now: the clock, s; not used with `sim_time`.
        sim_time: take the time from `Clock` messages, and decide when one arrives. A repeated one
            is answered with the same command again.
        log: keeps all messages.
        tell: called with every decision that changes the state.
    """

    def __init__(
        self,
        core: NodeCore,
        transport: Transport,
        *,
        now: Callable[[], float] = time.time,
        sim_time: bool = False,
        log: Log | None = None,
        tell: Callable[[Decision], None] = lambda decision: None,
    ) -> None:
        self.core, self.transport, self.log, self.tell = core, transport, log, tell
        self.sim_time = sim_time
        self._clock = now
        self._next: float | None = None  # when the next decision is due
        self._pending: list[Message] = []  # that wait for the simulation's next time
        self._reported = -1e18
        self._last: Decision | None = None
        self.overruns = 0  # decisions that came more than a period late
        self.slowest = 0.0  # s, of a decision since the last report

    def run(self, stop: Callable[[], bool] = lambda: False) -> None:
        """Work until `stop()`; then command a stop."""
        while not stop():
            if self.sim_time:
                self.follow(0.1)
            else:
                self.turn()
        if not self.core.settings.dry_run:  # not logged: it answers no input
            end = self.core.stopped(self._now(), State.DISARMED, "the node ends")
            self.transport.send(end.command(self.core.settings.world_frame))

    def turn(self) -> None:
        """Receive until the next decision is due, then decide."""
        period, now = self.core.period, self._clock()
        self._next = now if self._next is None else self._next
        for message in self.transport.receive(min(max(self._next - now, 0.0), period)):
            self._take(message, self._clock())
        now = self._clock()
        if now < self._next:
            return
        self.decide(now)
        self._next += period
        if now > self._next:  # a whole period late: skip what was missed
            self.overruns += 1
            self._next = now + period

    def follow(self, timeout: float) -> None:
        """Receive, and decide whenever the simulation's clock reaches the next decision."""
        for message in self.transport.receive(timeout):
            if not isinstance(message, Clock):
                self._pending.append(message)  # it has arrived by the time that comes next
                continue
            last, now = self._last, message.stamp
            for earlier in self._pending:
                self._take(earlier, now)
            self._pending.clear()
            if last is not None and now == last.stamp:
                self._send(last)
            elif self._next is None or now >= self._next - 1e-6:
                self.decide(now)
                self._next = now + self.core.period

    def decide(self, now: float) -> Decision:
        """Decide, send the command, and report if it is time."""
        begun = time.perf_counter()
        decision = self.core.decide(now)
        self.slowest = max(self.slowest, time.perf_counter() - begun)
        changed = self._last is None or self._last.state != decision.state
        self._last = decision
        self._send(decision)
        if changed:
            self.tell(decision)
        if changed or now - self._reported >= REPORT_S:
            self._report(decision)
        return decision

    # ------------------------------------------------------------------ in and out

    def _now(self) -> float:
        if not self.sim_time:
            return self._clock()
        return self._last.stamp if self._last is not None else 0.0

    def _take(self, message: Message, now: float) -> None:
        if self.log is not None:
            self.log.write(message, now)
        self.core.take(message, now)

    def _send(self, decision: Decision) -> None:
        command = decision.command(self.core.settings.world_frame)
        if self.log is not None:
            self.log.write(command, decision.stamp)
        if not self.core.settings.dry_run:
            self.transport.send(command)

    def _report(self, decision: Decision) -> None:
        report = self.diagnostics(decision)
        if self.log is not None:
            self.log.write(report, decision.stamp)
        self.transport.send(report)
        self._reported, self.slowest = decision.stamp, 0.0

    def diagnostics(self, decision: Decision) -> Diagnostics:
        """Return how the node is, for /diagnostics."""
        core, inbox = self.core, self.core.inbox
        values = {
            "state": str(decision.state),
            "dry_run": str(core.settings.dry_run).lower(),
            "armed": str(core.armed).lower(),
            "shield": "on" if core.shield is not None else "off",
            "compensation": "on" if core.ahead is not None else "off",
            "actuation_delay_s": f"{core.settings.actuation_delay:.3f}",
            "distance_m": f"{decision.distance:.2f}",
            "slowest_decision_ms": f"{1e3 * self.slowest:.2f}",
            "late_decisions": str(self.overruns),
            "unreadable": str(self.transport.unreadable),
            "command": " ".join(f"{part:.3f}" for part in decision.velocity),
        }
        values |= {
            f"{name}_age_s": f"{age:.3f}" for name, age in inbox.ages(decision.stamp).items()
        }
        values |= {name: str(count) for name, count in (inbox.counts + core.counts).items()}
        level = LEVELS[decision.state]
        told = decision.reason or "flying"
        if core.settings.dry_run:
            told = f"dry run, no command is sent: {told}"
        return Diagnostics(decision.stamp, level, told, values)
