"""Messages between processes, and the memory that both see."""

from __future__ import annotations

import os
import socket
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from navrl.io.checkpoint.channel import Channel
from navrl.io.checkpoint.shared_memory import SharedMemory

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@pytest.fixture
def ends():
    one, other = map(Channel, socket.socketpair())
    yield one, other
    one.close()
    other.close()


@settings(deadline=None)
@given(
    messages=st.lists(
        st.tuples(VALUES, st.lists(st.binary(max_size=50), max_size=3), st.booleans()), max_size=5
    )
)
def test_messages_arrive_in_order_with_their_bytes_and_descriptors(messages):
    one, other = map(Channel, socket.socketpair())
    memory = SharedMemory(8)
    for value, buffers, with_memory in messages:
        one.send(value, buffers, memory.descriptor if with_memory else None)
    for value, buffers, with_memory in messages:
        found = other.receive()
        assert (found.value, bytes(found.bytes)) == (value, b"".join(buffers))
        assert (found.descriptor is not None) == with_memory
        if found.descriptor is not None:
            assert os.path.sameopenfile(found.descriptor, memory.descriptor)
            os.close(found.descriptor)
    one.close()
    with pytest.raises(EOFError):
        other.receive()
    other.close()


def test_a_message_larger_than_what_the_system_holds_arrives_whole(ends):
    data = np.random.default_rng(0).integers(0, 256, 30_000_000, dtype=np.uint8)
    sender = threading.Thread(target=ends[0].send, args=("x" * 2_000_000, [data[:9], data[9:]]))
    sender.start()
    found = ends[1].receive()
    sender.join()
    assert found.value == "x" * 2_000_000
    assert np.array_equal(np.frombuffer(found.bytes, np.uint8), data)


def test_an_end_that_is_closed_amid_a_message_is_no_message():
    one, other = socket.socketpair()
    one.sendall(b"\x05\x00\x00")
    one.close()
    with other, pytest.raises(EOFError):
        Channel(other).receive()


def test_a_partner_that_is_gone_while_others_hold_its_end_open_is_found_out(monkeypatch):
    monkeypatch.setattr("navrl.io.checkpoint.channel._PATIENCE", 0.05)
    alive = iter([True, True, False])
    one, other = socket.socketpair()
    with one, other, pytest.raises(EOFError, match="gone"):
        Channel(other, lambda: next(alive)).receive()
    assert list(alive) == []


def test_a_partner_that_is_gone_does_not_take_what_is_sent(monkeypatch):
    monkeypatch.setattr("navrl.io.checkpoint.channel._PATIENCE", 0.05)
    one, other = socket.socketpair()
    with one, other, pytest.raises(EOFError, match="gone"):
        Channel(other, lambda: False).send(None, [bytes(10_000_000)])


def test_closing_one_end_ends_the_connection_whoever_else_holds_it():
    one, other = socket.socketpair()
    held = one.dup()  # as a fork would
    Channel(one).close()
    with held, other, pytest.raises(EOFError):
        Channel(other).receive()


def test_it_can_be_asked_whether_something_has_arrived(ends):
    assert not ends[1].has_news()
    ends[0].send(1)
    assert ends[1].has_news()
    ends[1].receive()
    assert not ends[1].has_news()
    ends[0].close()
    assert ends[1].has_news()


def test_bytes_in_shared_memory_are_found_there_and_no_others():
    memory, elsewhere = SharedMemory(100), np.zeros(10, np.uint8)
    assert memory.place_of(memory.bytes[7:9]) == 7
    assert memory.place_of(memory.bytes) == 0
    assert memory.place_of(elsewhere) is None
    assert not memory.bytes.any()


def test_the_descriptor_of_shared_memory_is_closed_with_it():
    memory = SharedMemory(100)
    descriptor = memory.descriptor
    del memory
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)
