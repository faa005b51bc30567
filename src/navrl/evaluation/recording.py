"""Recorded flights: everything a picture, a video or a replay page needs, in one file.

    recording = Recording.load("runs/eval/recordings/crossing.npz")
    for flight, outcome in enumerate(recording.outcome):
        track = recording.position[: recording.lengths[flight] + 1, flight]  # (T, 3)

The file is a compressed NPZ that NumPy alone can read.
"""

from __future__ import annotations

import io
import json
import os
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from navrl.errors import ContainerError
from navrl.io.container.atomic_files import AtomicFile
from navrl.sim.env import NavigationEnv
from navrl.sim.episode_statistics import FAILURES

__all__ = ["ENDINGS", "FRAME_SECONDS", "Recorder", "Recording"]

FRAME_SECONDS = 0.08  # between frames, or the whole number of decisions nearest to it
# How a flight can end: one of these names for each flight in `Recording.outcome`.
ENDINGS = ("success_100", *FAILURES)
FORMAT = 1
LARGEST = 1 << 30  # bytes that a file may unpack to

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Recording:
    """T frames of R flights in one world with D moving obstacles.

    Positions in m and velocities in m/s, in the world frame; z is up, the ground is z = 0. Rows of
    a flight after its end repeat the last one.

    >>> import navrl
    >>> env = navrl.NavigationEnv(
    ...     navrl.NavigationSettings.of(env__num_envs=4, env__num_worlds=1), auto_reset=False
    ... )
    >>> flights = navrl.evaluation.evaluate(env, navrl.load_policy("straight"), recorded=2)
    >>> flights.recording.save("flights.npz")
    >>> Recording.load("flights.npz").position.shape[1:]
    (2, 3)
    """

    scenario: str
    policy: str
    world: str  # its name
    settings: Mapping[str, Any]  # of the task: settings["sensor"]["lidar_range"], ...
    seconds_per_frame: float
    boxes: Floats  # (M, 6) static obstacles: x0, x1, y0, y1, z0, z1
    cylinders: Floats  # (C, 5) static obstacles: x, y, radius, z0, z1
    episode: NDArray[np.int64]  # (R,) number of the flight in its evaluation
    position: Floats  # (T, R, 3)
    velocity: Floats  # (T, R, 3)
    yaw: Floats  # (T, R) rad, counter-clockwise from +x
    goal: Floats  # (R, 3)
    outcome: tuple[str, ...]  # (R,) names out of ENDINGS; a flight that came within 1.0 m succeeded
    lengths: NDArray[np.int64]  # (R,) frames until the flight ended
    moving_position: Floats  # (T, D, 3) centres
    moving_velocity: Floats  # (T, D, 3)
    moving_width: Floats  # (D,) m: width of a box, diameter of a cylinder
    moving_tall: NDArray[np.bool_]  # (D,) 5 m cylinders; the others are boxes 1 m high

    @property
    def flights(self) -> int:
        """Number of recorded flights, R."""
        return len(self.episode)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the recording to one file, whole or not at all.

        Raises:
            OSError: the file cannot be written.
        """
        about = {name: getattr(self, name) for name in WORDS} | {"format": FORMAT}
        arrays = {name: getattr(self, name) for name in ARRAYS}
        packed = io.BytesIO()
        np.savez_compressed(packed, about=np.array(json.dumps(about)), **arrays)
        with AtomicFile(path) as file:
            file.write([packed.getbuffer()])
            file.commit()

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Recording:
        """Return the recording in a file.

        Raises:
            FileNotFoundError: `path` does not exist.
            ContainerError: the file is damaged, or is no recording.
        """
        arrays, about = _read(Path(path))
        recording = cls(
            **{name: about[name] for name in WORDS} | {"outcome": tuple(about["outcome"])},
            **{name: arrays[name] for name in ARRAYS},
        )
        _check_shapes(Path(path), recording)
        return recording


WORDS = ("scenario", "policy", "world", "settings", "seconds_per_frame", "outcome")
# The arrays of a file and their axes: T frames, R flights, D moving obstacles, others free.
ARRAYS = {
    "boxes": "M6",
    "cylinders": "C5",
    "episode": "R",
    "position": "TR3",
    "velocity": "TR3",
    "yaw": "TR",
    "goal": "R3",
    "lengths": "R",
    "moving_position": "TD3",
    "moving_velocity": "TD3",
    "moving_width": "D",
    "moving_tall": "D",
}


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the arrays of a file, and what its `about` says."""
    try:
        with zipfile.ZipFile(path) as packed:
            if sum(entry.file_size for entry in packed.infolist()) > LARGEST:
                raise ContainerError(f"{path}: unpacks to more than {LARGEST >> 30} GiB; refused")
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        about = json.loads(str(arrays.pop("about")))
        found, missing = about["format"], ({*ARRAYS} - {*arrays}) | ({*WORDS} - {*about})
    except (zipfile.BadZipFile, ValueError, KeyError, TypeError, EOFError) as error:
        if isinstance(error, ContainerError):
            raise
        raise ContainerError(f"{path}: no recording of flights, or damaged ({error})") from error
    if found != FORMAT or missing:
        raise ContainerError(
            f"{path}: format {found!r:.20}, without {sorted(missing) or 'nothing'}; expected a "
            f"recording of format {FORMAT}: fly the evaluation again with this version"
        )
    return arrays, about


def _check_shapes(path: Path, recording: Recording) -> None:
    """Refuse a recording whose arrays do not fit together."""
    sizes = {"R": len(recording.outcome), "3": 3, "5": 5, "6": 6}
    for name, axes in ARRAYS.items():
        shape = np.shape(getattr(recording, name))
        fits = len(shape) == len(axes) and all(
            sizes.setdefault(axis, size) == size for axis, size in zip(axes, shape, strict=True)
        )
        if not fits:
            wanted = tuple(sizes.get(axis, axis) for axis in axes)
            raise ContainerError(f"{path}: {name} has shape {shape}; expected {wanted}")


class Recorder:
    """Collects frames of chosen drones of one world while an evaluation flies.

    Args:
        env: at the start of its episodes.
        drones: numbers of the drones to record, (R,), all in `world`.
        world: number of the world.
    """

    def __init__(self, env: NavigationEnv, drones: Tensor, world: int = 0) -> None:
        self._env, self._drones, self._world = env, drones, world
        self._goal = env.target[drones].numpy()
        step_seconds = env.settings.sim.dt * env.settings.env.action_repeat
        self._stride = max(1, round(FRAME_SECONDS / step_seconds))  # decisions between frames
        self._seconds_per_frame = self._stride * step_seconds
        self._decisions = 0
        self._frames: dict[str, list[Tensor]] = {
            name: []
            for name in ("position", "velocity", "yaw", "moving_position", "moving_velocity")
        }
        self._add()

    def sample(self, *, last: bool = False) -> None:
        """Note the state after a decision: every `stride`-th becomes a frame, and the last one."""
        self._decisions += 1
        if last or self._decisions % self._stride == 0:
            self._add()

    def _add(self) -> None:
        env = self._env
        for name in ("position", "velocity", "yaw"):
            self._frames[name].append(getattr(env, name)[self._drones])
        moving = env.obstacles(self._world)
        for name in ("position", "velocity"):
            self._frames[f"moving_{name}"].append(moving[name])

    def finish(
        self, statistics: Mapping[str, Tensor], *, scenario: str = "", policy: str = ""
    ) -> Recording:
        """Return the recording; `statistics` are those of all drones of the evaluation."""
        env = self._env
        own = {name: values[self._drones].numpy() for name, values in statistics.items()}
        seconds = own["length"] * env.settings.sim.dt
        lengths = np.ceil(seconds / self._seconds_per_frame - 1e-4).astype(np.int64)
        frames = {name: torch.stack(rows).numpy() for name, rows in self._frames.items()}
        place, sizes = env.pool.worlds[self._world], env.obstacles(self._world)
        return Recording(
            scenario=scenario,
            policy=policy,
            world=place.name,
            settings=env.settings.as_dict(),
            seconds_per_frame=self._seconds_per_frame,
            boxes=place.boxes,
            cylinders=place.cylinders,
            episode=self._drones.numpy(),
            goal=self._goal,
            outcome=tuple(ending_of(own, flight) for flight in range(len(self._drones))),
            lengths=lengths,
            moving_width=sizes["width"].numpy(),
            moving_tall=sizes["tall"].numpy(),
            **frames,
        )


def ending_of(statistics: Mapping[str, Any], episode: int) -> str:
    """Return how an episode ended: the first name of ENDINGS whose statistic says so."""
    return next((name for name in ENDINGS if statistics[name][episode] > 0), "time_out")
