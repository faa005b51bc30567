"""The types of compiled lanes: a vector of WIDTH floats, a mask, and a pointer without bounds."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import models, register_model
from numpy.typing import NDArray

__all__ = ["FLOATS", "LANES", "MASK", "WIDTH", "LaneMask", "Lanes", "Pointer", "aligned_zeros"]

WIDTH = 16  # `load_columns` is written for this width

FLOAT = ir.FloatType()
INT = ir.IntType(32)
VECTOR = ir.VectorType(FLOAT, WIDTH)
INTEGERS = ir.VectorType(INT, WIDTH)
MASK_BITS = ir.VectorType(ir.IntType(1), WIDTH)


class Lanes(types.Type):  # type: ignore[misc]
    """WIDTH float32."""

    def __init__(self) -> None:
        super().__init__("Lanes")


class LaneMask(types.Type):  # type: ignore[misc]
    """WIDTH bits, the result of a comparison."""

    def __init__(self) -> None:
        super().__init__("LaneMask")


class Pointer(types.Type):  # type: ignore[misc]
    """The address of elements of one type."""

    def __init__(self, dtype: Any) -> None:
        self.dtype = dtype
        super().__init__(f"Pointer({dtype})")


LANES, MASK, FLOATS = Lanes(), LaneMask(), Pointer(types.float32)


@register_model(Lanes)
class _LanesModel(models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, manager: Any, kind: Any) -> None:
        super().__init__(manager, kind, VECTOR)


@register_model(LaneMask)
class _MaskModel(models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, manager: Any, kind: Any) -> None:
        super().__init__(manager, kind, MASK_BITS)


@register_model(Pointer)
class _PointerModel(models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, manager: Any, kind: Any) -> None:
        super().__init__(manager, kind, manager.lookup(kind.dtype).get_data_type().as_pointer())


def aligned_zeros(shape: tuple[int, ...], dtype: Any = np.float32) -> NDArray[Any]:
    """Return zeros that begin on a cache line, so that no load of a whole group straddles two."""
    size = math.prod(shape) * np.dtype(dtype).itemsize
    raw = np.zeros(size + 64, np.uint8)
    first = -raw.ctypes.data % 64
    return raw[first : first + size].view(dtype).reshape(shape)
