"""Messages between training processes: the same values and bits on the other side, and no code from
there.
"""

from __future__ import annotations

import math
import os
import pickle

import numpy as np
import pytest
import torch

from navrl.errors import ContainerError, UnsupportedStateError
from navrl.io.container.tensor_types import TORCH_DTYPES
from navrl.training.distributed.messages import decode, encode


@pytest.mark.parametrize("name", TORCH_DTYPES)
def test_a_tensor_of_every_type_arrives_with_the_same_bits(name):
    bits = torch.randint(0, 2 if name == "bool" else 256, (48,), dtype=torch.uint8)
    tensor = bits.view(TORCH_DTYPES[name])
    arrived = decode(encode(["before", tensor]))[1]
    assert arrived.dtype == tensor.dtype
    assert torch.equal(arrived.view(torch.uint8), bits)


def test_nested_plain_values_arrive_as_they_were():
    value = {
        "a": [1, 2.5, None, True, "é"],
        "b": (1 << 70, {3: "three"}),
        "c": {},
        "d": b"\x00\xff",
        "e": math.inf,
    }
    assert decode(encode(value)) == value


def test_views_empty_tensors_and_arrays_arrive():
    value = {
        "view": torch.arange(24).view(4, 6)[1:, ::2],
        "empty": torch.zeros(0, 3),
        "array": np.arange(3.0),
    }
    arrived = decode(encode(value))
    assert torch.equal(arrived["view"], value["view"])
    assert arrived["empty"].shape == (0, 3)
    assert np.array_equal(arrived["array"], value["array"])


def test_an_object_that_would_need_code_is_refused_by_its_place():
    with pytest.raises(UnsupportedStateError, match="plan/path"):
        encode({"plan": {"path": os}})


class Poison:
    """Ends the process that unpickles it."""

    def __reduce__(self):
        return os._exit, (3,)


def with_header(header: bytes) -> bytes:
    return len(header).to_bytes(8, "little") + header


@pytest.mark.parametrize(
    "content",
    [
        b"\0",
        b"\xff" * 64,
        pickle.dumps(Poison()),
        with_header(pickle.dumps(Poison())),
        with_header(b"[1, 2]"),
        with_header(b'[{"tensor": 0}, [["float32", [1000000000000]]]]'),
        with_header(b'[{"tensor": 0}, [["object", [1]]]]'),
        with_header(b"[" * 100_000),
    ],
)
def test_bytes_that_are_no_message_are_refused_and_run_nothing(content):
    with pytest.raises(ContainerError, match="a message between training processes is damaged"):
        decode(torch.frombuffer(bytearray(content), dtype=torch.uint8))
