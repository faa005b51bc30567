"""The element types that a container can hold, by the names written in the file.

Needs no torch; see `tensor_types`.
"""

from __future__ import annotations

import numpy as np

ITEM_BYTES = {
    "bool": 1,
    "uint8": 1,
    "int8": 1,
    "uint16": 2,
    "int16": 2,
    "uint32": 4,
    "int32": 4,
    "uint64": 8,
    "int64": 8,
    "float8_e4m3fn": 1,
    "float8_e4m3fnuz": 1,
    "float8_e5m2": 1,
    "float8_e5m2fnuz": 1,
    "float8_e8m0fnu": 1,
    "float16": 2,
    "bfloat16": 2,
    "float32": 4,
    "float64": 8,
    "complex32": 4,
    "complex64": 8,
    "complex128": 16,
}

# What a codec works on: a complex number is two floats.
SCALAR_OF = {"complex32": "float16", "complex64": "float32", "complex128": "float64"}

NUMPY_DTYPES = {
    name: np.dtype(name)
    for name in ITEM_BYTES
    if name not in ("bfloat16", "complex32") and not name.startswith("float8")
}
NAME_OF_NUMPY_DTYPE = {dtype: name for name, dtype in NUMPY_DTYPES.items()}
