"""A team for tests: this process is rank 0, and the other ranks are new processes."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch.distributed import FileStore

from navrl.training.distributed.team import Team, connected

# New processes are forked from one that has imported what they need, which takes seconds, and has
# done nothing else.
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["navrl.training.loop", "navrl.training.ppo_trainer"])


def _other(
    rank: int,
    size: int,
    store: Path,
    environment: dict[str, str],
    target: Callable[..., Any],
    arguments: Any,
) -> None:
    os.environ.clear()
    os.environ.update(environment)  # of now: its parent has that of its own start
    with connected(rank, size, FileStore(str(store), size), one_machine=True) as team:
        target(team, *arguments)


@contextmanager
def team_of(size: int, target: Callable[..., Any], *arguments: Any) -> Iterator[Team]:
    """Yield rank 0 of a team whose other ranks run `target(team, *arguments)`."""
    if size == 1:
        yield Team()
        return
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder) / "store"
        others = [
            PROCESSES.Process(
                target=_other,
                args=(rank, size, store, {**os.environ}, target, arguments),
                daemon=True,
            )
            for rank in range(1, size)
        ]
        for other in others:
            other.start()
        try:
            with connected(0, size, FileStore(str(store), size), one_machine=True) as team:
                yield team
            for other in others:
                other.join(60)
        finally:
            for other in others:
                other.kill()
                other.join()
