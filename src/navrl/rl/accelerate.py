"""The fastest implementation of a network on this machine; all compute the same function."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor, nn

from navrl.rl.finite import check_finite
from navrl.rl.networks.navigation import NavigationNetwork


class AppliedNetwork(Protocol):
    """A network over rows of packed observations."""

    @property
    def network(self) -> nn.Module:
        """The module that owns the parameters."""

    def __call__(self, rows: Tensor, index: Tensor | None = None) -> Tensor:
        """Return the heads of all rows, or of rows[index]; differentiable."""

    def infer(self, rows: Tensor, index: Tensor | None = None) -> Tensor:
        """Return the same heads without recording gradients."""


class PlainNetwork:
    """A network that PyTorch itself runs."""

    def __init__(self, network: nn.Module) -> None:
        self.network = network

    def __call__(self, rows: Tensor, index: Tensor | None = None) -> Tensor:
        """Return the heads of all rows, or of rows[index]; differentiable."""
        heads: Tensor = self.network(rows if index is None else rows.index_select(0, index))
        return heads

    def infer(self, rows: Tensor, index: Tensor | None = None) -> Tensor:
        """Return the same heads without recording gradients."""
        with torch.no_grad():
            return self(rows, index)


def accelerate(network: nn.Module) -> AppliedNetwork:
    """Return a network in its fastest form: compiled kernels where they apply, PyTorch elsewhere.

    Raises:
        ConfigError: a parameter is not finite; the message names it.
    """
    check_finite(dict(network.named_parameters()), "network")
    if type(network) is NavigationNetwork and not network.scale.is_cuda:
        from navrl.rl.fused import FusedNetwork, supports

        if supports(network, torch.zeros(1, network.layout.width)):
            return FusedNetwork(network)
    return PlainNetwork(network)


def slow_path(applied: AppliedNetwork) -> str:
    """Return why a navigation network on the CPU runs without compiled kernels; "" otherwise."""
    network = applied.network
    if not isinstance(applied, PlainNetwork) or not isinstance(network, NavigationNetwork):
        return ""
    if network.scale.is_cuda:
        return ""
    if type(network) is NavigationNetwork:
        reason = f"its parameters are not contiguous {torch.float32} tensors"
    else:
        reason = f"they exist for {NavigationNetwork.__name__}, not for {type(network).__name__}"
    return f"the network runs in PyTorch, slower than with compiled kernels: {reason}"
