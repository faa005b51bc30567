"""Encoders of the parts of an observation, by kind: each turns (N, *shape) into (N, features)."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from navrl.errors import ConfigError, nearest_name, shown
from navrl.observation import Part
from navrl.targets import find_target

__all__ = ["BY_KIND", "ENCODERS", "make_encoder"]

IMAGE, SCAN, MEMBER, FLAT = 256, 128, 64, 64  # features that encoders return
CHANNELS = 4  # at most, of an image in the order height, width, channels


class ImageEncoder(nn.Module):
    """Three convolutions of stride 2; takes channels first, or last where there are few."""

    def __init__(self, part: Part) -> None:
        super().__init__()
        if len(part.shape) != 3:
            raise ConfigError(
                f"observation part {part.name!r} has the shape {part.shape}; expected (channels, "
                "height, width) or (height, width, channels) for a CNN"
            )
        self.channels_last = part.shape[2] <= CHANNELS < part.shape[0]
        height, width = part.shape[:2] if self.channels_last else part.shape[1:]
        channels = part.shape[2] if self.channels_last else part.shape[0]
        layers: list[nn.Module] = []
        for size in (32, 64, 64):
            layers += [nn.Conv2d(channels, size, 3, 2, padding=1), nn.ELU()]
            channels, height, width = size, (height + 1) // 2, (width + 1) // 2
        self.layers = nn.Sequential(
            *layers, nn.Flatten(), nn.Linear(channels * height * width, IMAGE), nn.LayerNorm(IMAGE)
        )

    def forward(self, image: Tensor) -> Tensor:
        """Return the features of images, (N, 256)."""
        features: Tensor = self.layers(image.permute(0, 3, 1, 2) if self.channels_last else image)
        return features


class ScanEncoder(nn.Module):
    """Three convolutions around the circle of a scan, joined where its ends meet."""

    def __init__(self, part: Part) -> None:
        super().__init__()
        azimuths, beams, channels = part.shape[-2], part.shape[-1], 1
        if len(part.shape) < 2 or azimuths < 3:
            raise ConfigError(
                f"observation part {part.name!r} has the shape {part.shape}; expected (..., "
                "azimuths, beams) with at least 3 azimuths for a scan"
            )
        self.shape = (-1, part.size // (azimuths * beams), azimuths, beams)
        channels, layers = self.shape[1], list[nn.Module]()
        for size, stride in ((16, (2, 1)), (32, (2, 1)), (32, (2, 2))):
            layers.append(nn.Conv2d(channels, size, (5, 3), stride, padding=(0, 1)))
            channels = size
            azimuths, beams = -(-azimuths // stride[0]), -(-beams // stride[1])
        self.convolutions = nn.ModuleList(layers)
        self.last = nn.Sequential(nn.Linear(channels * azimuths * beams, SCAN), nn.LayerNorm(SCAN))

    def forward(self, scan: Tensor) -> Tensor:
        """Return the features of scans, (N, 128)."""
        image = scan.reshape(self.shape)
        for convolution in self.convolutions:
            image = functional.elu(convolution(_joined(image, 2)))
        features: Tensor = self.last(image.flatten(1))
        return features


def _joined(image: Tensor, width: int) -> Tensor:
    """Return an image with so many azimuths of its end before its start, and the reverse."""
    azimuths = image.shape[2]
    around = torch.arange(-width, azimuths + width, device=image.device) % azimuths
    return image.index_select(2, around)


class SetEncoder(nn.Module):
    """Attention over members in any order, and the largest of their features; absent ones count
    for nothing.
    """

    def __init__(self, part: Part) -> None:
        super().__init__()
        if len(part.shape) < 2:
            raise ConfigError(
                f"observation part {part.name!r} has the shape {part.shape}; expected (..., "
                "members, features) for a set"
            )
        self.features = part.shape[-1]
        self.embed = nn.Sequential(
            nn.Linear(self.features, MEMBER), nn.ELU(), nn.Linear(MEMBER, MEMBER)
        )
        self.score = nn.Linear(MEMBER, 1)

    def forward(self, members: Tensor) -> Tensor:
        """Return the features of sets, (N, 128)."""
        members = members.reshape(len(members), -1, self.features)
        present = (members != 0).any(-1, keepdim=True)  # (N, M, 1)
        embedded = functional.elu(self.embed(members))
        scores = self.score(embedded).masked_fill(~present, -1e9)
        attended = (torch.softmax(scores, 1) * embedded * present).sum(1)
        largest = embedded.masked_fill(~present, -1.0).amax(1)  # -1: the least that ELU returns
        return torch.cat([attended, largest], 1)


class FlatEncoder(nn.Module):
    """The numbers as they are, for the MLP that follows the encoders."""

    def __init__(self, part: Part) -> None:
        super().__init__()

    def forward(self, values: Tensor) -> Tensor:
        """Return the part flat, (N, size)."""
        return values.flatten(1)


class MLPEncoder(nn.Module):
    """One layer of its own before the MLP that all parts share."""

    def __init__(self, part: Part) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(part.size, FLAT), nn.ELU())

    def forward(self, values: Tensor) -> Tensor:
        """Return the features of a part, (N, 64)."""
        features: Tensor = self.layers(values)
        return features


ENCODERS: dict[str, Callable[[Part], nn.Module]] = {
    "flat": FlatEncoder,
    "mlp": MLPEncoder,
    "cnn": ImageEncoder,
    "scan": ScanEncoder,
    "attention": SetEncoder,
}
BY_KIND = {"vector": "flat", "image": "cnn", "scan": "scan", "set": "attention"}


def make_encoder(part: Part, chosen: str = "") -> nn.Module:
    """Return the encoder of a part: the chosen one, or the one of its kind.

    Args:
        part: of the observation.
        chosen: a name of ENCODERS, or `module:Class`, whose instances are made with the part.

    Raises:
        ConfigError: there is no such encoder.
    """
    name = chosen or BY_KIND[part.kind]
    if ":" in name:
        made = find_target(f"network.encoders.{part.name}", name)(part)
        if not isinstance(made, nn.Module):
            raise ConfigError(
                f"network.encoders.{part.name} made {shown(made)}; expected a torch.nn.Module"
            )
        return made
    if name not in ENCODERS:
        raise ConfigError(
            f"network.encoders.{part.name} is {shown(name)}; expected one of "
            f"{', '.join(ENCODERS)} or module:Class.{nearest_name(name, ENCODERS)}"
        )
    return ENCODERS[name](part)
