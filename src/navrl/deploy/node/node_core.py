"""The decisions of a node, without transport, thread or clock of its own.

    core = NodeCore(policy, NodeSettings(armed=True, dry_run=False))
    core.take(message, now)         # any number of messages, in any order
    decision = core.decide(now)     # at the trained rate: core.period

The same messages at the same times give the same decisions, so a recorded flight can be repeated.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import numpy as np

from navrl.deploy.latency.carry_forward import CarryForward, Measured, response_of
from navrl.deploy.node.inbox import Inbox
from navrl.deploy.node.node_settings import NodeSettings
from navrl.deploy.node.scans import ScanLayout
from navrl.deploy.node_messages import (
    Arm,
    Array,
    Command,
    EmergencyStop,
    Goal,
    Message,
    Odometry,
    Tracks,
    yaw_of,
)
from navrl.deploy.shield import REASONS, Shield, ShieldSettings
from navrl.deploy.track_memory import TrackMemory
from navrl.deploy.tracks import TRACK
from navrl.errors import MessageError

# a robot's inputs by name -> the velocity command in the world frame, (3,) m/s
RobotCommand = Callable[..., Any]
SAME_GOAL = 1e-3  # m: a goal that is repeated does not begin a new flight


class State(str, Enum):
    """What a node does. Only `FLYING` moves the robot."""

    __str__ = str.__str__  # as enum.StrEnum of Python 3.11 has it

    FLYING = "flying"
    ARRIVED = "arrived"
    DISARMED = "disarmed"
    WAITING = "waiting"  # for inputs that have never arrived
    STALE = "stale"  # inputs are too old
    INVALID = "invalid"  # an input or the policy's answer cannot be used
    EMERGENCY = "emergency stop"


@dataclass(frozen=True)
class Decision:
    """One decision: the command, and why it is that one."""

    stamp: float
    velocity: Array  # (3,) m/s, world; zero unless flying
    state: State
    reason: str  # in words; empty while flying
    desired: Array = field(default_factory=lambda: np.zeros(3))  # of the policy, before the shield
    shield_reason: str = ""  # why the shield changed the command
    distance: float = math.nan  # m to the goal
    yaw: float = 0.0  # rad

    def command(self, frame: str) -> Command:
        """Return the message for the robot."""
        return Command(self.stamp, self.velocity, str(self.state), frame, self.yaw)


class NodeCore:
    """Takes messages, and decides what the robot shall fly.

    Args:
        policy: an exported policy, such as `RobotRunner`; called with the contract's inputs.
        contract: of that policy.
        settings: of the node.
        shield: whether commands pass the shield.

    >>> from navrl.deploy import NodeCore
    >>> lidar = {"azimuths": 36, "elevations_degrees": [-10, 0, 10, 20], "range_m": 4.0}
    >>> robot, rate = {"speed_limit_m_per_s": 2.0}, {"decision_s": 0.08}
    >>> contract = {"rate": rate, "robot": robot, "lidar": lidar}  # or from `navrl export`
    >>> node = NodeCore(lambda **inputs: inputs["goal"] - inputs["position"], contract)
    >>> node.decide(now=0.0).state.value  # `take` hands it messages, one of which arms it
    'disarmed'
    """

    def __init__(
        self,
        policy: RobotCommand,
        contract: dict[str, Any],
        settings: NodeSettings | None = None,
        *,
        shield: bool = False,
    ) -> None:
        self.settings = settings or NodeSettings()
        self.settings.check()
        self.policy, self.contract = policy, contract
        self.period = float(contract["rate"]["decision_s"])
        self.limit = float(contract["robot"]["speed_limit_m_per_s"])
        lidar = contract["lidar"]
        elevations = tuple(float(angle) for angle in lidar["elevations_degrees"])
        self.layout = ScanLayout(int(lidar["azimuths"]), elevations, float(lidar["range_m"]))
        self.shield = self._make_shield() if shield else None
        self.ahead = self._make_ahead() if self.settings.compensation else None
        self.memory = TrackMemory(self.settings.track_memory)
        self._tracks, self._listed_at = np.zeros((1, TRACK)), math.nan
        self.sends = not self.settings.dry_run  # whether the robot follows the decisions
        self.inbox = Inbox(self.settings, self.layout)
        self.armed, self.emergency = self.settings.armed, False
        self.goal: Goal | None = None
        self.start: Array | None = None
        self.counts: Counter[str] = Counter()  # decisions by state, and of the shield by reason
        self._arrived = False

    def _make_shield(self) -> Shield:
        usual, robot = ShieldSettings(), self.contract["robot"]
        radius = float(robot.get("collision_radius_m", 0.3))
        return Shield(
            ShieldSettings(
                speed_limit=self.limit,
                climb_limit=float(robot.get("vertical_speed_limit_m_per_s", usual.climb_limit)),
                lag=float(robot.get("velocity_lag_s", usual.lag)),
                body_radius=radius,
                static_radius=max(usual.static_radius, radius + 0.04),
                moving_margin=max(usual.moving_margin, radius + 0.2),
                lowest=0.0 if robot.get("planar") else usual.lowest,
                lidar_range=self.layout.reach,
                elevations=self.layout.elevations,
            ),
            max_age=self.settings.max_age,
        )

    def _make_ahead(self) -> CarryForward:
        return CarryForward(
            response_of(self.contract, ShieldSettings().lag),
            self.layout.elevations,
            self.layout.reach,
            delay=self.settings.actuation_delay,
            longest=self.settings.max_age,
        )

    def warm_up(self) -> None:
        """Compile what is compiled, so that the first decision is as fast as the others."""
        if self.ahead is not None:
            self.ahead.warm_up(self.layout.azimuths)
        if self.shield is not None:
            free = np.full(self.layout.shape, self.layout.reach)
            tracks = np.zeros((1, TRACK))
            self.shield(
                np.zeros(3), position=np.ones(3), velocity=np.zeros(3), lidar=free, obstacles=tracks
            )

    # ------------------------------------------------------------------ messages

    def take(self, message: Message, now: float) -> None:
        """Take a message in; one that cannot be used is refused, counted and reported."""
        if isinstance(message, Arm):
            self.armed = message.on and not self.emergency
            self.start, self._arrived = None, False  # a flight begins where it is armed
            self._begin(message)
        elif isinstance(message, EmergencyStop):
            self.emergency = message.on
            self.armed = False  # also after the release: it must be armed again
        elif self.inbox.take(message, now):
            self._begin(message)
            if isinstance(message, Tracks):
                self._remember(message)

    def _remember(self, message: Tracks) -> None:
        """Complete a list of moving obstacles by those that it misses."""
        since = 0.0 if math.isnan(self._listed_at) else message.stamp - self._listed_at
        known = self.memory(message.obstacles[None], since)[0]
        self._tracks = known if len(known) else np.zeros((1, TRACK))
        self._listed_at = message.stamp

    def _begin(self, message: Message) -> None:
        """Fix the start of a flight: where the robot is when a new goal arrives."""
        if isinstance(message, Goal):
            old = self.goal
            moved = old is None or np.abs(old.position - message.position).max() > SAME_GOAL
            self.goal = message
            if moved:
                self.start, self._arrived = None, False
        odometry = self.inbox.odometry
        if self.goal is not None and self.start is None and odometry is not None:
            self.start = odometry.position

    # ------------------------------------------------------------------ decisions

    def decide(self, now: float) -> Decision:
        """Return what to fly now. Never raises for bad input: it stops and says why."""
        decision = self._decide(now)
        self.counts[str(decision.state)] += 1
        if self.ahead is not None and self.sends:
            self.ahead.sent.add(now, decision.velocity)
        if decision.shield_reason:
            self.counts[f"shield: {decision.shield_reason}"] += 1
        return decision

    def _decide(self, now: float) -> Decision:
        if self.emergency:
            return self.stopped(now, State.EMERGENCY, "emergency stop: release it, then arm again")
        if not self.armed:
            return self.stopped(now, State.DISARMED, "not armed")
        missing = self.inbox.missing() + ([] if self.goal is not None else ["goal"])
        if missing:
            return self.stopped(now, State.WAITING, f"waiting for {', '.join(missing)}")
        problem = self.inbox.problem()
        if problem:
            return self.stopped(now, State.INVALID, problem)
        stale = self.inbox.stale(now)
        if stale:
            return self.stopped(now, State.STALE, stale)
        odometry, goal, start = self.inbox.odometry, self.goal, self.start
        assert odometry is not None
        assert goal is not None
        assert start is not None
        distance = float(np.linalg.norm(goal.position - odometry.position))
        self._arrived = self._arrived or distance <= self.settings.stop_distance
        if self._arrived:
            return self.stopped(now, State.ARRIVED, "at the goal", distance)
        return self._fly(now, odometry, goal.position, start, distance)

    def _fly(
        self, now: float, odometry: Odometry, goal: Array, start: Array, distance: float
    ) -> Decision:
        along = (goal - start)[:2]
        bearing = math.atan2(along[1], along[0]) if np.abs(along).max() > 1e-6 else 0.0
        age = self.inbox.age(now)
        try:
            given = self._measured(now, odometry, bearing)
            if self.ahead is not None:
                given = self.ahead(given, now)
            answer = self.policy(
                position=given.position[0],
                velocity=given.velocity[0],
                goal=goal,
                start=start,
                lidar=given.lidar[0],
                obstacles=given.obstacles[0],
                age=min(age, self.settings.max_age),
            )
            desired = np.asarray(answer, np.float64)
        except (MessageError, ValueError) as error:
            return self.stopped(now, State.INVALID, str(error), distance)
        if desired.shape != (3,) or not np.isfinite(desired).all():
            return self.stopped(now, State.INVALID, f"the policy answered {desired}", distance)
        velocity, shield_reason = self._shielded(desired, given, goal, age)
        fastest = math.sqrt(3) * self.limit  # all three axes of the goal frame at their limit
        speed = float(np.linalg.norm(velocity))
        velocity = velocity * min(1.0, fastest / max(speed, 1e-9))
        yaw = yaw_of(odometry.attitude)
        return Decision(now, velocity, State.FLYING, "", desired, shield_reason, distance, yaw)

    def _measured(self, now: float, odometry: Odometry, bearing: float) -> Measured:
        """Return the newest inputs, as a batch of one robot, and when they were measured.

        Raises:
            MessageError: the scan has other rays than the policy.
        """
        ranges, first = self.inbox.ranges(bearing)
        return Measured(
            odometry.position[None],
            odometry.velocity[None],
            ranges[None],
            np.array([first]),
            self._tracks[None],
            self.inbox.measured_at("odometry", now),
            self.inbox.measured_at("scan", now),
            self.inbox.measured_at("tracks", now),
        )

    def _shielded(
        self, desired: Array, given: Measured, goal: Array, age: float
    ) -> tuple[Array, str]:
        """Return the command that the shield lets pass, and why it is another one."""
        if self.shield is None:
            return desired, ""
        result = self.shield(
            desired,
            position=given.position,
            velocity=given.velocity,
            lidar=given.lidar,
            bearing=given.bearing,
            obstacles=given.obstacles,
            goal=goal,
            age=age,
        )
        reason = REASONS[result.reason[0]] if result.intervened[0] else ""
        return result.velocity[0], reason

    def stopped(
        self, now: float, state: State, reason: str, distance: float = math.nan
    ) -> Decision:
        """Return the decision to stand still, and why."""
        return Decision(now, np.zeros(3), state, reason, distance=distance)
