"""A vision transformer over the LiDAR image: an alternative to the convolutions, with the same
heads.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from navrl.observation import ObservationLayout
from navrl.rl.networks.navigation import NavigationNetwork

PATCH = 3  # azimuths of a token; all beams belong to it
WIDTH, LAYERS, ATTENDING = 64, 2, 4


class TransformerNetwork(NavigationNetwork):
    """The network of the original with its convolutions replaced by attention between sectors of
    the LiDAR's circle.

    Every sector of three azimuths is a token that knows where it is; all of them together are what
    the trunk sees.
    """

    def __init__(
        self, layout: ObservationLayout | None = None, *, distance_scale: float = 1.0
    ) -> None:
        super().__init__(layout, distance_scale=distance_scale)
        azimuths, beams = self.layout.shapes["lidar"][-2:]
        self.patch = PATCH if azimuths % PATCH == 0 else 1
        self.lidar = nn.Sequential()  # the convolutions are not needed
        self.tokens = nn.Linear(self.patch * beams, WIDTH)
        self.places = nn.Parameter(torch.randn(azimuths // self.patch, WIDTH) * 0.02)
        layer = nn.TransformerEncoderLayer(
            WIDTH, ATTENDING, 2 * WIDTH, dropout=0.0, batch_first=True, norm_first=True
        )
        self.attention = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
        self.look = nn.Sequential(
            nn.Linear(WIDTH * (azimuths // self.patch), 128), nn.LayerNorm(128)
        )

    def _look(self, image: Tensor) -> Tensor:
        # (N, tokens, patch * beams)
        patches = image.flatten(1).unflatten(1, (len(self.places), -1))
        seen: Tensor = self.look(self.attention(self.tokens(patches) + self.places).flatten(1))
        return seen
