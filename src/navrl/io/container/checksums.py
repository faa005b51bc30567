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
from typing import Any

__all__ = ["decode_line", "encode_line", "sha256_of"]

_LINE = re.compile(rb"([0-9a-f]{8}) (\{.*\})\n?", re.DOTALL)


def sha256_of(path: str | os.PathLike[str]) -> str:
    """Return the SHA-256 of a file as hexadecimal digits."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


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
