"""Actor and critics for SAC on local maps: an observation is an image and the drone's state."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from navrl.errors import ConfigError
from navrl.navigation_observation import GOAL_DISTANCE, STATE
from navrl.rl.networks.navigation import HEADS
from navrl.rl.networks.twin_critic import TwinCritic

FEATURES = 128  # of an image
SMALLEST = 20  # cells a side


class GridEncoder(nn.Module):
    """Three convolutions over an image, joined with the state.

    (N, 2, C, C) uint8 and (N, 8) -> (N, 136).
    """

    scale: Tensor  # (8,) factors of the state

    def __init__(self, cells: int) -> None:
        super().__init__()
        if cells < SMALLEST:
            raise ConfigError(f"the grid has {cells} cells a side; expected at least {SMALLEST}")
        side = cells
        for kernel in (5, 3, 3):
            side = (side - kernel) // 2 + 1
        self.look = nn.Sequential(
            nn.Conv2d(2, 16, 5, 2),
            nn.ELU(),
            nn.Conv2d(16, 32, 3, 2),
            nn.ELU(),
            nn.Conv2d(32, 32, 3, 2),
            nn.ELU(),
            nn.Flatten(),
            nn.Linear(32 * side * side, FEATURES),
            nn.LayerNorm(FEATURES),
        )
        scale = torch.ones(len(STATE))
        scale[GOAL_DISTANCE] = 0.1
        self.register_buffer("scale", scale, persistent=False)

    def forward(self, observation: tuple[Tensor, Tensor]) -> Tensor:
        """Return the features of images and states, (N, 136)."""
        grid, state = observation
        return torch.cat([self.look(grid.float() / 255), state * self.scale], 1)


class GridActor(nn.Module):
    """A policy for images and states, with the seven heads of the navigation network."""

    def __init__(self, cells: int, width: int = 256) -> None:
        super().__init__()
        self.encoder = GridEncoder(cells)
        self.trunk = nn.Sequential(
            nn.Linear(FEATURES + len(STATE), width),
            nn.LayerNorm(width),
            nn.ELU(),
            nn.Linear(width, HEADS),
        )

    def forward(self, observation: tuple[Tensor, Tensor]) -> Tensor:
        """Return the raw heads, (N, 7)."""
        heads: Tensor = self.trunk(self.encoder(observation))
        return heads


class GridCritic(nn.Module):
    """Two Q-functions of image, state and action that share their encoder."""

    def __init__(self, cells: int, width: int = 256) -> None:
        super().__init__()
        self.encoder = GridEncoder(cells)
        self.values = TwinCritic(FEATURES + len(STATE), width)

    def forward(self, observation: tuple[Tensor, Tensor], action: Tensor) -> Tensor:
        """Return both values, (2, N)."""
        values: Tensor = self.values(self.encoder(observation), action)
        return values
