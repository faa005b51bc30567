"""The background process that W&B's client starts for a delivery worker.

It would outlive a killed worker, for hours if no server answers.
"""

from __future__ import annotations

import contextlib
import os
import signal
from itertools import pairwise
from pathlib import Path


def client_processes(worker: int) -> list[int]:
    """Return the process ids of W&B's client that were started for a worker."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        words = _command_line(int(entry.name))
        if not words or not words[0].endswith(b"/wandb-core"):
            continue
        if (b"--pid", str(worker).encode()) in pairwise(words):
            found.append(int(entry.name))
    return found


def kill_client_processes(worker: int) -> None:
    """Kill the client processes of a worker that is dead, or is this process."""
    if not worker or (worker != os.getpid() and _command_line(worker)):
        return
    for process in client_processes(worker):
        with contextlib.suppress(OSError):
            os.kill(process, signal.SIGKILL)


def _command_line(process: int) -> list[bytes]:
    """Return the words of a process's command line; empty if it is gone or a zombie."""
    try:
        content = Path(f"/proc/{process}/cmdline").read_bytes()
    except OSError:
        return []
    return content.split(b"\0") if content else []
