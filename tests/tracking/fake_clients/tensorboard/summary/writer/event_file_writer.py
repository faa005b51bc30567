"""Writes steps to $FAKE_CLIENT/events, and hangs where $FAKE_CLIENT/hang says so.

`hang` holds `write` or `close`, and the number of calls that hang.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

FOLDER = Path(os.environ["FAKE_CLIENT"])


def hang(call):
    """Hang for ever if the test wants it, and note the process that does."""
    orders = FOLDER / "hang"
    wanted, count = orders.read_text().split() if orders.exists() else ("nothing", 0)
    if wanted != call or int(count) == 0:
        return
    orders.write_text(f"{wanted} {int(count) - 1}")
    with open(FOLDER / "hung", "a") as file:
        file.write(f"{os.getpid()}\n")
    while True:
        time.sleep(60)


class EventFileWriter:
    def __init__(self, folder, flush_secs):
        (FOLDER / "process").write_text(str(os.getpid()))

    def add_event(self, event):
        hang("write")
        with open(FOLDER / "events", "a") as file:
            file.write(f"{event['step']}\n")

    def flush(self):
        pass

    def close(self):
        hang("close")
