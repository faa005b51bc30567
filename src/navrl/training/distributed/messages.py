"""Messages between training processes: plain values and tensors as bytes, without pickle."""

from __future__ import annotations

import json
import math
from typing import Any

import torch
from torch import Tensor

from navrl.errors import ContainerError
from navrl.io.container.element_types import ITEM_BYTES
from navrl.io.container.state_tree import pack_state
from navrl.io.container.tensor_types import NAME_OF_TORCH_DTYPE, TORCH_DTYPES, tensor_bytes
from navrl.io.container.tree_reader import unpack_state

__all__ = ["decode", "encode"]

_PREFIX = 8  # bytes: the length of the header, little-endian
_ALIGNMENT = 64  # bytes: a tensor of any type can be viewed in place


def encode(value: Any) -> Tensor:
    """Return a value as one tensor of bytes: a JSON header, then the arrays.

    Raises:
        UnsupportedStateError: the value holds more than tensors, arrays and plain values.
    """
    packed = pack_state(value)
    arrays = [one if isinstance(one, Tensor) else torch.from_numpy(one) for one in packed.values]
    shapes = [[NAME_OF_TORCH_DTYPE[array.dtype], list(array.shape)] for array in arrays]
    header = json.dumps([packed.tree, shapes], separators=(",", ":"), allow_nan=False).encode()
    starts, end = [], _PREFIX + len(header)
    for array in arrays:
        starts.append(_aligned(end))
        end = starts[-1] + array.nbytes
    message = torch.zeros(end, dtype=torch.uint8)
    head = len(header).to_bytes(_PREFIX, "little") + header
    message[: len(head)] = torch.frombuffer(bytearray(head), dtype=torch.uint8)
    for start, array in zip(starts, arrays, strict=True):
        message[start : start + array.nbytes] = torch.from_numpy(tensor_bytes(array))
    return message


def decode(message: Tensor) -> Any:
    """Return the value of a message; its tensors have memory of their own.

    Not views of the message: `torch.Generator.set_state` reads past the end of a view.

    Raises:
        ContainerError: the bytes are not a message that `encode` makes.
    """
    content = message.numpy()
    length = int.from_bytes(content[:_PREFIX].tobytes(), "little")
    place = _PREFIX + length
    try:
        if place > len(content):
            raise ContainerError(f"a header of {length} bytes in a message of {len(content)}")
        tree, shapes = json.loads(content[_PREFIX:place].tobytes())
        tensors = []
        for name, shape in shapes:
            start, place = _aligned(place), _aligned(place) + ITEM_BYTES[name] * math.prod(shape)
            part = message[start:place].view(TORCH_DTYPES[name]).reshape(shape)
            tensors.append(part.clone())
        return unpack_state(tree, tensors.__getitem__, lambda number: tensors[number].numpy())
    except (ValueError, TypeError, LookupError, RuntimeError, RecursionError) as error:
        raise ContainerError(f"a message between training processes is damaged: {error}") from error


def _aligned(place: int) -> int:
    return -(-place // _ALIGNMENT) * _ALIGNMENT
