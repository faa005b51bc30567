"""File names by step: `checkpoint_000001000.pt`, and `rollout_000001000.navrl` for a batch."""

from __future__ import annotations

import re

from navrl.arguments import whole_number
from navrl.errors import ConfigError

__all__ = ["ROLLOUT_NAME", "format_checkpoint_name", "format_rollout_name"]

ROLLOUT_NAME = re.compile(r"rollout_(\d{9,})\.navrl")


def format_checkpoint_name(step: int, prefix: str = "checkpoint", suffix: str = ".pt") -> str:
    """Return the file name of a step: `checkpoint_000001000.pt`. Names sort like their steps.

    Raises:
        ConfigError: the step is negative, or the prefix would lead into another folder.

    >>> import navrl
    >>> navrl.format_checkpoint_name(1000)
    'checkpoint_000001000.pt'
    """
    step = whole_number("step", step, 0)
    if not isinstance(prefix, str) or "/" in prefix or prefix.startswith("."):
        raise ConfigError(
            f"prefix is {prefix!r}, expected the beginning of a file name: no '/' and no "
            "leading dot"
        )
    return f"{prefix}_{step:09d}{suffix}"


def format_rollout_name(iteration: int) -> str:
    """Return the file name of the rollout of an iteration: `rollout_000001000.navrl`."""
    return f"rollout_{iteration:09d}.navrl"
