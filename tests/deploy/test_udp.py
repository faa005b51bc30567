"""JSON datagrams: messages arrive as they were sent, and nothing else is believed."""

from __future__ import annotations

import json
import socket
from dataclasses import fields

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from navrl.deploy.node_messages import BY_TOPIC, SHAPES, Arm, Goal, Points, from_values, to_values
from navrl.deploy.transports.udp import UdpTransport, parse_address
from navrl.errors import ConfigError, MessageError, TransportError

LOOPBACK = "127.0.0.1:0"
NUMBER = st.floats(-1e6, 1e6)
EXAMPLES = {
    "on": st.booleans(),
    "frame": st.text(max_size=8),
    "body_frame": st.text(max_size=8),
    "message": st.text(max_size=20),
    "state": st.text(max_size=8),
    "level": st.integers(0, 3),
    "values": st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=3),
}


@pytest.fixture
def ends():
    node = UdpTransport(LOOPBACK)
    robot = UdpTransport(LOOPBACK, node.address)
    yield node, robot
    node.close()
    robot.close()


@settings(deadline=None, max_examples=150)
@given(data=st.data())
def test_every_message_survives_json_exactly(data):
    topic = data.draw(st.sampled_from(sorted(BY_TOPIC)))
    kind = BY_TOPIC[topic]
    values = {}
    for name in (part.name for part in fields(kind)):
        shape = SHAPES.get((topic, name))
        if shape is None:
            values[name] = data.draw(EXAMPLES.get(name, NUMBER))
        else:
            size = [data.draw(st.integers(0, 3)) if n is None else n for n in shape]
            flat = data.draw(
                st.lists(NUMBER, min_size=int(np.prod(size)), max_size=int(np.prod(size)))
            )
            values[name] = np.array(flat).reshape(size)
    sent = to_values(kind(**values))
    received = from_values(json.loads(json.dumps(sent)))
    assert type(received) is kind
    for name, value in values.items():
        found = getattr(received, name)
        if isinstance(value, np.ndarray) and value.size == 0:
            assert found.size == 0
        else:
            assert np.array_equal(found, value)


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"topic": "odom"}, "the topic is 'odom'; expected one of odometry"),
        ({"topic": ["goal"]}, "the topic is"),
        ({"topic": "goal", "stamp": 0.0}, "lacks ['position']"),
        ({"topic": "goal", "stamp": 0.0, "position": [1, 2]}, "shape (2,); expected (3,)"),
        ({"topic": "goal", "stamp": 0.0, "position": ["a", 1, 2]}, "expected numbers"),
        ({"topic": "goal", "stamp": "now", "position": [1, 2, 3]}, "stamp is 'now'"),
        ({"topic": "arm", "stamp": 0.0, "on": 1}, "arm.on is 1; expected bool"),
        ({"topic": "arm", "stamp": 0.0, "on": True, "x": 1}, "unknown fields ['x']"),
    ],
)
def test_a_message_of_the_wrong_form_is_refused_by_name(values, told):
    with pytest.raises(MessageError) as caught:
        from_values(values)
    assert told in str(caught.value)


def test_messages_arrive_and_are_answered_to_where_they_came_from(ends):
    node, robot = ends
    robot.send(Goal(1.5, np.array([1.0, 2.0, 3.0])))
    (goal,) = node.receive(5.0)
    assert goal.stamp == 1.5
    assert np.array_equal(goal.position, [1, 2, 3])
    node.send(Arm(2.0, True))
    assert robot.receive(5.0) == [Arm(2.0, True)]


def test_unreadable_datagrams_are_counted_and_do_no_harm(ends):
    node, robot = ends
    host, port = parse_address(node.address)
    raw = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    bad = [b"", b"{", b"[1]", b"\xff\xfe", b'{"topic": "goal"}', b"[" * 5000, b"null"]
    for data in bad:
        raw.sendto(data, (host, port))
    robot.send(Arm(0.0, True))
    received = []
    while not received:
        received += node.receive(5.0)
    raw.close()
    assert received == [Arm(0.0, True)]
    assert node.unreadable == len(bad)


def test_services_answer_and_name_what_is_wrong():
    node = UdpTransport(LOOPBACK, services={"double": lambda asked: {"y": 2 * asked["x"]}})
    caller = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    caller.settimeout(5.0)

    def call(**values):
        caller.sendto(json.dumps(values).encode(), parse_address(node.address))
        node.receive(5.0)
        return json.loads(caller.recv(65_535))

    assert call(service="double", id=7, request={"x": 4}) == {
        "service": "double",
        "id": 7,
        "response": {"y": 8},
    }
    assert "no service 'half'" in call(service="half")["error"]
    assert "x" in call(service="double", request={})["error"]
    node.close()
    caller.close()


def test_sending_to_nobody_loses_the_message_and_nothing_else(ends):
    node, robot = ends
    node.close()
    for _ in range(3):
        robot.send(Arm(0.0, True))
        assert robot.receive(0.0) == []


def test_a_message_that_fits_no_datagram_is_refused(ends):
    _, robot = ends
    with pytest.raises(TransportError, match="send fewer points"):
        robot.send(Points(0.0, np.zeros((30_000, 3))))


def test_addresses_are_checked(ends):
    node, _ = ends
    with pytest.raises(ConfigError, match="expected HOST:PORT"):
        parse_address("localhost")
    with pytest.raises(TransportError, match="cannot receive at"):
        UdpTransport(node.address)
