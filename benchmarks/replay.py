"""The compressed replay beside its peers: memory a frame, time of a random batch of 128, and frames
taken in a second.

Flights of the simulator with a scripted pilot (`_replay_data.py`): LiDAR observations of 208
numbers, and grids of 2 x 84 x 84 bytes that turn with the drone. Every buffer takes the same
segments of 400 frames; larger sizes go through the flights again, changed so that no bytes repeat.
All buffers of a size stay filled and are sampled in turn.
"""

from __future__ import annotations

import ctypes
import gc
import importlib.util
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from _replay_buffers import BUFFERS, PACKAGE_OF
from _replay_data import SEGMENT, Frames, flights, grid_flights, repeated
from navrl.benchmark import Case, Column, Gate, Results, Suite, seconds_per_call

OURS = "navrl"
TURNS = "navrl, in turns"
TORCHRL = "LazyTensorStorage"
LIST = "CompressedListStorage"
FRAME, EPISODE = ("LZ4-9 per frame", "LZ4 per frame"), "LZ4-9 per episode"
OF_GRIDS = [name for name in BUFFERS if name not in (EPISODE, TURNS)]
SECONDS, SMOKE_SECONDS = 0.25, 0.02  # of sampling in a round
LARGE = [OURS, "navrl in TorchRL", TORCHRL, "cpprb"]
SIZES: dict[str, dict[int, list[str]]] = {
    "LiDAR": {
        10_000: list(BUFFERS),
        100_000: [name for name in BUFFERS if name != LIST],
        1_000_000: LARGE,
    },
    "grids": {10_000: OF_GRIDS, 100_000: [OURS, "navrl in TorchRL", TORCHRL]},
}
SMOKE: dict[str, dict[int, list[str]]] = {
    "LiDAR": {800: list(BUFFERS), 1600: [OURS, TURNS, TORCHRL, *FRAME]},
    "grids": {400: OF_GRIDS, 800: [OURS, TORCHRL]},
}
BASE = {"LiDAR": (flights, 100_000), "grids": (grid_flights, 10_000)}  # frames that are flown


def resident() -> int:
    """Return the bytes of this process's own memory, after what was freed has gone back to the
    system.
    """
    gc.collect()
    with_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if with_trim is not None:
        with_trim(0)
    lines = [line.split() for line in Path("/proc/self/status").read_text().splitlines()]
    return sum(int(line[1]) * 1024 for line in lines if line[0] in ("RssAnon:", "RssShmem:"))


class Bench:
    """Flights by task, and filled buffers by case."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._bases: dict[str, Frames] = {}
        self._buffers: dict[str, Any] = {}
        self._filled: dict[str, dict[str, float]] = {}

    def base(self, task: str, most: int) -> Frames:
        if task not in self._bases:
            make, frames = BASE[task]
            self._bases[task] = make(min(frames, most))
        return self._bases[task]

    def case(self, task: str, frames: int, name: str, most: int) -> Case:
        def measure() -> Mapping[str, float]:
            label = label_of(task, frames, name)
            if label not in self._buffers:
                self._fill(label, task, frames, name, most)
            buffer = self._buffers[label]
            ways = [buffer.sample, *([buffer.threaded] if hasattr(buffer, "threaded") else [])]
            return {
                **self._filled[label],
                "batch": min(seconds_per_call(way, self._seconds) for way in ways),
            }

        return Case(
            label_of(task, frames, name),
            measure,
            note=(BUFFERS[name].__doc__ or "").splitlines()[0],
        )

    def _fill(self, label: str, task: str, frames: int, name: str, most: int) -> None:
        base = self.base(task, most)
        self._warm(name, base)
        gc.collect()
        gc.freeze()  # modules and kernels, among which `resident` would look for garbage each time
        before = resident()
        buffer = BUFFERS[name](frames, base)
        seconds = 0.0
        for segment in segments(name, base, frames):
            start = time.perf_counter()
            buffer.add(segment)
            seconds += time.perf_counter() - start
        buffer.sample()
        held = resident() - before
        counted = buffer.counted() if hasattr(buffer, "counted") else 0
        self._buffers[label] = buffer
        self._filled[label] = {
            "bytes": max(held, counted) / frames,
            "counted": counted / frames,
            "added": frames / seconds,
        }

    def _warm(self, name: str, base: Frames) -> None:
        """Have kernels compiled and packages imported before memory and time are taken."""
        small = BUFFERS[name](2 * SEGMENT, base)
        for segment in segments(name, base, 2 * SEGMENT):
            small.add(segment)
        small.sample()

    def close(self) -> None:
        gc.unfreeze()
        self._buffers.clear()
        self._bases.clear()


def segments(name: str, base: Frames, frames: int) -> Iterator[Frames]:
    """Return the frames in the order in which a buffer takes them."""
    return getattr(BUFFERS[name], "segments", repeated)(base, frames)


def label_of(task: str, frames: int, name: str) -> str:
    return f"{name}, {task}, {frames:,}"


def suite(smoke: bool) -> Suite:
    bench, sizes = Bench(SMOKE_SECONDS if smoke else SECONDS), SMOKE if smoke else SIZES
    cases = []
    for task, tables in sizes.items():
        for frames, names in tables.items():
            for name in names:
                if name not in PACKAGE_OF or importlib.util.find_spec(PACKAGE_OF[name]):
                    cases.append(bench.case(task, frames, name, max(tables)))
    columns = [
        Column("bytes", "bytes a frame", ".0f"),
        Column("batch", "ms a batch of 128", ".3g", 1e3),
        Column("added", "frames added/s", ",.0f"),
    ]
    return Suite(
        name="replay",
        title="Compressed replay",
        cases=cases,
        columns=columns,
        gates=gates(sizes, smoke),
        packages=("torchrl", "tensordict", "stable_baselines3", "cpprb", "lz4"),
        repeats=5,
        close=bench.close,
        settings={"batch": 128, "segment": SEGMENT},
    )


def gates(sizes: dict[str, dict[int, list[str]]], smoke: bool) -> list[Gate]:
    lidar, grids = sorted(sizes["LiDAR"]), sorted(sizes["grids"])

    def over(
        metric: str, task: str, frames: int, *peers: str, inverse: bool = False
    ) -> Callable[[Results], float]:
        """Return what tells how many times better ours is than the best of its peers."""
        ours, pairs = label_of(task, frames, OURS), [label_of(task, frames, peer) for peer in peers]
        if inverse:
            return lambda results: min(results.ratio(metric, ours, theirs) for theirs in pairs)
        return lambda results: min(results.ratio(metric, theirs, ours) for theirs in pairs)

    if smoke:  # sizes only: timings of a few frames mean nothing
        return [
            Gate(
                "LiDAR: times smaller than LazyTensorStorage",
                over("bytes", "LiDAR", lidar[-1], TORCHRL),
                at_least=2,
            )
        ]
    small, middle, large = lidar
    smaller = over("bytes", "LiDAR", middle, TORCHRL)
    faster_than_list = over("batch", "LiDAR", small, LIST)
    faster_than_frame = over("batch", "LiDAR", middle, *FRAME)
    # LZ4 at level 9 is the design of the documents; the default level is quicker and larger
    documented = FRAME[0]
    added = over("added", "LiDAR", middle, documented, inverse=True)
    grids_added = over("added", "grids", grids[0], documented, inverse=True)
    added_quick = over("added", "LiDAR", middle, *FRAME, inverse=True)
    return [
        Gate("LiDAR: times smaller than LazyTensorStorage", smaller, at_least=6),
        Gate("LiDAR: batches faster than CompressedListStorage", faster_than_list, at_least=8),
        Gate("LiDAR: batches faster than LZ4 per frame", faster_than_frame, at_least=4),
        Gate(
            "LiDAR: a batch of 1e6 frames over one of 1e5",
            lambda results: results.ratio(
                "batch", label_of("LiDAR", large, OURS), label_of("LiDAR", middle, OURS)
            ),
            at_most=1.3,
        ),
        Gate(
            "grids: times smaller than LazyTensorStorage",
            over("bytes", "grids", grids[-1], TORCHRL),
            at_least=4,
        ),
        Gate(
            "grids: speed of LazyTensorStorage",
            over("batch", "grids", grids[-1], TORCHRL),
            at_least=0.8,
        ),
        Gate("LiDAR: frames added faster than LZ4-9 per frame", added, at_least=20),
        Gate("grids: frames added faster than LZ4-9 per frame", grids_added, at_least=20),
        Gate("LiDAR: times smaller than LazyTensorStorage", smaller, at_least=7, stretch=True),
        Gate(
            "LiDAR: batches faster than CompressedListStorage",
            faster_than_list,
            at_least=20,
            stretch=True,
        ),
        Gate("LiDAR: frames added faster than LZ4-9 per frame", added, at_least=30, stretch=True),
        Gate(
            "LiDAR: frames added faster than LZ4 per frame at any level",
            added_quick,
            at_least=20,
            stretch=True,
        ),
    ]
