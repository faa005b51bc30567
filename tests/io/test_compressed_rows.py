"""Compressed rows and messages: bit for bit, only what is asked for, and nothing damaged is
believed.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from io_states import bits

from navrl.errors import ConfigError, ContainerError
from navrl.io.container.codecs import CODECS
from navrl.io.container.tensor_types import TORCH_DTYPES
from navrl.io.replay.compressed_rows import CompressedRows, read_message, write_message


def identical(first, second):
    return (
        first.dtype == second.dtype and first.shape == second.shape and bits(first) == bits(second)
    )


@st.composite
def tensors(draw, least=1):
    dtype = draw(st.sampled_from(sorted(TORCH_DTYPES)))
    shape = draw(st.lists(st.integers(0, 9), min_size=least, max_size=3))
    size = int(np.prod(shape)) * TORCH_DTYPES[dtype].itemsize
    data = np.frombuffer(draw(st.binary(min_size=size, max_size=size)), np.uint8).copy()
    if dtype == "bool":
        data &= 1
    return (
        torch.from_numpy(data).view(TORCH_DTYPES[dtype]).reshape(shape)
        if size
        else torch.empty(shape, dtype=TORCH_DTYPES[dtype])
    )


@pytest.mark.filterwarnings("ignore:ComplexHalf")
@settings(max_examples=60, deadline=None)
@given(tensors(), st.sampled_from(sorted(CODECS)), st.integers(1, 7), st.data())
def test_rows_come_back_bit_for_bit_in_any_order(tensor, codec, chunk_rows, data):
    packed = CompressedRows.compress(tensor, codec=codec, chunk_rows=chunk_rows)
    assert identical(packed.read(), tensor)
    chosen = (
        data.draw(st.lists(st.integers(0, len(tensor) - 1), max_size=12)) if len(tensor) else []
    )
    index = torch.tensor(chosen, dtype=torch.int64)
    assert identical(packed.read(index), tensor[index])
    assert packed.nbytes == tensor.nbytes


@settings(max_examples=60, deadline=None)
@given(tensors(least=0), st.sampled_from(sorted(CODECS)))
def test_a_message_comes_back_bit_for_bit(tensor, codec):
    message = write_message(tensor, codec=codec, note={"batch": [1, 2]})
    assert message.dtype == torch.uint8
    assert message.ndim == 1
    read, note = read_message(message)
    assert identical(read, tensor)
    assert note == {"batch": [1, 2]}


def test_a_single_number_cut_from_a_wider_tensor_is_compressed():
    # contiguous, says torch of one element, with a stride of 2
    column = torch.tensor([[-3.5, 8.0]])[:, 0]
    assert identical(CompressedRows.compress(column).read(), column)
    assert identical(read_message(write_message(column))[0], column)


def test_only_the_chunks_that_are_touched_are_decompressed():
    class Counting:
        name, decoded = "counting", 0

        def encode(self, chunk, element, level, scratch):
            return [chunk]

        def decode(self, stored, chunk, element):
            self.decoded += 1
            np.copyto(chunk, stored)

    codec = Counting()
    rows = torch.randn(100, 3)
    packed = CompressedRows.compress(rows, codec=codec, chunk_rows=10)
    assert torch.equal(packed.read(torch.tensor([95, 3, 4, 93, 3])), rows[[95, 3, 4, 93, 3]])
    assert codec.decoded == 2
    assert torch.equal(read_message(write_message(rows, codec=codec), codec=codec)[0], rows)


def test_what_was_compressed_may_be_written_again():
    rows = torch.zeros(10, 4)
    packed = CompressedRows.compress(rows, codec="raw", chunk_rows=3)
    rows.fill_(7)
    assert (packed.read() == 0).all()
    packed.read().fill_(3)
    assert (packed.read() == 0).all()


def test_large_messages_go_in_several_chunks():
    tensor = torch.arange(1 << 20, dtype=torch.int64)  # 8 MB
    message = write_message(tensor)
    assert torch.equal(read_message(message)[0], tensor)
    assert len(message) < tensor.nbytes / 2


def test_joined_rows_are_read_by_place():
    first, second = torch.arange(5), torch.arange(100, 104)
    packed = CompressedRows.joined(
        [CompressedRows.compress(part, chunk_rows=3) for part in (first, second)]
    )
    assert packed.read().tolist() == [0, 1, 2, 3, 4, 100, 101, 102, 103]
    assert packed.read(torch.tensor([4, 6, 9])).tolist() == [4, 100, 103]
    with pytest.raises(IndexError):
        packed.read(torch.tensor([5]))  # a place that is empty
    with pytest.raises(ConfigError, match="cannot be joined"):
        CompressedRows.joined([packed, CompressedRows.compress(torch.zeros(3), chunk_rows=3)])


@pytest.mark.parametrize("index", [-1, 10])
def test_a_row_that_is_not_there_is_refused(index):
    with pytest.raises(IndexError, match="out of range"):
        CompressedRows.compress(torch.zeros(10, 2), chunk_rows=4).read(torch.tensor([index]))


def test_what_has_no_rows_is_refused():
    with pytest.raises(ConfigError, match="0 dimensions"):
        CompressedRows.compress(torch.tensor(1.0))
    with pytest.raises(ConfigError, match="chunk_rows is 0"):
        CompressedRows.compress(torch.zeros(3), chunk_rows=0)


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_a_message_that_was_damaged_or_cut_is_refused(data):
    message = write_message(torch.arange(100.0).reshape(10, 10))
    if data.draw(st.booleans()):
        message = message[: data.draw(st.integers(0, len(message) - 1))]
    else:
        message[data.draw(st.integers(0, len(message) - 1))] ^= data.draw(st.integers(1, 255))
    with pytest.raises(ContainerError):
        read_message(message)


def test_a_small_message_cannot_ask_for_much_memory():
    import json
    import struct

    import xxhash

    text = json.dumps(
        {"codec": "raw", "element": "float32", "shape": [1 << 40, 1 << 20], "rows": 1, "note": {}}
    ).encode()
    body = b"NVRLrows" + struct.pack("<I", len(text)) + text
    message = torch.frombuffer(bytearray(body + xxhash.xxh3_64_digest(body)), dtype=torch.uint8)
    with pytest.raises(ContainerError, match="too short for the shape"):
        read_message(message)
