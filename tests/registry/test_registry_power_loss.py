"""Power loss at every moment of a registration: what `register` returned is there, and whole.

SQLite writes its files in C, so the operations are recorded by strace. The long mode adds random
states at every moment: `NAVRL_TORTURE=20 pytest tests/registry/test_registry_power_loss.py`.
"""

from __future__ import annotations

import itertools
import os
import shutil
import sys

import pytest

from injected import ROUNDS
from navrl.registry import Registry
from power_loss import write_tree
from power_loss_trace import STRACE, record_with_strace

VERSIONS = (1, 2, 3)
PROGRAM = """
import os, pathlib, sys
from navrl.registry import Registry
root, marks = sys.argv[1:]
file = pathlib.Path(marks).with_suffix(".model")
told = os.open(marks, os.O_WRONLY | os.O_CREAT)
with Registry(root) as registry:
    for version in (1, 2, 3):
        file.write_text(f"model {version}" * 1000)
        registry.register("policy", file, lineage={"git": {}})
        os.write(told, b"%d" % version)
"""


@pytest.mark.slow
@pytest.mark.skipif(STRACE is None, reason="needs strace to see what SQLite does")
def test_what_was_registered_survives_a_power_loss_at_any_moment(
    quick_folder, monkeypatch, injected
):
    disk = quick_folder / "disk"
    disk.mkdir()
    recording = record_with_strace([sys.executable, "-c", PROGRAM, str(disk / "registry")], disk)
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    numbers = itertools.count()
    for mark, tree in recording.crashes(randomly=ROUNDS, seed=ROUNDS):
        folder = write_tree(tree, quick_folder / f"crash{next(numbers)}")
        check(folder / "registry", mark or 0)
        shutil.rmtree(folder)
    injected.add(next(numbers))
    assert injected.faults > 50


def check(folder, mark):
    """Look for what a crash left, as the next use of the registry would."""
    with Registry(folder) as registry:
        if mark == 0 and not registry.models():
            return
        versions = registry.versions("policy")
        latest = registry.resolve("policy:latest").version
        assert latest == len(versions) >= max(1, mark)
        for version in versions:
            assert version.path.read_text() == f"model {version.version}" * 1000
