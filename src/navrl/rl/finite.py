"""Refuses parameters that are NaN or infinite, in files and after updates."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from navrl.errors import ConfigError, NavrlError

NAMED = 3  # parameters that a message lists
SKIPS_ALLOWED = 50  # non-finite updates in a row before training stops


class DivergedError(NavrlError, ArithmeticError):
    """Losses, gradients or parameters are no longer finite; the message says which."""


def check_finite(parameters: Mapping[str, Tensor], subject: str) -> None:
    """Raise a ConfigError that names the parameters that are NaN or infinite, if any are.

    Args:
        parameters: tensors by name; integer tensors are skipped.
        subject: the start of the message: a file, a checkpoint, an iteration.
    """
    found = describe_bad(parameters)
    if found:
        raise ConfigError(
            f"{subject}: {found}; expected finite weights; use an older checkpoint or model"
        )


def refuse_bad_parameters(parameters: Mapping[str, Tensor], advice: str) -> None:
    """Raise a DivergedError that names the parameters that are NaN or infinite, if any are."""
    found = describe_bad(parameters)
    if found:
        raise DivergedError(
            f"an update has diverged: {found}. Earlier checkpoints are good; lower {advice}, "
            "and train again"
        )


def describe_bad(parameters: Mapping[str, Tensor]) -> str:
    """Return which parameters hold NaN or infinite values, and how many; "" if none does."""
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
