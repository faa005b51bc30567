"""Running mean and variance of observations that an environment does not scale."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from navrl.observation import ObservationLayout

__all__ = ["ObservationNorm"]

LIMIT = 10.0  # standard deviations that an input may be away from its mean
EPSILON = 1e-8


class ObservationNorm(nn.Module):
    """Shifts and scales packed rows; the statistics are part of the weights of a policy.

    Parts that are scaled by the environment pass unchanged, and so does everything before the
    first `update`.
    """

    mean: Tensor  # (width,)
    variance: Tensor  # (width,)
    count: Tensor  # () rows seen
    chosen: Tensor  # (width,) 1 where a number is normalised

    def __init__(self, observation: ObservationLayout) -> None:
        super().__init__()
        width = observation.width
        chosen = torch.zeros(width)
        for part in observation.parts:
            if not part.scaled:
                chosen[observation.slices[part.name]] = 1
        self.register_buffer("mean", torch.zeros(width, dtype=torch.float64))
        self.register_buffer("variance", torch.ones(width, dtype=torch.float64))
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))
        self.register_buffer("chosen", chosen, persistent=False)
        self.active = bool(chosen.any())

    def forward(self, rows: Tensor) -> Tensor:
        """Return normalised rows, (N, width)."""
        if not self.active:
            return rows
        scale = (self.variance + EPSILON).rsqrt().float()
        normalised = ((rows - self.mean.float()) * scale).clamp(-LIMIT, LIMIT)
        return torch.where(self.chosen > 0, normalised, rows)

    @torch.no_grad()
    def update(self, rows: Tensor, reduce: Callable[[Tensor], None]) -> None:
        """Take in rows, (M, width), of all processes: `reduce` sums a tensor over them."""
        if not self.active:
            return
        wide = rows.double()
        sums = torch.cat([wide.sum(0), (wide * wide).sum(0), wide.new_tensor([len(rows)])])
        reduce(sums)
        total, squares, count = sums.split([rows.shape[1], rows.shape[1], 1])
        mean = total / count
        variance = (squares / count - mean * mean).clamp(min=0)
        both = self.count + count
        share = (count / both).squeeze()
        shift = mean - self.mean
        # Chan's formula for two sets of samples; the first set replaces the initial values
        self.variance.copy_(
            (1 - share) * self.variance + share * variance + share * (1 - share) * shift * shift
        )
        self.mean.add_(share * shift)
        self.count.copy_(both.squeeze())
