"""Local maps: what the pictures show is what the LiDAR measures and where obstacles are."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from navrl.errors import ActionError, ConfigError
from navrl.sim.env import NavigationEnv
from navrl.sim.grid import OCCUPIED, LocalGrids
from navrl.sim.settings import NavigationSettings


def environment(tmp_path, text: str) -> NavigationEnv:
    world = tmp_path / "world.yaml"
    world.write_text(text)
    task = NavigationSettings()
    task.env.num_envs, task.env.num_worlds, task.env.world_files = 1, 1, [str(world)]
    task.env_dyn.num_obstacles = 0
    env = NavigationEnv(task)
    env.reset()
    return env


@pytest.fixture
def flying():
    task = NavigationSettings()
    task.env.num_envs, task.env.num_worlds = 64, 4
    env = NavigationEnv(task, seed=1)
    env.reset()
    for _ in range(500):
        env.step(torch.tensor([2.0, 0.0, 0.0]).repeat(64, 1))
    return env


def test_a_picture_shows_an_obstacle_where_a_level_ray_ends(flying):
    grids = LocalGrids(flying, cells=100, resolution=0.1).observe()
    level = 4 - flying.observe()["lidar"][:, 0, :, 1]  # distances at 0 degrees of elevation
    angles = (
        flying.yaw[:, None]
        - torch.atan2(*flying.forward.flip(1).unbind(1))[:, None]
        + torch.arange(36) * math.radians(10)
    )
    hits = level < 3.9
    assert hits.sum() > 50
    # half a cell into the wall
    rows = (49.5 - 10 * (level + 0.05) * torch.cos(angles)).round().long()
    columns = (49.5 - 10 * (level + 0.05) * torch.sin(angles)).round().long()
    drones = torch.arange(64)[:, None].expand(-1, 36)
    near = torch.zeros_like(hits)
    for down in (-1, 0, 1):
        for right in (-1, 0, 1):
            near |= grids[drones, 0, rows + down, columns + right] == OCCUPIED
    assert (near & hits).sum() >= 0.99 * hits.sum()


def test_moving_obstacles_are_where_the_environment_says(flying):
    grids = LocalGrids(flying, cells=80, resolution=0.1).observe()
    shown = 0
    for drone in range(64):
        seen = flying.obstacles(int(flying.world[drone]))
        offset = seen["position"] - flying.position[drone]
        forward = flying.forward[drone]
        ahead, left = offset[:, :2] @ forward, offset[:, 1] * forward[0] - offset[:, 0] * forward[1]
        half = torch.where(seen["tall"], 2.5, 0.5)
        visible = (ahead.abs() < 3.5) & (left.abs() < 3.5) & (offset[:, 2].abs() < half)
        for obstacle in torch.nonzero(visible)[:, 0]:
            row = round(39.5 - 10 * ahead[obstacle].item())
            column = round(39.5 - 10 * left[obstacle].item())
            assert grids[drone, 1, row, column] == OCCUPIED
            shown += 1
    assert shown > 10


def test_what_is_lower_than_the_drone_is_not_shown(tmp_path):
    env = environment(tmp_path, "boxes:\n  - {center: [2.5, 0, 0.5], size: [1, 1, 1]}\n")
    grids = LocalGrids(env, cells=60, resolution=0.1)
    for height, shown in ((0.8, True), (2.0, False)):
        env.place([0.0, 0.0, height], [10.0, 0.0, height])
        assert bool(grids.observe()[0, 0].any()) is shown


def test_what_floats_above_the_drone_is_not_shown(tmp_path):
    env = environment(tmp_path, "boxes:\n  - {center: [1.5, 0, 4.5], size: [1, 1, 1]}\n")
    env.place([0.0, 0.0, 1.0], [10.0, 0.0, 1.0])
    assert not LocalGrids(env, cells=60).observe().any()


def test_a_thin_pole_is_shown(tmp_path):
    env = environment(tmp_path, "cylinders:\n  - {center: [1.53, 0.02], radius: 0.04, height: 4}\n")
    env.place([0.0, 0.0, 1.0], [10.0, 0.0, 1.0])
    assert 1 <= (LocalGrids(env, cells=60).observe()[0, 0] == OCCUPIED).sum() <= 4


@pytest.mark.parametrize(
    "out", [torch.zeros(64, 2, 40, 20, dtype=torch.uint8), torch.zeros(64, 2, 20, 20)]
)
def test_a_buffer_that_does_not_fit_is_refused(flying, out):
    with pytest.raises(ActionError, match="expected contiguous uint8"):
        LocalGrids(flying, cells=20).observe(out)


def test_a_grid_without_cells_is_refused(flying):
    with pytest.raises(ConfigError, match="0 cells"):
        LocalGrids(flying, cells=0)


def test_an_own_buffer_is_filled(flying):
    grids = LocalGrids(flying, cells=20)
    out = torch.full((64, 2, 20, 20), 7, dtype=torch.uint8)
    assert grids.observe(out) is out
    assert set(np.unique(out.numpy())) <= {0, OCCUPIED}
