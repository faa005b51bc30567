"""Flights for the replay benchmark: real ones of the simulator, with LiDAR observations or with
grids, kept in a folder.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from navrl.rl.scripted import scripted_pilot
from navrl.sim.env import NavigationEnv
from navrl.sim.settings import NavigationSettings

SEGMENT = 400  # frames of one drone in a row, as a collector hands them over
DRONES = 256  # that take turns
CELL, SIDE, MARGIN = 0.1, 84, 100  # m, cells, cells around the arena
Frames = dict[str, np.ndarray]


def folder() -> Path:
    base = os.environ.get("NAVRL_BENCHMARK_FOLDER") or tempfile.gettempdir()
    path = Path(base) / "navrl-bench-replay"
    path.mkdir(parents=True, exist_ok=True)
    return path


def flights(frames: int) -> Frames:
    """Return LiDAR flights, drone after drone, SEGMENT frames each."""
    return _kept(f"lidar-{frames}", lambda: _fly(max(1, frames // SEGMENT), SEGMENT, grids=False))


def grid_flights(frames: int) -> Frames:
    """Return flights whose observation is a grid of what is around the drone, turned the way it
    flies.
    """
    return _kept(f"grid-{frames}", lambda: _fly(max(1, frames // SEGMENT), SEGMENT, grids=True))


def repeated(base: Frames, frames: int) -> Iterator[Frames]:
    """Yield segments until there are enough frames; no round repeats the bytes of another."""
    length = len(base["reward"])
    for begin in range(0, frames, SEGMENT):
        turn, first = divmod(begin, length)
        segment = {
            key: value[first : first + min(SEGMENT, frames - begin)] for key, value in base.items()
        }
        yield {
            key: _varied(value, turn) if "observation" in key else value
            for key, value in segment.items()
        }


def in_turns(base: Frames, frames: int) -> Iterator[Frames]:
    """Yield a step of all drones at a time, as a vectorised environment does, until there are
    enough LiDAR frames.
    """
    flown = len(base["reward"]) // SEGMENT
    for begin in range(0, frames, DRONES):
        again, step = divmod(begin // DRONES, SEGMENT)
        drone = np.arange(min(DRONES, frames - begin))
        turn = again * -(-DRONES // flown) + drone // flown
        scale = (1 + turn * 1e-3).astype(np.float32)[:, None]
        rows = drone % flown * SEGMENT + step
        yield {
            key: value[rows] * scale if "observation" in key else value[rows]
            for key, value in base.items()
        }


def _varied(value: np.ndarray, turn: int) -> np.ndarray:
    if not turn:
        return value
    if value.dtype == np.uint8:
        turned = np.rot90(value, turn % 4, (-2, -1))
        return np.ascontiguousarray(
            np.roll(turned[..., ::-1, :] if turn // 4 % 2 else turned, turn // 8, -1)
        )
    return value * np.float32(1 + turn * 1e-3)


def _kept(name: str, make) -> Frames:
    path = folder() / f"{name}.npz"
    if not path.exists():
        scratch = path.with_name(f".{os.getpid()}-{path.name}")
        np.savez(scratch, **make())
        scratch.replace(path)
    with np.load(path) as stored:
        return {key: stored[key] for key in stored.files}


def _fly(drones: int, steps: int, *, grids: bool) -> Frames:
    settings = NavigationSettings.of(
        env__num_envs=drones, env__num_worlds=min(8, drones), env__action_repeat=6 if grids else 1
    )
    env = NavigationEnv(settings, seed=3)
    observation, noise = env.reset(), torch.Generator().manual_seed(0)
    maps = [_map(world.boxes) for world in env.pool.worlds] if grids else []
    columns: dict[str, list[np.ndarray]] = {
        name: [] for name in ("now", "next", "action", "reward", "terminated", "truncated")
    }
    now = _seen(env, maps, env.observe_packed())
    for _ in range(steps):
        action = (
            scripted_pilot(observation) + 0.3 * torch.randn(drones, 3, generator=noise)
        ).clamp(-2, 2)
        step = env.step(action)
        after = _seen(env, maps, step.packed)
        ended = (step.terminated | step.truncated).numpy()
        # a drone that ended has moved already
        final = step.final_packed.numpy() if not grids else np.zeros_like(after)
        following = np.where(ended.reshape(-1, *[1] * (after.ndim - 1)), final, after)
        values = (
            now,
            following,
            action.numpy(),
            step.reward.numpy(),
            step.terminated.numpy(),
            step.truncated.numpy(),
        )
        for column, value in zip(columns.values(), values, strict=True):
            column.append(np.array(value))
        observation, now = step.observation, after
    joined = {
        name: np.stack(column, 1).reshape(drones * steps, *column[0].shape[1:])
        for name, column in columns.items()
    }
    return {
        "observation": joined["now"],
        "action": joined["action"],
        "reward": joined["reward"],
        "terminated": joined["terminated"],
        "truncated": joined["truncated"],
        "next/observation": joined["next"],
    }


def _seen(env: NavigationEnv, maps: list[np.ndarray], packed: torch.Tensor) -> np.ndarray:
    if not maps:
        return packed.numpy().copy()
    velocity, position, world = env.velocity.numpy(), env.position.numpy(), env.world.numpy()
    heading = np.arctan2(velocity[:, 1], velocity[:, 0])
    place = np.arange(SIDE) - SIDE / 2 + 0.5
    ahead, left = np.meshgrid(place, place, indexing="ij")
    grids = np.empty((len(position), 2, SIDE, SIDE), np.uint8)
    for drone, angle in enumerate(heading):
        cos, sin, chart = np.cos(angle), np.sin(angle), maps[world[drone]]
        centre = position[drone, :2] / CELL + chart.shape[1] / 2
        x = np.clip((centre[0] + cos * ahead - sin * left).astype(int), 0, chart.shape[1] - 1)
        y = np.clip((centre[1] + sin * ahead + cos * left).astype(int), 0, chart.shape[2] - 1)
        grids[drone] = chart[:, x, y]
    return grids


def _map(boxes: np.ndarray) -> np.ndarray:
    """Return what is occupied, and a cost that fades with the distance from it, as costmaps
    have.
    """
    size = int(50 / CELL) + 2 * MARGIN
    occupied = np.zeros((size, size), np.uint8)
    cells = np.clip((boxes[:, :4] / CELL + size / 2).astype(int), 0, size - 1)
    for x0, x1, y0, y1 in cells:
        occupied[x0 : x1 + 1, y0 : y1 + 1] = 255
    distance = np.where(occupied > 0, 0, 99).astype(np.float32)
    for _ in range(14):
        padded = np.pad(distance, 1, constant_values=99)
        for i, j in np.ndindex(3, 3):
            distance = np.minimum(
                distance, padded[i : i + size, j : j + size] + np.hypot(i - 1, j - 1)
            )
    return np.stack(
        [occupied, np.where(distance < 14, 254 * np.exp(-0.25 * distance), 0).astype(np.uint8)]
    )
