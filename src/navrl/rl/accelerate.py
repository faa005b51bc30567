"""The fastest way to apply a network that this machine has; all ways give the same results."""

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
        """Whose parameters these are."""

    def __call__(self, rows: Tensor, index: Tensor | None = None) -> Tensor:
        """Return the heads of all rows, or of those that `index` names; differentiable."""

    def forward(self, rows: Tensor, index: Tensor | None = None) -> Tensor:
        """Return the same without keeping anything for gradients."""


class PlainNetwork:
    """A network applied by PyTorch itself."""

    def __init__(self, network: nn.Module) -> None:
        self.network = network

    def __call__(self, rows: Tensor, index: Tensor | None = None) -> Tensor:
        """Return the heads of all rows, or of those that `index` names; differentiable."""
        heads: Tensor = self.network(rows if index is None else rows.index_select(0, index))
        return heads

    def forward(self, rows: Tensor, index: Tensor | None = None) -> Tensor:
        """Return the same without keeping anything for gradients."""
        with torch.no_grad():
            return self(rows, index)


def accelerate(network: nn.Module) -> AppliedNetwork:
    """Return a network in its fastest form: compiled kernels where they apply, PyTorch elsewhere.

    Raises:
        ConfigError: a parameter is not finite; the message names it.
    """
    check_finite(dict(network.named_parameters()), "network")
    if type(network) is NavigationNetwork and not network.scale.is_cuda:
        from navrl.rl.fused.fused_network import FusedNetwork, supports

        if supports(network, torch.zeros(1, network.layout.width)):
            return FusedNetwork(network)
    return PlainNetwork(network)
