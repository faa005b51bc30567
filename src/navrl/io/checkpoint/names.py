"""Small facts about models and names of checkpoints."""

from __future__ import annotations

import sys
from typing import TextIO

import torch

from navrl.arguments import whole_number
from navrl.errors import ConfigError

__all__ = ["format_checkpoint_name", "get_model_size", "print_model_info"]


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


def get_model_size(model: torch.nn.Module) -> dict[str, float]:
    """Return `parameters`, `trainable_parameters`, `bytes` and `megabytes` of a model; shared
    tensors count once.

    Raises:
        ConfigError: it is no torch module.
    """
    if not isinstance(model, torch.nn.Module):
        raise ConfigError(f"model is a {type(model).__name__}; expected a torch.nn.Module")
    parameters = list(model.parameters())
    tensors = {
        tensor.data_ptr(): tensor for tensor in (*parameters, *model.buffers()) if tensor.numel()
    }
    size = sum(tensor.nbytes for tensor in tensors.values())
    return {
        "parameters": sum(parameter.numel() for parameter in parameters),
        "trainable_parameters": sum(
            parameter.numel() for parameter in parameters if parameter.requires_grad
        ),
        "bytes": size,
        "megabytes": size / 1e6,
    }


def print_model_info(
    model: torch.nn.Module, name: str = "model", file: TextIO | None = None
) -> None:
    """Print one line on a model: how many parameters, how many of them are trained, how many
    megabytes.
    """
    size = get_model_size(model)
    line = "{}: {:,.0f} parameters, {:,.0f} trainable, {:.2f} MB".format(
        name, size["parameters"], size["trainable_parameters"], size["megabytes"]
    )
    print(line, file=file or sys.stdout)
