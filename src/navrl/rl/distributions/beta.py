"""PPO's action distribution: an independent Beta on each axis of the unit cube."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

EDGE = 1e-5  # samples are clamped this far from 0 and 1, where log_prob may be infinite


def concentrations(heads: Tensor) -> Tensor:
    """Return alpha and beta of raw heads, (N, 2A); above 1, so the density is unimodal.

    The heads are A numbers for alpha, A for beta, and the value, (N, 2A + 1).
    """
    return 1.0 + functional.softplus(heads[:, :-1]) + 1e-6


def mean(heads: Tensor) -> Tensor:
    """Return the distribution's mean, (N, A): the deterministic action."""
    alpha, beta = concentrations(heads).chunk(2, 1)
    return alpha / (alpha + beta)


def mode(heads: Tensor) -> Tensor:
    """Return the distribution's likeliest action, (N, A); unlike the mean, it reaches 0 and 1."""
    above, below = (functional.softplus(heads[:, :-1]) + 1e-6).chunk(2, 1)
    return above / (above + below)


def sample(heads: Tensor, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """Return a random action in the unit cube, (N, A), and its log_prob, (N,)."""
    both = concentrations(heads)
    gammas = torch._standard_gamma(both, generator=generator)
    first, second = gammas.chunk(2, 1)
    action = (first / (first + second)).clamp_(EDGE, 1 - EDGE)
    return action, _log_prob(both, action)[0]


def log_prob_and_entropy(heads: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
    """Return the log_prob of actions and the entropy, (N,) each, summed over the axes."""
    both = concentrations(heads)
    log_prob, log_norm = _log_prob(both, action)
    alpha, beta = both.chunk(2, 1)
    digamma = torch.digamma(torch.cat([both, alpha + beta], 1))
    entropy = (
        log_norm
        - ((both - 1) * digamma[:, : both.shape[1]]).sum(1)
        + ((alpha + beta - 2) * digamma[:, both.shape[1] :]).sum(1)
    )
    return log_prob, entropy


def _log_prob(both: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
    """Return log_prob and the logarithm of the Beta function, (N,) each."""
    alpha, beta = both.chunk(2, 1)
    logarithms = torch.lgamma(torch.cat([both, alpha + beta], 1))
    log_norm = logarithms[:, : both.shape[1]].sum(1) - logarithms[:, both.shape[1] :].sum(1)
    powers = (alpha - 1) * action.log() + (beta - 1) * torch.log1p(-action)
    return powers.sum(1) - log_norm, log_norm
