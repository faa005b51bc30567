"""Value normalisation by the running mean and standard deviation of the returns."""

from __future__ import annotations

import torch
from torch import Tensor, nn

LEAST_VARIANCE = 1e-2


class ValueNormaliser(nn.Module):
    """Debiased running mean and mean square of returns, under the original's names.

    Args:
        decay: weight of the old statistics in an update.
    """

    running_mean: Tensor
    running_mean_sq: Tensor
    debiasing_term: Tensor

    def __init__(self, decay: float = 0.98) -> None:
        super().__init__()
        self.decay = decay
        for name in ("running_mean", "running_mean_sq", "debiasing_term"):
            self.register_buffer(name, torch.zeros(1))

    def statistics(self) -> tuple[float, float]:
        """Return mean and standard deviation; (0, 1) before the first update."""
        weight = self.debiasing_term.item()
        if weight < 1e-5:
            return 0.0, 1.0
        mean, square = self.running_mean.item() / weight, self.running_mean_sq.item() / weight
        return mean, max(square - mean * mean, LEAST_VARIANCE) ** 0.5

    def update(self, mean: Tensor, square: Tensor) -> None:
        """Update with the mean and mean square of a batch of returns."""
        for buffer, batch in (
            (self.running_mean, mean),
            (self.running_mean_sq, square),
            (self.debiasing_term, torch.ones(1)),
        ):
            buffer.mul_(self.decay).add_((1 - self.decay) * batch.to(buffer.device))

    def update_and_rescale(self, mean: Tensor, square: Tensor, critic: nn.Linear) -> None:
        """Update, and rescale the critic's last layer to keep its denormalised output (PopArt)."""
        old_mean, old_std = self.statistics()
        self.update(mean, square)
        new_mean, new_std = self.statistics()
        with torch.no_grad():
            critic.weight.mul_(old_std / new_std)
            critic.bias.mul_(old_std).add_(old_mean - new_mean).div_(new_std)
