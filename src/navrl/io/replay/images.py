"""Images and sequences of images as bytes that describe themselves; no pickle.

    data = compress_image(grid, level=9)    # NumPy array, tensor, or PIL image
    grid = decompress_image(data)           # equal, bit for bit

The bytes: `NVI1`, one byte for what it was (0 array, 1 tensor, 2 PIL image), one for the element
type, one for the codec, one for the number of axes, the lengths of the axes (8 bytes each), for a
PIL image its mode (8 bytes), and the data.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from navrl.arguments import whole_number
from navrl.errors import ConfigError, ContainerError, NavrlError, ReplayError, missing_extra, shown
from navrl.io.container.codecs import MAX_EXPANSION, MAX_LEVEL, find_codec
from navrl.io.container.element_types import ITEM_BYTES, NAME_OF_NUMPY_DTYPE, NUMPY_DTYPES
from navrl.io.container.tensor_types import NAME_OF_TORCH_DTYPE, TORCH_DTYPES, tensor_bytes

__all__ = ["compress_image", "compress_image_seq", "decompress_image", "decompress_image_seq"]

MAGIC = b"NVI1"
ARRAY, TENSOR, PICTURE = range(3)
MAX_AXES = 32
LARGEST = 1 << 32  # bytes of a decompressed image, unless the caller allows more
_HEAD = struct.Struct("<4sBBBB")
_ELEMENTS = list(ITEM_BYTES)
# by their numbers in the bytes; new ones go to the end
_CODEC_NAMES = ["raw", "lz4", "zstd", "planes-zstd", "rows-zstd", "time-delta-zstd"]
PICTURE_MODES = ("1", "L", "LA", "RGB", "RGBA", "CMYK", "YCbCr", "LAB", "HSV", "I", "F", "I;16")


def compress_image(image: Any, level: int | None = 9, codec: str = "lz4") -> bytes:
    """Return an array, a tensor or a PIL image as bytes.

    A higher `level` is smaller, slower to write, and as fast to read. None writes fastest.

    Raises:
        ReplayError: it is none of these, or its elements are not numbers.
        ConfigError: there is no such codec or level.

    >>> import numpy as np, navrl
    >>> small = navrl.compress_image(np.zeros((64, 64, 3), np.uint8))
    >>> len(small) < 1000
    True
    """
    if isinstance(level, str):
        raise ConfigError(
            f"level is {shown(level)}; expected a number: a codec is named as codec={shown(level)}"
        )
    if level is not None:
        level = whole_number("level", level, 0, MAX_LEVEL)
    coder = find_codec(codec)
    if codec not in _CODEC_NAMES:
        raise ConfigError(
            f"codec {codec!r} has no number in compressed images; expected one of "
            f"{', '.join(_CODEC_NAMES)}"
        )
    what, element, shape, mode, raw = _describe(image)
    head = _HEAD.pack(MAGIC, what, _ELEMENTS.index(element), _CODEC_NAMES.index(codec), len(shape))
    head += struct.pack(f"<{len(shape)}Q", *shape) + (
        mode.encode().ljust(8, b"\0") if what == PICTURE else b""
    )
    parts = coder.encode(raw, element, level, np.empty(raw.size, np.uint8)) if raw.size else []
    return b"".join([head, *(bytes(part) for part in parts)])


def decompress_image(data: bytes | bytearray | memoryview, *, largest: int = LARGEST) -> Any:
    """Return what `compress_image` compressed: an array, a tensor, or a PIL image.

    Raises:
        ConfigError: `data` is not bytes.
        ContainerError: the bytes are not from `compress_image`, are damaged, or claim more than
            `largest` bytes.

    >>> import numpy as np, navrl
    >>> navrl.decompress_image(navrl.compress_image(np.eye(3))).sum()
    np.float64(3.0)
    """
    try:
        stored = np.frombuffer(data, np.uint8)
    except TypeError as error:
        raise ConfigError(
            f"data is {shown(data)}; expected the bytes that compress_image returned"
        ) from error
    head = _read_head(stored)
    size = ITEM_BYTES[head.element]
    for length in head.shape:
        size *= length
    packed = stored[head.end :]
    if size > largest or size > packed.size * MAX_EXPANSION:
        raise ContainerError(
            f"a compressed image that claims {size} bytes: more than allowed, or than its data can "
            "hold"
        )
    raw = np.empty(size, np.uint8)
    if size:
        find_codec(head.codec).decode(packed, raw, head.element)
    try:
        return _rebuild(head.what, head.element, head.shape, head.mode, raw)
    except NavrlError:
        raise
    except (
        ValueError,
        TypeError,
        OverflowError,
        RuntimeError,
    ) as error:  # axes that no array can have
        raise ContainerError(f"a compressed image of shape {head.shape}: {error}") from error


@dataclass(frozen=True)
class _Described:
    what: int
    element: str
    codec: str
    shape: tuple[int, ...]
    mode: str  # of a PIL image
    end: int  # where the data begin


def _read_head(stored: np.ndarray[Any, np.dtype[np.uint8]]) -> _Described:
    """Return what the first bytes of an image say about the rest."""
    if stored.size < _HEAD.size:
        raise ContainerError(
            f"{stored.size} bytes are not a compressed image: expected at least {_HEAD.size}"
        )
    magic, what, element_number, codec_number, axes = _HEAD.unpack_from(stored.data)
    position = _HEAD.size + 8 * axes + (8 if what == PICTURE else 0)
    known = (
        what <= PICTURE
        and element_number < len(_ELEMENTS)
        and codec_number < len(_CODEC_NAMES)
        and axes <= MAX_AXES
    )
    if magic != MAGIC or not known or stored.size < position:
        raise ContainerError("not the bytes of a compressed image, or cut short")
    shape = struct.unpack_from(f"<{axes}Q", stored.data, _HEAD.size)
    mode = (
        bytes(stored[position - 8 : position]).rstrip(b"\0").decode("ascii", "replace")
        if what == PICTURE
        else ""
    )
    element, codec = _ELEMENTS[element_number], _CODEC_NAMES[codec_number]
    return _Described(what, element, codec, shape, mode, position)


def compress_image_seq(images: Any, level: int | None = 9, codec: str = "zstd") -> bytes:
    """Return a sequence of images as bytes: an array (T, ...), or a list of images of one kind.

    They are compressed together.

    >>> import numpy as np, navrl
    >>> small = navrl.compress_image_seq(np.zeros((5, 64, 64), np.uint8))
    >>> len(small) < 1000
    True
    """
    if isinstance(images, np.ndarray | torch.Tensor):
        if not images.ndim:
            raise ReplayError(
                "a single number is not a sequence of images; expected an array (T, ...)"
            )
        return compress_image(images, level, codec)
    if not isinstance(images, Sequence) or not images:
        raise ReplayError(
            f"found {type(images).__name__}, expected an array (T, ...), or a list of images "
            "that is not empty"
        )
    if len({_describe(image)[:4] for image in images}) > 1:
        raise ReplayError(
            "images of different kinds, element types or shapes; expected one kind for all"
        )
    if isinstance(images[0], torch.Tensor):
        return compress_image(torch.stack(list(images)), level, codec)
    return compress_image(np.stack([np.asarray(image) for image in images]), level, codec)


def decompress_image_seq(
    data: bytes | bytearray | memoryview,
    image_shape: Sequence[int] | None = None,
    batch_size: int | None = None,
    dtype: Any = None,
    *,
    largest: int = LARGEST,
) -> Any:
    """Return the sequence that `compress_image_seq` compressed, as an array or tensor (T, ...).

    The bytes say what they hold; `image_shape`, `batch_size` (T) and `dtype` are checked against
    it. `image_shape` may have axes of length 1 more or fewer than the images.

    Raises:
        ConfigError: an argument is of the wrong type.
        ContainerError: as `decompress_image`; or the bytes hold a single image, or images of
            another number, shape or element type.

    >>> import numpy as np, navrl
    >>> navrl.decompress_image_seq(navrl.compress_image_seq(np.ones((5, 8, 8)))).shape
    (5, 8, 8)
    """
    images = decompress_image(data, largest=largest)
    if not isinstance(images, np.ndarray | torch.Tensor) or not images.ndim:
        raise ContainerError("the bytes hold one image, expected a sequence: use decompress_image")
    count, *stored = images.shape
    if not isinstance(image_shape, Iterable | None):
        raise ConfigError(
            f"image_shape is {shown(image_shape)}; expected lengths, such as (1, 64, 64)"
        )
    shape = stored if image_shape is None else [int(length) for length in image_shape]
    found = _element_name(images.dtype)
    held = (count, [length for length in stored if length != 1], found)
    number = count if batch_size is None else batch_size
    named = found if dtype is None else _element_name(dtype)
    if held != (number, [length for length in shape if length != 1], named):
        raise ContainerError(
            f"the bytes hold {count} images of shape {tuple(stored)} and type {found}, "
            f"expected {number} of shape {tuple(shape)} and type {named}"
        )
    return images.reshape((count, *shape))


def _element_name(dtype: Any) -> str:
    """Return the name of an element type of NumPy or torch."""
    if isinstance(dtype, torch.dtype):
        return NAME_OF_TORCH_DTYPE.get(dtype, str(dtype))
    try:
        return NAME_OF_NUMPY_DTYPE.get(np.dtype(dtype), str(np.dtype(dtype)))
    except TypeError as error:
        expected = "an element type, such as numpy.float32"
        raise ConfigError(f"dtype={dtype!r}: expected {expected}") from error


def _describe(
    image: Any,
) -> tuple[int, str, tuple[int, ...], str, np.ndarray[Any, np.dtype[np.uint8]]]:
    """Return what an image is, its element type, shape, mode, and bytes."""
    if isinstance(image, torch.Tensor):
        element = NAME_OF_TORCH_DTYPE.get(image.dtype)
        if element is None:
            raise ReplayError(
                f"a tensor of {image.dtype} cannot be compressed; expected numbers or booleans"
            )
        raw = tensor_bytes(image)
        return TENSOR, element, tuple(image.shape), "", raw
    mode = _mode_of(image)
    array = np.asarray(image)
    array = array.astype(array.dtype.newbyteorder("="), copy=False)
    element = NAME_OF_NUMPY_DTYPE.get(array.dtype)
    if element is None:
        raise ReplayError(
            f"an array of {array.dtype} cannot be compressed; expected numbers or booleans"
        )
    return (
        PICTURE if mode else ARRAY,
        element,
        array.shape,
        mode,
        np.ascontiguousarray(array).reshape(-1).view(np.uint8),
    )


def _mode_of(image: Any) -> str:
    """Return the mode of a PIL image, or "" for an array."""
    mode: str = "" if isinstance(image, np.ndarray) else getattr(image, "mode", "")
    if mode and mode not in PICTURE_MODES:
        raise ReplayError(
            f"an image of mode {mode!r}; expected one of {', '.join(PICTURE_MODES)}: "
            "image.convert('RGB')"
        )
    if not mode and not isinstance(image, np.ndarray | np.generic):
        raise ReplayError(
            f"{type(image).__name__} is not an image; expected a NumPy array, a tensor or a PIL "
            "image"
        )
    return mode


def _rebuild(what: int, element: str, shape: tuple[int, ...], mode: str, raw: Any) -> Any:
    if what == TENSOR:
        return _tensor(element, shape, raw)
    if element not in NUMPY_DTYPES:
        raise ContainerError(f"an array of {element}, which NumPy does not have")
    array = raw.view(NUMPY_DTYPES[element]).reshape(shape)
    if what == ARRAY:
        return array
    try:
        from PIL import Image
    except ImportError as error:
        raise missing_extra("PIL images need Pillow", "view") from error
    try:
        return Image.fromarray(array) if mode in ("1", "I;16") else _picture(Image, array, mode)
    except (TypeError, ValueError) as error:
        raise ContainerError(f"a PIL image of mode {mode!r} and shape {shape}: {error}") from error


def _tensor(element: str, shape: tuple[int, ...], raw: Any) -> torch.Tensor:
    if element not in TORCH_DTYPES:
        raise ContainerError(f"a tensor of {element}, which this version of torch does not have")
    dtype = TORCH_DTYPES[element]
    if not raw.size:
        return torch.empty(shape, dtype=dtype)
    return torch.from_numpy(raw).view(dtype).view(shape)


def _picture(module: Any, array: Any, mode: str) -> Any:
    if mode not in PICTURE_MODES:
        raise ConfigError(f"mode {mode!r}")
    height, width = array.shape[:2]
    return module.frombytes(mode, (width, height), array.tobytes())
