"""The replay benchmark is fair: peers hold the frames they were given, and gates compare with the
best of them.
"""

from __future__ import annotations

import importlib
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from navrl.benchmark import Results

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
pytest.importorskip("lz4")


@pytest.fixture
def benchmark(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    names = ("_replay_data", "_replay_buffers", "replay")
    yield [importlib.import_module(name) for name in names]
    for name in names:
        sys.modules.pop(name, None)


def flights(count: int = 1200) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    seen = rng.normal(size=(count + 1, 6)).astype(np.float32)
    frames = {
        "observation": seen[:-1].copy(),
        "action": rng.normal(size=(count, 3)).astype(np.float32),
        "reward": np.arange(count, dtype=np.float32),
        "terminated": np.zeros(count, bool),
        "truncated": rng.random(count) < 0.05,
        "next/observation": seen[1:].copy(),
    }
    frames["next/observation"][frames["truncated"]] += 100
    return frames


@pytest.mark.parametrize(
    "name",
    ["navrl", "navrl, in turns", "cpprb", "LZ4-9 per frame", "LZ4 per frame", "LZ4-9 per episode"],
)
def test_every_buffer_holds_the_true_next_observations(benchmark, name):
    _, buffers, replay = benchmark
    if name == "cpprb":
        pytest.importorskip("cpprb")
    base = flights()
    buffer = buffers.BUFFERS[name](1200, base)
    given = {}
    for segment in replay.segments(name, base, 1200):
        buffer.add(segment)
        rows = zip(segment["observation"], segment["next/observation"], strict=True)
        given |= {now.tobytes(): after.tobytes() for now, after in rows}
    for draw in [buffer.sample, *([buffer.threaded] if hasattr(buffer, "threaded") else [])] * 4:
        batch = draw()
        after = batch["next_observation" if name == "cpprb" else "next/observation"]
        for now, then in zip(np.asarray(batch["observation"]), np.asarray(after), strict=True):
            assert given[now.tobytes()] == then.tobytes()


def test_drones_that_take_turns_fly_on_where_they_were(benchmark):
    data, _, _ = benchmark
    steps = list(data.in_turns(flights(), 256 * 5))
    assert all(len(step["reward"]) == 256 for step in steps)
    for now, then in pairwise(steps):
        goes_on = ~now["truncated"]
        assert (now["next/observation"][goes_on] == then["observation"][goes_on]).all()


def test_gates_compare_batches_with_the_better_lz4_level_and_adding_with_the_documented_one(
    benchmark,
):
    _, _, replay = benchmark
    results = Results()
    for (name, batch), added in zip(
        {"navrl": 1.0, "LZ4-9 per frame": 5.0, "LZ4 per frame": 6.0}.items(),
        (90, 3, 9),
        strict=True,
    ):
        for task, frames in (("LiDAR", 100_000), ("grids", 10_000)):
            results.add(replay.label_of(task, frames, name), {"batch": batch, "added": added})
    found = {
        gate.name: gate.value(results)
        for gate in replay.gates(replay.SIZES, smoke=False)
        if "per frame" in gate.name
    }
    assert found == {
        "LiDAR: batches faster than LZ4 per frame": 5.0,
        "LiDAR: frames added faster than LZ4-9 per frame": 30.0,
        "grids: frames added faster than LZ4-9 per frame": 30.0,
        "LiDAR: frames added faster than LZ4 per frame at any level": 10.0,
    }
