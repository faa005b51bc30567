"""SAC's action distribution: an independent Gaussian on each axis, squashed by tanh.

It reads the same seven heads as the Beta distribution (mean, log std; the value is not used), so
one network, its kernels and its files serve both algorithms.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

AXES = 3  # of a velocity command
LOG_STD = (-5.0, 1.0)  # range before the tanh


def _split(heads: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean and the log std, (N, 3) each."""
    low, high = LOG_STD
    return heads[:, :AXES], low + (high - low) * torch.sigmoid(heads[:, AXES : 2 * AXES])


def sample(heads: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Return reparametrised actions in the unit cube, (N, 3), and their log_prob, (N,).

    `noise` is standard normal, (N, 3). log_prob is the density in the cube from -1 to 1.
    """
    mean, log_std = _split(heads)
    raw = mean + log_std.exp() * noise
    normal = -0.5 * noise * noise - log_std - 0.5 * math.log(2 * math.pi)
    # log(1 - tanh(x)^2) without cancellation far from zero
    squash = 2 * (math.log(2) - raw - functional.softplus(-2 * raw))
    return 0.5 * (torch.tanh(raw) + 1), (normal - squash).sum(1)


def mean(heads: Tensor) -> Tensor:
    """Return the squashed mean, (N, 3): the deterministic action."""
    return 0.5 * (torch.tanh(heads[:, :AXES]) + 1)
