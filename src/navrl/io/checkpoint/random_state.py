"""The state of the global random generators, as values that a checkpoint can hold."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch

__all__ = ["get_random_state", "set_random_state"]


def get_random_state() -> dict[str, Any]:
    """Return the state of the global generators of Python, NumPy, torch and CUDA, if in use.

    >>> import random
    >>> from navrl.io import get_random_state, set_random_state
    >>> state = get_random_state()
    >>> first = random.random()
    >>> set_random_state(state)
    >>> random.random() == first
    True
    """
    state: dict[str, Any] = {
        "python": random.getstate(),
        "numpy": np.random.get_state(),
        "torch": torch.get_rng_state(),
    }
    if torch.cuda.is_initialized():
        state["cuda"] = torch.cuda.get_rng_state_all()
    return state


def set_random_state(state: dict[str, Any]) -> None:
    """Restore the global generators from what `get_random_state` returned.

    >>> import torch
    >>> from navrl.io import get_random_state, set_random_state
    >>> state = get_random_state()
    >>> first = torch.rand(3)
    >>> set_random_state(state)
    >>> torch.equal(torch.rand(3), first)
    True
    """
    random.setstate(state["python"])
    np.random.set_state(state["numpy"])
    torch.set_rng_state(state["torch"].cpu())
    if "cuda" in state:
        torch.cuda.set_rng_state_all([one.cpu() for one in state["cuda"]])
