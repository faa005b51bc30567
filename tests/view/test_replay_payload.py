"""The numbers of a replay: what goes in comes out, to the unit."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from made_flights import made_recording

from navrl.view.replay.payload import decode, encode, payload_of

series = arrays(np.int16, array_shapes(min_dims=1, max_dims=3, min_side=0, max_side=6))


@given(st.dictionaries(st.text(max_size=3), series, max_size=4))
def test_arrays_of_any_shape_and_value_survive(numbers):
    text, shapes = encode(numbers)
    decoded = decode(text, shapes)
    assert list(decoded) == list(numbers)
    for name, values in numbers.items():
        assert decoded[name].shape == values.shape
        assert (decoded[name] == values).all()


def test_steady_motion_costs_next_to_nothing():
    line = (np.arange(1000)[:, None] * [3, -7, 1]).astype(np.int16)
    text, _ = encode({"line": line})
    assert len(text) < 200


def test_a_recording_comes_back_to_half_a_centimetre():
    recording = made_recording()
    payload = payload_of(recording)
    arrays = decode(payload["data"], payload["shapes"])
    for name, values in (("boxes", recording.boxes), ("moving", recording.moving_position)):
        assert np.abs(arrays[name] * payload["unit"] - values).max() <= 0.00501
    assert (arrays["tall"] == recording.moving_tall).all()


def test_a_world_wider_than_the_numbers_takes_a_coarser_unit():
    recording = made_recording()
    wide = replace(recording, position=recording.position * 40)
    payload = payload_of(wide)
    arrays = decode(payload["data"], payload["shapes"])
    assert np.abs(arrays["goal"] * payload["unit"] - wide.goal).max() <= payload["unit"] * 0.501


def test_headings_wrap_around_the_circle():
    recording = made_recording(frames=200)
    turning = np.linspace(-9, 9, 200, dtype=np.float32)[:, None] + np.zeros((200, 8), np.float32)
    payload = payload_of(replace(recording, yaw=turning))
    decoded = decode(payload["data"], payload["shapes"])["yaw"] * (np.pi / 32768)
    rows = np.minimum(np.arange(200)[:, None], recording.lengths)
    gap = decoded - turning[rows, np.arange(8)]
    assert np.abs(np.exp(1j * gap) - 1).max() < 1e-3
