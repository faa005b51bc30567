"""Serve one contestant: built once, then one iteration for each line on the standard input, one
line of JSON back.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from typing import Protocol

import torch

from _training_peers.task import Task


class Contestant(Protocol):
    """What a module's `make(task)` returns."""

    def iterate(self) -> tuple[float, float]:
        """Run one whole iteration; return the seconds of collection and those of the update."""
        ...


def serve(name: str, task: Task) -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a library prints is no answer
    torch.set_num_threads(task.threads)
    torch.manual_seed(0)
    contestant: Contestant = importlib.import_module(f"_training_peers.{name}").make(task)
    for _ in sys.stdin:
        start = time.perf_counter()
        collection, update = contestant.iterate()
        total = time.perf_counter() - start
        answers.write(
            json.dumps({"total": total, "collection": collection, "update": update}) + "\n"
        )
        answers.flush()


if __name__ == "__main__":
    serve(sys.argv[1], Task(**json.loads(sys.argv[2])))
    sys.stdout.flush()
    os._exit(0)  # collectors and trackers leave threads behind that hold up an orderly end
