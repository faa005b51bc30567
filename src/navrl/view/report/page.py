"""Write the report of runs into one HTML file: no script, no network, light and dark."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from html import escape
from importlib.resources import files
from pathlib import Path

from navrl.errors import ConfigError
from navrl.io.container.atomic_files import AtomicFile
from navrl.render.palette import DARK, LIGHT, Palette
from navrl.view.report import sections
from navrl.view.report.learning_curves import success_charts, training_charts
from navrl.view.report.run_data import RunData, group_by_settings, read_run

__all__ = ["report_page", "write_report"]


def write_report(runs: Sequence[Path], path: Path) -> None:
    """Write the report of the runs in these folders, whole or not at all.

    Raises:
        ConfigError: there is no run, or a folder holds none.
        ContainerError: a file of a run is damaged.
        OSError: the report cannot be written.
    """
    if not runs:
        raise ConfigError("a report needs at least one run, such as runs/mine")
    page = report_page([read_run(run) for run in runs], path.parent)
    path.parent.mkdir(parents=True, exist_ok=True)
    with AtomicFile(path) as file:
        file.write([page.encode()])
        file.commit()


def report_page(runs: Sequence[RunData], folder: Path) -> str:
    """Return the HTML of a report; links are relative to `folder`."""
    title = f"Training report: {', '.join(run.name for run in runs)}"
    style = files("navrl.view.report").joinpath("report.css").read_text(encoding="utf-8")
    for name, palette, scheme in (("light", LIGHT, "light"), ("dark", DARK, "dark")):
        style = style.replace("{{" + name + "}}", _variables(palette, scheme))
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta http-equiv="Content-Security-Policy" '
        "content=\"default-src 'none'; style-src 'unsafe-inline'; img-src data:\">"
        f'<link rel="icon" href="data:,"><title>{escape(title)}</title><style>{style}</style>'
        f"</head><body><h1>{escape(title)}</h1>{_run_legend(runs)}{_body(runs, folder)}"
        "</body></html>\n"
    )


def _body(runs: Sequence[RunData], folder: Path) -> str:
    parts = {
        "Result": sections.result_section(runs),
        "Learning curves": _curve_note(runs) + _charts(success_charts(runs)),
        "Failures": sections.failure_section(runs, folder),
        "Training": _charts(training_charts(runs)),
        "Where the time goes": sections.time_section(runs),
        "Speed and memory": sections.throughput_section(runs),
        "Checkpoints": sections.checkpoint_section(runs),
        "Settings that differ": sections.setting_section(runs),
        "Runs": sections.run_section(runs),
    }
    return "".join(
        f"<section><h2>{title}</h2>{inside}</section>" for title, inside in parts.items()
    )


def _charts(inside: str) -> str:
    return f'<div class="charts">{inside}</div>' if inside else '<p class="faint">No data yet.</p>'


def _run_legend(runs: Sequence[RunData]) -> str:
    """Return the colours of the runs."""
    marks = []
    for i, run in enumerate(runs):
        seed = f", seed {run.seed}" if run.seed is not None else ""
        marks.append(f"<span>{sections.swatch(i)}{escape(run.name + seed)}</span>")
    return f'<p class="legend">{"".join(marks)}</p>'


def _curve_note(runs: Sequence[RunData]) -> str:
    rows = [row for run in runs for one in run.evaluations for row in one["conditions"].values()]
    note = "Mean return of evaluations during training."
    if not rows or "outcomes" in rows[0]:
        note = "Success of evaluations during training, in unseen worlds, with 95 % intervals."
    if any(len(group) > 1 for group in group_by_settings(runs)):
        note += (
            " Runs that differ only by their seed: each thin, their mean thick with its interval."
        )
    return f'<p class="faint">{note}</p>'


def _variables(palette: Palette, scheme: str) -> str:
    colours = [f"--{name}: {value};" for name, value in dataclasses.asdict(palette).items()]
    return " ".join([*colours, f"color-scheme: {scheme};"])
