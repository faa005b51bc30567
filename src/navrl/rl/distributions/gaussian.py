"""The squashed Gaussian of SAC's policy: a normal distribution for each axis, pressed into the unit
cube by a tanh.

It takes the same seven heads as the Beta distribution does (three for the mean, three for the
spread; the value is not used), so that one network, its fast kernels and its files serve both
algorithms.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

AXES = 3  # of a velocity command
LOG_SPREAD = (-5.0, 1.0)  # of the normal distribution before the tanh


def _split(heads: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean and the logarithm of the spread, (N, 3) each."""
    low, high = LOG_SPREAD
    return heads[:, :AXES], low + (high - low) * torch.sigmoid(heads[:, AXES : 2 * AXES])


def sample(heads: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Return actions in the unit cube, (N, 3), and their log-densities in the cube from -1 to 1,
    (N,); differentiable.

    `noise` are standard normal numbers, (N, 3): the actions are a smooth function of the heads for
    given noise.
    """
    mean, log_spread = _split(heads)
    raw = mean + log_spread.exp() * noise
    normal = -0.5 * noise * noise - log_spread - 0.5 * math.log(2 * math.pi)
    # log(1 - tanh(x)^2) without cancellation far from zero
    squash = 2 * (math.log(2) - raw - functional.softplus(-2 * raw))
    return 0.5 * (torch.tanh(raw) + 1), (normal - squash).sum(1)


def mean(heads: Tensor) -> Tensor:
    """Return the action in the unit cube that the policy thinks best, (N, 3)."""
    return 0.5 * (torch.tanh(heads[:, :AXES]) + 1)
