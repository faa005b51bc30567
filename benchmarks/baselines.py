"""Success of pilots without learning and of the policy in the package, in the same worlds.

    navrl bench baselines
    NAVRL_PUBLISHED_POLICY=checkpoint.pt navrl bench baselines    # and the original's policy

Flights are deterministic, so each pilot flies once. Slow pilots fly fewer episodes; the table says
how many. An interrupted run goes on with the next pilot. The tables of docs/learning.md and the
README are written from the results.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from _kept import Kept
from _page import ROOT, measured_on, rewrite
from _readme_page import write_readme
from navrl.benchmark import Case, Column, Suite
from navrl.config import load_config
from navrl.evaluation import PRETRAINED, load_policy
from navrl.evaluation.names import POLICIES
from navrl.evaluation.run import fly_scenarios, results_of

PUBLISHED = "NAVRL_PUBLISHED_POLICY"  # names a checkpoint of the original
SCENARIOS = ("static", "standard", "crossing")
WORLDS = 32
# episodes of each scenario
EPISODES = {
    "random": 2048,
    "straight": 2048,
    "potential-field": 2048,
    "orca": 2048,
    "dynamic-window": 2048,
    "scripted": 2048,
    "published": 2048,
    "pretrained": 2048,
    "oracle": 1024,
}
SMOKE = 2
GRID, GRID_EPISODES = "pretrained, grid", 1024
PARTIAL = ROOT / "benchmarks" / "results" / "baselines.partial.json"


def suite(smoke: bool) -> Suite:
    """Return the benchmark: a case for each pilot, and the grid for the policy in the package."""
    published = os.environ.get(PUBLISHED, "")
    kept = Kept(None if smoke else PARTIAL, [PRETRAINED, *([Path(published)] if published else [])])

    def case(name: str, reference: str, scenarios: tuple[str, ...], episodes: int) -> Case:
        words = _words(SMOKE if smoke else episodes, smoke)
        settings = [reference, [*scenarios], words]
        return Case(
            name,
            lambda: kept.measured(name, settings, lambda: _fly(reference, scenarios, words)),
            note=POLICIES.get(name, ""),
        )

    cases = [
        case(name, published if name == "published" else name, SCENARIOS, episodes)
        for name, episodes in EPISODES.items()
        if name != "published" or published
    ]
    cases.append(case(GRID, "pretrained", ("grid",), GRID_EPISODES))

    def publish_and_clear(results: Mapping[str, Any]) -> None:
        publish(results)
        write_readme()
        kept.clear()

    return Suite(
        name="baselines",
        title="Success of pilots in the same worlds",
        cases=cases,
        columns=[
            *(Column(f"{name} success", f"{name} %", ".1f", 100) for name in (*SCENARIOS, "grid")),
            Column("standard spl", "SPL %", ".1f", 100),
            Column("decision_ms", "decision ms", ".2f"),
            Column("episodes", "episodes", ".0f"),
        ],
        packages=("torch", "numba"),
        repeats=1,
        warm_up=False,  # nothing is timed but single decisions
        settings={"scenarios": list(SCENARIOS), "worlds": WORLDS},
        publish=publish_and_clear,
    )


def _words(episodes: int, smoke: bool) -> list[str]:
    """Return the settings of an evaluation."""
    short = ["env.max_episode_length=60"] if smoke else []
    worlds = min(WORLDS, episodes)
    return [f"flight.episodes={episodes}", f"flight.worlds={worlds}", "flight.recorded=0", *short]


def _fly(reference: str, scenarios: tuple[str, ...], words: list[str]) -> dict[str, float]:
    config = load_config(words)
    flown = fly_scenarios(load_policy(reference, config.task), scenarios, config)
    results = results_of(flown)
    found: dict[str, float] = {"episodes": config.flight.episodes, "worlds": config.flight.worlds}
    if flown.latency_ms is not None:
        found["decision_ms"] = flown.latency_ms
    for label in scenarios:
        found |= _numbers(label, results)
    return found


MEANS = ("mean_speed", "time_ratio", "min_clearance", "effort")  # over successful episodes


def _numbers(label: str, results: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers of a scenario; the mean of all cells and the hardest of a grid."""
    if label in results["conditions"]:
        row = results["conditions"][label]
        outcomes, means = row["outcomes"], row["of_successes"]
        success = outcomes["success_100"]
        values = {"success": success["share"], "low": success["low"], "high": success["high"]}
        values["spl"] = row["spl"]["mean"]
        values |= {name: outcomes[name]["share"] for name in outcomes if name != "success_100"}
        # nobody arrived: there is no such number
        values |= {name: means[name] for name in MEANS if means[name] == means[name]}
    else:
        every, hardest = results[label]["success_100"], results[label]["hardest"]
        values = {"success": every["mean"], "low": every["low"], "high": every["high"]}
        values |= {f"hardest {name}": hardest[name] for name in ("mean", "low", "high")}
        static, moving = hardest["cell"].split("+")
        values |= {"hardest static": float(static), "hardest moving": float(moving)}
    return {f"{label} {name}": value for name, value in values.items()}


# -------------------------------------------------------------------- the pages


def publish(results: Mapping[str, Any]) -> None:
    """Write the tables of docs/learning.md."""
    rewrite(ROOT / "docs" / "learning.md", "baselines", page(results))


TITLES = {
    "pretrained": "**`pretrained`**, learned",
    "published": "the original's published policy",
    "oracle": "`oracle`, which knows the future",
}
# columns of the tables of single scenarios: metric, heading, scale and format
DETAILS = (
    ("success_050", "within 0.5 m", 100, ".1f"),
    ("static_collision", "hit an obstacle", 100, ".1f"),
    ("dynamic_collision", "hit a moving one", 100, ".1f"),
    ("out_of_bounds", "too high or low", 100, ".1f"),
    ("time_out", "out of time", 100, ".1f"),
    ("spl", "SPL", 100, ".1f"),
    ("time_ratio", "time / straight flight", 1, ".2f"),
    ("mean_speed", "speed, m/s", 1, ".2f"),
    ("min_clearance", "clearance, m", 1, ".2f"),
    ("effort", "effort, m/s²", 1, ".2f"),
)


def page(results: Mapping[str, Any]) -> str:
    """Return the table of all pilots, the grid, and tables of the other numbers."""
    rows = _rows(results)
    lines = [_table(rows, [name for name in rows if name != GRID])]
    if GRID in rows:
        lines += ["", _grid(rows[GRID])]
    for label in ("standard", "crossing"):
        if any(f"{label} time_out" in row for row in rows.values()):
            lines += ["", f"How the flights of `{label}` ended, in %, and how they went:", ""]
            lines.append(_details(rows, label))
    if any("decision_ms" in row for row in rows.values()):
        lines += ["", f"Decisions for one drone, measured on {measured_on(results)}."]
    return "\n".join(lines)


def _table(rows: Mapping[str, Mapping[str, float]], names: Any) -> str:
    lines = ["| pilot | static | standard | crossing | episodes |", "|---|---|---|---|---|"]
    for name in names:
        if name in rows:
            cells = [_percent(rows[name], label) for label in SCENARIOS]
            told = [TITLES.get(name, f"`{name}`"), *cells, f"{rows[name]['episodes']:.0f}"]
            lines.append(f"| {' | '.join(told)} |")
    return "\n".join(lines)


def _details(rows: Mapping[str, Mapping[str, float]], label: str) -> str:
    headings = ["pilot", *(heading for _, heading, _, _ in DETAILS), "decision, ms"]
    lines = [f"| {' | '.join(headings)} |", f"|---{'|---:' * (len(headings) - 1)}|"]
    for name, row in rows.items():
        if f"{label} time_out" not in row:
            continue
        cells = [
            f"{scale * row[f'{label} {metric}']:{form}}" if f"{label} {metric}" in row else ""
            for metric, _, scale, form in DETAILS
        ]
        decision = f"{row['decision_ms']:.2f}" if "decision_ms" in row else ""
        lines.append(f"| {TITLES.get(name, f'`{name}`')} | {' | '.join(cells)} | {decision} |")
    return "\n".join(lines)


def _rows(results: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    return {
        name: {metric: value["median"] for metric, value in case["metrics"].items()}
        for name, case in results["cases"].items()
    }


def _percent(row: Mapping[str, float], label: str, prefix: str = "") -> str:
    name = f"{label} {prefix}".rstrip()
    mean = row[f"{name} mean"] if prefix else row[f"{name} success"]
    return f"{100 * mean:.1f} % ({100 * row[f'{name} low']:.1f} - {100 * row[f'{name} high']:.1f})"


def _grid(row: Mapping[str, float]) -> str:
    cell = f"{row['grid hardest static']:.0f} static, {row['grid hardest moving']:.0f} moving"
    return (
        f"`pretrained` on `grid`: {_percent(row, 'grid')} over all twelve cells; the hardest "
        f"({cell}): {_percent(row, 'grid', 'hardest')}. {row['episodes']:.0f} episodes a cell."
    )
