"""kill -9 at any moment, and many processes at once: the registry stays whole and consistent."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from injected import ROUNDS
from navrl.registry import Registry

NO_GIT = {"git": {}}  # told, so that nobody has to ask

PROCESSES, MOVES = 8, 500  # and as many of an alias that all share


def in_processes(*acts: Callable[[], object]) -> None:
    """Fork a process for each act, let all begin at once, and wait until they have ended well."""
    blocked, gate = os.pipe()
    children = []
    for act in acts:
        child = os.fork()
        if child == 0:
            code = 1
            try:
                os.close(gate)
                os.read(blocked, 1)  # nobody writes: it ends when the gate is closed
                act()
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)
        children.append(child)
    os.close(gate)
    os.close(blocked)
    assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [0] * len(
        children
    )


@pytest.mark.slow
@pytest.mark.skipif(
    sys.platform != "linux", reason="stops a process at its system calls as Linux does"
)
def test_killed_before_any_change_of_the_disk_a_registry_is_as_before_or_as_after(
    quick_folder, injected
):
    command = [sys.executable, str(Path(__file__).with_name("killing.py")), str(quick_folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    if "Errno 1] ptrace" in done.stderr:
        pytest.skip("nobody may trace a process here")
    assert done.returncode == 0, done.stderr
    seen = {line.pop("scenario"): line for line in map(json.loads, done.stdout.splitlines())}
    assert seen.keys() == {"register", "lost", "promote", "prune", "first"}
    for scenario, counts in seen.items():
        injected.add(counts["kills"])
        assert counts["kills"] >= 10, scenario
        assert counts["before"] > 1, scenario  # some kills came before the commit,
        # and some behind it: more than the run that nobody killed
        assert counts["after"] > 1, scenario


@pytest.fixture
def shared(quick_folder):
    """A registry that others open too, with sixteen versions of a model."""
    (quick_folder / "file").write_text("model")
    with Registry(quick_folder / "registry") as registry:
        for _ in range(16):
            registry.register("policy", quick_folder / "file", lineage=NO_GIT)
        yield registry


@pytest.mark.slow
@pytest.mark.parametrize("number", range(ROUNDS))
def test_eight_processes_move_an_alias_and_no_move_is_lost(shared, number):
    def move(number: int) -> None:
        with Registry(shared.root) as registry:
            for i in range(MOVES):
                registry.set_alias("policy", "best", f"v{1 + (2 * i + number % 2) % 16}")
                registry.set_alias("policy", f"own-{number}", 1 + i % 16)

    in_processes(*(partial(move, number) for number in range(PROCESSES)))
    history = shared.history("policy", "best")
    assert history[0].old is None
    for earlier, later in itertools.pairwise(history):
        assert later.old == earlier.new  # each move saw the one before it
    assert history[-1].new == shared.resolve("policy:best").version
    for number in range(
        PROCESSES
    ):  # what nobody else touches moved every time, and ends where it was put last
        assert [move.new for move in shared.history("policy", f"own-{number}")] == [
            1 + i % 16 for i in range(MOVES)
        ]
    assert shared.verify() == []


def test_what_many_processes_add_to_one_version_is_all_there(shared):
    def add(number: int) -> None:
        for i in range(25):
            # the same object: each process opens a connection of its own
            shared.tag("policy:v1", [f"tag-{number}-{i}"])

    in_processes(*(partial(add, number) for number in range(4)))
    assert set(shared.resolve("policy:v1").tags) == {
        f"tag-{number}-{i}" for number in range(4) for i in range(25)
    }


@pytest.mark.slow
@pytest.mark.parametrize("number", range(ROUNDS))
def test_collecting_garbage_beside_registering_never_takes_a_file_that_is_needed(
    quick_folder, number
):
    root = quick_folder / "registry"

    def register(number: int) -> None:
        file, name = quick_folder / f"file-{number}", f"policy-{number}"
        with Registry(root) as registry:
            for i in range(30):
                file.write_text(f"model {i % 4}")  # the same four contents in all processes
                version = registry.register(name, file, lineage=NO_GIT)
                if i % 3 == 2:
                    registry.delete(name, version.version, force=True)
        (root / f"done-{number}").touch()

    def collect() -> None:
        with Registry(root) as registry:
            while len(list(root.glob("done-*"))) < 3:
                registry.collect_garbage()

    in_processes(collect, *(partial(register, number) for number in range(3)))
    with Registry(root) as registry:
        assert registry.verify() == []
        assert [model.versions for model in registry.models()] == [20, 20, 20]
        registry.collect_garbage()
        assert len([path for path in (root / "objects").glob("??/*") if path.is_file()]) == 4


@pytest.mark.parametrize(
    "step",
    ["navrl.registry.blob_contents.read_contents", "navrl.registry.provenance.gather_lineage"],
)
def test_a_file_that_is_collected_before_anything_refers_to_it_is_placed_again(
    registry, put, monkeypatch, step
):
    module, function = step.rsplit(".", 1)
    original = getattr(sys.modules[module], function)
    collected = []

    def collecting_first(*arguments):
        if not collected:
            with Registry(registry.root) as other:
                collected.extend(other.collect_garbage().quarantined)
        return original(*arguments)

    monkeypatch.setattr(step, collecting_first)
    version = put()
    assert collected == [version.path]
    assert version.path.is_file()
    assert registry.verify() == []


def test_many_processes_make_the_registry_at_once(quick_folder):
    (quick_folder / "file").write_text("model")

    def create() -> None:
        Registry(quick_folder / "registry").register(
            "policy", quick_folder / "file", lineage=NO_GIT
        )

    in_processes(*[create] * 6)
    with Registry(quick_folder / "registry") as registry:
        assert [version.version for version in registry.versions("policy")] == [1, 2, 3, 4, 5, 6]
        assert registry.resolve("policy").version == 6
