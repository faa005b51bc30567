"""Torch devices by name, refused with a clear message where the machine has none."""

from __future__ import annotations

from typing import Any

import torch

from navrl.errors import ConfigError

__all__ = ["usable_device"]


def usable_device(device: Any, subject: str = "device") -> torch.device:
    """Return a torch device that this machine has.

    Args:
        device: `cpu`, `cuda`, `cuda:1`, or a `torch.device`.
        subject: what the error message calls it, such as the name of a setting.

    Raises:
        ConfigError: torch does not know the device, or this machine does not have it; the message
            names those that there are.
    """
    try:
        found = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise ConfigError(
            f"{subject} is {str(device)[:80]!r}; expected cpu, cuda or cuda:0"
        ) from error
    if found.type == "cuda":
        _check_cuda(found, subject)
    elif found.type != "cpu":
        try:
            torch.empty(0, device=found)
        except (RuntimeError, AssertionError, NotImplementedError, ImportError) as error:
            raise ConfigError(
                f"{subject} is {str(found)!r}, which torch cannot use here; use cpu"
            ) from error
    return found


def _check_cuda(device: torch.device, subject: str) -> None:
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if not count:
        raise ConfigError(
            f"{subject} is {str(device)!r}, but torch sees no CUDA device here; use cpu"
        )
    if (device.index or 0) >= count:
        there = "cuda:0" if count == 1 else f"cuda:0 to cuda:{count - 1}"
        raise ConfigError(
            f"{subject} is {str(device)!r}, but this machine has {there}; use those or cpu"
        )
