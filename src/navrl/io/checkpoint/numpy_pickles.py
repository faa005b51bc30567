"""NumPy values in `torch.save` files, read without running code that the file refers to.

torch's weights-only unpickler refuses NumPy. Here the names that a pickled array, number or dtype
refers to are mapped to the classes below, which accept only numbers, booleans and text, and check
sizes. NumPy's own unpickling functions are never called.
"""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np

__all__ = ["NUMPY_GLOBALS", "with_arrays"]

_KINDS = "biufcSU"  # booleans, numbers and text; objects and records would need code


class _Dtype:
    """Replaces `numpy.dtype` while a pickle is read."""

    def __init__(self, code: Any, *_: Any) -> None:
        self.dtype = _checked(code)

    def __setstate__(self, state: Any) -> None:
        order = state[1] if isinstance(state, tuple) and len(state) > 1 else None
        if order not in ("<", ">", "|", "="):
            raise pickle.UnpicklingError(f"a NumPy dtype with byte order {str(order)[:20]!r}")
        self.dtype = self.dtype.newbyteorder(order)


def _checked(code: Any) -> np.dtype[Any]:
    try:
        dtype = np.dtype(code if isinstance(code, str) and len(code) < 16 else None)
    except TypeError as error:
        raise pickle.UnpicklingError(f"a NumPy dtype {str(code)[:20]!r}") from error
    if not isinstance(code, str) or dtype.kind not in _KINDS or dtype.fields:
        raise pickle.UnpicklingError(
            f"a NumPy dtype {str(code)[:20]!r}; only numbers and text are read"
        )
    return dtype


class _Array:
    """Replaces an array while a pickle is read, until `with_arrays`."""

    def __init__(self, *_: Any) -> None:
        self.array = np.empty(0)

    def __setstate__(self, state: Any) -> None:
        try:
            _, shape, kind, fortran, content = state
            order: Any = "F" if fortran else "C"
            flat = np.frombuffer(content, kind.dtype)
            self.array = flat.reshape(tuple(shape), order=order).copy(order=order)
        except (TypeError, ValueError, AttributeError) as error:
            raise pickle.UnpicklingError(
                f"a NumPy array that does not fit its bytes: {error}"
            ) from error


def _scalar(kind: Any, content: Any) -> Any:
    try:
        return np.frombuffer(content, kind.dtype, count=1)[0]
    except (TypeError, ValueError, AttributeError) as error:
        raise pickle.UnpicklingError(
            f"a NumPy number that does not fit its bytes: {error}"
        ) from error


def _no_bytes(*content: Any) -> bytes:
    """Replace `bytes`, which old pickles call without arguments for the content of empty arrays."""
    if content:
        raise pickle.UnpicklingError("a call of bytes with arguments")
    return b""


NUMPY_GLOBALS: list[Any] = [
    (_no_bytes, "builtins.bytes"),
    (_no_bytes, "__builtin__.bytes"),
    (_Dtype, "numpy.dtype"),
    (_Array, "numpy.ndarray"),
    *(
        (replacement, f"numpy.{core}.multiarray.{name}")
        for core in ("core", "_core")  # NumPy 1 and 2
        for replacement, name in ((_Array, "_reconstruct"), (_scalar, "scalar"))
    ),
]


def with_arrays(loaded: Any) -> Any:
    """Return a loaded state with the arrays in place of their replacements.

    Raises:
        UnpicklingError: the state is nested too deeply.
    """
    try:
        return _with_arrays(loaded, {})
    except RecursionError as error:
        raise pickle.UnpicklingError("nested too deeply") from error


def _with_arrays(loaded: Any, done: dict[int, Any]) -> Any:
    """Replace what is in each container once, even if it is shared or contains itself."""
    if isinstance(loaded, _Array):
        return loaded.array
    if isinstance(loaded, _Dtype):
        return loaded.dtype
    if not isinstance(loaded, dict | list | tuple):
        return loaded
    if id(loaded) in done:
        return done[id(loaded)]
    done[id(loaded)] = loaded
    if isinstance(loaded, dict):
        for key, value in loaded.items():
            loaded[key] = _with_arrays(value, done)
    elif isinstance(loaded, list):
        loaded[:] = [_with_arrays(value, done) for value in loaded]
    elif type(loaded) is tuple:
        done[id(loaded)] = tuple(_with_arrays(value, done) for value in loaded)
    return done[id(loaded)]
