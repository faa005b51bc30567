"""Team: the same bits in every process, and a dead one is an error of the others."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from navrl.training.distributed.team import Team, TeamError
from teams import team_of

pytestmark = pytest.mark.slow


def own_values(rank: int) -> torch.Tensor:
    """Return numbers whose sum depends on the order of addition."""
    return torch.randn(
        10_001, generator=torch.Generator().manual_seed(rank)
    ) * 10.0 ** torch.arange(10_001).remainder(7)


LENGTHS = range(0, 1200, 40)  # bytes: some fit beside their size, some do not


def longer(length: int) -> torch.Tensor:
    return torch.arange(length).to(torch.uint8)


def talk(team: Team) -> list[dict[str, Any]]:
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
        "longer": [team.broadcast(longer(n) if team.leads else None) for n in LENGTHS],
        "own": team.scatter([{"for": torch.tensor(rank)} for rank in range(team.size)]),
        "threads": torch.get_num_threads(),
        "listens on": listening(os.getpid()),
    }
    return team.gather(seen)


def answer(team: Team) -> None:
    assert talk(team) == []  # only the leader is told


def listening(process: int) -> list[str]:
    """Return the addresses, in hexadecimal, that a process listens on."""
    if sys.platform != "linux":
        return []
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


def other_interface() -> str:
    """Return the interface of this machine's first route to other machines, or nothing."""
    if sys.platform != "linux":
        return ""
    return next(
        (row.split()[0] for row in Path("/proc/net/route").read_text().splitlines()[1:]), ""
    )


@pytest.fixture(scope="module")
def conversation():
    """What two processes saw of each other, and the threads that torch had before and after."""
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GLOO_SOCKET_IFNAME", other_interface())
        with team_of(2, answer) as team:
            seen = talk(team)
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


def test_every_process_gets_what_the_leader_broadcasts_and_its_own_of_what_it_scatters(
    conversation,
):
    for seen in conversation[0]:
        assert seen["shared"] == {"plan": [1, 2], "from": os.getpid()}
        assert seen["own"] == {"for": torch.tensor(seen["rank"])}


def test_a_broadcast_of_any_length_arrives_whole(conversation):
    for seen in conversation[0]:
        assert all(map(torch.equal, seen["longer"], map(longer, LENGTHS)))


def test_each_process_has_one_thread_while_it_is_in_the_team(conversation):
    assert [seen["threads"] for seen in conversation[0]] == [1, 1]
    assert conversation[1] == 3
    assert not torch.distributed.is_initialized()


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_team_on_one_machine_listens_on_loopback_alone(conversation):
    addresses = [address for seen in conversation[0] for address in seen["listens on"]]
    assert addresses
    assert set(addresses) <= {"0100007F", "00000000000000000000000001000000"}


def test_a_team_of_one_needs_nobody():
    values, team = own_values(0), Team()
    team.all_reduce(values)
    assert torch.equal(values, own_values(0))
    assert team.gather("mine") == ["mine"]
    assert team.broadcast("mine") == team.scatter(["mine"]) == "mine"
    assert team.leads
    assert not torch.distributed.is_initialized()


def die(team: Team) -> None:
    team.broadcast(None)
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_process_that_dies_is_an_error_of_the_leader():
    with team_of(2, die) as team:
        team.broadcast("begin")
        with pytest.raises(TeamError, match=r"a training process has died.*resume=auto"):
            team.all_reduce(torch.zeros(8))
