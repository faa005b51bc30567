"""A transformer over the LiDAR image, as an alternative to the convolutions."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from navrl.observation import ObservationLayout
from navrl.rl.networks.navigation import NavigationNetwork

PATCH = 3  # azimuths of a token, with all their beams
WIDTH, LAYERS, ATTENTION_HEADS = 64, 2, 4


class TransformerNetwork(NavigationNetwork):
    """The navigation network with attention over sectors of the scan instead of convolutions.

    Each sector of three azimuths is a token with a learnt position embedding; the tokens are
    flattened for the trunk.
    """

    def __init__(
        self,
        layout: ObservationLayout | None = None,
        *,
        distance_scale: float = 1.0,
        relative_motion: bool = False,
    ) -> None:
        super().__init__(layout, distance_scale=distance_scale, relative_motion=relative_motion)
        azimuths, beams = self.layout.shapes["lidar"][-2:]
        self.patch = PATCH if azimuths % PATCH == 0 else 1
        self.lidar = nn.Sequential()  # replaces the convolutions
        self.tokens = nn.Linear(self.patch * beams, WIDTH)
        self.places = nn.Parameter(torch.randn(azimuths // self.patch, WIDTH) * 0.02)
        layer = nn.TransformerEncoderLayer(
            WIDTH, ATTENTION_HEADS, 2 * WIDTH, dropout=0.0, batch_first=True, norm_first=True
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
