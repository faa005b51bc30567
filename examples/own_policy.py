"""A policy of your own under the evaluation, beside any other.

    navrl eval python:own_policy:Cautious straight --scenario light

in the folder of this file.
"""

import torch


class Cautious:
    """Flies at the goal, the slower the nearer the nearest thing that the LiDAR sees."""

    def __call__(self, parts: dict[str, torch.Tensor]) -> torch.Tensor:
        """Return velocity commands in the goal frame, (N, 3) in m/s, for the observation."""
        direction = parts["state"][:, :3]  # unit vectors to the goal
        nearest = 4.0 - parts["lidar"].flatten(1).amax(1)  # the scan holds range minus distance
        return direction * nearest.clamp(0.2, 2.0)[:, None]
