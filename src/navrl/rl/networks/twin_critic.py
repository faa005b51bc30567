"""SAC's twin critics in one module."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn

from navrl.rl.distributions.gaussian import AXES


class TwinCritic(nn.Module):
    """Two Q-functions of observation and action, computed with batched matrices.

    `forward(inputs, action)` takes (N, inputs) and (N, 3) in the unit cube and returns both values,
    (2, N).
    """

    scale: Tensor  # (inputs,) factors of the observation

    def __init__(self, inputs: int, width: int, scale: Tensor | None = None) -> None:
        super().__init__()
        sizes = [inputs + AXES, width, width, 1]
        self.weights, self.biases, self.gains, self.shifts = (nn.ParameterList() for _ in range(4))
        for number, (before, after) in enumerate(pairwise(sizes)):
            bound = before**-0.5
            self.weights.append(nn.Parameter(torch.empty(2, before, after).uniform_(-bound, bound)))
            self.biases.append(nn.Parameter(torch.zeros(2, 1, after)))
            if number < len(sizes) - 2:
                self.gains.append(nn.Parameter(torch.ones(2, 1, after)))
                self.shifts.append(nn.Parameter(torch.zeros(2, 1, after)))
        self.register_buffer(
            "scale", torch.ones(inputs) if scale is None else scale, persistent=False
        )

    def forward(self, inputs: Tensor, action: Tensor) -> Tensor:
        """Return both values, (2, N)."""
        joined = torch.cat([inputs * self.scale, 2 * action - 1], 1)
        hidden = joined.expand(2, *joined.shape)
        for weight, bias, gain, shift in zip(
            self.weights, self.biases, self.gains, self.shifts, strict=False
        ):
            hidden = torch.baddbmm(bias, hidden, weight)
            hidden = nn.functional.layer_norm(hidden, hidden.shape[-1:])
            hidden = nn.functional.elu(torch.addcmul(shift, hidden, gain))
        values: Tensor = torch.baddbmm(self.biases[-1], hidden, self.weights[-1])
        return values[..., 0]
