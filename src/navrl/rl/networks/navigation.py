"""The navigation network: encoders of LiDAR scan and moving obstacles, a trunk, and heads."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from navrl.errors import ConfigError, StateError
from navrl.navigation_observation import GOAL_DISTANCE, STATE, navigation_layout
from navrl.observation import ObservationLayout
from navrl.rl.networks.network_settings import NetworkSettings
from navrl.rl.networks.relative_motion import RELATIVE, relative_motion

INPUTS = ("lidar", "dynamic_obstacle", "state")  # parts of the observation that it reads
HEADS = 7  # alpha (3), beta (3), value


def _blocks(inputs: int, *widths: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for width in widths:
        layers += [nn.Linear(inputs, width), nn.LeakyReLU(), nn.LayerNorm(width)]
        inputs = width
    return nn.Sequential(*layers)


class NavigationNetwork(nn.Module):
    """The original's network: convolutions for the LiDAR scan, an MLP for obstacles, a trunk.

    `forward(rows)` takes packed observations, (N, at least layout.width), and returns the raw
    heads, (N, 7): alpha (3), beta (3) and the normalised value. `circular` pads the scan
    periodically in azimuth instead of with zeros. `distance_scale` multiplies the horizontal
    distance to the goal, the one input that is not of order one. With `relative_motion`, the
    encoder of obstacles is also given how each of them approaches. With (False, 1.0, False) this is
    exactly the original.
    """

    scale: Tensor  # (8,) factors of the state
    distribution = "beta"  # which the heads parametrise

    def __init__(
        self,
        layout: ObservationLayout | None = None,
        *,
        circular: bool = False,
        distance_scale: float = 1.0,
        relative_motion: bool = False,
    ) -> None:
        super().__init__()
        self.layout = (layout or navigation_layout()).leading(*INPUTS)
        self.circular, self.distance_scale = circular, distance_scale
        self.relative_motion = relative_motion
        azimuths, beams = self.layout.shapes["lidar"][-2:]
        if azimuths < 3:
            raise ConfigError(
                f"the network's LiDAR image has {azimuths} azimuths; expected at least 3 "
                "(sensor.lidar_hres)"
            )
        self.lidar = _lidar_encoder(azimuths, beams)
        obstacles = self.layout["dynamic_obstacle"]
        related = len(RELATIVE) * obstacles.shape[-2] if relative_motion else 0
        self.dynamic = _blocks(obstacles.size + related, 128, 64)
        self.trunk = _blocks(128 + 64 + len(STATE), 256, 256)
        self.alpha, self.beta, self.critic = nn.Linear(256, 3), nn.Linear(256, 3), nn.Linear(256, 1)
        for head in (self.alpha, self.beta, self.critic):
            nn.init.orthogonal_(head.weight, 0.01)
            nn.init.zeros_(head.bias)
        scale = torch.ones(len(STATE))
        scale[GOAL_DISTANCE] = distance_scale
        self.register_buffer("scale", scale, persistent=False)

    def forward(self, rows: Tensor) -> Tensor:
        """Return the raw heads, (N, 7)."""
        parts = self.layout.split(rows)
        obstacles, state = parts["dynamic_obstacle"], parts["state"]
        seen = [self._look(parts["lidar"]), self._track(obstacles, state), state * self.scale]
        features = self.trunk(torch.cat(seen, 1))
        return torch.cat([self.alpha(features), self.beta(features), self.critic(features)], 1)

    def actor_parameters(self) -> list[nn.Parameter]:
        """Return the parameters that only the actions depend on."""
        return [*self.alpha.parameters(), *self.beta.parameters()]

    def critic_parameters(self) -> list[nn.Parameter]:
        """Return the parameters that only the value depends on."""
        return [*self.critic.parameters()]

    def _track(self, obstacles: Tensor, state: Tensor) -> Tensor:
        rows = obstacles.flatten(1)
        if self.relative_motion:
            rows = torch.cat([rows, relative_motion(obstacles.flatten(1, 2), state).flatten(1)], 1)
        features: Tensor = self.dynamic(rows)
        return features

    def _look(self, image: Tensor) -> Tensor:
        if not self.circular:
            return self.lidar(image)
        for layer in self.lidar:
            if isinstance(layer, nn.Conv2d):
                joined = functional.pad(image, (0, 0, 2, 2), mode="circular")
                image = functional.conv2d(joined, layer.weight, layer.bias, layer.stride, (0, 1))
            else:
                image = layer(image)
        return image


def _lidar_encoder(azimuths: int, beams: int) -> nn.Sequential:
    flat = 16 * ((azimuths + 3) // 4) * ((beams + 1) // 2)
    return nn.Sequential(
        nn.Conv2d(1, 4, (5, 3), padding=(2, 1)),
        nn.ELU(),
        nn.Conv2d(4, 16, (5, 3), stride=(2, 1), padding=(2, 1)),
        nn.ELU(),
        nn.Conv2d(16, 16, (5, 3), stride=(2, 2), padding=(2, 1)),
        nn.ELU(),
        nn.Flatten(),
        nn.Linear(flat, 128),
        nn.LayerNorm(128),
    )


def build_network(settings: NetworkSettings, layout: ObservationLayout) -> NavigationNetwork:
    """Return the network of the settings, with random weights."""
    network: NavigationNetwork
    if settings.extractor == "vit":
        from navrl.rl.networks.transformer import TransformerNetwork

        network = TransformerNetwork(
            layout, distance_scale=settings.distance_scale, relative_motion=settings.relative_motion
        )
    else:
        network = NavigationNetwork(
            layout,
            circular=settings.circular,
            distance_scale=settings.distance_scale,
            relative_motion=settings.relative_motion,
        )
    network.distribution = settings.distribution
    return network


# The original's names; TensorDict modules wrap each part, hence `.module`.
_UPSTREAM = (
    (r"feature_extractor\.module\.0(?:\.module)?\.(\d+)\.(\w+)", r"lidar.\1.\2"),
    (r"feature_extractor\.module\.1\.module\.1\.(\d+)\.(\w+)", r"dynamic.\1.\2"),
    (r"feature_extractor\.module\.3(?:\.module)?\.(\d+)\.(\w+)", r"trunk.\1.\2"),
    (r"actor\.module\.0\.module\.(alpha|beta)_layer\.(\w+)", r"\1.\2"),
    (r"critic\.module\.(\w+)", r"critic.\1"),
)


def from_upstream(state: Mapping[str, Any]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return the parameters of a checkpoint of the original under our names, and its other tensors.

    Raises:
        StateError: a parameter is missing.
    """
    found: dict[str, Tensor] = {}
    rest: dict[str, Tensor] = {}
    for key, value in state.items():
        for pattern, ours in _UPSTREAM:
            if re.fullmatch(pattern, key):
                found[re.sub(pattern, ours, key)] = value
                break
        else:
            rest[key] = value
    missing = sorted(set(NavigationNetwork().state_dict()) - set(found))
    if missing:
        raise StateError(
            f"the state has no {missing[0]} ({len(missing)} parameters missing); expected a "
            "checkpoint of the original NavRL"
        )
    return found, rest


def to_upstream(network: NavigationNetwork) -> dict[str, Tensor]:
    """Return the parameters under the original's names, with `distance_scale` folded in.

    Raises:
        StateError: the network is circular or is given relative motion, which the original cannot
            express.
    """
    for name in ("circular", "relative_motion"):
        if getattr(network, name):
            raise StateError(
                f"a network with {name}=True has no counterpart in the original; train with "
                "network=navrl"
            )
    names = {
        "lidar": "feature_extractor.module.0.module",
        "dynamic": "feature_extractor.module.1.module.1",
        "trunk": "feature_extractor.module.3.module",
        "alpha": "actor.module.0.module.alpha_layer",
        "beta": "actor.module.0.module.beta_layer",
        "critic": "critic.module",
    }
    result = {}
    for key, value in network.state_dict().items():
        part, rest = key.split(".", 1)
        result[f"{names[part]}.{rest}"] = value.clone()
    result["feature_extractor.module.3.module.0.weight"][:, 128 + 64 :] *= network.scale
    return result
