"""Flight logs: read by others as ROS 2 bags, and answered again by a node."""

from __future__ import annotations

import numpy as np
import pytest

from navrl.deploy.flight_log import FlightLog, read_flight
from navrl.deploy.node.node_core import NodeCore
from navrl.deploy.node.node_loop import NodeLoop
from navrl.deploy.node.node_settings import NodeSettings
from navrl.deploy.node.playback import play
from navrl.deploy.node_messages import Arm, Clock, Command, Goal, Odometry, Scan, Tracks
from navrl.errors import ConfigError

pytest.importorskip("mcap", reason="navrl[deploy] is not installed")
START = 1_700_000_000.0


class Silent:
    """A transport of given messages that nobody listens to."""

    unreadable = 0

    def __init__(self, messages):
        self.messages = messages

    def receive(self, timeout):
        given, self.messages = self.messages, []
        return given

    def send(self, message):
        pass


def flown(path, contract, policy, seconds=2.0):
    """Log a flight past an obstacle, and return its commands."""
    core = NodeCore(policy, contract, NodeSettings(armed=True, dry_run=False), shield=True)
    generator, commands = np.random.default_rng(0), []
    with FlightLog(path, {"policy": "made up"}) as log:
        loop = NodeLoop(core, Silent([]), sim_time=True, log=log)
        for number in range(int(seconds / 0.08)):
            now = START + 0.08 * number
            ranges = generator.uniform(0.8, 4.0, (36, 4)).astype(np.float32).astype(float)
            loop.transport.messages = [
                Odometry(now, np.array([0.1 * number, 0.0, 1.0]), np.array([1.0, 0.0, 0.0])),
                Scan(now, ranges, 0.0),
                Tracks(now, np.array([[3.0, 0.5, 1, -1, 0, 0, 0.5, 5]])),
                Goal(now, np.array([10.0, 0.0, 1.0])),
                Clock(now),
            ]
            loop.follow(0.0)
            commands.append(loop._last.velocity)
    return np.array(commands)


@pytest.fixture
def flight(tmp_path, contract, straight):
    path = tmp_path / "flight.mcap"
    return path, flown(path, contract, straight)


def test_a_log_is_read_by_mcap_ros2_support(flight):
    reader = pytest.importorskip("mcap_ros2.reader")
    path, commands = flight
    found: dict[str, list] = {}
    for message in reader.read_ros2_messages(str(path)):
        found.setdefault(message.channel.topic, []).append(message.ros_msg)
    assert set(found) == {
        "/odom",
        "/navrl/scan",
        "/navrl/tracks",
        "/goal_pose",
        "/cmd_vel",
        "/diagnostics",
    }
    assert found["/odom"][3].pose.pose.position.x == pytest.approx(0.3)
    assert found["/odom"][3].twist.twist.linear.x == 1.0
    sent = [(m.twist.linear.x, m.twist.linear.y, m.twist.linear.z) for m in found["/cmd_vel"]]
    assert np.array_equal(sent, commands)
    assert found["/diagnostics"][0].status[0].message == "flying"
    assert found["/navrl/scan"][0].header.stamp.sec == int(START)


def test_the_same_policy_gives_the_same_commands_again(flight, contract, straight):
    path, commands = flight
    assert len({tuple(one) for one in commands}) > 5
    core = NodeCore(straight, contract, shield=True)
    found = play(core, read_flight(path))
    assert found.commands == len(commands)
    assert found.differing == 0
    assert found.largest < 1e-6
    assert found.states == {"flying": len(commands)}


def test_a_command_that_was_sent_again_is_no_decision(tmp_path, contract, straight):
    path, now = tmp_path / "flight.mcap", START
    with FlightLog(path) as log:
        core = NodeCore(straight, contract, NodeSettings(dry_run=False))
        loop = NodeLoop(core, Silent([]), sim_time=True, log=log)
        for number in range(3):
            stamp = now + 0.08 * number
            # the first question is asked again, and the arming arrives in between
            between = [] if number else [Clock(stamp), Arm(now, True)]
            loop.transport.messages = [
                Odometry(stamp, np.array([0.0, 0.0, 1.0]), np.zeros(3)),
                Scan(stamp, np.full((36, 4), 4.0), 0.0),
                Tracks(stamp, np.zeros((0, 8))),
                Goal(now, np.array([10.0, 0.0, 1.0])),
                *between,
                Clock(stamp),
            ]
            loop.follow(0.0)
    found = play(NodeCore(straight, contract), read_flight(path))
    assert (found.commands, found.differing) == (3, 0)
    assert found.states == {"disarmed": 1, "flying": 2}


def test_another_policy_is_told_by_its_first_difference(flight, contract, straight):
    path, _ = flight
    core = NodeCore(lambda **given: 0.5 * straight(**given), contract, shield=True)
    found = play(core, read_flight(path))
    assert found.differing >= 5
    assert found.first == pytest.approx(START, abs=0.5)


def test_messages_come_back_in_the_order_of_their_arrival(flight):
    path, _ = flight
    messages = list(read_flight(path))
    assert [now for now, _ in messages] == sorted(now for now, _ in messages)
    kinds = [type(message) for _, message in messages[:5]]
    assert kinds == [Odometry, Scan, Tracks, Goal, Command]


def test_a_log_is_never_overwritten_and_a_damaged_one_is_told(flight):
    path, _ = flight
    with pytest.raises(ConfigError, match="never overwritten"):
        FlightLog(path)
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(ConfigError, match="cannot be read as a flight"):
        list(read_flight(path))
