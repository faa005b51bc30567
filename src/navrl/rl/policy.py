"""A trained network as a pilot: observations in, velocity commands out."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from navrl.errors import ActionError, shown
from navrl.observation import ObservationLayout
from navrl.rl.accelerate import AppliedNetwork
from navrl.rl.distributions import beta, gaussian
from navrl.rl.distributions.action_distribution import ActionDistribution
from navrl.rl.networks.navigation import INPUTS


def to_velocity(unit: Tensor, limit: float) -> Tensor:
    """Return velocities in m/s from actions in the unit cube."""
    return unit * (2 * limit) - limit


class PolicyModule(nn.Module):
    """The deterministic actions of a network as one module, for export: packed rows in."""

    def __init__(self, network: nn.Module, distribution: ActionDistribution) -> None:
        super().__init__()
        self.network, self.distribution = network, distribution

    def forward(self, rows: Tensor) -> Tensor:
        """Return actions as the environment takes them, for rows of observations, (N, width)."""
        return self.distribution.to_environment(self.distribution.mean(self.network(rows)))


class NetworkPolicy:
    """The deterministic actions of a network for observation parts by name, in any environment."""

    def __init__(
        self,
        network: AppliedNetwork,
        observation: ObservationLayout,
        distribution: ActionDistribution,
    ) -> None:
        self.network, self.observation, self.distribution = network, observation, distribution
        self._device = next(network.network.parameters()).device

    def __call__(self, parts: dict[str, Tensor]) -> Tensor:
        """Return actions as the environment takes them, for parts of shape (N, *shape)."""
        count = len(next(iter(parts.values())))
        rows = torch.zeros(count, self.observation.width)
        try:
            self.observation.pack(parts, rows)
        except (KeyError, RuntimeError) as error:
            found = {name: tuple(part.shape[1:]) for name, part in parts.items()}
            raise ActionError(
                f"an observation has the parts {found}; the policy was trained on "
                f"{self.observation.shapes}"
            ) from error
        heads = self.network.infer(rows.to(self._device))
        return self.distribution.to_environment(self.distribution.mean(heads)).cpu()

    def as_module(self) -> PolicyModule:
        """Return the policy as a module, from packed rows to actions, that torch can export."""
        return PolicyModule(self.network.network, self.distribution)


class NetworkPilot:
    """A deterministic pilot: the mean of a Beta policy, the squashed mean of a Gaussian one.

    Args:
        network: returns heads for packed observations.
        limit: largest command on each axis, m/s.
        vertical_limit: largest command up and down, m/s; None: `limit`.
        likeliest: fly the likeliest command of a Beta policy instead of the mean.
    """

    def __init__(
        self,
        network: AppliedNetwork,
        limit: float,
        *,
        vertical_limit: float | None = None,
        likeliest: bool = False,
    ) -> None:
        self.network, self.limit = network, limit
        self.vertical_limit = limit if vertical_limit is None else vertical_limit
        gaussian_heads = getattr(network.network, "distribution", "beta") == "gaussian"
        of_beta = beta.mode if likeliest else beta.mean
        self._unit = gaussian.mean if gaussian_heads else of_beta
        self.width = int(network.network.layout.width)  # type: ignore[union-attr,arg-type]
        self._device = next(network.network.parameters()).device
        packed = getattr(network, "packed", None)  # of compiled kernels
        self._infer: Callable[[Tensor], Tensor] = network.infer if packed is None else packed()
        # compiled kernels compute the same bits for a drone whatever the others observe
        self.decides_alone = packed is not None

    def __call__(self, observation: dict[str, Tensor]) -> Tensor:
        """Return velocity commands in the goal frame, (N, 3), for observations by name."""
        try:
            parts = [observation[name].flatten(1) for name in INPUTS]
        except (KeyError, TypeError) as error:
            has = [*observation] if isinstance(observation, dict) else type(observation).__name__
            raise ActionError(
                f"an observation is {shown(has)}; expected tensors by name, {', '.join(INPUTS)}, "
                "as env.reset() returns them"
            ) from error
        rows = torch.cat(parts, 1)
        if rows.shape[1] != self.width:
            raise ActionError(
                f"an observation has {rows.shape[1]} numbers, the policy was trained on "
                f"{self.width}: fly it with the "
                "sensor.lidar_* and env.num_observed of its training"
            )
        command = to_velocity(self._unit(self._infer(rows.to(self._device))), self.limit)
        if self.vertical_limit < self.limit:
            command[:, 2].clamp_(-self.vertical_limit, self.vertical_limit)
        return command
