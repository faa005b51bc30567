"""The buffers of a step: packed observations, rewards, endings, statistics, in one allocation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from navrl.navigation_observation import navigation_layout
from navrl.observation import ObservationLayout
from navrl.sim.episode_statistics import STATISTICS
from navrl.sim.settings import NavigationSettings
from navrl.simd import WIDTH, aligned_zeros


class Step:
    """What a step gives. Rows of `final_packed` and `statistics` are valid where `done`."""

    def __init__(self, layout: ObservationLayout, num_envs: int) -> None:
        self.layout = layout
        shapes = {
            "packed": ((num_envs, layout.width), torch.float32),
            "final_packed": ((num_envs, layout.width), torch.float32),
            "reward": ((num_envs,), torch.float32),
            "terminated": ((num_envs,), torch.bool),
            "truncated": ((num_envs,), torch.bool),
            "statistics": ((num_envs, len(STATISTICS)), torch.float32),
        }
        views = _views_of_one([*shapes.values()])
        self.packed = views[0]  # (N, width)
        self.final_packed = views[1]  # (N, width), the last observation of ended episodes
        self.reward = views[2]  # (N,)
        self.terminated = views[3]  # (N,) goal, collision or bounds
        self.truncated = views[4]  # (N,) time-out
        self.statistics = views[5]  # (N, len(STATISTICS))
        self._locate()

    def _locate(self) -> None:
        """Note where the tensors are, in the order of layout.Outputs."""
        written = (
            self.packed,
            self.final_packed,
            self.reward,
            self.terminated,
            self.truncated,
            self.statistics,
        )
        self.addresses = np.array([tensor.data_ptr() for tensor in written], np.int64)
        self._first = self.packed.data_ptr()

    def in_place(self) -> bool:
        """Tell whether the tensors are still where they were made; moved ones (`share_memory_`)
        cannot be written.
        """
        return self.packed.data_ptr() == self._first

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Become a copy: its tensors are elsewhere."""
        self.__dict__.update(state)
        self._locate()

    @property
    def observation(self) -> dict[str, Tensor]:
        """The observation by name, as views into `packed`."""
        return self.layout.split(self.packed)

    @property
    def final_observation(self) -> dict[str, Tensor]:
        """The last observation of the episodes that ended in this step, as views into
        `final_packed`.
        """
        return self.layout.split(self.final_packed)

    @property
    def done(self) -> Tensor:
        """Where an episode ended, (N,)."""
        return self.terminated | self.truncated

    def episodes(self) -> dict[str, Tensor]:
        """Return copies of the statistics of the episodes that ended in this step, by name, (number
        ended,).
        """
        rows = self.statistics[self.done]
        return {name: rows[:, column] for column, name in enumerate(STATISTICS)}


def _views_of_one(shapes: Sequence[tuple[tuple[int, ...], torch.dtype]]) -> list[Tensor]:
    """Return zeros of these shapes and types, all in one piece of memory.

    So one look tells whether it is still where it was.
    """
    sizes = [-(-math.prod(shape) * dtype.itemsize // 64) * 64 for shape, dtype in shapes]
    # not by torch: its threads hang in a forked child
    memory = torch.from_numpy(aligned_zeros((sum(sizes),), np.uint8))
    return [
        part[: math.prod(shape) * dtype.itemsize].view(dtype).view(shape)
        for part, (shape, dtype) in zip(memory.split(sizes), shapes, strict=True)
    ]


def observation_layout(settings: NavigationSettings) -> ObservationLayout:
    """Return how the observations of a task lie in their rows."""
    azimuths, beams = round(360 / settings.sensor.lidar_hres), settings.sensor.lidar_vbeams
    observed = settings.env.num_observed
    layout = navigation_layout(
        azimuths,
        beams,
        observed,
        lidar_range=float(settings.sensor.lidar_range),
        obstacle_speed=float(max(settings.env_dyn.vel_range)),
    )
    spilled = -(-azimuths // WIDTH) * WIDTH * beams  # a scan is written in whole groups
    width = -(-max(layout.width, spilled) // WIDTH) * WIDTH
    return replace(layout, padding=width - layout.width)
