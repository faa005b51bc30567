"""Codecs: how the bytes of one chunk are stored, one file for each, in one registry by name.

`register` adds one of your own; every codec passes the same contract tests.
"""

from __future__ import annotations

from navrl.io.container.codecs.blocks import BlockCodec
from navrl.io.container.codecs.chunk_parts import MAX_CHUNK_BYTES, MAX_EXPANSION
from navrl.io.container.codecs.codec import (
    CODECS,
    DEFAULT_CODEC,
    MAX_LEVEL,
    Bytes,
    ChunkCodec,
    Codec,
    codecs_of,
    find_codec,
    register,
)
from navrl.io.container.codecs.planes import PlanesCodec
from navrl.io.container.codecs.raw import RAW
from navrl.io.container.codecs.row_plan import Rows, plan_rows
from navrl.io.container.codecs.rows import ROW_BYTES, TIME_DELTA, RowCodec

__all__ = [
    "CODECS",
    "DEFAULT_CODEC",
    "MAX_CHUNK_BYTES",
    "MAX_EXPANSION",
    "MAX_LEVEL",
    "RAW",
    "ROW_BYTES",
    "TIME_DELTA",
    "BlockCodec",
    "Bytes",
    "ChunkCodec",
    "Codec",
    "PlanesCodec",
    "RowCodec",
    "Rows",
    "codecs_of",
    "find_codec",
    "plan_rows",
    "register",
]
