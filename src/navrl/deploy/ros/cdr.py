"""Messages as CDR bytes, as ROS 2 puts them on the wire; messages are nested dicts.

    data = encode("geometry_msgs/msg/Twist", {"linear": {"x": 1.0, "y": 0.0, "z": 0.0}, ...})

Fields that are left out are zero or empty. Sequences of numbers are read as NumPy arrays, `uint8[]`
as bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

import numpy as np

from navrl.deploy.ros.interfaces import PRIMITIVES, Field, fields_of
from navrl.errors import MessageError, shown

LITTLE = b"\x00\x01\x00\x00"  # CDR, little-endian, no options
HEADER = len(LITTLE)
LONGEST = 1 << 28  # elements that a sequence may claim


def encode(name: str, message: Mapping[str, Any]) -> bytes:
    """Return the bytes of a message.

    Raises:
        MessageError: a field is unknown, or its value does not fit.
    """
    out = bytearray(LITTLE)
    try:
        _write(out, name, message)
    except (struct.error, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise MessageError(f"{name} cannot be written: {error}") from error
    return bytes(out)


def decode(name: str, data: bytes) -> dict[str, Any]:
    """Return the message that bytes hold.

    Raises:
        MessageError: the bytes are cut short, or not of this type.
    """
    if len(data) < HEADER or data[0] != 0 or data[1] not in (0, 1):
        raise MessageError(f"{name} does not begin with a CDR header: {shown(data[:HEADER])}")
    try:
        return _Reader(data, "<" if data[1] else ">").read(name)
    except (struct.error, ValueError, UnicodeDecodeError) as error:
        raise MessageError(f"{name} cannot be read: {error}") from error


# ---------------------------------------------------------------------- writing


def _align(out: bytearray, size: int) -> None:
    out.extend(bytes(-(len(out) - HEADER) % size))


def _write(out: bytearray, name: str, message: Mapping[str, Any]) -> None:
    fields = fields_of(name)
    unknown = set(message) - {field.name for field in fields}
    if unknown:
        raise MessageError(f"{name} has no field {sorted(unknown)[0]!r}")
    for field in fields:
        _write_field(out, field, message.get(field.name))


def _write_field(out: bytearray, field: Field, value: Any) -> None:
    if field.kind == "one":
        _write_one(out, field.type, value)
        return
    values = () if value is None else value
    if field.kind == "array":
        values = (None,) * field.size if value is None else value
        if len(values) != field.size:
            raise MessageError(f"{field.name} has {len(values)} elements; expected {field.size}")
    else:
        if field.size and len(values) > field.size:
            raise MessageError(f"{field.name} has {len(values)} elements; at most {field.size}")
        _align(out, 4)
        out += struct.pack("<I", len(values))
    if field.type in PRIMITIVES and len(values) and value is not None:
        character, size = PRIMITIVES[field.type]
        _align(out, size)
        out += (
            bytes(values) if isinstance(values, bytes | bytearray) else _packed(character, values)
        )
        return
    for item in values:
        _write_one(out, field.type, item)


def _packed(character: str, values: Any) -> bytes:
    return np.asarray(values).astype(f"<{character}", casting="unsafe").tobytes()


def _write_one(out: bytearray, kind: str, value: Any) -> None:
    if kind == "string":
        text = ("" if value is None else value).encode()
        _align(out, 4)
        out += struct.pack("<I", len(text) + 1) + text + b"\0"
    elif kind in PRIMITIVES:
        character, size = PRIMITIVES[kind]
        _align(out, size)
        out += struct.pack(f"<{character}", 0 if value is None else value)
    else:
        _write(out, kind, {} if value is None else value)


# ---------------------------------------------------------------------- reading


class _Reader:
    def __init__(self, data: bytes, order: str) -> None:
        self.data, self.order, self.at = data, order, HEADER

    def read(self, name: str) -> dict[str, Any]:
        return {field.name: self._field(field) for field in fields_of(name)}

    def _take(self, size: int, aligned: int) -> bytes:
        begin = self.at + -(self.at - HEADER) % aligned
        if begin + size > len(self.data):
            raise MessageError(f"it is cut short after {len(self.data)} bytes")
        self.at = begin + size
        return self.data[begin : self.at]

    def _field(self, field: Field) -> Any:
        if field.kind == "one":
            return self._one(field.type)
        count = field.size
        if field.kind == "sequence":
            count = self._number("I", 4)
            if count > LONGEST or (field.size and count > field.size):
                raise MessageError(f"{field.name} claims {count} elements")
        if field.type in PRIMITIVES:
            return self._numbers(field.type, count)
        return [self._one(field.type) for _ in range(count)]

    def _numbers(self, kind: str, count: int) -> Any:
        character, size = PRIMITIVES[kind]
        data = self._take(count * size, size) if count else b""
        if kind in ("uint8", "byte", "char"):
            return data
        return np.frombuffer(data, f"{self.order}{character}")

    def _number(self, character: str, size: int) -> Any:
        return struct.unpack(f"{self.order}{character}", self._take(size, size))[0]

    def _one(self, kind: str) -> Any:
        if kind == "string":
            length = self._number("I", 4)
            return self._take(length, 1)[:-1].decode() if length else ""
        if kind in PRIMITIVES:
            return self._number(*PRIMITIVES[kind])
        return self.read(kind)
