"""File names of checkpoints: `checkpoint_000001000.pt` is step 1000."""

from __future__ import annotations

from navrl.arguments import whole_number
from navrl.errors import ConfigError

__all__ = ["format_checkpoint_name"]


def format_checkpoint_name(step: int, prefix: str = "checkpoint", suffix: str = ".pt") -> str:
    """Return the file name of a step: `checkpoint_000001000.pt`. Names sort like their steps.

    Raises:
        ConfigError: the step is negative, or the prefix would lead into another folder.
    """
    step = whole_number("step", step, 0)
    if not isinstance(prefix, str) or "/" in prefix or prefix.startswith("."):
        raise ConfigError(
            f"prefix is {prefix!r}, expected the beginning of a file name: no '/' and no "
            "leading dot"
        )
    return f"{prefix}_{step:09d}{suffix}"
