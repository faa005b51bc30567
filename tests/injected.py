"""How often the hostile tests inject something, and how many rounds of it they are asked for.

`NAVRL_TORTURE` multiplies the rounds; `make torture` sets it, and reads the counts from pytest's
XML.
"""

from __future__ import annotations

import os

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
