"""The zenoh transport: rmw_zenoh's names, tokens and attachments, between real processes."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import numpy as np
import pytest

from navrl.cli import main
from navrl.deploy.node.scans import ScanLayout
from navrl.deploy.node_messages import Command, Goal, Odometry
from navrl.deploy.original_services import POLICY, OriginalServices
from navrl.deploy.ros.cdr import decode, encode
from navrl.deploy.transports.rmw_zenoh import (
    Attachment,
    attachment_style,
    gid_of,
    token_key,
    topic_key,
)
from navrl.errors import ConfigError, MessageError, MissingExtraError, TransportError

TWIST = "geometry_msgs/msg/Twist"


def test_a_topics_key_has_its_type_and_hash():
    key = topic_key(2, "/cmd_vel", TWIST)
    assert key.startswith("2/cmd_vel/geometry_msgs::msg::dds_::Twist_/RIHS01_")
    assert topic_key(2, "/cmd_vel", TWIST, any_hash=True).endswith("/*")


def test_a_token_has_thirteen_parts_and_no_empty_one():
    token = token_key(0, "abc", 3, "MP", "navrl", "/navrl/scan", TWIST)
    parts = token.split("/")
    assert len(parts) == 13
    assert all(parts)
    assert parts[9] == "%navrl%scan"
    assert len(gid_of(token)) == 16


@pytest.mark.parametrize(("style", "size"), [("plain", 33), ("named", 77)])
def test_attachments_of_both_styles_are_read(style, size):
    given = Attachment(5, 7, bytes(range(16)))
    assert len(given.encode(style)) == size
    assert Attachment.decode(given.encode(style)) == given
    with pytest.raises(MessageError, match="expected 33"):
        Attachment.decode(b"123")


def test_distributions_are_known_by_name():
    assert attachment_style("kilted") == "plain"
    assert attachment_style("jazzy-2024") == "named"
    with pytest.raises(ConfigError, match="expected one of jazzy"):
        attachment_style("foxy")


# ---------------------------------------------------------------------- with zenoh


@pytest.fixture
def zenoh():
    return pytest.importorskip("zenoh", reason="navrl[zenoh] is not installed")


@pytest.fixture
def endpoint():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"tcp/127.0.0.1:{free.getsockname()[1]}"


@pytest.fixture
def ends(zenoh, endpoint, straight):
    """A node's end that serves the policy, and a robot's end, in one process."""
    from navrl.deploy.ros.ros_conversion import RosConversion
    from navrl.deploy.transports.zenoh_ros import ZenohTransport

    layout = ScanLayout(36, (-10.0, 0.0, 10.0, 20.0), 4.0)
    services = {POLICY: OriginalServices(straight, layout).policy_inference}
    node = ZenohTransport(RosConversion(), connect=(), listen=(endpoint,), services=services)
    robot = ZenohTransport(RosConversion(), role="robot", connect=(endpoint,))
    robot.wait_for_peer(20.0)
    yield node, robot
    robot.close()
    node.close()


def received(transport, number=1, attempts=200):
    messages = []
    for _ in range(attempts):
        messages += transport.receive(0.1)
        if len(messages) >= number:
            return messages
    raise AssertionError(f"{len(messages)} of {number} messages came")


def test_attachments_are_those_of_zenohs_own_serialisation(zenoh):
    from zenoh.ext import Int64, z_serialize

    theirs = z_serialize((Int64(5), Int64(7), bytes(range(16))))
    assert theirs.to_bytes() == Attachment(5, 7, bytes(range(16))).encode()


def test_topics_services_and_tokens_over_one_session(zenoh, ends):
    node, robot = ends
    robot.send(Goal(1.5, np.array([1.0, 2.0, 3.0])))
    robot.send(Odometry(2.5, np.array([1.0, 0.0, 1.0]), np.array([0.5, 0.0, 0.0])))
    # two topics: nothing promises that what was sent first comes first
    came = {type(message): message for message in received(node, 2)}
    assert came[Goal].position.tolist() == [1.0, 2.0, 3.0]
    assert came[Odometry].velocity.tolist() == [0.5, 0.0, 0.0]
    node.send(Command(3.0, np.array([1.0, -0.5, 0.25])))
    assert received(robot)[0].velocity.tolist() == [1.0, -0.5, 0.25]

    tokens = [str(one.ok.key_expr) for one in robot._session.liveliness().get("@ros2_lv/**")]
    kinds = [token.split("/")[5] for token in tokens]
    assert {kind: kinds.count(kind) for kind in set(kinds)} == {
        "NN": 2,
        "MP": 12,
        "MS": 12,
        "SS": 1,
    }

    robot._publishers["goal"][0].put(b"no message")
    robot.send(Goal(1.5, np.zeros(3)))
    assert len(received(node)) == 1
    assert node.unreadable == 1

    request = {
        "state": [1.0, 0, 0, 5, 0, 0, 0, 0],
        "state_shape": [1, 8],
        "lidar": np.zeros(144),
        "lidar_shape": [36, 4],
        "direction": [1.0, 0, 0],
        "direction_shape": [3],
        "dynamic_obstacle": np.zeros(50),
        "dynamic_obstacle_shape": [5, 10],
    }
    answers = []
    key = topic_key(0, *POLICY)

    def call(payload, attachment):
        found = robot._session.get(key, payload=payload, attachment=attachment, timeout=20.0)
        answers.extend(found)

    for payload in (encode(f"{POLICY[1]}_Request", request), b"nonsense"):
        attached = Attachment.now(41, bytes(16)).encode()
        caller = threading.Thread(target=call, args=(payload, attached))
        caller.start()
        while caller.is_alive():
            node.receive(0.05)
        caller.join()
    action = decode(f"{POLICY[1]}_Response", answers[0].ok.payload.to_bytes())["action"]
    assert action == pytest.approx([1.0, 0.0, 0.0])
    assert Attachment.decode(answers[0].ok.attachment.to_bytes()).sequence == 41
    assert answers[1].err is not None


PEER = """
import asyncio, sys
import zenoh, pyzeros
import asyncio_for_robotics as afor
from ros2_pyterfaces.cyclone.geometry_msgs.msg import Twist, PoseStamped
config = zenoh.Config()
config.insert_json5("mode", '"peer"')
config.insert_json5("scouting/multicast/enabled", "false")
config.insert_json5("connect/endpoints", f'["{sys.argv[1]}"]')

@afor.scoped
async def run():
    commands = pyzeros.Sub(Twist, "/cmd_vel")
    goals = pyzeros.Pub(PoseStamped, "/goal_pose")
    goal = PoseStamped()
    goal.header.frame_id = "map"
    goal.pose.position.x = 4.5
    answer = asyncio.ensure_future(commands.wait_for_new())
    while not answer.done():
        goals.publish(goal)
        await asyncio.sleep(0.05)
    print(answer.result().linear.x, flush=True)

with pyzeros.auto_context(node="robot", zenoh_session=zenoh.open(config)):
    asyncio.run(run())
"""


@pytest.mark.slow
def test_an_independent_ros_2_node_is_understood_and_understands(ends, endpoint):
    pytest.importorskip("pyzeros", reason="pyzeros is not installed")
    node, _ = ends
    compiled = Path(tempfile.gettempdir()) / "navrl-pyzeros"  # it keeps compiled messages there
    compiled.mkdir(exist_ok=True)
    peer = subprocess.Popen(
        [sys.executable, "-c", PEER, endpoint],
        cwd=compiled,
        env=os.environ | {"CFLAGS": "-O0"},  # optimising takes 8 s, for one message
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        (goal, *_) = received(node, attempts=1800)  # it compiles its messages first
        assert goal.frame == "map"
        assert goal.position[0] == 4.5
        while peer.poll() is None:
            node.send(Command(0.0, np.array([0.75, 0.0, 0.0])))
            node.receive(0.1)
        out, errors = peer.communicate()
        assert out == "0.75\n", errors
    finally:
        peer.kill()
        peer.communicate()


@pytest.mark.slow
def test_a_rehearsal_over_zenoh_keeps_the_flight_of_its_node(zenoh, exported, tmp_path, capsys):
    words = ["rehearse", "--policy", str(exported), "--episodes", "1", "--no-sweep", "--json"]
    log = tmp_path / "flight.mcap"
    assert main([*words, "--transport", "zenoh", "--log", str(log)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["rehearsed"]["time_out"] == 0
    assert main(["node", "--policy", str(exported), "--bag", str(log)]) == 0
    assert "0 differ" in capsys.readouterr().out


def test_what_is_missing_is_told(monkeypatch, zenoh):
    from navrl.deploy.transports.rclpy_node import RclpyTransport
    from navrl.deploy.transports.zenoh_ros import ZenohTransport

    monkeypatch.setitem(sys.modules, "rclpy", None)
    with pytest.raises(TransportError, match="source its setup file"):
        RclpyTransport()
    monkeypatch.setitem(sys.modules, "zenoh", None)
    with pytest.raises(MissingExtraError, match=r"navrl\[zenoh\]"):
        ZenohTransport()
