"""Folders of runs made up for tests: what a training leaves behind, without a training."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from made_flights import made_recording

from navrl.view.replay import write_replay

OUTCOMES = {
    "success_100": 0.8,
    "success_050": 0.78,
    "static_collision": 0.05,
    "dynamic_collision": 0.1,
    "out_of_bounds": 0.01,
    "time_out": 0.04,
}


def condition(success: float) -> dict[str, Any]:
    shares = OUTCOMES | {"success_100": success}
    return {
        "episodes": 256,
        "worlds": 8,
        "outcomes": {
            name: {
                "share": share,
                "standard_error": 0.02,
                "low": max(share - 0.04, 0),
                "high": min(share + 0.04, 1),
            }
            for name, share in shares.items()
        },
    }


def made_run(
    path: Path, *, seed: int = 0, iterations: int = 200, ended: bool = True, **settings: Any
) -> Path:
    """Make the folder of a run and return it."""
    path.mkdir(parents=True)
    flat = {"seed": seed, "max_frame_num": 1000, "env": {"num_obstacles": 350}, **settings}
    (path / "config.yaml").write_text(json.dumps(flat))  # JSON is YAML
    about = {
        "command": f"navrl train seed={seed}",
        "started": "2026-01-02T03:04:05+00:00",
        "machine": {"processor": "a processor", "cores": 2},
        "versions": {"navrl": "0.1.0"},
        "git": {"commit": "0123456789abcdef"},
        **({"finished": {}} if ended else {}),
    }
    (path / "run.json").write_text(json.dumps(about))
    with (path / "metrics.jsonl").open("w") as file:
        for record in _records(iterations, seed):
            file.write(json.dumps(record) + "\n")
    if ended:
        conditions = {"standard": condition(0.9), "crossing": condition(0.8)}
        (path / "evaluation.json").write_text(json.dumps({"conditions": conditions}))
        recording = made_recording(flights=6, frames=30)
        (path / "recordings").mkdir()
        recording.save(path / "recordings" / "crossing.npz")
        write_replay(recording, path / "replay.html")
    return path


def _records(iterations: int, seed: int) -> list[dict[str, Any]]:
    records: list[dict[str, Any]] = []
    for i in range(1, iterations + 1):
        rise = 1 - math.exp(-i / 80) + 0.002 * seed
        train = {"episode/success_100": 0.8 * rise, "episode/return": 10 * rise, "kl": 0.01}
        records.append({"kind": "train", "iteration": i, "frames": 1000 * i, **train})
        if i % 50 == 0:
            conditions = {"standard": condition(0.85 * rise), "crossing": condition(0.7 * rise)}
            evaluation = {"frames": 1000 * i, "seconds": 2.0 * i, "conditions": conditions}
            records.append({"kind": "eval", "iteration": i, **evaluation})
        if i % 100 == 0:
            records.append({"kind": "perf", "iteration": i, **_performance(i)})
    return records


def _performance(iteration: int) -> dict[str, float]:
    return {
        "perf/data_collection": 0.5,
        "perf/policy_training": 1.0,
        "perf/evaluation": 4.0,
        "perf/checkpoint_save": 0.01,
        "perf/frames_per_second": 600.0,
        "checkpoint/total_saved": iteration // 50,
        "checkpoint/failed": 0,
        "checkpoint/stored_bytes": 1e6 * iteration,
        "checkpoint/compression_ratio": 1.2,
        "checkpoint/stall_ms_p50": 0.25,
        "checkpoint/stall_ms_p99": 0.5,
        "checkpoint/stall_ms_max": 0.75,
        "memory/peak_mb": 1234.0,
    }
