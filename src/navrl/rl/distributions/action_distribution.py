"""The distribution of a policy's actions, by the action space of its environment.

A network returns the distribution's parameters and, in its last column, the value; together these
are its heads, (N, parameters + 1). Rollouts keep an action as it was drawn, (N, size);
`to_environment` turns it into what the environment takes.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

import torch
from torch import Tensor
from torch.nn import functional

from navrl.rl.action_space import ActionSpace, Box, Discrete
from navrl.rl.distributions import beta, gaussian

__all__ = ["ActionDistribution", "distribution_for"]

LOG_STD = (-5.0, 2.0)  # of a Gaussian
HALF_LOG_2_PI = 0.5 * math.log(2 * math.pi)


class ActionDistribution(ABC):
    """What the collector, PPO and a deployed policy ask of a distribution."""

    parameters: int  # numbers a network returns for it, beside the value
    size: int  # numbers that keep a drawn action

    @abstractmethod
    def sample(
        self, heads: Tensor, generator: torch.Generator | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return random actions, (N, size), and their log-probabilities, (N,)."""

    @abstractmethod
    def log_prob_and_entropy(self, heads: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """Return the log-probabilities of drawn actions, and the entropy, (N,) each."""

    @abstractmethod
    def mean(self, heads: Tensor) -> Tensor:
        """Return the deterministic action, (N, size): the mean, or the likeliest choice."""

    @abstractmethod
    def to_environment(self, action: Tensor) -> Tensor:
        """Return drawn actions as the environment takes them."""

    @abstractmethod
    def from_environment(self, action: Tensor) -> Tensor:
        """Return actions of the environment as if they had been drawn."""


class BetaDistribution(ActionDistribution):
    """An independent Beta for each axis of a bounded box; drawn actions are in the unit cube."""

    def __init__(self, space: Box) -> None:
        self.size, self.parameters = space.size, 2 * space.size
        low, high = (torch.tensor(bound, dtype=torch.float64) for bound in (space.low, space.high))
        self._low, self._span = low.float(), (high - low).float()

    def sample(
        self, heads: Tensor, generator: torch.Generator | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return random actions in the unit cube, (N, size), and their log-probabilities, (N,)."""
        return beta.sample(heads, generator)

    def log_prob_and_entropy(self, heads: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """Return the log-probabilities of drawn actions, and the entropy, (N,) each."""
        return beta.log_prob_and_entropy(heads, action)

    def mean(self, heads: Tensor) -> Tensor:
        """Return the mean, (N, size), in the unit cube."""
        return beta.mean(heads)

    def to_environment(self, action: Tensor) -> Tensor:
        """Return actions between the bounds."""
        return action * self._span.to(action.device) + self._low.to(action.device)

    def from_environment(self, action: Tensor) -> Tensor:
        """Return actions in the unit cube."""
        unit = (action - self._low.to(action.device)) / self._span.to(action.device)
        return unit.clamp(0, 1)


class SquashedDistribution(BetaDistribution):
    """SAC's squashed Gaussian over a bounded box: of this class only the mean is asked for."""

    def mean(self, heads: Tensor) -> Tensor:
        """Return the squashed mean, (N, size), in the unit cube."""
        return gaussian.mean(heads)


class GaussianDistribution(ActionDistribution):
    """An independent Gaussian for each axis; finite bounds, if there are any, clip it."""

    def __init__(self, space: Box) -> None:
        self.size, self.parameters = space.size, 2 * space.size
        self._low, self._high = torch.tensor(space.low), torch.tensor(space.high)

    def _split(self, heads: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_std = heads[:, : self.parameters].split(self.size, 1)
        return mean, log_std.clamp(*LOG_STD)

    def sample(
        self, heads: Tensor, generator: torch.Generator | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return random actions, (N, size), and their log-probabilities, (N,)."""
        mean, log_std = self._split(heads)
        noise = torch.randn(mean.shape, generator=generator, device=mean.device)
        log_prob = (-0.5 * noise * noise - log_std - HALF_LOG_2_PI).sum(1)
        return mean + log_std.exp() * noise, log_prob

    def log_prob_and_entropy(self, heads: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """Return the log-probabilities of drawn actions, and the entropy, (N,) each."""
        mean, log_std = self._split(heads)
        noise = (action - mean) * (-log_std).exp()
        log_prob = (-0.5 * noise * noise - log_std - HALF_LOG_2_PI).sum(1)
        return log_prob, (log_std + 0.5 + HALF_LOG_2_PI).sum(1)

    def mean(self, heads: Tensor) -> Tensor:
        """Return the mean, (N, size)."""
        return heads[:, : self.size]

    def to_environment(self, action: Tensor) -> Tensor:
        """Return actions within the bounds."""
        return action.clamp(self._low.to(action.device), self._high.to(action.device))

    def from_environment(self, action: Tensor) -> Tensor:
        """Return the actions as they are."""
        return action


class CategoricalDistribution(ActionDistribution):
    """One of a few choices; a drawn action is the number of the choice, as a float, (N, 1)."""

    size = 1

    def __init__(self, space: Discrete) -> None:
        self.parameters = space.count

    def sample(
        self, heads: Tensor, generator: torch.Generator | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return random choices, (N, 1), and their log-probabilities, (N,)."""
        log_probs = functional.log_softmax(heads[:, : self.parameters], 1)
        choice = torch.multinomial(log_probs.exp(), 1, generator=generator)
        return choice.float(), log_probs.gather(1, choice)[:, 0]

    def log_prob_and_entropy(self, heads: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """Return the log-probabilities of drawn choices, and the entropy, (N,) each."""
        log_probs = functional.log_softmax(heads[:, : self.parameters], 1)
        entropy = -(log_probs.exp() * log_probs).sum(1)
        return log_probs.gather(1, action.long())[:, 0], entropy

    def mean(self, heads: Tensor) -> Tensor:
        """Return the likeliest choice, (N, 1)."""
        return heads[:, : self.parameters].argmax(1, keepdim=True).float()

    def to_environment(self, action: Tensor) -> Tensor:
        """Return choices as whole numbers, (N,)."""
        return action[:, 0].long()

    def from_environment(self, action: Tensor) -> Tensor:
        """Return choices as floats, (N, 1)."""
        return action[:, None].float()


def distribution_for(space: ActionSpace, *, squashed: bool = False) -> ActionDistribution:
    """Return the distribution for an action space: Beta, Gaussian or categorical.

    Args:
        space: of the environment.
        squashed: the heads of a bounded box are those of SAC's squashed Gaussian.
    """
    if isinstance(space, Discrete):
        return CategoricalDistribution(space)
    if not space.bounded:
        return GaussianDistribution(space)
    return SquashedDistribution(space) if squashed else BetaDistribution(space)
