"""Sealed messages: a stamp that says what a message is, and a checksum of every byte."""

from __future__ import annotations

import struct
from dataclasses import dataclass

import xxhash

from navrl.errors import ContainerError

__all__ = ["BATCH", "WEIGHTS", "Stamp", "seal", "unseal"]

BATCH, WEIGHTS = b"navrlrb1", b"navrlrw1"  # kinds of message; they change with the format
_STAMP = struct.Struct("<8sQqqqQ")  # kind, run, version, worker, number, bytes of the contents
_CHECKSUM = struct.Struct("<Q")  # XXH3 of the stamp and the contents
_HEAD = _STAMP.size + _CHECKSUM.size


@dataclass(frozen=True)
class Stamp:
    """What a message is about."""

    run: int  # drawn by the training when it starts; its workers know it
    version: int  # of the weights: updates of the policy before them
    worker: int = -1  # that sent it; -1: the learner
    number: int = 0  # counts the batches of a worker's process


def seal(kind: bytes, stamp: Stamp, contents: bytes) -> bytes:
    """Return a message: the stamp, a checksum, the contents."""
    head = _STAMP.pack(kind, stamp.run, stamp.version, stamp.worker, stamp.number, len(contents))
    return b"".join((head, _CHECKSUM.pack(_checksum(head, contents)), contents))


def unseal(kind: bytes, message: bytes) -> tuple[Stamp, memoryview]:
    """Return the stamp and the contents of a message, every byte of it verified.

    Raises:
        ContainerError: the message is damaged, cut short, or of another kind.
    """
    if len(message) < _HEAD:
        raise ContainerError(f"a message of {len(message)} bytes; expected at least {_HEAD}")
    found, run, version, worker, number, size = _STAMP.unpack_from(message)
    if found != kind:
        raise ContainerError(
            f"a message begins with {found!r}; expected {kind!r}: the versions of navrl differ"
        )
    contents = memoryview(message)[_HEAD:]
    if len(contents) != size:
        raise ContainerError(f"a message holds {len(contents)} bytes; its stamp says {size}")
    (expected,) = _CHECKSUM.unpack_from(message, _STAMP.size)
    if _checksum(message[: _STAMP.size], contents) != expected:
        raise ContainerError(
            f"a message of worker {worker} is damaged: its checksum does not match its {size} bytes"
        )
    return Stamp(run, version, worker, number), contents


def _checksum(head: bytes, contents: bytes | memoryview) -> int:
    digest = xxhash.xxh3_64(head)
    digest.update(contents)
    return digest.intdigest()
