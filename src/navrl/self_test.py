"""What `navrl doctor` looks at: versions, places on the disk, extras, and a trial of each part."""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Finding", "extras", "places", "trials"]


@dataclass(frozen=True)
class Finding:
    """One line of the report."""

    name: str
    ok: bool
    detail: str


def extras() -> dict[str, list[str]]:
    """Return the extras of this package, each with those of its packages that are missing."""
    wanted: dict[str, list[str]] = {}
    for requirement in importlib.metadata.requires("navrl") or ():
        package = re.match(r"[\w.-]+", requirement)
        extra = re.search(r"extra == ['\"]([\w-]+)['\"]", requirement)
        if package and extra and package[0] != "navrl":
            wanted.setdefault(extra[1], []).append(package[0])
    return {
        extra: [name for name in names if not _is_installed(name)]
        for extra, names in sorted(wanted.items())
    }


def _is_installed(name: str) -> bool:
    try:
        importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def places() -> Iterator[Finding]:
    """Yield the folders that navrl writes to, and whether it can."""
    from navrl.kernel_cache import storage
    from navrl.registry.registry import default_root

    for name, folder in (
        ("compiled kernels", storage()),
        ("registry of models", default_root()),
        ("current folder", Path.cwd()),
    ):
        existing = next(place for place in (folder, *folder.parents) if place.exists())
        free = shutil.disk_usage(existing).free / 1e9
        writable = os.access(existing, os.W_OK | os.X_OK)
        detail = f"{folder}, {free:.0f} GB free" if writable else f"{folder}: cannot be written to"
        yield Finding(name, writable, detail)


def trials() -> Iterator[Finding]:
    """Yield how each part does on this machine; a failure is a finding, not an exception."""
    for name, trial in (
        ("simulator", _simulate),
        ("policy", _decide),
        ("checkpoint", _save_and_load),
    ):
        yield _tried(name, trial)


def _tried(name: str, trial: Callable[[], str]) -> Finding:
    try:
        return Finding(name, True, trial())
    except Exception as error:
        return Finding(name, False, f"{type(error).__name__}: {error}")


def _simulate() -> str:
    """Fly for half a second of real time; return the speed."""
    import torch

    from navrl.sim.env import NavigationEnv
    from navrl.sim.settings import NavigationSettings

    env = NavigationEnv(NavigationSettings.of(env__num_envs=4096, env__num_worlds=4))
    action, out = torch.zeros(4096, 3), env.make_step()
    env.step(action, out=out)  # compiles, or loads what was compiled
    start, steps = time.perf_counter(), 0
    while time.perf_counter() - start < 0.5:
        env.step(action, out=out)
        steps += 4096
    rate = steps / (time.perf_counter() - start)
    return f"{rate / 1e6:.2f} million steps a second (4096 drones, for half a second)"


def _decide() -> str:
    """Let the policy in the package decide for some drones."""
    from navrl.evaluation import load_policy
    from navrl.sim.env import NavigationEnv
    from navrl.sim.settings import NavigationSettings

    settings = NavigationSettings.of(env__num_envs=8, env__num_worlds=1)
    policy = load_policy("pretrained", settings)
    action = policy.act(NavigationEnv(settings).reset())
    if not action.isfinite().all():
        raise ArithmeticError("the policy in the package commands values that are not finite")
    return "the policy in the package loads and decides"


def _save_and_load() -> str:
    """Write a checkpoint, read it back and compare."""
    import torch

    from navrl.io import AsyncCheckpointSaver, load_checkpoint

    state = {"weights": torch.randn(250_000)}
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:
        path = Path(folder) / "checkpoint.pt"
        start = time.perf_counter()
        with AsyncCheckpointSaver() as saver:
            saver.save_async(state, path)
        milliseconds = 1000 * (time.perf_counter() - start)
        if not torch.equal(load_checkpoint(path)["weights"], state["weights"]):
            raise ValueError("a checkpoint came back with other values than it was saved with")
    return f"1 MB is on the disk in {milliseconds:.0f} ms and comes back identical"
