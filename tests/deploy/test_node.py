"""A node flies only while it is armed and its inputs are complete, fresh and possible."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from navrl.deploy.node.node_core import NodeCore, State
from navrl.deploy.node.node_loop import NodeLoop
from navrl.deploy.node.node_settings import NodeSettings
from navrl.deploy.node_messages import (
    Arm,
    Clock,
    Command,
    Diagnostics,
    EmergencyStop,
    Goal,
    LevelScan,
    Odometry,
    Points,
    Scan,
    Tracks,
)
from navrl.errors import ConfigError

FREE = np.full((36, 4), 4.0)


def odometry(stamp, x=0.0, **other):
    return Odometry(stamp, np.array([x, 0.0, 1.0]), np.zeros(3), **other)


def inputs(stamp, x=0.0):
    return [odometry(stamp, x), Scan(stamp, FREE, 0.0), Tracks(stamp, np.zeros((0, 8)))]


def goal(stamp=0.0, x=10.0, **other):
    return Goal(stamp, np.array([x, 0.0, 1.0]), **other)


@pytest.fixture
def core(contract, straight):
    return NodeCore(straight, contract, NodeSettings(armed=True, dry_run=False))


def feed(core, now, *messages):
    for message in messages:
        core.take(message, now)
    return core.decide(now)


def test_it_flies_with_complete_and_fresh_inputs(core):
    decision = feed(core, 0.0, *inputs(0.0), goal())
    assert decision.state == State.FLYING
    assert decision.velocity == pytest.approx([1.0, 0.0, 0.0])
    assert core.policy.given["start"] == pytest.approx([0.0, 0.0, 1.0])
    assert core.policy.given["lidar"].shape == (36, 4)
    assert core.policy.given["obstacles"].shape == (1, 8)


def test_it_waits_for_inputs_by_name(core):
    assert feed(core, 0.0).reason == "waiting for odometry, scan, tracks, goal"
    assert feed(core, 0.0, *inputs(0.0)).reason == "waiting for goal"


def test_it_flies_only_after_it_was_armed_by_hand(contract, straight):
    core = NodeCore(straight, contract)
    assert feed(core, 0.0, *inputs(0.0), goal()).state == State.DISARMED
    assert feed(core, 0.0, Arm(0.0, True)).state == State.FLYING
    assert feed(core, 0.0, Arm(0.0, False)).state == State.DISARMED


@pytest.mark.parametrize("name", ["odometry", "scan", "tracks"])
def test_it_stops_when_any_input_stops_coming(core, name):
    feed(core, 0.0, *inputs(0.0), goal())
    later = [message for message in inputs(0.6) if message.topic != name]
    decision = feed(core, 0.6, *later)
    assert decision.state == State.STALE
    assert decision.reason == f"{name} is 0.60 s old, at most 0.5 allowed"
    assert not decision.velocity.any()
    assert feed(core, 0.6, *inputs(0.6)).state == State.FLYING


def test_an_input_that_arrives_late_is_as_old_as_its_stamp(core):
    assert feed(core, 1.0, *inputs(0.4), goal()).state == State.STALE


def test_a_robot_whose_clock_is_ahead_is_refused(core):
    decision = feed(core, 0.0, *inputs(0.3), goal())
    assert decision.state == State.INVALID
    assert "stamped 0.30 s in the future; synchronise the clocks" in decision.reason


def test_without_tracks_it_flies_only_if_told_to(contract, straight):
    settings = NodeSettings(armed=True, needs_tracks=False)
    core = NodeCore(straight, contract, settings)
    assert feed(core, 0.0, *inputs(0.0)[:2], goal()).state == State.FLYING


@pytest.mark.parametrize(
    ("message", "told"),
    [
        (odometry(0.1, math.nan), "position holds NaN"),
        (odometry(0.1, 1e6), "expected at most 10000"),
        (replace(odometry(0.1), velocity=np.array([90.0, 0, 0])), "velocity has 90"),
        (replace(odometry(0.1), attitude=np.zeros(4)), "attitude has the length 0"),
        (replace(odometry(0.1), frame="base_link"), "'base_link'; expected 'map'"),
        (replace(odometry(0.1), stamp=math.nan), "stamp is not a number"),
        (Scan(0.1, np.full((36, 4), np.nan), 0.0), "NaN or infinity"),
        (Scan(0.1, np.zeros((36, 4)), 0.0), "every ray is 0"),
        (Scan(0.1, np.full((36, 4), -1.0), 0.0), "below 0"),
        (Scan(0.1, np.ones((18, 4)), 0.0), "shape (18, 4); expected (36, 4)"),
        (Tracks(0.1, np.full((1, 8), np.inf)), "obstacles holds NaN"),
        (Tracks(0.1, np.ones((1, 8)), "odom"), "'odom'; expected 'map'"),
        (Points(0.1, np.ones((1, 3)), "camera"), "'camera'; expected 'map' or 'base_link'"),
        (Points(0.1, np.full((2, 3), np.nan)), "none of its 2 points is finite"),
        (LevelScan(0.1, np.ones(8), 0.0, 0.1, "laser"), "expected the odometry's 'base_link'"),
        (goal(0.1, math.inf), "position holds NaN"),
        (goal(0.1, 5.0, frame="odom"), "'odom'; expected 'map'"),
    ],
)
def test_an_impossible_input_stops_the_robot_until_a_good_one_comes(core, message, told):
    feed(core, 0.0, *inputs(0.0), goal())
    decision = feed(core, 0.1, message)
    assert decision.state == State.INVALID
    assert told in decision.reason
    assert not decision.velocity.any()
    assert feed(core, 0.2, *inputs(0.2), goal(0.2)).state == State.FLYING


def test_a_message_that_was_overtaken_is_left_out(core):
    feed(core, 0.0, *inputs(0.0), goal())
    feed(core, 0.2, odometry(0.2, 2.0))
    assert feed(core, 0.2, odometry(0.1, 1.0)).state == State.FLYING
    assert core.policy.given["position"][0] == 2.0
    assert core.inbox.counts["odometry late"] == 1


def test_an_emergency_stop_holds_until_it_is_released_and_armed_again(core):
    feed(core, 0.0, *inputs(0.0), goal())
    assert feed(core, 0.0, EmergencyStop(0.0, True)).state == State.EMERGENCY
    assert feed(core, 0.0, Arm(0.0, True)).state == State.EMERGENCY
    assert feed(core, 0.0, EmergencyStop(0.0, False)).state == State.DISARMED
    assert feed(core, 0.0, Arm(0.0, True)).state == State.FLYING


def test_it_stops_at_the_last_metre_and_stays_there_until_a_new_goal(core):
    feed(core, 0.0, *inputs(0.0), goal())
    assert feed(core, 0.1, *inputs(0.1, 9.05)).state == State.ARRIVED
    assert feed(core, 0.2, *inputs(0.2, 8.5)).state == State.ARRIVED
    assert feed(core, 0.2, goal(0.2)).state == State.ARRIVED
    assert feed(core, 0.2, goal(0.2, 20.0)).state == State.FLYING
    assert core.start[0] == 8.5


def test_a_repeated_goal_does_not_move_the_start(core):
    feed(core, 0.0, *inputs(0.0), goal())
    feed(core, 0.1, *inputs(0.1, 3.0), goal(0.1))
    assert core.start[0] == 0.0


@pytest.mark.parametrize("answer", [[np.nan, 0, 0], [1, 2], ValueError("the scan is wrong")])
def test_a_policy_that_fails_stops_the_robot(contract, answer):
    def policy(**given):
        if isinstance(answer, Exception):
            raise answer
        return answer

    core = NodeCore(policy, contract, NodeSettings(armed=True))
    decision = feed(core, 0.0, *inputs(0.0), goal())
    assert decision.state == State.INVALID
    assert not decision.velocity.any()


def test_no_command_is_faster_than_the_policy_may_be(contract):
    core = NodeCore(lambda **given: [90.0, 0.0, 0.0], contract, NodeSettings(armed=True))
    assert np.linalg.norm(feed(core, 0.0, *inputs(0.0), goal()).velocity) <= math.sqrt(12) + 1e-9


def test_the_shield_turns_a_command_away_from_a_wall(contract, straight):
    core = NodeCore(straight, contract, NodeSettings(armed=True), shield=True)
    wall = FREE.copy()
    wall[[0, 1, 35], :] = 0.7
    decision = feed(core, 0.0, odometry(0.0), Scan(0.0, wall, 0.0), *inputs(0.0)[2:], goal())
    assert decision.state == State.FLYING
    assert decision.shield_reason == "static obstacle"
    assert decision.velocity[0] < decision.desired[0] == 1.0
    assert core.counts["shield: static obstacle"] == 1


def test_impossible_settings_are_named():
    with pytest.raises(ConfigError, match="max_age is -1"):
        NodeSettings(max_age=-1.0).check()


# ---------------------------------------------------------------------- the loop


class Wire:
    """A transport whose messages are given, and whose waiting moves the clock."""

    def __init__(self):
        self.now, self.incoming, self.sent, self.unreadable = 100.0, [], [], 0

    def clock(self):
        return self.now

    def receive(self, timeout):
        self.now += timeout
        found, self.incoming = self.incoming, []
        return found

    def send(self, message):
        self.sent.append(message)

    def of(self, kind):
        return [message for message in self.sent if isinstance(message, kind)]


@pytest.fixture
def wire():
    return Wire()


def test_commands_are_sent_at_the_trained_rate(core, wire):
    loop = NodeLoop(core, wire, now=wire.clock)
    for _ in range(40):
        wire.incoming = [*inputs(wire.now), goal(wire.now)]
        loop.turn()
    stamps = [command.stamp for command in wire.of(Command)]
    assert len(stamps) > 20
    assert np.diff(stamps) == pytest.approx(0.08)
    assert {command.state for command in wire.of(Command)} == {"flying"}


def test_a_dry_run_decides_and_reports_but_commands_nothing(contract, straight, wire):
    core = NodeCore(straight, contract, NodeSettings(armed=True))
    loop = NodeLoop(core, wire, now=wire.clock)
    wire.incoming = [*inputs(wire.now), goal(wire.now)]
    loop.turn()
    loop.turn()
    assert not wire.of(Command)
    report = wire.of(Diagnostics)[-1]
    assert report.message == "dry run, no command is sent: flying"
    assert report.values["command"] == "1.000 0.000 0.000"


def test_changes_of_state_are_reported_at_once_and_else_every_second(core, wire):
    told = []
    loop = NodeLoop(core, wire, now=wire.clock, tell=told.append)
    for _ in range(60):
        loop.turn()
    assert len(wire.of(Diagnostics)) in (3, 4, 5)
    core.take(EmergencyStop(wire.now, True), wire.now)
    before = len(wire.of(Diagnostics))
    loop.turn()
    loop.turn()
    assert len(wire.of(Diagnostics)) == before + 1
    assert wire.of(Diagnostics)[-1].level == 2
    assert [one.state for one in told] == [State.WAITING, State.EMERGENCY]


def test_decisions_that_come_too_late_are_skipped_and_counted(core, wire):
    loop = NodeLoop(core, wire, now=wire.clock)
    loop.turn()
    wire.now += 1.0
    loop.turn()
    loop.turn()
    loop.turn()
    assert loop.overruns == 1
    assert [one.stamp for one in wire.of(Command)] == pytest.approx([100, 101, 101.08, 101.16])


def test_in_simulated_time_a_repeated_question_has_the_same_answer(core, wire):
    loop = NodeLoop(core, wire, sim_time=True)
    wire.incoming = [*inputs(7.0), goal(7.0), Clock(7.0), Clock(7.0), Clock(7.05), Clock(7.08)]
    loop.follow(0.0)
    stamps = [command.stamp for command in wire.of(Command)]
    assert stamps == [7.0, 7.0, 7.08]
    assert wire.of(Command)[0] is not None
    assert core.counts["flying"] == 2


def test_a_node_that_ends_commands_a_stop(core, wire):
    loop = NodeLoop(core, wire, now=wire.clock)
    turns = iter([False, False, True])
    wire.incoming = [*inputs(wire.now), goal(wire.now)]
    loop.run(lambda: next(turns))
    assert not wire.of(Command)[-1].velocity.any()
