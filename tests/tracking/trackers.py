"""Starts trainings with trackers in processes of their own, and finds their workers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent


def start_trainer(folder, settings, **order):
    """Start a training in a process of its own."""
    order = {"folder": str(folder), "settings": settings, "steps": 20, "every": 5} | order
    command = [sys.executable, str(HERE / "trainer.py"), json.dumps(order)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def result_of(trainer):
    """Wait for a training and return what it has measured."""
    output, _ = trainer.communicate(timeout=120)
    assert trainer.returncode == 0
    return json.loads(output.splitlines()[-1])


def processes_of(folder, tracker=None):
    """Return the process ids of the workers of a run, or of the one to a tracker."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                words = Path(f"/proc/{entry}/cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            ours = b"navrl.tracking.delivery_worker" in words and str(folder).encode() in words
            if ours and (tracker is None or tracker.encode() in words):
                found.append(int(entry))
    return found


def wait_for(condition, seconds=20.0):
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "it did not come to pass"
        time.sleep(0.05)
