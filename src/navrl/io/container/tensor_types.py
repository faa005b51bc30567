"""The torch dtypes of the element types, and tensors as bytes."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from navrl.io.container.element_types import ITEM_BYTES

# Older versions of torch lack some of them; a file that uses one is then refused by name.
TORCH_DTYPES: dict[str, torch.dtype] = {
    name: getattr(torch, name) for name in ITEM_BYTES if hasattr(torch, name)
}
NAME_OF_TORCH_DTYPE = {dtype: name for name, dtype in TORCH_DTYPES.items()}


def tensor_bytes(tensor: torch.Tensor) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Return the bytes of a tensor; no copy if it is contiguous and on the CPU."""
    tensor = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
    # In a contiguous tensor an axis of length 0 or 1 may have any stride, such as 0; torch then
    # refuses to view it as bytes.
    return tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8).numpy()
