"""An exponential moving average of a network's weights, as a network of its own."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from navrl.rl.accelerate import accelerate

__all__ = ["AveragedWeights"]

WARM_UP = 9  # iterations until half of the average is its past


class AveragedWeights:
    """Follows the weights of a network, iteration by iteration.

        average <- d * average + (1 - d) * weights,  d = min(decay, n / (n + WARM_UP))

    At iteration n = 0 it is the network itself. Buffers and what only the value depends on, which
    value normalisation rescales, are copied instead of averaged.

    Args:
        network: whose weights are averaged; it is not changed.
        decay: of an iteration, below 1.
    """

    def __init__(self, network: nn.Module, decay: float) -> None:
        self.decay = decay
        self.network = copy.deepcopy(network).requires_grad_(False)
        self.applied = accelerate(self.network)
        critic: list[nn.Parameter] = network.critic_parameters()  # type: ignore[operator]
        self._copied = {id(parameter) for parameter in critic}

    @torch.no_grad()
    def update(self, network: nn.Module, iteration: int) -> None:
        """Take in the weights after an iteration, counted from 0."""
        decay = min(self.decay, iteration / (iteration + WARM_UP))
        for mean, weight in zip(self.network.parameters(), network.parameters(), strict=True):
            mean.lerp_(weight, 1.0 if id(weight) in self._copied else 1 - decay)
        for own, buffer in zip(self.network.buffers(), network.buffers(), strict=True):
            own.copy_(buffer)

    def state_dict(self) -> dict[str, Tensor]:
        """Return the averaged weights by name; live tensors."""
        state: dict[str, Tensor] = self.network.state_dict()
        return state

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Go on from saved averages."""
        self.network.load_state_dict(state)
