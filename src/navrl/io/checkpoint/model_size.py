"""How many parameters a model has, and how many bytes they take."""

from __future__ import annotations

import sys
from typing import TextIO

import torch

from navrl.errors import ConfigError

__all__ = ["get_model_size", "print_model_info"]


def get_model_size(model: torch.nn.Module) -> dict[str, float]:
    """Return `parameters`, `trainable_parameters`, `bytes` and `megabytes` of a model.

    Tensors that several modules share count once.

    Raises:
        ConfigError: `model` is not a torch module.

    >>> import torch, navrl
    >>> navrl.get_model_size(torch.nn.Linear(8, 3))["parameters"]
    27
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
    """Print one line: how many parameters a model has, how many are trained, its megabytes.

    >>> import torch, navrl
    >>> navrl.print_model_info(torch.nn.Linear(8, 3), "pilot")
    pilot: 27 parameters, 27 trainable, 0.00 MB
    """
    size = get_model_size(model)
    line = "{}: {:,.0f} parameters, {:,.0f} trainable, {:.2f} MB".format(
        name, size["parameters"], size["trainable_parameters"], size["megabytes"]
    )
    print(line, file=file or sys.stdout)
