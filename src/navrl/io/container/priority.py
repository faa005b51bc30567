"""Threads and processes that give way to training where both want the same core."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from pathlib import Path

__all__ = ["give_way", "lower_priority"]


def lower_priority(niceness: int) -> None:
    """Make the calling thread give way to others; on Linux this touches no other thread of the
    process.
    """
    if niceness and hasattr(os, "setpriority"):
        with contextlib.suppress(OSError):
            _lower(threading.get_native_id(), niceness)


def give_way(process: int, niceness: int) -> None:
    """Let a process come after others; where the system does not let it, nothing happens. May take
    a second.

    Niceness counts among the processes of one session; on Linux a session has a niceness of its
    own, beside other sessions.
    """
    with contextlib.suppress(OSError):
        _lower(process, niceness)
    for _ in range(10):
        try:
            if os.getsid(process) == process:  # else the session is somebody else's too
                Path(f"/proc/{process}/autogroup").write_text(str(niceness))
            return
        except BlockingIOError:  # Linux lets users do this ten times a second, all of them together
            time.sleep(0.1)
        except OSError:
            return


def _lower(number: int, niceness: int) -> None:
    os.setpriority(os.PRIO_PROCESS, number, max(niceness, os.getpriority(os.PRIO_PROCESS, number)))
