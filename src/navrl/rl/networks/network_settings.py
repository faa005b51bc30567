"""Keys `network.*`: which network a policy has."""

from __future__ import annotations

from dataclasses import dataclass, field

from navrl.errors import ConfigError

__all__ = ["DISTRIBUTIONS", "EXTRACTORS", "NetworkSettings"]

EXTRACTORS = ("cnn", "vit")
DISTRIBUTIONS = ("beta", "gaussian")
WIDEST = 1 << 16  # of a layer


@dataclass
class NetworkSettings:
    """Keys `network.*`: the network of the navigation task, and that of any other environment."""

    # --- the navigation task
    extractor: str = "cnn"  # encoder of the LiDAR scan: cnn as in the original, or vit
    # pad the scan periodically in azimuth; False pads it with zeros, as the original does
    circular: bool = True
    distance_scale: float = 0.1  # factor of the distance to the goal; 1 in the original
    # also give the network when, where and how close each moving obstacle passes if it and the
    # drone keep their velocities
    relative_motion: bool = False
    distribution: str = "beta"  # of the actions: beta (PPO) or gaussian, squashed by tanh (SAC)
    # --- any environment
    # a module of your own from observation parts to features, as module:Class; see docs
    target: str = ""
    # layers between the encoders and the heads, for actor and critic each
    hidden: list[int] = field(default_factory=lambda: [64, 64])
    # encoders by the name of an observation part, where the one of its kind is not wanted
    encoders: dict[str, str] = field(default_factory=dict)

    def check(self) -> None:
        """Raise a ConfigError that names the first setting with an impossible value."""
        if self.extractor not in EXTRACTORS:
            raise ConfigError(
                f"network.extractor is {self.extractor!r}; expected one of {', '.join(EXTRACTORS)}"
            )
        if self.distribution not in DISTRIBUTIONS:
            raise ConfigError(
                f"network.distribution is {self.distribution!r}; expected one of "
                f"{', '.join(DISTRIBUTIONS)}"
            )
        if not 1e-3 <= self.distance_scale <= 1e3:
            raise ConfigError(
                f"network.distance_scale is {self.distance_scale}; expected 0.001 to 1000"
            )
        # OmegaConf lets lists and mappings through where a list of numbers is declared
        plain = all(isinstance(width, int) and 0 < width <= WIDEST for width in self.hidden)
        if len(self.hidden) > 64 or not plain:
            raise ConfigError(
                f"network.hidden is {self.hidden}; expected up to 64 widths from 1 to {WIDEST}"
            )
