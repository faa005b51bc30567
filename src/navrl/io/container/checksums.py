"""Checksums: the SHA-256 of a file, and lines of JSON with a CRC-32 in front.

Only the standard library is loaded.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import zlib
from collections.abc import Mapping
from typing import IO, Any

__all__ = ["decode_line", "encode_line", "sha256_of", "sha256_of_file"]

PIECE = 1 << 18  # bytes that are read at once

_LINE = re.compile(rb"([0-9a-f]{8}) (\{.*\})\n?", re.DOTALL)


def sha256_of(path: str | os.PathLike[str]) -> str:
    """Return the SHA-256 of a file as hexadecimal digits."""
    with open(path, "rb") as file:
        return sha256_of_file(file)


def sha256_of_file(file: IO[bytes]) -> str:
    """Return the SHA-256 of the rest of an open file as hexadecimal digits."""
    digest, buffer = hashlib.sha256(), memoryview(bytearray(PIECE))
    while size := file.readinto(buffer):  # type: ignore[attr-defined]
        digest.update(buffer[:size])
    return digest.hexdigest()


def encode_line(values: Mapping[str, Any]) -> bytes:
    """Return a JSON object as one line, with its CRC-32 in front."""
    text = json.dumps(values, allow_nan=False, ensure_ascii=True, separators=(",", ":")).encode()
    return b"%08x %b\n" % (zlib.crc32(text), text)


def decode_line(line: bytes) -> dict[str, Any] | None:
    """Return the object of a line, with or without its newline, or None if it is damaged."""
    found = _LINE.fullmatch(line)
    if found is None or int(found[1], 16) != zlib.crc32(found[2]):
        return None
    try:
        values: dict[str, Any] = json.loads(found[2])
    except ValueError:
        return None
    return values
