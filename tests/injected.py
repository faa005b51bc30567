"""How often the hostile tests inject something, and how many rounds of it they are asked for.

`NAVRL_TORTURE` multiplies the rounds; `make torture` sets it, and reads the counts from pytest's
XML.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

ROUNDS = int(os.environ.get("NAVRL_TORTURE", "1"))


class Injected:
    """Counts faults by kind, for the report of `make torture`."""

    def __init__(self) -> None:
        self.faults = 0

    def add(self, number: int = 1) -> None:
        self.faults += number


@pytest.fixture
def injected(record_property):
    """Return a counter whose value goes into the test's report."""
    counter = Injected()
    yield counter
    record_property("injected", counter.faults)


@pytest.fixture
def one_fault(injected):
    """Count one fault: for modules in which every test feeds the program one bad file."""
    injected.add()


@pytest.fixture
def memory_folder(tmp_path):
    """Return a folder in memory, or on disk where there is none.

    For tests that write a bad file a million times: a disk would be busy with files that nobody
    keeps.
    """
    if not os.access("/dev/shm", os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(prefix="navrl-", dir="/dev/shm") as folder:
        yield Path(folder)
