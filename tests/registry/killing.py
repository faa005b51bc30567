"""Repeats one operation on a registry, killed at another system call each time, and checks the rest.

Run as `killing.py FOLDER`. Every attempt is a forked process, traced from its first system call to
its last; the kernel stops it there and SIGKILL ends it. Only calls that change the disk are counted.
Prints a line of JSON for each scenario: how many kills, and what they left.
"""

from __future__ import annotations

import ctypes
import json
import os
import platform
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from navrl.registry import Registry

TRACE_ME, CONTINUE_TO_CALL, SET_OPTIONS, CALL_INFO = 0, 24, 0x4200, 0x420E
MARK_CALLS, KILL_WITH_TRACER = 1, 1 << 20
libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
ENTERED = 1
OPEN = 257
# write, pwrite64, writev, fsync, fdatasync, truncate, ftruncate, rename, mkdir, link, unlink,
# symlink, chmod, fchmod, mkdirat, unlinkat, renameat, fchmodat, fallocate, pwritev, renameat2
CHANGING = {
    1,
    18,
    20,
    74,
    75,
    76,
    77,
    82,
    83,
    86,
    87,
    88,
    90,
    91,
    258,
    263,
    264,
    268,
    285,
    296,
    316,
}


class CallInfo(ctypes.Structure):
    """What the kernel tells about a call that a process is stopped at."""

    _fields_ = (
        ("op", ctypes.c_uint8),
        ("arch", ctypes.c_uint32),
        ("instruction", ctypes.c_uint64),
        ("stack", ctypes.c_uint64),
        ("number", ctypes.c_uint64),
        ("arguments", ctypes.c_uint64 * 6),
    )


def trace(request: int, process: int, data: int = 0) -> None:
    if libc.ptrace(request, process, None, data) < 0:
        raise OSError(ctypes.get_errno(), "ptrace")


def is_entering_a_change(process: int) -> bool:
    """Return whether a stopped process is about to change something on the disk; on other machines,
    about to call anything.
    """
    info = CallInfo()
    if libc.ptrace(CALL_INFO, process, ctypes.sizeof(info), ctypes.byref(info)) < 0:
        raise OSError(ctypes.get_errno(), "ptrace")
    if info.op != ENTERED or platform.machine() != "x86_64":
        return info.op == ENTERED
    return info.number in CHANGING or (info.number == OPEN and bool(info.arguments[2] & os.O_CREAT))


def killed_at(number: int, act: Callable[[], object]) -> bool:
    """Fork a process that acts, and kill it when it enters its change of this number; return
    whether it came so far.
    """
    process = os.fork()
    if process == 0:
        trace(TRACE_ME, 0)
        os.kill(os.getpid(), signal.SIGSTOP)
        try:
            act()
        finally:
            os._exit(0 if sys.exc_info()[0] is None else 3)
    os.waitpid(process, 0)
    trace(SET_OPTIONS, process, MARK_CALLS | KILL_WITH_TRACER)
    changes, passed_on = 0, 0
    while True:
        trace(CONTINUE_TO_CALL, process, passed_on)
        _, status = os.waitpid(process, 0)
        if not os.WIFSTOPPED(status):
            if status:
                raise RuntimeError(f"the process ended with status {status} at call {number}")
            return False
        passed_on = 0 if os.WSTOPSIG(status) & 0x80 else os.WSTOPSIG(status)
        changes += not passed_on and is_entering_a_change(process)
        if changes == number:
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)
            return True


def prepare(folder: Path) -> None:
    """Make a registry with four versions and some files to register."""
    folder.mkdir()
    with Registry(folder / "registry") as registry:
        for number in range(1, 6):
            (folder / f"{number}.pt").write_bytes(b"model %d" % number)
        for number in range(1, 5):
            registry.register("policy", folder / f"{number}.pt", lineage={"git": {}})
        registry.promote("policy:v1", "production")
        registry.set_alias("policy", "best", 2)


def register_without_database(registry: Registry, folder: Path) -> None:
    for file in registry.root.glob("registry.db*"):
        file.unlink()
    SCENARIOS["register"](registry, folder)


SCENARIOS: dict[str, Callable[[Registry, Path], object]] = {
    "register": lambda registry, folder: registry.register(
        "policy", folder / "5.pt", aliases=["best"], lineage={"git": {}}
    ),
    "lost": register_without_database,
    "promote": lambda registry, folder: registry.promote("policy:v3", "production"),
    "prune": lambda registry, folder: registry.prune("policy", 1),
    "first": lambda registry, folder: Registry(folder / "new").register(
        "policy", folder / "5.pt", lineage={"git": {}}
    ),
}


def outcome(folder: Path, scenario: str) -> dict[str, object]:
    """Return what can be seen of a registry, after looking for damage."""
    with Registry(folder / ("new" if scenario == "first" else "registry")) as registry:
        damage = registry.verify()
        if damage:
            raise RuntimeError(f"damaged: {damage}")
        versions = registry.versions("policy") if registry.models() else []
        for version in versions:
            if version.path.read_bytes() != b"model %d" % (
                5 if scenario == "first" else version.version
            ):
                raise RuntimeError(f"{version.label} is another file")
        registry.collect_garbage()
        garbage = registry.collect_garbage(dry_run=True)
        stored = {path.name for path in (registry.root / "objects").glob("??/*") if path.is_file()}
        if garbage.files or stored != {version.path.name for version in versions}:
            raise RuntimeError(f"not collected: {stored}, {garbage}")
        state = {version.version: (version.stage, version.aliases) for version in versions}
        history = [
            (move.old, move.new)
            for alias in ("latest", "best", "prod")
            for move in registry_history(registry, alias)
        ]
        return {"state": state, "history": history}


def registry_history(registry: Registry, alias: str) -> list:
    return registry.history("policy", alias) if registry.models() else []


def main(scenario: str, folder: Path) -> None:
    template = folder / "template"
    prepare(template)
    before = outcome(template, scenario)
    done = folder / "done"
    shutil.copytree(template, done)
    with Registry(done / "registry") as registry:
        SCENARIOS[scenario](registry, done)
    after = outcome(done, scenario)
    seen = {"before": 0, "after": 0}
    number = 1
    while True:
        copy = folder / "copy"
        shutil.copytree(template, copy)

        def act(copy: Path = copy) -> object:
            return SCENARIOS[scenario](Registry(copy / "registry"), copy)

        killed = killed_at(number, act)
        left = outcome(copy, scenario)
        if left not in (before, after):
            raise RuntimeError(f"killed at call {number}: {left} is neither {before} nor {after}")
        seen["before" if left == before else "after"] += 1
        shutil.rmtree(copy)
        if not killed:
            break
        number += 1
    print(json.dumps({"scenario": scenario, "kills": number - 1, **seen}))


if __name__ == "__main__":
    for scenario in SCENARIOS:
        (Path(sys.argv[1]) / scenario).mkdir()
        main(scenario, Path(sys.argv[1]) / scenario)
