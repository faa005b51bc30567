"""Flights of policies through scenarios: tables, `evaluation.json`, recordings, pictures."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from rich.console import Console

from navrl import __version__
from navrl.api.evaluation_result import Evaluation
from navrl.api.progress_bars import watching
from navrl.config import Config
from navrl.errors import ConfigError, MissingExtraError
from navrl.evaluation import Policy
from navrl.evaluation.comparison import comparison_table
from navrl.evaluation.names import DEFAULT_SCENARIOS
from navrl.evaluation.report import DEFINITIONS, cell_table, cells_of, outcome_table
from navrl.evaluation.run import Flown, fly_scenarios, results_of
from navrl.training.run_folder import as_json, write_text

__all__ = ["fly_and_report"]


def fly_and_report(
    policies: Sequence[Policy],
    references: Sequence[str],
    config: Config,
    typed: set[str],
    folder: Path | None,
    console: Console,
    *,
    names: Sequence[str] | None = None,
    print_json: bool = False,
    problems: list[str] | None = None,
) -> Evaluation:
    """Fly policies through scenarios, print and write the results, and return them.

    Args:
        policies: to be flown on the same episodes.
        references: how the user calls them.
        config: task and flights.
        typed: dotted keys that the user typed.
        folder: for `evaluation.json`, recordings and pictures; None: nothing is written.
        console: for tables and progress.
        names: of scenarios; None: `own` for worlds of the user, else the default ones.
        print_json: print the JSON instead of tables.
        problems: takes messages about files that could not be written.

    Raises:
        ConfigError: a file could not be written, and there is no list of `problems`.
    """
    chosen = names or (("own",) if config.env.world_files else DEFAULT_SCENARIOS)
    start = time.perf_counter()
    with watching(console) as watch:
        flown = [fly_scenarios(policy, chosen, config, typed, watch) for policy in policies]
    failed = problems if problems is not None else list[str]()
    recordings, paths = _write_recordings(folder, flown, references, failed)
    report = _report(references, config, flown, recordings, time.perf_counter() - start)
    if print_json:
        print(as_json(report), end="")
    else:
        _print_tables(console, flown, references)
    if folder is not None:
        paths += _write_report(folder, report, flown, config, console, failed)
        told = ", ".join(str(path) for path in paths) or "nothing"
        console.print(f"written: {told}", markup=False, highlight=False, soft_wrap=True)
    if failed and problems is None:
        raise ConfigError("; ".join(failed))
    return Evaluation(report, flown[0].flights, paths)


def _print_tables(console: Console, flown: Sequence[Flown], references: Sequence[str]) -> None:
    for one in flown:
        plain = {label: flights for label, flights in one.flights.items() if " " not in label}
        if plain:
            console.print(
                outcome_table(
                    plain, one.policy.name, subtitles=one.subtitles, latency_ms=one.latency_ms
                )
            )
        for name, cells in cells_of(one.flights).items():
            console.print(cell_table(name, cells, one.policy.name))
    if len(flown) > 1:
        keys = _keys(references)
        console.print(
            comparison_table({key: one.flights for key, one in zip(keys, flown, strict=True)})
        )
    console.print(DEFINITIONS, style="dim", highlight=False)


def _keys(references: Sequence[str]) -> list[str]:
    """Return the references, a repeated one with its number."""
    return [
        reference if reference not in references[:place] else f"{reference} ({place + 1})"
        for place, reference in enumerate(references)
    ]


def _write_recordings(
    folder: Path | None, flown: Sequence[Flown], references: Sequence[str], failed: list[str]
) -> tuple[list[dict[str, str]], list[Path]]:
    """Write `recordings/SCENARIO[.POLICY].npz`; return their names by policy and label, paths."""
    if folder is None:
        return [{} for _ in flown], []
    names: list[dict[str, str]] = []
    paths: list[Path] = []
    for one, key in zip(flown, _keys(references), strict=True):
        written: dict[str, str] = {}
        suffix = "" if len(flown) == 1 else "." + re.sub(r"[^A-Za-z0-9-]+", "-", key).strip("-")
        for label, flights in one.flights.items():
            if flights.recording is None:
                continue
            path = folder / "recordings" / f"{label}{suffix}.npz"
            with _noted(path, failed):
                path.parent.mkdir(exist_ok=True)
                flights.recording.save(path)
                written[label] = str(path.relative_to(folder))
        names.append(written)
    if any(names):
        paths.append(folder / "recordings")
    return names, paths


def _write_report(
    folder: Path,
    report: dict[str, Any],
    flown: Sequence[Flown],
    config: Config,
    console: Console,
    failed: list[str],
) -> list[Path]:
    """Write `evaluation.json`, the replay and pictures of the last scenario; return paths."""
    from navrl.view.flight_pictures import draw_flights
    from navrl.view.replay import write_replay

    paths: list[Path] = []
    with _noted(folder / "evaluation.json", failed):
        write_text(folder / "evaluation.json", as_json(report))
        paths.append(folder / "evaluation.json")
    recorded = [f.recording for f in flown[0].flights.values() if f.recording is not None]
    every = [f.recording for one in flown for f in one.flights.values() if f.recording is not None]
    if recorded:
        with _noted(folder / "replay.html", failed):
            write_replay(every, folder / "replay.html")
            paths.append(folder / "replay.html")
        try:
            with console.status("drawing"), _noted(folder / "flights.png", failed):
                paths += draw_flights(folder, recorded[-1], animation=config.flight.animation)
        except MissingExtraError as error:
            console.print(f"no pictures: {error}", markup=False)
    return paths


@contextmanager
def _noted(path: Path, problems: list[str]) -> Iterator[None]:
    """Note a result that cannot be written and go on: the table is on the screen."""
    try:
        yield
    except OSError as error:
        problems.append(f"{path} was not written: {error.strerror or error}")


def _report(
    references: Sequence[str],
    config: Config,
    flown: Sequence[Flown],
    recordings: Sequence[dict[str, str]],
    seconds: float,
) -> dict[str, Any]:
    """Return everything that goes into `evaluation.json`: the first policy, then the others."""
    rows = []
    for place, (reference, one, files) in enumerate(
        zip(references, flown, recordings, strict=True)
    ):
        results = results_of(one, flown[0] if place else None)
        for label, file in files.items():
            results["conditions"][label]["recording"] = file
        rows.append({"model": reference, **results})
    first, *others = rows
    return {
        "navrl": __version__,
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "seconds": round(seconds, 2),
        "seed": config.flight.seed,
        **first,
        **({"compared": others} if others else {}),
    }
