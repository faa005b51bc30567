"""Writes the golden file; run it again only when the version of the format changes."""

from pathlib import Path

import numpy as np

from navrl.io.container import ArraySource, write_container


def write_golden(path: Path) -> None:
    numbers = np.array([1, -2, 3], "<i2")
    tree = {"dict": [["x", {"ndarray": 0}]]}
    document = {"kind": "checkpoint", "created": 0.0, "metadata": {"note": "golden"}, "state": tree}
    write_container(path, [ArraySource("x", "int16", (3,), numbers.view(np.uint8))], document)


if __name__ == "__main__":
    write_golden(Path(__file__).with_name("golden.navrl"))
