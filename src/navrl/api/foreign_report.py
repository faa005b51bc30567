"""Episodes of policies in an environment that is not ours: a table, and `evaluation.json`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from rich.console import Console

from navrl import __version__
from navrl.api.evaluation_result import Evaluation
from navrl.environments.foreign import ForeignTask
from navrl.environments.foreign_evaluation import episode_table, play
from navrl.errors import ConfigError
from navrl.evaluation import Policy
from navrl.training.run_folder import as_json, write_text

__all__ = ["play_and_report"]


def play_and_report(
    policies: Sequence[Policy],
    references: Sequence[str],
    tasks: Sequence[ForeignTask],
    folder: Path | None,
    console: Console,
    *,
    print_json: bool = False,
    problems: list[str] | None = None,
) -> Evaluation:
    """Play episodes with each policy, print and write the results, and return them.

    Args:
        policies: to be evaluated, deterministic.
        references: how the user calls them.
        tasks: of each policy, with the settings of the evaluation, `flight.*`.
        folder: for `evaluation.json`; None: nothing is written.
        console: for the table.
        print_json: print what goes into the file instead of the table.
        problems: takes a message about a file that could not be written.

    Raises:
        ConfigError: the file could not be written, and there is no list of `problems`.
    """
    start = time.perf_counter()
    rows, played = [], []
    for policy, reference, task in zip(policies, references, tasks, strict=True):
        episodes = play(policy, task, console)
        numbers = {task.name: task.summary(episodes)}
        if not print_json:
            console.print(episode_table(numbers, policy.name))
        played.append({task.name: episodes})
        rows.append({"model": reference, "policy": policy.name, "conditions": numbers})
    report = _report(rows, tasks[0].config.flight.seed, time.perf_counter() - start)
    if print_json:
        print(as_json(report), end="")
    failed = problems if problems is not None else list[str]()
    paths = _write(folder, report, console, failed)
    if failed and problems is None:
        raise ConfigError("; ".join(failed))
    return Evaluation(report, played[0], paths)


def _report(rows: Sequence[dict[str, Any]], seed: int, seconds: float) -> dict[str, Any]:
    """Return everything that goes into `evaluation.json`: the first policy, then the others."""
    first, *others = rows
    return {
        **first,
        "navrl": __version__,
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "seconds": round(seconds, 2),
        "seed": seed,
        **({"compared": others} if others else {}),
    }


def _write(
    folder: Path | None, report: dict[str, Any], console: Console, failed: list[str]
) -> list[Path]:
    if folder is None:
        return []
    path = folder / "evaluation.json"
    try:
        write_text(path, as_json(report))
    except OSError as error:
        failed.append(f"{path} was not written: {error.strerror or error}")
        return []
    console.print(f"written: {path}", markup=False, highlight=False, soft_wrap=True)
    return [path]
