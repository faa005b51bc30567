"""The element types of tensors by the names written in files, and the bytes of a tensor of any of
them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from navrl.io.container.element_types import ITEM_BYTES

# Older versions of torch lack some of the names; a file that uses one is then refused by name.
TORCH_DTYPES: dict[str, torch.dtype] = {
    name: getattr(torch, name) for name in ITEM_BYTES if hasattr(torch, name)
}
NAME_OF_TORCH_DTYPE = {dtype: name for name, dtype in TORCH_DTYPES.items()}


def tensor_bytes(tensor: torch.Tensor) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Return the bytes of a tensor, without a copy where it lies contiguous in main memory."""
    tensor = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
    # An axis of length 0 or 1 may have any stride, such as 0, in a contiguous tensor; torch would
    # not view it as bytes then.
    return tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8).numpy()
