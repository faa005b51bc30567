"""The ROS 2 package and the rclpy transport, against a stand-in for ROS 2."""

from __future__ import annotations

import argparse
import runpy
import sys
import types
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from navrl.commands import node as node_command
from navrl.deploy.node_messages import Command, Goal
from navrl.deploy.ros.cdr import decode, encode
from navrl.deploy.ros.ros_conversion import COMMAND_TOPICS, TOPICS, RosConversion
from navrl.deploy.transports.rclpy_node import RclpyTransport
from navrl.errors import TransportError

ROOT = Path(__file__).parents[2] / "ros2"


def test_the_package_names_every_package_whose_messages_are_used():
    tree = ElementTree.parse(ROOT / "package.xml")
    named = {one.text for one in tree.iter("exec_depend")}
    used = {topic.type.split("/")[0] for topic in (*TOPICS.values(), COMMAND_TOPICS["twist"])}
    assert used - {"builtin_interfaces"} <= named


def test_the_launch_file_starts_a_node_with_options_that_exist(monkeypatch):
    for name in ("launch", "launch.actions", "launch.substitutions"):
        module = types.ModuleType(name)
        for part in ("LaunchDescription", "DeclareLaunchArgument", "ExecuteProcess"):
            setattr(module, part, lambda *words, **named: None)
        module.OpaqueFunction = module.LaunchConfiguration = lambda *words, **named: None
        monkeypatch.setitem(sys.modules, name, module)
    launch = runpy.run_path(str(ROOT / "launch" / "navrl.launch.py"))
    words = launch["command"]("out", "map", "/state", "/cmd", "--no-dry-run --shield")
    parser = argparse.ArgumentParser()
    node_command.register(parser.add_subparsers())
    parsed = parser.parse_args(words[1:])
    assert words[0] == "navrl"
    assert parsed.remap == ["odometry=/state", "command=/cmd"]
    assert parsed.shield
    assert not parsed.dry_run


class FakeRos:
    """As much of rclpy as the transport uses; messages are CDR bytes in a box."""

    def __init__(self):
        self.callbacks, self.published, self.waiting, self.ended = {}, [], [], False

    def install(self, monkeypatch):
        node = types.SimpleNamespace(
            create_publisher=lambda kind, name, depth: types.SimpleNamespace(
                publish=lambda message: self.published.append((name, kind, message.data))
            ),
            create_subscription=lambda kind, name, called, depth: self.callbacks.update(
                {name: called}
            ),
            destroy_node=lambda: None,
        )
        modules = {
            "rclpy": {
                "init": lambda: None,
                "create_node": lambda name: node,
                "spin_once": self.spin,
                "shutdown": lambda: setattr(self, "ended", True),
            },
            "rclpy.serialization": {
                "serialize_message": lambda message: message.data,
                "deserialize_message": lambda data, kind: types.SimpleNamespace(data=data),
            },
        }
        types_used = {one.type for one in (*TOPICS.values(), *COMMAND_TOPICS.values())}
        for name in types_used:
            package, kind, short = name.split("/")
            modules.setdefault(package, {})
            modules.setdefault(f"{package}.{kind}", {})[short] = name
        for name, parts in modules.items():
            module = types.ModuleType(name)
            vars(module).update(parts)
            monkeypatch.setitem(sys.modules, name, module)

    def spin(self, node, timeout_sec):
        if self.waiting:
            name, data = self.waiting.pop(0)
            self.callbacks[name](types.SimpleNamespace(data=data))


@pytest.fixture
def ros(monkeypatch):
    fake = FakeRos()
    fake.install(monkeypatch)
    return fake


def test_topics_pass_through_rclpy(ros):
    transport = RclpyTransport(RosConversion(remap={"goal": "/my_goal"}))
    kind = TOPICS["goal"].type
    goal = Goal(2.5, np.array([1.0, 2.0, 3.0]))
    ros.waiting = [
        ("/my_goal", encode(kind, RosConversion().to_ros(goal))),
        ("/my_goal", b"cut"),
        ("/my_goal", encode(kind, RosConversion().to_ros(goal))),
    ]
    found = transport.receive(0.0) + transport.receive(0.0)
    assert [one.position.tolist() for one in found] == [[1.0, 2.0, 3.0]] * 2
    assert transport.unreadable == 1
    transport.send(Command(1.0, np.array([0.5, 0.0, 0.0])))
    name, kind, data = ros.published[0]
    assert (name, kind) == ("/cmd_vel", "geometry_msgs/msg/Twist")
    assert decode(kind, data)["linear"]["x"] == 0.5
    transport.close()
    assert ros.ended


def test_a_message_package_that_is_not_installed_is_named(ros, monkeypatch):
    monkeypatch.setitem(sys.modules, "mavros_msgs", None)
    monkeypatch.setitem(sys.modules, "mavros_msgs.msg", None)
    with pytest.raises(TransportError, match="install the package mavros_msgs"):
        RclpyTransport(RosConversion("position_target"))
