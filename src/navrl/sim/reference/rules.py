"""The task: goal frame, moving obstacles, observations, reward terms and terminations."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from navrl.sim.reference.rays import LIDAR_RANGE
from navrl.sim.reference.vehicle import TINY, Drone, unit

ARENA_HALF_WIDTH, HIGHEST_GOAL = 20.0, 4.5  # limits of the goals of moving obstacles
TALL_HEIGHT, FLOATING_HEIGHT = 5.0, 1.0  # of the two kinds of moving obstacles


def facing_yaw(start: Tensor, target: Tensor) -> Tensor:
    """Return the initial yaw (N,), which faces the target."""
    return torch.atan2(target[:, 1] - start[:, 1], target[:, 0] - start[:, 0])


def start_height_range(start: Tensor, target: Tensor) -> Tensor:
    """Return the lower and the higher of start and target height, (N, 2)."""
    return torch.stack(
        [torch.minimum(start[:, 2], target[:, 2]), torch.maximum(start[:, 2], target[:, 2])], dim=-1
    )


def to_goal_frame(vector: Tensor, target_direction: Tensor) -> Tensor:
    """Return world vectors (N, ..., 3) in the goal frame: x along the horizontal target direction
    (N, 3), z up.
    """
    # Choice: for a target straight above the start the goal frame is the world frame.
    return _turn(vector, -torch.atan2(target_direction[:, 1], target_direction[:, 0]))


def from_goal_frame(vector: Tensor, target_direction: Tensor) -> Tensor:
    """Return goal-frame vectors (N, ..., 3) in the world frame."""
    return _turn(vector, torch.atan2(target_direction[:, 1], target_direction[:, 0]))


def _turn(vector: Tensor, angle: Tensor) -> Tensor:
    """Return vectors (N, ..., 3) turned counter-clockwise about z by angle (N,)."""
    angle = angle.reshape(-1, *[1] * (vector.dim() - 2))
    x, y, z = vector.unbind(dim=-1)
    cosine, sine = torch.cos(angle), torch.sin(angle)
    return torch.stack([cosine * x - sine * y, sine * x + cosine * y, z], dim=-1)


@dataclass(frozen=True)
class MovingObstacles:
    """D moving obstacles in each of N worlds; a shared world has 1 for N. D may be 0."""

    position: Tensor  # (N, D, 3) centres
    velocity: Tensor  # (N, D, 3)
    width: Tensor  # (N, D) or (D,)
    # (D,) bool: "2D" cylinders, 5 m tall, centre at 2.5 m; the others are floating boxes, 1 m tall
    is_tall: Tensor


def advance_obstacles(
    position: Tensor,
    velocity: Tensor,
    goal: Tensor,
    origin: Tensor,
    is_tall: Tensor,
    step: Tensor | int,
    uniforms_goal: Tensor,
    uniforms_speed: Tensor,
    dt: float = 0.016,
    symmetric_height: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return position, velocity and goal (..., D, 3) after one step; `step` counts calls from 0.

    `uniforms_goal` (..., D, 3) and `uniforms_speed` (..., D) are in [0, 1), one for each obstacle
    whether used or not. `symmetric_height` draws the height of the goal from +-4.5 m around the
    origin, instead of the original's -5..4 m.
    Choice: "within 0.5 m" of the goal is strict, and in three dimensions.
    """
    step = torch.as_tensor(step, device=position.device)
    span = position.new_tensor([10.0, 10.0, 2 * HIGHEST_GOAL])
    below = position.new_tensor([5.0, 5.0, HIGHEST_GOAL if symmetric_height else 5.0])
    drawn = origin + uniforms_goal * span - below
    horizontal = drawn[..., :2].clamp(-ARENA_HALF_WIDTH, ARENA_HALF_WIDTH)
    height = torch.where(is_tall, TALL_HEIGHT / 2, drawn[..., 2].clamp(0.0, HIGHEST_GOAL))
    drawn = torch.cat([horizontal, height[..., None]], dim=-1)
    arrived = ((goal - position).norm(dim=-1) < 0.5) | (step == 0)  # (..., D)
    goal = torch.where(arrived[..., None], drawn, goal)
    turned = (0.5 + uniforms_speed)[..., None] * unit(goal - position)
    is_turn = (step % int(2.0 / dt) == 0).expand(arrived.shape)[..., None]
    velocity = torch.where(is_turn, turned, velocity)
    return position + velocity * dt, velocity, goal


def observe(
    drone: Drone,
    target: Tensor,
    target_direction: Tensor,
    obstacles: MovingObstacles,
    count: int = 5,
    maximum: float = LIDAR_RANGE,
    position_error: Tensor | float = 0.0,
) -> dict[str, Tensor]:
    """Return the inputs of the policy and, as "nearest_*" (N, count), those of reward and
    termination.

    state (N, 8), direction (N, 3), dynamic_obstacle (N, count, 10); nearest_horizontal,
    nearest_height_difference (0 for tall ones), nearest_clearance, nearest_width, nearest_height.
    An obstacle farther away horizontally than `maximum`, or a missing one, gives a zero row and a
    clearance of `maximum`. `position_error` (N, 3) is the error of the drone's own position; it
    shifts the goal, not the obstacles, which are observed relative to the drone.
    """
    to_target = target - (drone.position + position_error)
    state = [
        to_goal_frame(unit(to_target), target_direction),
        to_target[:, :2].norm(dim=-1, keepdim=True),
    ]
    state += [to_target[:, 2:], to_goal_frame(drone.velocity, target_direction)]
    nearest = _nearest(drone.position, obstacles, count)  # (N, count, 8)
    relative = nearest[..., :3]
    velocity = nearest[..., 3:6]
    width = nearest[..., 6]
    height = nearest[..., 7]
    horizontal, distance = relative[..., :2].norm(dim=-1), relative.norm(dim=-1)
    in_range = horizontal <= maximum
    row = [to_goal_frame(relative / distance.clamp(min=TINY)[..., None], target_direction)]
    row += [horizontal[..., None], relative[..., 2:], to_goal_frame(velocity, target_direction)]
    row += [(width / 0.25 - 1)[..., None], (height == FLOATING_HEIGHT)[..., None]]
    return {
        "state": torch.cat(state, dim=-1),
        "direction": target_direction * target_direction.new_tensor([1.0, 1.0, 0.0]),
        "dynamic_obstacle": torch.where(in_range[..., None], torch.cat(row, dim=-1), 0.0),
        "nearest_horizontal": horizontal,
        "nearest_height_difference": relative[..., 2],
        "nearest_clearance": torch.where(in_range, distance - width / 2, maximum),
        "nearest_width": width,
        "nearest_height": height,
    }


def detected(obstacles: MovingObstacles, missed: Tensor, error: Tensor) -> MovingObstacles:
    """Return the obstacles as a detector reports them: the `missed` (N, D) infinitely far away, the
    others displaced by `error` (N, D, 3).
    """
    position = torch.where(missed[..., None], math.inf, obstacles.position + error)
    return replace(obstacles, position=position)


def delayed(observations: Tensor, delay: int) -> Tensor:
    """Return the observations (T, ...) of an episode, `delay` decisions late, the first one
    repeated at the start.
    """
    return observations[(torch.arange(len(observations)) - delay).clamp(min=0)]


def _nearest(position: Tensor, obstacles: MovingObstacles, count: int) -> Tensor:
    """Return (N, count, 8): relative position, velocity, width, height of the nearest obstacles;
    missing ones at infinity.
    """
    relative = obstacles.position - position[:, None, :]  # (N, D, 3)
    batch, number = relative.shape[:2]
    columns = torch.zeros(
        batch, max(number, count), 8, dtype=position.dtype, device=position.device
    )
    columns[:, number:, 0] = math.inf
    columns[:, :number, :2] = relative[..., :2]
    columns[:, :number, 2] = torch.where(obstacles.is_tall, 0.0, relative[..., 2])
    columns[:, :number, 3:6] = obstacles.velocity
    columns[:, :number, 6] = obstacles.width
    columns[:, :number, 7] = torch.where(obstacles.is_tall, TALL_HEIGHT, FLOATING_HEIGHT)
    order = columns[..., :2].norm(dim=-1).argsort(dim=-1, stable=True)[:, :count]  # (N, count)
    return columns.gather(1, order[..., None].expand(-1, -1, 8))


def reward_terms(
    drone: Drone,
    previous_velocity: Tensor,
    target: Tensor,
    distances: Tensor,
    height_range: Tensor,
    clearance: Tensor,
    has_moving_obstacles: bool = True,
    maximum: float = LIDAR_RANGE,
    log_reference: float = 1.0,
) -> dict[str, Tensor]:
    """Return the unweighted reward terms (N,) of a step by name; penalties are negative.

    `distances` (N, H, V) of the LiDAR, `height_range` (N, 2), `clearance` (N, count):
    `nearest_clearance` of `observe`.
    """
    low, high, height = height_range[:, 0] - 0.2, height_range[:, 1] + 0.2, drone.position[:, 2]
    excess = torch.maximum(height - high, low - height).clamp(min=0.0)
    progress = (drone.velocity * unit(target - drone.position)).sum(dim=-1)
    dynamic = (clearance.clamp(TINY, maximum) / log_reference).log().mean(dim=-1)
    return {
        "progress": progress,
        "alive": torch.ones_like(progress),
        "static": (distances.clamp(TINY, maximum) / log_reference).log().mean(dim=(1, 2)),
        "dynamic": dynamic if has_moving_obstacles else torch.zeros_like(dynamic),
        "smoothness": -(drone.velocity - previous_velocity).norm(dim=-1),
        "height": -(excess**2),
    }


# In the original the smoothness term is always zero: it compares a velocity with itself.
ORIGINAL_WEIGHTS = {
    "progress": 1.0,
    "alive": 1.0,
    "static": 1.0,
    "dynamic": 1.0,
    "smoothness": 0.1,
    "height": 8.0,
}


def total_reward(
    terms: Mapping[str, Tensor], weights: Mapping[str, float] = ORIGINAL_WEIGHTS
) -> Tensor:
    """Return the reward (N,) of a step; terms without a weight are ignored."""
    return torch.stack([weights.get(name, 0.0) * term for name, term in terms.items()]).sum(dim=0)


def terminations(
    drone: Drone,
    target: Tensor,
    distances: Tensor,
    observation: dict[str, Tensor],
    margin: float = 0.3,
    half_height: float | None = None,
) -> dict[str, Tensor]:
    """Return bool tensors (N,): three that end an episode, and two "reached_*" for statistics.

    `half_height` is that of a body other than a sphere of radius `margin`.
    """
    beside = observation["nearest_horizontal"] <= observation["nearest_width"] / 2 + margin
    rise = margin if half_height is None else half_height
    level = (
        observation["nearest_height_difference"].abs() <= observation["nearest_height"] / 2 + rise
    )
    height, to_target = drone.position[:, 2], (target - drone.position).norm(dim=-1)
    return {
        "static_collision": (distances < margin).flatten(1).any(dim=-1),
        "dynamic_collision": (beside & level).any(dim=-1),
        "out_of_bounds": (height < 0.2) | (height > 4.0),
        "reached_half_metre": to_target < 0.5,
        "reached_one_metre": to_target < 1.0,
    }
