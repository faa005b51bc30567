"""Lower the priority of threads and processes that share cores with training."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from pathlib import Path

__all__ = ["give_way", "lower_priority"]


def lower_priority(niceness: int) -> None:
    """Raise the niceness of the calling thread.

    On Linux no other thread of the process is affected.
    """
    if niceness and hasattr(os, "setpriority"):
        with contextlib.suppress(OSError):
            _lower(threading.get_native_id(), niceness)


def give_way(process: int, niceness: int) -> None:
    """Raise the niceness of a process, and of its session; without permission nothing happens.

    On Linux niceness counts only within a session, and each session has a niceness of its own. May
    take a second.
    """
    with contextlib.suppress(OSError):
        _lower(process, niceness)
    for _ in range(10):
        try:
            if os.getsid(process) == process:  # otherwise other processes share the session
                Path(f"/proc/{process}/autogroup").write_text(str(niceness))
            return
        except BlockingIOError:  # Linux allows ten such writes a second, of all users together
            time.sleep(0.1)
        except OSError:
            return


def _lower(number: int, niceness: int) -> None:
    os.setpriority(os.PRIO_PROCESS, number, max(niceness, os.getpriority(os.PRIO_PROCESS, number)))
