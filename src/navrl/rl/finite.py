"""Refuses weights that are not finite: every result computed from them would be wrong."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from navrl.errors import ConfigError

NAMED = 3  # bad parameters that a message lists


def check_finite(parameters: Mapping[str, Tensor], subject: str) -> None:
    """Raise a ConfigError that names the first parameters with NaN or infinite values, if there are
    any.

    Args:
        parameters: tensors by name; those of whole numbers are skipped.
        subject: what the message begins with: a file, a checkpoint, an iteration.
    """
    found = describe_bad(parameters)
    if found:
        raise ConfigError(
            f"{subject}: {found}; expected finite weights; use an older checkpoint or model"
        )


def describe_bad(parameters: Mapping[str, Tensor]) -> str:
    """Return which parameters hold NaN or infinite values, and how many; empty if none does."""
    floating = {
        name: value.detach() for name, value in parameters.items() if value.is_floating_point()
    }
    bad = [
        (name, value) for name, value in floating.items() if not bool(torch.isfinite(value).all())
    ]
    if not bad:
        return ""
    counts = [
        (name, int((~torch.isfinite(value)).sum()), value.numel()) for name, value in bad[:NAMED]
    ]
    name, number, size = counts[0]
    text = f"parameter {name!r} holds NaN or infinite values ({number} of {size})"
    if len(bad) > 1:
        text += "; also " + ", ".join(
            f"{name!r} ({number} of {size})" for name, number, size in counts[1:]
        )
    return text + (f" and {len(bad) - NAMED} more" if len(bad) > NAMED else "")
