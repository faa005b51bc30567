"""Team: the same bits in every process, and nobody left waiting or left behind when one of them
goes.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from navrl.training.distributed.team import Team, TeamError, assemble

pytestmark = pytest.mark.slow

PATIENCE = 120.0  # s, on a machine that has more to do


def own_values(rank: int) -> torch.Tensor:
    """Return numbers whose sum depends on the order of addition."""
    return torch.randn(
        10_001, generator=torch.Generator().manual_seed(rank)
    ) * 10.0 ** torch.arange(10_001).remainder(7)


def talk(team: Team, greeting: str) -> list[dict[str, Any]]:
    """Sum, share and gather once; return at the leader what each process saw."""
    summed, precise = own_values(team.rank), own_values(team.rank).double()
    team.all_reduce(summed)
    team.all_reduce(precise)
    seen = {
        "rank": team.rank,
        "process": os.getpid(),
        "leads": team.leads,
        "summed": summed,
        "precise": precise,
        "shared": team.broadcast({"plan": [1, 2], "from": os.getpid()} if team.leads else None),
        "greeting": greeting,
        "threads": torch.get_num_threads(),
        "leaves ctrl+c to others": signal.getsignal(signal.SIGINT) is signal.SIG_IGN,
    }
    return team.gather(seen)


def follow(team: Team, greeting: str) -> None:
    assert talk(team, greeting) == []  # only the leader is told


def fail(team: Team, how: str) -> None:
    team.broadcast(None)
    if how == "error":
        raise ValueError("this worker cannot go on")
    os.kill(os.getpid(), signal.SIGKILL)


def tell_and_sleep(team: Team, how: str) -> None:
    team.gather(os.getpid())
    if how == "busy":
        time.sleep(600)
    team.broadcast(None)


def lead_for_ever(how: str) -> None:
    """Print the worker's process, then never end."""
    with assemble(2, tell_and_sleep, how) as team:
        print(team.gather(os.getpid())[1], flush=True)
        time.sleep(600)


def lead_into_an_error(workers: list[int]) -> None:
    with assemble(2, tell_and_sleep, "busy") as team:
        workers += team.gather(os.getpid())[1:]
        raise ZeroDivisionError


@pytest.fixture(scope="module")
def conversation():
    """What two processes saw of each other, and the threads that torch had before and after."""
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    with assemble(2, follow, "good morning") as team:
        seen = talk(team, "good morning")
    after = torch.get_num_threads()
    torch.set_num_threads(before)
    return seen, after


def test_a_gathered_value_comes_from_every_process_in_order_of_rank(conversation):
    first, second = conversation[0]
    assert (first["rank"], second["rank"]) == (0, 1)
    assert (first["leads"], second["leads"]) == (True, False)
    assert first["process"] == os.getpid() != second["process"]


def test_every_process_gets_the_sum_in_the_same_bits(conversation):
    first, second = conversation[0]
    for name in ("summed", "precise"):
        assert torch.equal(first[name], second[name])
    assert torch.equal(first["summed"], own_values(0) + own_values(1))
    assert torch.equal(first["precise"], own_values(0).double() + own_values(1).double())


def test_everybody_is_told_what_the_leader_shares(conversation):
    for seen in conversation[0]:
        assert seen["shared"] == {"plan": [1, 2], "from": os.getpid()}


def test_the_others_get_the_argument_have_one_thread_and_leave_interrupts_to_the_leader(
    conversation,
):
    first, second = conversation[0]
    assert second["greeting"] == "good morning"
    assert (first["threads"], second["threads"]) == (1, 1)
    assert second["leaves ctrl+c to others"]
    assert not first["leaves ctrl+c to others"]


def test_the_leader_has_its_threads_back_and_no_process_group_afterwards(conversation):
    assert conversation[1] == 3
    assert not torch.distributed.is_initialized()


def test_the_others_are_gone_afterwards(conversation):
    assert not runs(conversation[0][1]["process"])


def test_a_team_of_one_needs_nobody():
    threads, values = torch.get_num_threads(), own_values(0)
    with assemble(1, follow, "nobody hears this") as team:
        team.all_reduce(values)
        assert torch.equal(values, own_values(0))
        assert team.gather("mine") == ["mine"]
        assert team.broadcast("mine") == "mine"
        assert team.leads
        assert torch.get_num_threads() == threads
        assert not torch.distributed.is_initialized()


@pytest.mark.parametrize("how", ["error", "death"])
def test_a_worker_that_fails_is_an_error_of_the_leader(how):
    threads = torch.get_num_threads()
    with assemble(2, fail, how) as team:
        team.broadcast("begin")
        with pytest.raises(TeamError, match=r"a training process has died.*resume=auto"):
            team.all_reduce(torch.zeros(8))
    assert torch.get_num_threads() == threads
    assert not torch.distributed.is_initialized()


def test_an_error_of_the_leader_ends_the_others():
    workers = []
    with pytest.raises(ZeroDivisionError):
        lead_into_an_error(workers)
    assert len(workers) == 1
    assert not runs(workers[0])


@pytest.mark.parametrize("how", ["busy", "waiting"])
def test_no_worker_outlives_a_leader_that_was_killed(how):
    command = [sys.executable, "-c", f"import test_team; test_team.lead_for_ever({how!r})"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parent
    ) as leader:
        worker = int(leader.stdout.readline())
        assert runs(worker)
        leader.kill()
    end = time.monotonic() + PATIENCE
    while runs(worker) and time.monotonic() < end:
        time.sleep(0.01)
    assert not runs(worker)


def other_interface() -> str:
    """Return the interface of this machine's first route to other machines, or nothing."""
    return next(
        (row.split()[0] for row in Path("/proc/net/route").read_text().splitlines()[1:]), ""
    )


def listening(process: int) -> list[str]:
    """Return the addresses, in hexadecimal, that a process listens on."""
    links = (
        os.readlink(entry) for entry in Path(f"/proc/{process}/fd").iterdir() if entry.is_symlink()
    )
    inodes = {link[len("socket:[") : -1] for link in links if link.startswith("socket:[")}
    rows = [
        row.split()
        for kind in ("tcp", "tcp6")
        for row in Path(f"/proc/net/{kind}").read_text().splitlines()[1:]
    ]
    return [row[1].split(":")[0] for row in rows if row[3] == "0A" and row[9] in inodes]


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_team_listens_on_loopback_alone_and_leaves_no_rendezvous_behind(monkeypatch, tmp_path):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", other_interface())
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with assemble(2, tell_and_sleep, "waiting") as team:
        addresses = [
            address for process in team.gather(os.getpid()) for address in listening(process)
        ]
        assert [*tmp_path.glob("navrl-team-*")] == []
        team.broadcast(None)
    assert addresses
    assert set(addresses) <= {"0100007F", "00000000000000000000000001000000"}


def runs(process: int) -> bool:
    """Return whether a process is there and no zombie."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


class Poison:
    """Ends the process that unpickles it."""

    def __reduce__(self):
        return os._exit, (3,)


def lead_a_worker_that_never_joins() -> None:
    with assemble(2, print, Poison()) as team:
        team.broadcast(None)


def test_a_worker_that_dies_before_it_joins_is_an_error_of_the_leader():
    command = [sys.executable, "-c", "import test_team; test_team.lead_a_worker_that_never_joins()"]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=PATIENCE, cwd=Path(__file__).parent
    )
    assert "TeamError: training process 1 ended with 3" in done.stderr
