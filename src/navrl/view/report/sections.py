"""The sections of a report that are not curves: results, failures, time, checkpoints, settings."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import quote

from navrl.evaluation.statistics import NORMAL
from navrl.render.palette import OUTCOME_NAMES
from navrl.sim.episode_statistics import FAILURES
from navrl.view.report.charts import Bar, Line, bar_chart, line_chart, number
from navrl.view.report.run_data import RunData, differing

__all__ = [
    "checkpoint_section",
    "failure_section",
    "result_section",
    "run_section",
    "setting_section",
    "throughput_section",
    "time_section",
]

MOST_LINKS = 12  # failures of one run and scenario that are linked
MOST_SETTINGS = 80


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table of cells that are HTML already; the first column is the row's name."""
    top = "".join(f"<th>{cell}</th>" for cell in head)
    body = "".join(
        f"<tr><th>{first}</th>{''.join(f'<td>{cell}</td>' for cell in rest)}</tr>"
        for first, *rest in rows
    )
    return (
        f'<div class="wide"><table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'
    )


def swatch(series: int) -> str:
    """Return the colour of a run as a small square."""
    return f'<i class="swatch back{series % 8}"></i>'


def _named(runs: Sequence[RunData]) -> list[str]:
    return [f"{swatch(i)}{escape(run.name)}" for i, run in enumerate(runs)]


def _clock(seconds: float | None) -> str:
    if seconds is None:
        return "–"
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 3 * 3600 else f"{seconds / 3600:.1f} h"


def run_section(runs: Sequence[RunData]) -> str:
    """Return what ran where."""
    rows = [_run_row(name, run) for name, run in zip(_named(runs), runs, strict=True)]
    head = ["run", "seed", "state", "decisions", "time", "started", "machine", "version", "command"]
    return table(head, rows)


def _run_row(name: str, run: RunData) -> list[str]:
    machine = run.about.get("machine") or {}
    versions = run.about.get("versions") or {}
    commit = str((run.about.get("git") or {}).get("commit", ""))[:9]
    state = "finished" if run.finished else "not finished"
    iteration = run.train[-1]["iteration"] if run.train else 0
    return [
        name,
        escape(str(run.seed if run.seed is not None else "–")),
        f"{state}, iteration {iteration}",
        number(run.frames),
        _clock(run.seconds),
        escape(str(run.about.get("started", "–"))[:16].replace("T", " ")),
        escape(f"{machine.get('processor', '–')}, {machine.get('cores', '?')} cores"),
        escape(f"navrl {versions.get('navrl', '?')} {commit}"),
        f"<code>{escape(str(run.about.get('command', '–'))[:200])}</code>",
    ]


def result_section(runs: Sequence[RunData]) -> str:
    """Return the final evaluations: success in unseen worlds, or the return of other tasks."""
    labels = dict.fromkeys(label for run in runs for label in run.held_out)
    if not labels:
        return '<p class="faint">No run has its final evaluation yet.</p>'
    rows = [
        [name, *(_share(run.held_out.get(label)) for label in labels)]
        for name, run in zip(_named(runs), runs, strict=True)
    ]
    about = next(iter(condition for run in runs for condition in run.held_out.values()))
    words = f"{about.get('episodes', '?')} episodes"
    note = f"Mean return and standard deviation over {words}."
    if "outcomes" in about:
        words += f" in {about.get('worlds', '?')} unseen worlds each"
        note = (
            f"Within 1.0 m of the goal before any collision and in time; {words}; 95 % intervals."
        )
    head = ["run", *(escape(label) for label in labels)]
    return f'{table(head, rows)}<p class="faint">{escape(note)}</p>'


def _share(condition: Mapping[str, Any] | None) -> str:
    if not condition:
        return "–"
    if "outcomes" not in condition:
        return _return(condition)
    outcome = condition["outcomes"]["success_100"]
    share, low, high = outcome["share"], outcome.get("low"), outcome.get("high")
    if low is None and outcome.get("standard_error"):
        error = NORMAL * outcome["standard_error"]
        low, high = max(share - error, 0.0), min(share + error, 1.0)
    interval = "" if low is None else f" <small>{100 * low:.1f}–{100 * high:.1f}</small>"
    return f"<b>{100 * share:.1f} %</b>{interval}"


def _return(condition: Mapping[str, Any]) -> str:
    """Return the mean return of an environment that is not ours, and its success if it has any."""
    mean, spread = condition["mean_return"], condition["std_return"]
    rate = condition.get("success_rate")
    success = "" if rate is None else f", success {100 * rate:.1f} %"
    return f"<b>{number(mean)}</b> <small>± {number(spread)}{success}</small>"


def failure_section(runs: Sequence[RunData], folder: Path) -> str:
    """Return how flights failed, with links into the replays; `folder` is that of the report."""
    found = [item for run in runs for item in run.held_out.items()]
    labels = dict.fromkeys(label for label, condition in found if "outcomes" in condition)
    if found and not labels:
        return '<p class="faint">Only the navigation task tells how episodes failed.</p>'
    charts = []
    for label in labels:
        flown = [run for run in runs if label in run.held_out]
        shares = [_failure_shares(run.held_out[label]) for run in flown]
        # failures are few: half of all flights is the width of the chart, if that is enough
        width = 0.5 if max(sum(share.values()) for share in shares) <= 0.5 else 1.0
        bars = [_failure_bar(run, share, width) for run, share in zip(flown, shares, strict=True)]
        title = f"{label}: failed flights (the bar is {100 * width:.0f} % of all)"
        charts.append(bar_chart(bars, title=title))
    legend = "".join(
        f'<span><i class="swatch {name}"></i>{escape(OUTCOME_NAMES[name])}</span>'
        for name in FAILURES
    )
    shown = "".join(charts) or '<p class="faint">No run has its final evaluation yet.</p>'
    return f'<p class="legend">{legend}</p><div class="charts">{shown}</div>{_links(runs, folder)}'


def _failure_shares(condition: Mapping[str, Any]) -> dict[str, float]:
    outcomes = condition["outcomes"]
    return {name: float(outcomes.get(name, {}).get("share") or 0.0) for name in FAILURES}


def _failure_bar(run: RunData, shares: Mapping[str, float], width: float) -> Bar:
    parts = [
        (name, f"{OUTCOME_NAMES[name]}: {100 * share:.1f} %", share / width)
        for name, share in shares.items()
    ]
    return Bar(run.name, parts, f"{100 * sum(shares.values()):.1f} %")


def _links(runs: Sequence[RunData], folder: Path) -> str:
    """Return links to recorded failures, or where to get them."""
    rows = [
        [name, " ".join(_flight_links(run, quote(os.path.relpath(run.replay, folder))))]
        for name, run in zip(_named(runs), runs, strict=True)
        if run.replay is not None
    ]
    if not rows:
        return (
            '<p class="faint">No replay yet: <code>navrl replay RUN -o RUN/replay.html</code></p>'
        )
    return f'<h3>Watch them</h3><div class="links">{table(["run", "flights"], rows)}</div>'


def _flight_links(run: RunData, page: str) -> list[str]:
    """Return a link to the replay of a run, and to some failures of each scenario in it."""
    links = [f'<a href="{page}">all recorded flights</a>']
    counts: dict[str, int] = {}
    for failure in run.failures:
        counts[failure.scenario] = counts.get(failure.scenario, 0) + 1
        if counts[failure.scenario] <= MOST_LINKS:
            place = f"#scenario={quote(failure.scenario)}&amp;episode={failure.episode}"
            words = f"{failure.scenario} {failure.episode}"
            links.append(
                f'<a href="{page}{place}"><i class="swatch {failure.outcome}"></i>'
                f"{escape(words)}</a>"
            )
    return links


def time_section(runs: Sequence[RunData]) -> str:
    """Return where the time of the runs went."""
    names = dict.fromkeys(name for run in runs for name in run.phase_seconds())
    if not names:
        return '<p class="faint">No times yet: they are logged every 100 iterations.</p>'
    bars = []
    for run in runs:
        seconds = run.phase_seconds()
        total = sum(seconds.values()) or 1.0
        parts = [
            (f"fill{i}", _phase(name, seconds[name], total), seconds[name] / total)
            for i, name in enumerate(names)
            if name in seconds
        ]
        bars.append(Bar(run.name, parts, _clock(total) if seconds else "–"))
    legend = "".join(
        f'<span><i class="swatch back{i}"></i>{escape(name.replace("_", " "))}</span>'
        for i, name in enumerate(names)
    )
    chart = bar_chart(bars, title="where the measured time goes")
    return f'<p class="legend">{legend}</p><div class="charts">{chart}</div>'


def _phase(name: str, seconds: float, total: float) -> str:
    return f"{name.replace('_', ' ')}: {_clock(seconds)}, {100 * seconds / total:.0f} %"


def throughput_section(runs: Sequence[RunData]) -> str:
    """Return the speed of training, and its memory."""
    rows = []
    for name, run in zip(_named(runs), runs, strict=True):
        last = run.performance[-1] if run.performance else {}
        speed, memory = last.get("perf/frames_per_second"), last.get("memory/peak_mb")
        rows.append([name, number(speed) if speed else "–", f"{memory:,.0f} MB" if memory else "–"])
    head = ["run", "decisions a second", "peak memory of the leading process"]
    return f'<div class="charts">{_speed_chart(runs)}</div>{table(head, rows)}'


def _speed_chart(runs: Sequence[RunData]) -> str:
    lines = []
    for i, run in enumerate(runs):
        points = [
            (record["iteration"] * run.frames / max(run.train[-1]["iteration"], 1) / 1e6, speed)
            for record in run.performance
            if run.train and (speed := record.get("perf/frames_per_second"))
        ]
        lines.append(Line(run.name, i, points))
    return line_chart(
        lines,
        title="decisions a second since the start",
        across="million decisions",
        up="",
        limits=(0.0, max((speed for line in lines for _, speed in line.points), default=1.0)),
    )


def checkpoint_section(runs: Sequence[RunData]) -> str:
    """Return what checkpoints cost."""
    rows = [_checkpoint_row(name, run) for name, run in zip(_named(runs), runs, strict=True)]
    head = (
        "run|saved|failed|stall, median|stall, 99 %|stall, longest|size of one|raw / stored|on disk"
    )
    return table(head.split("|"), rows)


def _checkpoint_row(name: str, run: RunData) -> list[str]:
    last = run.performance[-1] if run.performance else {}
    saved = int(last.get("checkpoint/total_saved") or 0)
    stored = float(last.get("checkpoint/stored_bytes") or 0)

    def stall(key: str) -> str:
        value = last.get(f"checkpoint/stall_ms_{key}")
        return f"{value:.2f} ms" if value is not None else "–"

    ratio = last.get("checkpoint/compression_ratio")
    return [
        name,
        str(saved or "–"),
        str(int(last.get("checkpoint/failed") or 0)),
        stall("p50"),
        stall("p99"),
        stall("max"),
        f"{stored / saved / 1e6:.1f} MB" if saved else "–",
        f"{ratio:.2f}" if ratio else "–",
        f"{run.checkpoint_bytes / 1e6:,.0f} MB" if run.checkpoint_bytes else "–",
    ]


def setting_section(runs: Sequence[RunData]) -> str:
    """Return the settings in which the runs differ."""
    if len(runs) < 2:
        return '<p class="faint">One run: its settings are in its config.yaml.</p>'
    rows = [
        [f"<code>{escape(key)}</code>", *(f"<code>{escape(_value(v))}</code>" for v in values)]
        for key, values in differing(runs).items()
    ]
    if not rows:
        return '<p class="faint">The runs have equal settings.</p>'
    more = len(rows) - MOST_SETTINGS
    note = f'<p class="faint">and {more} more</p>' if more > 0 else ""
    return table(["setting", *_named(runs)], rows[:MOST_SETTINGS]) + note


def _value(value: Any) -> str:
    return "–" if value is None else str(value)[:80]
