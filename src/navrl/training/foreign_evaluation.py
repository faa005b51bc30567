"""The last evaluation of a policy of a foreign task: a table on the screen, numbers in a file."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console

from navrl import __version__
from navrl.environments.foreign import ForeignTask
from navrl.environments.judging import episode_table, play
from navrl.evaluation import Policy
from navrl.training.run_folder import as_json, write_text

__all__ = ["evaluate_foreign"]


def evaluate_foreign(
    policy: Policy,
    reference: str,
    task: ForeignTask,
    folder: Path,
    console: Console,
    problems: list[str],
    *,
    print_json: bool = False,
) -> dict[str, dict[str, Any]]:
    """Play episodes, print the table or the JSON, write `evaluation.json`; return the numbers.

    Args:
        policy: to be evaluated, deterministic.
        reference: how the user calls it.
        task: with the settings of the evaluation, `flight.*`.
        folder: for the file.
        console: for the table.
        problems: takes a message about a file that could not be written.
        print_json: print what goes into the file instead of the table.
    """
    start = time.perf_counter()
    rows = play(policy, task, console)
    report = {
        "model": reference,
        "policy": policy.name,
        "navrl": __version__,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "seconds": round(time.perf_counter() - start, 2),
        "seed": task.config.flight.seed,
        "conditions": rows,
    }
    if print_json:
        print(as_json(report), end="")
    else:
        console.print(episode_table(rows, policy.name))
    path = folder / "evaluation.json"
    try:
        write_text(path, as_json(report))
    except OSError as error:
        problems.append(f"{path} was not written: {error.strerror or error}")
    else:
        console.print(f"written: {path}", markup=False, highlight=False, soft_wrap=True)
    return rows
