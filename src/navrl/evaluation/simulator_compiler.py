"""Compiles the simulator's step in a second process, while this one compiles the rest.

The step takes as long as all other kernels of a flight together, and numba compiles one function at
a time in a process. Nothing is started once the step is on disk, or with a single core.

    if start():      # True while the other process compiles
        ...          # compile what does not need the step
        wait()
"""

from __future__ import annotations

import atexit
import os
import subprocess
import sys

from navrl import kernel_cache

__all__ = ["is_on_disk", "start", "wait"]

STEP = "sim.kernels.step_kernel._step_chunk-*.nbc"
PROGRAM = "from navrl.sim.kernels.step_kernel import step_address; step_address()"

_child: subprocess.Popen[bytes] | None = None


def is_on_disk() -> bool:
    """Tell whether the compiled step is in the cache, without loading anything."""
    folders = [root / kernel_cache.key() for root in kernel_cache._roots()]
    return any(True for folder in folders for _ in folder.glob(STEP))


def start() -> bool:
    """Start the other process if it is of use; return whether one is compiling."""
    global _child
    if _child is not None:
        return True
    if _cores() < 2 or kernel_cache._only_loading or is_on_disk():
        return False
    kernel_cache.storage()  # chosen here, so that the child writes to the same folder
    _child = subprocess.Popen([sys.executable, "-c", PROGRAM], stdin=subprocess.DEVNULL)
    atexit.register(_child.kill)
    return True


def wait() -> None:
    """Wait for the other process. What it failed to compile is compiled here on first use."""
    global _child
    if _child is not None:
        atexit.unregister(_child.kill)
        try:
            _child.wait()
        except BaseException:
            _child.kill()
            raise
        finally:
            _child = None


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
