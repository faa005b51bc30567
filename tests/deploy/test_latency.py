"""Inputs are carried forward to when a command acts: exactly where that can be known."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from navrl.deploy.contract import damping, turning_delay, velocity_lag
from navrl.deploy.latency.carry_forward import CarryForward, Measured, response_of
from navrl.deploy.latency.own_motion import Response, SentCommands
from navrl.deploy.node.node_core import NodeCore, State
from navrl.deploy.node.node_settings import NodeSettings
from navrl.deploy.node.playback import play
from navrl.deploy.node_messages import Diagnostics, Goal, Odometry, Points, Scan, Tracks
from navrl.errors import ConfigError
from navrl.sim.settings import DroneSettings

ELEVATIONS = (-10.0, 0.0, 10.0, 20.0)
REACH = 4.0
FREE = np.full((36, 4), REACH)
speeds = st.floats(-2, 2)
vectors = st.tuples(speeds, speeds, speeds).map(np.array)


def carrying(lag=0.4, **other):
    return CarryForward(Response(lag), ELEVATIONS, REACH, **other)


def measured(at=0.0, position=(0, 0, 1.5), velocity=(0, 0, 0), lidar=FREE, obstacles=None):
    rows = np.zeros((1, 1, 8)) if obstacles is None else np.array(obstacles, float)[None]
    place, speed = (np.array([values], float) for values in (position, velocity))
    return Measured(place, speed, np.array(lidar)[None], np.zeros(1), rows, at, at, at)


def wall_ahead(distance, place=(0.0, 0.0), height=1.5):
    """Return the scan of an endless upright wall at x = distance, over even ground, and its hits
    alone.
    """
    azimuths = np.radians(10.0 * np.arange(36))[:, None]
    beams = np.radians(np.array(ELEVATIONS))[None]
    towards = np.cos(azimuths) * np.cos(beams)
    with np.errstate(divide="ignore"):
        ranges = np.where(towards > 1e-9, (distance - place[0]) / towards, np.inf)
        ground = np.where(beams < 0, height / -np.sin(beams), np.inf)
    return np.minimum(np.minimum(ranges, ground), REACH)


# ---------------------------------------------------------------------- properties


@given(vectors, vectors, vectors)
def test_measurements_without_age_stay_as_they_are(velocity, command, motion):
    ahead = carrying()
    ahead.sent.add(-0.08, command)
    given = measured(
        at=5.0, velocity=velocity, lidar=wall_ahead(2.0), obstacles=[[1, 2, 1, *motion, 0.5, 1.0]]
    )
    carried = ahead(given, 5.0)
    for name in ("position", "velocity", "lidar", "bearing", "obstacles"):
        assert np.array_equal(getattr(carried, name), getattr(given, name))


@given(vectors, vectors, st.floats(0, 0.2), st.floats(0, 0.2))
def test_a_world_of_constant_velocities_is_carried_exactly(velocity, motion, age, delay):
    ahead = carrying(delay=delay)  # no command is known: the robot keeps its velocity
    given = measured(velocity=velocity, obstacles=[[1, 2, 1, *motion, 0.5, 1.0]])
    carried = ahead(given, age)
    time = age + delay
    assert carried.position[0] == pytest.approx([0, 0, 1.5] + time * velocity)
    assert carried.velocity[0] == pytest.approx(velocity)
    assert carried.obstacles[0, 0, :3] == pytest.approx([1, 2, 1] + time * motion)
    assert carried.obstacles[0, 0, 3:] == pytest.approx([*motion, 0.5, 1.0])
    assert np.array_equal(carried.lidar[0], FREE)


@given(st.floats(1.2, 3.5), st.floats(-1, 2), speeds, st.floats(0, 0.3))
def test_a_wall_is_seen_from_where_the_robot_will_be(distance, forward, sideways, age):
    given = measured(velocity=(forward, sideways, 0), lidar=wall_ahead(distance))
    carried = carrying()(given, age).lidar[0]
    expected = wall_ahead(distance, place=(age * forward, age * sideways))
    met = given.lidar[0] < REACH - 1e-3
    inner = met & np.roll(met, 1, 0) & np.roll(met, -1, 0) & (expected < REACH - 0.1)
    inner[5:32] = False  # rays within 40 degrees: their neighbours hit the wall before and after
    assert carried[inner] == pytest.approx(expected[inner], abs=1e-6)


@given(vectors, vectors, st.integers(1, 5), st.floats(0.05, 1.0))
def test_the_robot_follows_sent_commands_as_a_fine_simulation_does(first, second, steps, lag):
    response = Response(lag, damping=0.2)
    sent = SentCommands(delay=0.05)
    sent.add(0.0, first)
    sent.add(0.08, second)
    end = 0.08 * steps
    position, velocity = response.moved(np.zeros(3), np.ones(3), sent.between(0.05, 0.05 + end))
    place, speed, fine = np.zeros(3), np.ones(3), 1e-4
    for number in range(round(end / fine)):
        command = first if (number + 0.5) * fine < 0.08 else second
        speed = speed + fine * ((command - speed) / lag - 0.2 * speed)
        place = place + fine * speed
    assert velocity == pytest.approx(speed, abs=5e-3)
    assert position == pytest.approx(place, abs=5e-3)


# ---------------------------------------------------------------------- bounds


def test_nothing_is_carried_further_than_the_longest_time():
    ahead = carrying(delay=0.4, longest=0.5)
    given = measured(velocity=(1, 0, 0), obstacles=[[3, 0, 1, -1, 0, 0, 0.5, 1.0]])
    carried = ahead(given, 10.0)
    assert carried.position[0, 0] == pytest.approx(0.5)
    assert carried.obstacles[0, 0, 0] == pytest.approx(2.5)


def test_a_measurement_that_claims_to_be_of_the_future_is_not_carried_back():
    given = measured(at=1.0, velocity=(1, 0, 0), obstacles=[[3, 0, 1, -1, 0, 0, 0.5, 1.0]])
    carried = carrying()(given, 0.9)
    assert np.array_equal(carried.position, given.position)
    assert np.array_equal(carried.obstacles, given.obstacles)


def test_the_ground_stays_below_and_comes_nearer_in_a_descent():
    low = wall_ahead(100.0, height=0.5)
    assert low[0, 0] < REACH
    forward = carrying()(measured(position=(0, 0, 0.5), velocity=(2, 0, 0), lidar=low), 0.2)
    assert np.array_equal(forward.lidar[0], low)
    down = carrying()(measured(position=(0, 0, 0.5), velocity=(0, 0, -1), lidar=low), 0.1)
    assert down.lidar[0, :, 0] == pytest.approx(0.8 * low[:, 0])


def test_a_pillar_that_is_approached_widens_and_leaves_no_hole():
    pillar = FREE.copy()
    pillar[[35, 0, 1]] = 1.0
    seen = carrying()(measured(velocity=(2, 0, 0), lidar=pillar), 0.3).lidar[0, :, 1]
    assert seen[0] == pytest.approx(0.4)
    assert (seen[[34, 35, 0, 1, 2]] < 0.8).all()
    assert (seen[5:32] == REACH).all()


def test_commands_act_after_their_delay_and_a_clock_set_back_forgets_them():
    sent = SentCommands(delay=0.1)
    assert [piece.command for piece in sent.between(0.0, 0.2)] == [None]
    sent.add(0.0, [1, 0, 0])
    before, after = sent.between(0.0, 0.3)
    assert before.command is None
    assert (before.duration, after.duration) == pytest.approx((0.1, 0.2))
    assert after.command[0] == 1
    sent.add(-5.0, [2, 0, 0])
    assert [piece.command[0] for piece in sent.between(0.0, 0.3)] == [2]
    for number in range(1000):
        sent.add(0.01 * number, [0, 0, 0])
    assert len(sent._sent) < 250


def test_a_robot_without_lag_flies_its_command_at_once():
    sent = SentCommands()
    sent.add(0.0, [1.0, 0, 0])
    position, velocity = Response(0.0).moved(np.zeros(3), np.zeros(3), sent.between(0.0, 0.5))
    assert (position[0], velocity[0]) == (0.5, 1.0)


def test_the_contract_says_how_a_robot_follows_commands():
    old = response_of({"robot": {}}, 0.3)
    assert (old.lag, old.damping, old.turning) == (0.3, 0.0, 0.0)
    drone = DroneSettings()
    assert turning_delay(drone) == pytest.approx(0.143)
    assert damping(drone) == 0.2
    ground = replace(drone, model_name="first_order")
    assert (velocity_lag(ground), turning_delay(ground), damping(ground)) == (0.3, 0.0, 0.0)


# ---------------------------------------------------------------------- in the node


def node(contract, straight, **settings):
    core = NodeCore(straight, contract, NodeSettings(armed=True, dry_run=False, **settings))
    core.take(Goal(0.0, np.array([10.0, 0.0, 1.0])), 0.0)
    return core


def feed(core, now, stamp, speed=1.0, scan=None):
    motion = np.array([speed, 0.0, 0.0])
    track = np.array([[5.0, 1.0, 1.0, -1.0, 0.0, 0.0, 0.5, 1.0]])
    core.take(Odometry(stamp, np.array([0.0, 0.0, 1.0]), motion), now)
    core.take(scan or Scan(stamp, FREE, 0.0), now)
    core.take(Tracks(stamp, track), now)
    return core.decide(now)


def test_a_node_gives_its_policy_what_will_be_true_when_the_command_arrives(contract, straight):
    core = node(contract, straight, actuation_delay=0.1)
    assert feed(core, 0.2, 0.1).state == State.FLYING
    assert straight.given["position"] == pytest.approx([0.2, 0.0, 1.0])
    assert straight.given["obstacles"][0, :3] == pytest.approx([4.8, 1.0, 1.0])


def test_a_node_without_compensation_gives_what_was_measured(contract, straight):
    core = node(contract, straight, actuation_delay=0.1, compensation=False)
    feed(core, 0.2, 0.1)
    assert straight.given["position"] == pytest.approx([0.0, 0.0, 1.0])
    assert straight.given["obstacles"][0, 0] == 5.0


def test_a_clock_that_is_ahead_shortens_the_age_to_the_time_since_arrival(contract, straight):
    core = node(contract, straight)
    feed(core, 0.2, 0.25)
    assert straight.given["position"] == pytest.approx([0.0, 0.0, 1.0])
    core.decide(0.24)
    assert straight.given["position"][0] == pytest.approx(0.04)


def test_points_in_the_world_are_moved_by_the_odometrys_age_and_not_by_their_own(
    contract, straight
):
    core = node(contract, straight)
    hit = Points(0.0, np.array([[2.0, 0.0, 1.0]]))
    feed(core, 0.3, 0.2, scan=hit)
    assert straight.given["lidar"][0, 1] == pytest.approx(1.9)


def test_a_dry_run_takes_the_robot_to_keep_its_velocity(contract, straight):
    settings = NodeSettings(armed=True, actuation_delay=0.1)
    core = NodeCore(straight, contract, settings)
    core.take(Goal(0.0, np.array([10.0, 0.0, 1.0])), 0.0)
    for number in range(4):
        feed(core, 0.08 * number, 0.08 * number, speed=0.0)
    assert straight.given["position"] == pytest.approx([0.0, 0.0, 1.0])
    core.sends = True
    for number in range(4, 8):
        feed(core, 0.08 * number, 0.08 * number, speed=0.0)
    assert straight.given["position"][0] > 0.005


@pytest.mark.parametrize("dry_run", [False, True])
def test_a_recorded_flight_is_answered_as_it_was_flown(contract, straight, dry_run):
    words = {"armed": True, "actuation_delay": 0.1}
    core = NodeCore(straight, contract, NodeSettings(dry_run=dry_run, **words))
    flight = [(0.0, Goal(0.0, np.array([10.0, 3.0, 1.0])))]
    report = Diagnostics(0.0, 0, "", {"dry_run": str(dry_run).lower()})
    for number in range(6):
        now = 0.08 * number
        taken = [
            Odometry(now, np.array([0.0, 0.1 * number, 1.0]), np.zeros(3)),
            Scan(now, FREE, 0.0),
            Tracks(now, np.zeros((0, 8))),
        ]
        flight += [(now, message) for message in taken]
        for message in taken if number else [flight[0][1], *taken]:
            core.take(message, now)
        flight += [(now, core.decide(now).command("map")), (now, report)]
    again = NodeCore(straight, contract, NodeSettings(**words))
    found = play(again, flight)
    assert (found.commands, found.differing) == (6, 0)


@pytest.mark.parametrize("delay", [-0.1, 0.6, math.nan])
def test_an_impossible_delay_of_commands_is_named(delay):
    with pytest.raises(ConfigError, match="actuation_delay"):
        NodeSettings(actuation_delay=delay).check()
