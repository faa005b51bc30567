"""GeneralNetwork: a policy for any observation and any action space."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn

from navrl.errors import ConfigError
from navrl.observation import ObservationLayout
from navrl.rl.action_space import ActionSpace, Box
from navrl.rl.distributions.action_distribution import distribution_for
from navrl.rl.networks.encoders import make_encoder
from navrl.rl.networks.observation_norm import ObservationNorm

__all__ = ["Encoders", "GeneralNetwork", "encoders_for"]

Features = Callable[[dict[str, Tensor]], Tensor | tuple[Tensor, Tensor]]


class Encoders(nn.Module):
    """Parts by name in, their features side by side out; then an MLP each for actor and critic."""

    def __init__(
        self,
        encoders: Mapping[str, nn.Module],
        observation: ObservationLayout,
        hidden: Iterable[int],
    ) -> None:
        super().__init__()
        # names of parts may hold dots, which names of modules may not
        self.names = [*encoders]
        self.encoders = nn.ModuleList(encoders.values())
        width = _pair(_features_of(self._encode, observation))[0].shape[1]
        self.actor, self.critic = _mlp(width, hidden), _mlp(width, hidden)

    def _encode(self, parts: dict[str, Tensor]) -> Tensor:
        pairs = zip(self.names, self.encoders, strict=True)
        return torch.cat([encoder(parts[name]) for name, encoder in pairs], 1)

    def forward(self, parts: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Return the features of the actor and of the critic."""
        features = self._encode(parts)
        return self.actor(features), self.critic(features)


class GeneralNetwork(nn.Module):
    """Packed observations in, the heads of an action distribution and a value out.

    Args:
        observation: the parts of a row.
        action: decides the distribution, and so the number of heads.
        features: a module from parts by name, (N, *shape) each, to features, (N, F), or to one
            such tensor for the actor and one for the critic.
    """

    def __init__(
        self, observation: ObservationLayout, action: ActionSpace, features: nn.Module
    ) -> None:
        super().__init__()
        self.observation, self.action = observation, action
        self.norm = ObservationNorm(observation)
        self.features = features
        for_actor, for_critic = _pair(_features_of(features, observation))
        distribution = distribution_for(action)
        self.gaussian = isinstance(action, Box) and not action.bounded
        outputs = distribution.size if self.gaussian else distribution.parameters
        self.actor, self.critic = (
            nn.Linear(for_actor.shape[1], outputs),
            nn.Linear(for_critic.shape[1], 1),
        )
        for head in (self.actor, self.critic):
            nn.init.orthogonal_(head.weight, 0.01)
            nn.init.zeros_(head.bias)
        self.log_std = nn.Parameter(torch.zeros(outputs)) if self.gaussian else None

    def forward(self, rows: Tensor) -> Tensor:
        """Return the heads, (N, parameters + 1)."""
        parts = self.observation.split(self.norm(rows))
        for_actor, for_critic = _pair(self.features(parts))
        heads = [self.actor(for_actor)]
        if self.log_std is not None:
            heads.append(self.log_std.expand_as(heads[0]))
        return torch.cat([*heads, self.critic(for_critic)], 1)

    def actor_parameters(self) -> list[nn.Parameter]:
        """Return the parameters that only the actions depend on."""
        own = [] if self.log_std is None else [self.log_std]
        return [*self.actor.parameters(), *own, *_parameters_of(self.features, "actor")]

    def critic_parameters(self) -> list[nn.Parameter]:
        """Return the parameters that only the value depends on."""
        return [*self.critic.parameters(), *_parameters_of(self.features, "critic")]


def encoders_for(
    observation: ObservationLayout, hidden: Sequence[int], chosen: Mapping[str, str]
) -> Encoders:
    """Return encoders of all parts by kind, or those chosen by the name of a part.

    Raises:
        ConfigError: an encoder is chosen for a part that there is not, or there is no such encoder.
    """
    names = [part.name for part in observation.parts]
    for name in chosen:
        if name not in names:
            raise ConfigError(
                f"network.encoders.{name} names no part of the observation; there are "
                f"{', '.join(names)}"
            )
    made = {part.name: make_encoder(part, chosen.get(part.name, "")) for part in observation.parts}
    return Encoders(made, observation, hidden)


def _mlp(inputs: int, widths: Iterable[int]) -> nn.Sequential:
    layers: list[nn.Module] = []
    for width in widths:
        layer = nn.Linear(inputs, width)
        nn.init.orthogonal_(layer.weight, 2**0.5)
        nn.init.zeros_(layer.bias)
        layers += [layer, nn.Tanh()]
        inputs = width
    return nn.Sequential(*layers)


def _features_of(
    features: Features, observation: ObservationLayout
) -> Tensor | tuple[Tensor, Tensor]:
    """Return the features of two empty observations, to learn their number."""
    with torch.no_grad():
        found = features(observation.split(torch.zeros(2, observation.width)))
    for one in _pair(found):
        if not isinstance(one, Tensor) or one.ndim != 2 or len(one) != 2:
            shape = tuple(one.shape) if isinstance(one, Tensor) else type(one).__name__
            raise ConfigError(
                f"network.target returned {shape} for two observations; expected features of "
                "shape (2, F), or one such tensor for the actor and one for the critic"
            )
    return found


def _pair(features: Tensor | tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    return features if isinstance(features, tuple) else (features, features)


def _parameters_of(module: nn.Module, name: str) -> list[nn.Parameter]:
    part = getattr(module, name, None)
    return [*part.parameters()] if isinstance(part, nn.Module) else []
