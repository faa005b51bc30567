"""A policy as a robot calls it: what the robot knows in the world frame in, a velocity out.

Everything between the two is inside: the goal frame, the choice of the nearest obstacles, the
scaling of the observation, the network, the mean action, its limits, and the rotation back.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from navrl.deploy.tracks import TALL, TRACK
from navrl.navigation_observation import WIDTH_STEP
from navrl.rl.distributions import beta, gaussian
from navrl.rl.networks.navigation import NavigationNetwork
from navrl.sim.settings import NavigationSettings

INPUTS = ("position", "velocity", "goal", "start", "lidar", "obstacles")
OUTPUT = "velocity_world"
FAR = 1e9  # m^2, of empty slots
TINY = 1e-6  # m


class RobotPolicy(nn.Module):
    """Returns velocity commands in the world frame, (N, 3) in m/s.

    Inputs, all float32: position, velocity, goal, start (N, 3) in m and m/s; lidar (N, azimuths,
    beams), ranges in m, counter-clockwise from the bearing of the goal seen from the start;
    obstacles (N, K, 8), any K of at least 1, with x, y, z, vx, vy, vz, width, height, where a
    width of 0 or less is an empty slot.

    >>> import torch, navrl
    >>> from navrl.deploy import RobotPolicy
    >>> from navrl.rl.networks.navigation import NavigationNetwork
    >>> policy = RobotPolicy(NavigationNetwork(), navrl.NavigationSettings())
    >>> rest, goal = torch.zeros(1, 3), torch.tensor([[10.0, 0.0, 1.0]])
    >>> policy(rest, rest, goal, rest, torch.full((1, 36, 4), 4.0), torch.zeros(1, 1, 8)).shape
    torch.Size([1, 3])
    """

    def __init__(self, network: NavigationNetwork, task: NavigationSettings) -> None:
        super().__init__()
        self.network = network
        self.limit = float(task.env.action_limit)
        self.reach = float(task.sensor.lidar_range)
        self.detection_reach = float(task.sensor.detection_range) or self.reach
        self.planar = bool(task.env.planar)
        self.climb = (
            0.0 if self.planar else min(task.drone.vertical_speed or self.limit, self.limit)
        )
        self.observed = int(task.env.num_observed)
        self.azimuths, self.beams = network.layout.shapes["lidar"][-2:]
        self._mean = gaussian.mean if network.distribution == "gaussian" else beta.mean

    def forward(
        self,
        position: Tensor,
        velocity: Tensor,
        goal: Tensor,
        start: Tensor,
        lidar: Tensor,
        obstacles: Tensor,
    ) -> Tensor:
        """Return the velocity commands, (N, 3)."""
        forward = _forward(start, goal)  # (N, 2)
        if self.planar:  # heights are ignored
            goal = torch.cat([goal[:, :2], position[:, 2:]], 1)
            velocity = torch.cat([velocity[:, :2], torch.zeros_like(velocity[:, 2:])], 1)
        image = (self.reach - lidar).clamp(0.0, self.reach).flatten(1)
        rows = torch.cat(
            [
                image,
                self._tracks(position, forward, obstacles).flatten(1),
                _state(position, velocity, goal, forward),
            ],
            1,
        )
        command = self._mean(self.network(rows)) * (2 * self.limit) - self.limit
        if self.climb < self.limit:
            rise = command[:, 2:].clamp(-self.climb, self.climb)
            command = torch.cat([command[:, :2], rise], 1)
        return _from_goal_frame(command, forward)

    def _tracks(self, position: Tensor, forward: Tensor, obstacles: Tensor) -> Tensor:
        """Return the features of the nearest obstacles in reach, (N, observed, 10), or zeros."""
        empty = obstacles.new_zeros(obstacles.shape[0], self.observed, TRACK)
        tracks = torch.cat([obstacles, empty], 1)
        offset = tracks[:, :, 0:3] - position[:, None]  # (N, K, 3)
        squared = (offset[:, :, :2] ** 2).sum(2)
        seen = (tracks[:, :, 6] > 0) & (squared <= self.detection_reach**2)
        key = torch.where(seen, squared, torch.full_like(squared, FAR))
        nearest, index = torch.topk(key, self.observed, dim=1, largest=False, sorted=True)
        chosen = torch.gather(tracks, 1, index[:, :, None].expand(-1, -1, TRACK))
        offset = chosen[:, :, 0:3] - position[:, None]
        tall = torch.ones_like(offset[:, :, 2:3]) > 0 if self.planar else chosen[:, :, 7:8] > TALL
        height = torch.where(tall, torch.zeros_like(offset[:, :, 2:3]), offset[:, :, 2:3])
        flat = offset[:, :, :2]
        horizontal = torch.sqrt((flat**2).sum(2, keepdim=True))
        distance = torch.sqrt(horizontal**2 + height**2).clamp_min(TINY)
        features = torch.cat(
            [
                _to_goal_frame(torch.cat([flat, height], 2), forward[:, None]) / distance,
                horizontal,
                height,
                _to_goal_frame(self._motion(chosen), forward[:, None]),
                chosen[:, :, 6:7] / WIDTH_STEP - 1.0,
                torch.where(tall, torch.zeros_like(height), torch.ones_like(height)),
            ],
            2,
        )
        return torch.where((nearest < FAR)[:, :, None], features, torch.zeros_like(features))

    def _motion(self, tracks: Tensor) -> Tensor:
        """Return the velocities of tracks, (N, K, 3); level in two dimensions."""
        if not self.planar:
            return tracks[:, :, 3:6]
        return torch.cat([tracks[:, :, 3:5], torch.zeros_like(tracks[:, :, 5:6])], 2)


def _forward(start: Tensor, goal: Tensor) -> Tensor:
    """Return the goal frame's x axis, (N, 2): the world's x axis for a goal straight above."""
    along = (goal - start)[:, :2]
    length = torch.sqrt((along**2).sum(1, keepdim=True))
    ahead = torch.cat([torch.ones_like(length), torch.zeros_like(length)], 1)
    return torch.where(length > TINY, along / length.clamp_min(TINY), ahead)


def _state(position: Tensor, velocity: Tensor, goal: Tensor, forward: Tensor) -> Tensor:
    """Return the eight numbers of `state`."""
    offset = goal - position
    distance = torch.sqrt((offset**2).sum(1, keepdim=True)).clamp_min(TINY)
    horizontal = torch.sqrt((offset[:, :2] ** 2).sum(1, keepdim=True))
    direction = _to_goal_frame(offset, forward) / distance
    return torch.cat([direction, horizontal, offset[:, 2:3], _to_goal_frame(velocity, forward)], 1)


def _to_goal_frame(vector: Tensor, forward: Tensor) -> Tensor:
    """Return world vectors, (..., 3), in the goal frame whose x axis is `forward`, (..., 2)."""
    x, y, z = vector[..., 0:1], vector[..., 1:2], vector[..., 2:3]
    cosine, sine = forward[..., 0:1], forward[..., 1:2]
    return torch.cat([x * cosine + y * sine, y * cosine - x * sine, z], -1)


def _from_goal_frame(vector: Tensor, forward: Tensor) -> Tensor:
    """Return vectors of the goal frame, (..., 3), in the world."""
    x, y, z = vector[..., 0:1], vector[..., 1:2], vector[..., 2:3]
    cosine, sine = forward[..., 0:1], forward[..., 1:2]
    return torch.cat([x * cosine - y * sine, x * sine + y * cosine, z], -1)
