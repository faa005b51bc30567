"""The element types that a container can hold, by the names written in the file, and the bytes of a tensor of any of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

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

# The unit that a codec looks at: a complex number is two floats.
SCALAR_OF = {"complex32": "float16", "complex64": "float32", "complex128": "float64"}

# Older versions of torch lack some of the names; a file that uses one is then refused by name.
TORCH_DTYPES: dict[str, torch.dtype] = {name: getattr(torch, name) for name in ITEM_BYTES if hasattr(torch, name)}
NAME_OF_TORCH_DTYPE = {dtype: name for name, dtype in TORCH_DTYPES.items()}

NUMPY_DTYPES = {
    name: np.dtype(name) for name in ITEM_BYTES if name not in ("bfloat16", "complex32") and not name.startswith("float8")
}
NAME_OF_NUMPY_DTYPE = {dtype: name for name, dtype in NUMPY_DTYPES.items()}


def tensor_bytes(tensor: torch.Tensor) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Return the bytes of a tensor, without a copy where it lies contiguous in main memory."""
    tensor = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
    # An axis of length 0 or 1 may have any stride, such as 0, in a contiguous tensor; torch would not view it as bytes then.
    return tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8).numpy()
