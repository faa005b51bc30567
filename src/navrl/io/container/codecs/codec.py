"""The abstract codec, and the one registry of codecs by name."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, TypeVar, cast, overload

import numpy as np

from navrl.errors import ConfigError, nearest_name

__all__ = [
    "CODECS",
    "DEFAULT_CODEC",
    "MAX_LEVEL",
    "Bytes",
    "ChunkCodec",
    "Codec",
    "codecs_of",
    "find_codec",
    "register",
]

Bytes = np.ndarray[Any, np.dtype[np.uint8]]  # flat, contiguous

DEFAULT_CODEC = "planes-zstd"
MAX_LEVEL = 16  # of any codec


class Codec(ABC):
    """A named way to store numbers. Codecs are frozen: equal ones store the same bytes."""

    family: ClassVar[str]  # what it stores; a name is unique within a family
    name: str

    def describe(self) -> dict[str, Any]:
        """Return what a file has to say about the codec, so that a reader finds it again."""
        return {"codec": self.name}


class ChunkCodec(Codec):
    """Stores the bytes of one chunk of an array."""

    family = "chunk"

    @abstractmethod
    def encode(self, chunk: Bytes, element: str, level: int | None, scratch: Bytes) -> list[Any]:
        """Return buffers whose concatenation is the stored form of a chunk.

        They may be views of the chunk and of `scratch`, which must be as large as the chunk: they
        are valid as long as both are.
        """

    def encode_all(
        self, chunks: Sequence[Bytes], element: str, level: int | None, scratch: Bytes
    ) -> list[list[Any]]:
        """Return what `encode` returns for each of some chunks, of which all must fit `scratch`.

        A codec may encode many small chunks together, to release the GIL less often.
        """
        encoded = []
        for chunk in chunks:
            encoded.append(self.encode(chunk, element, level, scratch))
            scratch = scratch[chunk.size :]
        return encoded

    @abstractmethod
    def decode(self, stored: Bytes, chunk: Bytes, element: str) -> None:
        """Fill `chunk` from its stored form.

        Raises:
            ContainerError: the stored form is not one that `encode` could have made.
        """


_REGISTRY: dict[str, dict[str, Codec]] = {}
# the codecs of files by name; what is registered later appears here too
CODECS = cast("dict[str, ChunkCodec]", _REGISTRY.setdefault(ChunkCodec.family, {}))

Kind = TypeVar("Kind", bound=Codec)


def register(codec: Kind) -> Kind:
    """Make a codec known by its name, and return it.

    Raises:
        ConfigError: another codec of its family has that name.
    """
    known = _REGISTRY.setdefault(codec.family, {})
    if known.setdefault(codec.name, codec) != codec:
        raise ConfigError(f"codec {codec.name!r} is registered already; choose another name")
    return codec


def codecs_of(kind: type[Kind]) -> dict[str, Kind]:
    """Return all codecs of a family by name, in the order of registration."""
    return cast("dict[str, Kind]", dict(_REGISTRY.get(kind.family, {})))


@overload
def find_codec(name: str) -> ChunkCodec: ...
@overload
def find_codec(name: str, kind: type[Kind]) -> Kind: ...
def find_codec(name: str, kind: type[Codec] = ChunkCodec) -> Codec:
    """Return a codec by name: of files, or of the family of `kind`.

    Raises:
        ConfigError: there is no such codec; the message names the nearest.
    """
    known = codecs_of(kind)
    if name not in known:
        raise ConfigError(
            f"codec {name!r} is unknown; expected one of {', '.join(known)}."
            f"{nearest_name(name, known)}"
        )
    return known[name]
