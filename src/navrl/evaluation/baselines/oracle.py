"""A planner that knows the whole map and where every moving obstacle will be: an upper bound.

Model-predictive control by sampling: at every decision, sequences of velocity commands are tried on
a model of the drone against the true future, and the first command of the best one is flown. The
best is kept and improved at the next decision.
"""

from __future__ import annotations

import copy

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from navrl.errors import ConfigError
from navrl.evaluation.baselines.kernels.clearance import (
    FARTHEST,
    LAYERS,
    SIZE,
    lower,
    paint_boxes,
    paint_cylinders,
)
from navrl.evaluation.baselines.kernels.sequence_search import KNOTS, STEP, plan
from navrl.evaluation.baselines.response import Response, response_of
from navrl.sim.env import NavigationEnv
from navrl.sim.settings import NavigationSettings

__all__ = ["Oracle", "clearance_grids", "future_tracks"]


def future_tracks(env: NavigationEnv) -> NDArray[np.float32]:
    """Return where the moving obstacles of an environment will be, (T, W, D, 3), every decision.

    A twin of the environment with one drone a world flies ahead: moving obstacles do not depend on
    drones.
    """
    settings = copy.deepcopy(env.settings)
    settings.env.num_envs = len(env.pool.worlds)
    twin = NavigationEnv(settings, seed=env.state_dict()["seed"], auto_reset=True)
    widest = int(env.pool.moving_counts.max(initial=0))
    decisions = -(-settings.env.max_episode_length // settings.env.action_repeat)
    tracks = np.full((decisions + 1, settings.env.num_envs, widest, 3), 1e6, np.float32)
    twin.reset()
    still, step = torch.zeros(settings.env.num_envs, 3), twin.make_step()
    for moment in range(decisions + 1):
        for world in range(settings.env.num_envs):
            position = twin.obstacles(world)["position"].numpy()
            tracks[moment, world, : len(position)] = position
        twin.step(still, out=step)
    return tracks


def clearance_grids(env: NavigationEnv) -> NDArray[np.uint8]:
    """Return the horizontal distance to the nearest static obstacle in cm, (W, LAYERS, X, Y).

    A layer counts the obstacles that reach up to its height.
    """
    grids = np.full((len(env.pool.worlds), LAYERS, SIZE, SIZE), FARTHEST, np.uint8)
    for grid, world in zip(grids, env.pool.worlds, strict=True):
        boxes, cylinders = world.boxes.astype(np.float64), world.cylinders.astype(np.float64)
        for standing in (True, False):
            paint_boxes(grid, boxes, standing)
            paint_cylinders(grid, cylinders, standing)
            if standing:
                lower(grid)
    return grids


class Oracle:
    """Flies with the whole map and the true future of every moving obstacle."""

    def __init__(self, task: NavigationSettings) -> None:
        self._model: Response = response_of(task)
        self._env: NavigationEnv | None = None

    def begin(self, env: NavigationEnv) -> None:
        """Look into the future of an environment that has just been reset."""
        self._env, settings = env, env.settings
        self._tracks = future_tracks(env)
        now = env.obstacles(0)["position"].numpy()
        if not np.array_equal(self._tracks[0, 0, : len(now)], now):
            raise ConfigError("the oracle needs an environment at its very start: make a new one")
        widest = self._tracks.shape[2]
        self._width = env.pool.moving_sizes[:, 0, :widest].astype(np.float64)
        self._tall = env.pool.moving_sizes[:, 1, :widest].astype(np.float64)
        self._grids = clearance_grids(env)
        number = env.num_envs
        self._forward = env.forward.double().numpy()
        self._world = env.world.numpy()
        self._goal = env.target.double().numpy()
        self._acceleration = np.zeros((number, 3))
        self._velocity = np.zeros((number, 3))
        self._kept = np.zeros((number, KNOTS, 3))
        self._kept[..., 0] = settings.env.action_limit
        self._seconds = settings.sim.dt * settings.env.action_repeat
        self._moment = 0

    def __call__(self, observation: dict[str, Tensor]) -> Tensor:
        """Return velocity commands in the goal frame, (N, 3)."""
        env = self._env
        if env is None:
            raise ConfigError(
                "the oracle must begin(env) first: it flies inside an evaluation only"
            )
        velocity = env.velocity.double().numpy()
        if self._moment:
            self._acceleration = (velocity - self._velocity) / self._seconds
            self._acceleration += self._model.damping * velocity
        moved = np.any(velocity != self._velocity, axis=1) | (self._moment == 0)
        self._velocity = velocity
        state = np.concatenate(
            [env.position.double().numpy(), velocity, self._acceleration, self._goal], 1
        )
        command = np.zeros((env.num_envs, 3))
        plan(
            moved,
            state,
            self._forward,
            self._world,
            self._kept,
            self._grids,
            self._tracks,
            self._width,
            self._tall,
            self._moment,
            STEP / self._seconds,
            tuple(self._model),
            float(env.settings.env.action_limit),
            float(env.settings.env.collision_radius),
            1,
            command,
        )
        self._moment += 1
        return torch.from_numpy(command).float()
