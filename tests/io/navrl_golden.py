"""Writes the golden file; run it again only when the version of the format changes."""

from pathlib import Path

import numpy as np

from navrl.io.container.container_writer import ArraySource, write_container


def write_golden(path: Path) -> None:
    numbers = np.array([1, -2, 3], "<i2")
    tree = {"dict": [["x", {"ndarray": 0}]]}
    document = {"kind": "checkpoint", "created": 0.0, "metadata": {"note": "golden"}, "state": tree}
    write_container(path, [ArraySource("x", "int16", (3,), numbers.view(np.uint8))], document)


def golden_rollout() -> np.ndarray:
    """Return (2, 12, 2048) numbers, most of which stay as they are from step to step."""
    numbers = np.tile(np.arange(2048, dtype="<u2"), (2, 12, 1))
    numbers[1, 7, ::3] += 300
    return numbers


def write_golden_rollout(path: Path) -> None:
    numbers = golden_rollout()
    document = {
        "kind": "rollout",
        "created": 0.0,
        "metadata": {},
        "state": {"dict": [["x", {"ndarray": 0}]]},
    }
    said = {
        "iteration": 0,
        "envs": 2,
        "steps": 12,
        "time_first": False,
        "rows": [0],
        "error_bounds": {},
        "tensordicts": None,
    }
    source = ArraySource(
        "x", "uint16", numbers.shape, numbers.reshape(-1).view(np.uint8), codec="time-delta-zstd"
    )
    write_container(path, [source], {**document, "rollout": said})


if __name__ == "__main__":
    write_golden_rollout(Path(__file__).with_name("rollout_000000000.navrl"))
    write_golden(Path(__file__).with_name("golden.navrl"))
