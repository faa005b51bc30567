"""Compiles the simulator's step in a second process, while this one compiles the rest.

The step takes as long as all other kernels of a flight together, and numba compiles one function at
a time in a process. The kernels that begin episodes are compiled there too: they share functions
with the step. Nothing is started once they are on disk, or with a single core.

    if start():      # True while the other process compiles
        ...          # compile what does not need the step
        wait()
"""

from __future__ import annotations

import atexit
import subprocess
import sys

from navrl import kernel_cache
from navrl.machine import usable_cores

__all__ = ["compile_step", "is_on_disk", "start", "wait"]

LAST = "sim.kernels.step_kernel.reset_where-*.nbc"  # is written after the step
# Without garbage collection: compiling makes millions of objects, and nearly all of them stay.
PROGRAM = (
    "import gc; gc.disable(); "
    "from navrl.evaluation.simulator_compiler import compile_step; compile_step()"
)

_child: subprocess.Popen[bytes] | None = None


def compile_step() -> None:
    """Compile the step and the kernels that share functions with it, by calls on no drones."""
    import numpy as np

    from navrl.sim.kernels import step_kernel
    from navrl.sim.kernels.layout import ARRAYS, PARAMETERS

    record, arrays = np.zeros(1, PARAMETERS), np.zeros(len(ARRAYS), np.int64)
    actions, mask = np.zeros((0, 3), np.float32), np.zeros(0, np.bool_)
    flight = (step_kernel.step_address(), record, arrays, arrays, actions, 0, 0, False, 0)
    step_kernel.step_serial(*flight)
    step_kernel.first_bad_action(actions, 1.0)
    step_kernel.begin_worlds(record, arrays)
    step_kernel.reset_where(record, arrays, mask)
    step_kernel.step_parallel(*flight)


def is_on_disk() -> bool:
    """Tell whether the compiled step is in the cache, without loading anything."""
    folders = [root / kernel_cache.key() for root in kernel_cache._roots()]
    return any(True for folder in folders for _ in folder.glob(LAST))


def start() -> bool:
    """Start the other process if it is of use; return whether one is compiling."""
    global _child
    if _child is not None:
        return True
    if usable_cores() < 2 or kernel_cache._only_loading or is_on_disk():
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
