"""Progress of flights on the terminal: a bar for each condition."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

    from navrl.evaluation.run import Progress, Watch

__all__ = ["watching"]


@contextmanager
def watching(console: Console) -> Iterator[Watch]:
    """Show a bar for each condition; without a terminal, a line when one has ended."""
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bars

    console.print(
        "Flying unseen worlds (the first run compiles the simulator)", style="bold", highlight=False
    )
    columns = (
        TextColumn("{task.description}: episodes ended"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Bars(*columns, console=console, transient=True) as bars:

        @contextmanager
        def watch(policy: str, label: str, episodes: int) -> Iterator[Progress]:
            start = time.perf_counter()
            bar = bars.add_task(f"{policy}, {label}", total=episodes)
            yield lambda ended, of: bars.update(bar, completed=ended)
            bars.remove_task(bar)
            if not console.is_terminal:
                seconds = time.perf_counter() - start
                console.print(f"{policy}, {label}: {seconds:.1f} s", highlight=False)

        yield watch
