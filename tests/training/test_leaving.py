"""How a rank other than 0 ends when a signal stopped rank 0, under torchrun and without it."""

from __future__ import annotations

import signal

import pytest

from navrl.training.distributed import launched
from navrl.training.distributed.launched import Place, leave_as_asked
from navrl.training.distributed.team import TeamError


def place(*, machines: int, store: str = "") -> Place:
    return Place(rank=1, size=2, local_rank=0, machines=machines, restarts=0, store=store)


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    monkeypatch.setattr(launched, "_NOTICE", 0.0)
    monkeypatch.setattr(launched, "_received", [])


def test_a_rank_on_a_machine_that_was_not_told_to_stop_fails_so_that_its_agent_goes_on():
    with pytest.raises(TeamError, match="continues with the machines that are left"):
        leave_as_asked(place(machines=2))


def test_a_rank_that_its_own_agent_stops_returns():
    launched._remember(signal.SIGTERM, None)
    leave_as_asked(place(machines=2))


@pytest.mark.parametrize("here", [place(machines=1), place(machines=2, store="ranks")])
def test_a_rank_returns_if_its_launcher_is_that_of_rank_0(here):
    leave_as_asked(here)
