"""Rehearsals: node and simulator in processes of their own, over a link that may be bad."""

from __future__ import annotations

import json
import math
import os
import signal
from dataclasses import replace

import pytest

import forked
from navrl.cli import main
from navrl.deploy.exported_pilot import ExportedPilot, exported_policy, task_of
from navrl.deploy.node_messages import Arm, Command, EmergencyStop
from navrl.deploy.rehearsal.delays import Delayed, success_with_delay, tolerated_ms
from navrl.deploy.rehearsal.ends import ends_of
from navrl.deploy.rehearsal.link import Link, LinkSettings
from navrl.deploy.rehearsal.node_process import NodeProcess
from navrl.deploy.rehearsal.paired_rehearsal import Plan, rehearse
from navrl.deploy.rehearsal.rehearsal import Rehearsal
from navrl.deploy.rehearsal.simulated_robot import SimulatedRobot
from navrl.deploy.transports.udp import UdpTransport
from navrl.deploy.verify import crossing, load_command
from navrl.errors import ConfigError, TransportError
from navrl.evaluation.flights import evaluate
from navrl.sim.robots.robot_file import load_robot
from navrl.sim.robots.robot_keys import robot_of

# ---------------------------------------------------------------------- the link


def test_a_perfect_link_delivers_at_once_and_in_order():
    link = Link(LinkSettings(), seed=0)
    for number in range(3):
        link.send(number, 1.0)
    assert link.arrived(1.0) == [0, 1, 2]
    assert link.arrived(1.0) == []


def test_latency_delays_jitter_reorders_and_loss_loses_by_the_seed():
    settings = LinkSettings(latency=0.1, jitter=0.05, loss=0.3)

    def passed(seed):
        link, arrived = Link(settings, seed), []
        for step in range(200):
            link.send(step, 0.01 * step)
            arrived += [(step, item) for item in link.arrived(0.01 * step)]
        assert all(now - item >= 10 for now, item in arrived)
        return [item for _, item in arrived], link.lost

    items, lost = passed(5)
    assert passed(5) == (items, lost)
    assert passed(6)[0] != items
    assert items != sorted(items)
    assert 40 <= lost <= 80


@pytest.mark.parametrize("wrong", [{"latency": -1}, {"loss": 1.0}, {"skew": 1e9}, {"jitter": 99}])
def test_an_impossible_link_is_named(wrong):
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        LinkSettings(**wrong).check()


def test_the_tolerated_delay_ends_where_two_points_are_lost():
    found = [Delayed(0, 0.90), Delayed(40, 0.89), Delayed(80, 0.85), Delayed(120, 0.9)]
    assert tolerated_ms(found) == 40


# ---------------------------------------------------------------------- whole rehearsals


@pytest.fixture(scope="module")
def node(exported):
    """A node process for this module's rehearsals, and the robot's end of its transport."""
    open_robot, options = ends_of("udp")
    with NodeProcess(exported, options) as process:
        robot = open_robot(process.wait_until_ready())
        yield process, robot
        robot.close()


@pytest.fixture(scope="module")
def simulated(exported):
    policy = exported_policy(exported, load_command(exported, "onnx"))
    env = crossing(policy, 6, 3)
    return env.settings, evaluate(env, policy)


class Level(SimulatedRobot):
    """A robot that says its scan begins at the goal's bearing.

    A node turns a scan to the goal's bearing; the simulator's own policies see it turned with the
    yaw, which drifts by a few degrees. So both see the same.
    """

    def measured(self, stamp):
        x, y = self._forward[self.drone].tolist()
        odometry, scan, tracks = super().measured(stamp)
        return [odometry, replace(scan, bearing=math.atan2(y, x)), tracks]


@pytest.mark.slow
def test_a_rehearsal_in_lock_step_ends_as_the_simulation_does(node, simulated):
    process, robot = node
    task, flights = simulated
    rehearsal = Rehearsal(Level(task, 3), robot, alive=process.check)
    found = rehearsal.run(6)
    assert found.success.tolist() == flights.success.float().tolist()
    assert found.worlds == flights.world.tolist()
    assert found.held == 0


@pytest.mark.slow
def test_late_and_lost_messages_are_survived_and_a_wrong_clock_grounds_the_robot(node, simulated):
    process, robot = node
    link = LinkSettings(latency=0.03, jitter=0.02, loss=0.3)
    rehearsal = Rehearsal(SimulatedRobot(simulated[0], 3), robot, link, alive=process.check)
    rehearsal._time = 1000.0  # after the other test of this node
    found = rehearsal.run(1)
    assert found.endings[0] in ("success", "dynamic_collision", "static_collision")
    assert found.lost > 20
    skewed = Rehearsal(
        SimulatedRobot(simulated[0], 3), robot, LinkSettings(skew=0.4), alive=process.check
    )
    skewed._time = 2000.0
    assert skewed.run(1).endings[0] in ("time_out", "dynamic_collision")


@pytest.mark.slow
def test_a_batch_without_delay_flies_as_the_simulation_and_worse_with_much(exported, simulated):
    task, flights = simulated
    pilot = ExportedPilot(load_command(exported, "onnx"))
    at_once = success_with_delay(task, pilot, 3, 0.0)
    assert at_once == pytest.approx(float(flights.success.float().mean()))
    assert success_with_delay(task, pilot, 3, 0.8) <= at_once


@pytest.mark.slow
def test_a_node_that_knows_the_delay_of_its_link_flies_where_another_one_crashes(exported):
    flown = {}
    for compensation in (True, False):
        open_robot, options = ends_of("udp")
        plan = Plan(
            exported, episodes=3, link=LinkSettings(latency=0.16), seed=3, compensation=compensation
        )
        found = rehearse(plan, open_robot, options, sweep=()).as_dict()
        assert found["compensation"] is compensation
        flown[compensation] = found["rehearsed"]["success"]
    assert flown[True] > flown[False]


@pytest.mark.slow
def test_a_batch_with_delay_flies_better_compensated(exported, simulated):
    task, _ = simulated
    pilot = ExportedPilot(load_command(exported, "onnx"))
    as_measured = success_with_delay(task, pilot, 3, 0.16, compensated=False)
    assert success_with_delay(task, pilot, 3, 0.16) > as_measured


@pytest.mark.slow
def test_a_killed_node_ends_the_rehearsal_with_its_exit_code(exported, simulated):
    open_robot, options = ends_of("udp")
    with NodeProcess(exported, options) as process:
        robot = open_robot(process.wait_until_ready())
        rehearsal = Rehearsal(SimulatedRobot(simulated[0], 3), robot, alive=process.check)
        flown = []

        def kill(*_):
            flown.append(1)
            os.kill(process.process.pid, signal.SIGKILL)
            process.process.wait()

        with pytest.raises(TransportError, match="exit code -9"):
            rehearsal.run(3, kill)
        assert len(flown) == 1
        robot.close()


@pytest.mark.slow
def test_the_command_compares_and_writes_json(exported, tmp_path, capsys):
    out = tmp_path / "rehearsal.json"
    words = ["rehearse", "--policy", str(exported), "--episodes", "2", "--shield", "--no-sweep"]
    assert main([*words, "--json", "--out", str(out)]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == json.loads(out.read_text())
    assert printed["shield"] is True
    assert printed["episodes"] == 2
    assert sum(printed["rehearsed"].values()) == pytest.approx(1.0)


# ---------------------------------------------------------------------- a node and a script

ROBOT = """
import sys, time
import numpy as np
from navrl.deploy.node_messages import Goal, Odometry, Scan, Tracks
from navrl.deploy.transports.udp import UdpTransport
robot = UdpTransport("127.0.0.1:0", sys.argv[1])
print("ready", flush=True)
while True:
    now = time.time()
    for message in (
        Odometry(now, np.array([0.0, 0.0, 1.0]), np.zeros(3)),
        Scan(now, np.full((36, 4), 4.0), 0.0),
        Tracks(now, np.zeros((0, 8))),
        Goal(now, np.array([10.0, 0.0, 1.0])),
    ):
        robot.send(message)
    time.sleep(0.02)
"""


def commands_until(ground, holds):
    """Receive commands until one of them fulfils a condition; return it."""
    for _ in range(300):
        for message in ground.receive(0.1):
            if isinstance(message, Command) and holds(message):
                return message
    raise AssertionError("no such command")


@pytest.mark.slow
def test_a_node_flies_for_a_script_stops_when_it_is_killed_and_obeys_the_emergency_stop(exported):
    ground = UdpTransport("127.0.0.1:0")
    words = ["node", "--policy", exported, "--no-dry-run", "--bind", "127.0.0.1:0"]
    node = forked.start(forked.NAVRL, *words, "--peer", ground.address)
    address = node.stdout.readline().split()[1]
    robot = forked.start(ROBOT, address)
    try:
        assert robot.stdout.readline() == "ready\n"
        ground.connect(address)
        assert commands_until(ground, lambda command: command.state == "disarmed")
        ground.send(Arm(0.0, True))
        flying = commands_until(ground, lambda command: command.state == "flying")
        assert flying.velocity[0] > 0.1
        ground.send(EmergencyStop(0.0, True))
        stopped = commands_until(ground, lambda command: command.state == "emergency stop")
        assert not stopped.velocity.any()
        ground.send(EmergencyStop(0.0, False))
        ground.send(Arm(0.0, True))
        commands_until(ground, lambda command: command.state == "flying")
        robot.kill()
        stale = commands_until(ground, lambda command: command.state == "stale")
        assert not stale.velocity.any()
        node.terminate()
        assert node.wait(20) == 0
    finally:
        for process in (node, robot):
            process.kill()
            process.communicate()
        ground.close()


def test_a_folder_without_a_policy_is_told(tmp_path, capsys):
    assert main(["node", "--policy", str(tmp_path)]) == 2
    assert "holds no policy.onnx" in capsys.readouterr().err
    assert main(["rehearse", "--policy", str(tmp_path)]) == 2


def test_an_impossible_plan_is_refused_before_anything_starts(tmp_path):
    with pytest.raises(ConfigError, match="episodes is 0"):
        rehearse(Plan(tmp_path, episodes=0), lambda address: None)
    with pytest.raises(ConfigError, match="expected udp or zenoh"):
        ends_of("serial")


def test_a_rehearsal_flies_the_robot_of_the_contract():
    ground = load_robot("ground")
    task = task_of({"robot": {"file": json.loads(json.dumps(ground.as_dict()))}})
    assert task.env.planar
    assert robot_of(task) == ground
