"""Read world files within limits: the unpacked size is checked before anything is unpacked."""

from __future__ import annotations

import math
import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from navrl.errors import WorldError, missing_extra, shown

MAXIMUM_PIXELS = 4_000_000  # of an image, or cells of an array
MAXIMUM_NODES = 700_000  # of YAML: 20,000 of each kind of entry have 560,000
MAXIMUM_DEPTH = 8  # of YAML: the deepest number of a world is at 4
MAXIMUM_BYTES = {".yaml": 16 << 20, ".yml": 16 << 20, ".png": 32 << 20, ".npz": 80 << 20}
MAXIMUM_DIRECTORY = 64 << 10  # bytes of a zip archive's list of files: a thousand of them
_ARRAY_BYTES = 16 * MAXIMUM_PIXELS + (64 << 10)  # of the widest numbers, and a header

_PNG = b"\x89PNG\r\n\x1a\n"
# characters; YAML takes time with the square of it to read 1:1:1:1 as a number
MAXIMUM_SCALAR = 1000
_END_OF_ZIP, _END_OF_ZIP64 = b"PK\x05\x06", b"PK\x06\x07"
_TOLD = 200  # characters of what a library says
_Read = TypeVar("_Read")


def check_size(path: Path) -> None:
    """Raise a WorldError if a file is larger than a world of its kind can be."""
    size, limit = path.stat().st_size, MAXIMUM_BYTES[path.suffix.lower()]
    if size > limit:
        raise WorldError(f"{path}: {size} bytes; expected at most {limit} in a {path.suffix} world")


def read_yaml(path: Path) -> Any:
    """Return the contents of a YAML file; aliases, which can expand to billions of values, are
    refused.
    """
    import yaml  # comes with Hydra; only this kind of file needs it

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times faster, where available

    def read(file: IO[bytes]) -> Any:
        text = file.read().decode()
        _check_events(path, yaml.parse(text, Loader=loader))
        return yaml.load(text, Loader=loader)

    return _guarded(path, "not valid YAML", read)


def _check_events(path: Path, events: Any) -> None:
    """Refuse a document by its events, before any of it is kept in memory."""
    import yaml

    nodes = depth = 0
    for event in events:
        nodes += isinstance(event, yaml.NodeEvent)
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        place = f"line {event.start_mark.line + 1}"
        if isinstance(event, yaml.AliasEvent):
            raise WorldError(
                f"{path}: {place} has the alias *{shown(event.anchor)}; write the value "
                "itself there"
            )
        if isinstance(event, yaml.ScalarEvent) and len(event.value) > MAXIMUM_SCALAR:
            raise WorldError(
                f"{path}: {place} has a value of {len(event.value)} characters; expected a "
                "number or a word"
            )
        if nodes > MAXIMUM_NODES:
            raise WorldError(f"{path}: more than {MAXIMUM_NODES} values; expected a smaller world")
        if depth > MAXIMUM_DEPTH:
            raise WorldError(f"{path}: {place} is nested deeper than {MAXIMUM_DEPTH} levels")


def read_png(path: Path) -> tuple[NDArray[np.float32], float]:
    """Return the grey levels of a PNG image, rows from the top, and the level of white."""
    try:
        from PIL import Image
    except ImportError as error:
        raise missing_extra(f"{path}: PNG worlds need Pillow", "view") from error

    def read(file: IO[bytes]) -> tuple[NDArray[np.float32], float]:
        start = file.read(24)
        if not start.startswith(_PNG):
            raise WorldError(f"{path}: starts with {start[:8]!r}; expected a PNG image")
        _check_pixels(
            path, *(int.from_bytes(start[place : place + 4], "big") for place in (16, 20))
        )
        file.seek(0)
        with Image.open(file, formats=["PNG"]) as image:
            _check_pixels(path, image.width, image.height)  # a later header may say otherwise
            if image.mode not in ("L", "I;16", "I", "1"):
                raise WorldError(
                    f"{path}: image mode {image.mode}; expected one grey channel of 8 or 16 bits"
                )
            white = {"L": 255.0, "1": 1.0}.get(image.mode, 65535.0)
            return np.asarray(image, np.float32), white

    return _guarded(path, "not a readable PNG image", read)


def _check_pixels(path: Path, width: int, height: int) -> None:
    if width * height > MAXIMUM_PIXELS:
        raise WorldError(f"{path}: {width} x {height} pixels; expected at most {MAXIMUM_PIXELS}")


def read_npz(path: Path, wanted: tuple[str, ...]) -> tuple[dict[str, NDArray[Any]], list[str]]:
    """Return the `wanted` arrays of an NPZ archive, and the names of all."""

    def read(file: IO[bytes]) -> tuple[dict[str, NDArray[Any]], list[str]]:
        if file.read(6) == b"\x93NUMPY":
            raise WorldError(
                f"{path}: holds one bare array; expected an archive, as numpy.savez writes it"
            )
        _check_directory(path, file)
        with zipfile.ZipFile(file) as archive:
            members = {entry.filename.removesuffix(".npy"): entry for entry in archive.infolist()}
            found = {
                name: _read_array(path, name, archive, members[name])
                for name in wanted
                if name in members
            }
        return found, list(members)

    return _guarded(path, "not a readable NPZ archive", read)


def _check_directory(path: Path, file: IO[bytes]) -> None:
    """Refuse an archive that claims very many files: Python's zipfile reads all their names."""
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - (66 << 10)))
    tail = file.read()
    end = tail.rfind(_END_OF_ZIP)
    directory = int.from_bytes(tail[end + 12 : end + 16], "little")
    is_large = end >= 20 and tail[end - 20 : end - 16] == _END_OF_ZIP64
    if end >= 0 and (is_large or directory > MAXIMUM_DIRECTORY):
        raise WorldError(f"{path}: a very long list of files; expected heights and half_width only")


def _read_array(
    path: Path, name: str, archive: zipfile.ZipFile, entry: zipfile.ZipInfo
) -> NDArray[Any]:
    """Return an array after checking its size; no more bytes than that are unpacked."""
    if entry.flag_bits & 1:
        raise WorldError(
            f"{path}: {name} is encrypted; expected an archive as numpy.savez writes it"
        )
    if entry.file_size > _ARRAY_BYTES:
        raise WorldError(
            f"{path}: {name} unpacks to {entry.file_size} bytes; expected at most "
            f"{MAXIMUM_PIXELS} cells"
        )
    with archive.open(entry) as member:
        version = np.lib.format.read_magic(member)
        read_header = {
            (1, 0): np.lib.format.read_array_header_1_0,
            (2, 0): np.lib.format.read_array_header_2_0,
        }.get(version)
        if read_header is None:
            raise WorldError(f"{path}: {name} is of NPY version {version}; expected 1.0 or 2.0")
        shape, by_column, dtype = read_header(member)
        size = _checked_size(path, name, shape, dtype)
        content = member.read(size)
        if len(content) != size or member.read(1):  # the second compares the checksum, too
            raise ValueError(f"{name} has another size than its shape")
    return np.frombuffer(content, dtype).reshape(shape, order="F" if by_column else "C")


def _checked_size(path: Path, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> int:
    """Return the bytes of an array that a header describes."""
    if dtype.hasobject or min(shape, default=0) < 0:
        raise ValueError(f"{name} holds {shown(str(dtype))} of shape {shown(shape)}")
    size = math.prod(shape) * dtype.itemsize
    if size > _ARRAY_BYTES:
        raise WorldError(
            f"{path}: {name} of shape {shown(shape)} and type {shown(str(dtype))}; expected "
            f"at most {MAXIMUM_PIXELS} cells"
        )
    return size


def _guarded(path: Path, problem: str, read: Callable[[IO[bytes]], _Read]) -> _Read:
    """Call `read` with the open file; turn any error of a decoder into one that names the file."""
    try:
        with open(path, "rb") as file:
            return read(file)
    except WorldError:
        raise
    except Exception as error:  # decoders raise nearly anything
        raise _damaged(path, problem, error) from error


def _damaged(path: Path, problem: str, error: Exception) -> WorldError:
    told = " ".join(str(error).split()) or type(error).__name__
    return WorldError(f"{path}: {problem}: {told if len(told) <= _TOLD else told[:_TOLD] + '...'}")
