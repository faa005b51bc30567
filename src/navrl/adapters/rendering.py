"""`render_mode="rgb_array"`: pictures of drones from a camera that flies behind them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from navrl.errors import ConfigError
from navrl.render import Renderer, chasing, moment_of
from navrl.sim.env import NavigationEnv

__all__ = ["RENDER_MODES", "ChaseCamera", "checked_render_mode", "render_metadata"]

RENDER_MODES = ("rgb_array",)
MOST_DRONES = 64
JUMP = 2.0  # m between two pictures: the drone has begun another episode
LONGEST_TRAIL = 400  # pictures

Bytes = NDArray[np.uint8]


def checked_render_mode(mode: str | None, drones: int = 1) -> str | None:
    """Return the render mode.

    Raises:
        ConfigError: there is no such mode, or there are too many drones to draw each of them.
    """
    if mode is not None and mode not in RENDER_MODES:
        raise ConfigError(f"render_mode is {mode!r:.40}; expected 'rgb_array' or None")
    if mode is not None and drones > MOST_DRONES:
        raise ConfigError(
            f"render_mode={mode!r} draws a picture of each drone, and there are {drones}; "
            f"expected num_envs of at most {MOST_DRONES}"
        )
    return mode


def render_metadata(env: NavigationEnv) -> dict[str, Any]:
    """Return what Gymnasium's wrappers want to know about pictures."""
    seconds = env.settings.sim.dt * env.settings.env.action_repeat
    return {"render_modes": [*RENDER_MODES], "render_fps": max(1, round(1 / seconds))}


class ChaseCamera:
    """Draws drones of a simulator from behind, with their rays and the way that they came."""

    def __init__(self, env: NavigationEnv, *, width: int = 640, height: int = 360) -> None:
        self._env, self._size = env, (width, height)
        self._renderers: dict[int, Renderer] = {}  # by world
        self._trails: dict[int, list[NDArray[np.float32]]] = {}  # by drone

    def picture(self, drone: int = 0) -> Bytes:
        """Return what a drone is doing now, (height, width, 3)."""
        env = self._env
        trail = self._trail(drone)
        moment = moment_of(env, torch.tensor([drone]), [np.stack(trail)])
        forward = env.forward[drone]
        camera = chasing(moment.position[0], float(torch.atan2(forward[1], forward[0])))
        return self._renderer(int(env.world[drone])).picture(camera, moment, chosen=0)

    def _trail(self, drone: int) -> list[NDArray[np.float32]]:
        place = self._env.position[drone].numpy()
        trail = self._trails.setdefault(drone, [])
        if trail and float(np.linalg.norm(place - trail[-1])) > JUMP:
            trail.clear()
        trail.append(place)
        del trail[:-LONGEST_TRAIL]
        return trail

    def _renderer(self, world: int) -> Renderer:
        if world not in self._renderers:
            place, (width, height) = self._env.pool.worlds[world], self._size
            self._renderers.clear()  # one drone changes its world now and then; keep few
            self._renderers[world] = Renderer(
                place.boxes, place.cylinders, width=width, height=height
            )
        return self._renderers[world]
