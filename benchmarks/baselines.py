"""Success of pilots without learning and of the policy in the package, in the same worlds.

    navrl bench baselines
    NAVRL_PUBLISHED_POLICY=checkpoint.pt navrl bench baselines    # and the original's policy

Flights are deterministic, so each pilot flies once. Slow pilots fly fewer episodes; the table says
how many. The tables of docs/learning.md are written from the results.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from _page import ROOT, rewrite
from navrl.benchmark import Case, Column, Suite
from navrl.config import load_config
from navrl.evaluation import load_policy
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
    "dynamic-window": 512,
    "scripted": 2048,
    "published": 2048,
    "pretrained": 2048,
    "oracle": 128,
}
SMOKE = 4


def suite(smoke: bool) -> Suite:
    """Return the benchmark: a case for each pilot, and the grid for the policy in the package."""
    published = os.environ.get(PUBLISHED, "")
    names = [name for name in EPISODES if name != "published" or published]
    references = {"published": published}
    cases = [
        _case(name, references.get(name, name), SCENARIOS, SMOKE if smoke else EPISODES[name])
        for name in names
    ]
    cases.append(_case(GRID, "pretrained", ("grid",), SMOKE if smoke else EPISODES["pretrained"]))
    return Suite(
        name="baselines",
        title="Success of pilots in the same worlds",
        cases=cases,
        columns=[Column(f"{name} success", f"{name} %", ".1f", 100) for name in SCENARIOS],
        packages=("torch", "numba"),
        repeats=1,
        settings={"scenarios": list(SCENARIOS), "worlds": WORLDS},
        publish=publish,
    )


GRID = "pretrained, grid"


def _case(name: str, reference: str, scenarios: tuple[str, ...], episodes: int) -> Case:
    @cache  # the call that warms up has flown everything
    def measure() -> Mapping[str, float]:
        return _fly(reference, scenarios, episodes)

    return Case(name, measure, note=POLICIES.get(name, ""))


def _fly(reference: str, scenarios: tuple[str, ...], episodes: int) -> dict[str, float]:
    worlds = min(WORLDS, episodes)
    words = [f"flight.episodes={episodes}", f"flight.worlds={worlds}", "flight.recorded=0"]
    config = load_config(words)
    flown = fly_scenarios(load_policy(reference, config.task), scenarios, config)
    results = results_of(flown)
    found: dict[str, float] = {"episodes": episodes, "worlds": worlds}
    for label in scenarios:
        found |= _numbers(label, results)
    return found


def _numbers(label: str, results: Mapping[str, Any]) -> dict[str, float]:
    """Return success with its interval and SPL; the mean of all cells and the hardest of a grid."""
    if label in results["conditions"]:
        row = results["conditions"][label]
        success = row["outcomes"]["success_100"]
        values = {"success": success["share"], "low": success["low"], "high": success["high"]}
        values["spl"] = row["spl"]["mean"]
    else:
        every, hardest = results[label]["success_100"], results[label]["hardest"]
        values = {"success": every["mean"], "low": every["low"], "high": every["high"]}
        values |= {f"hardest {name}": hardest[name] for name in ("mean", "low", "high")}
        static, moving = hardest["cell"].split("+")
        values |= {"hardest static": float(static), "hardest moving": float(moving)}
    return {f"{label} {name}": value for name, value in values.items()}


# -------------------------------------------------------------------- the pages


def publish(results: Mapping[str, Any]) -> None:
    """Write the tables of docs/learning.md and README.md."""
    rewrite(ROOT / "docs" / "learning.md", "baselines", page(results))
    rewrite(ROOT / "README.md", "baselines", readme(results))


def page(results: Mapping[str, Any]) -> str:
    """Return the table of all pilots, and the grid."""
    lines = [
        "| pilot | static | standard | crossing | SPL, standard | episodes |",
        "|---|---|---|---|---|---|",
    ]
    for name, row in _rows(results).items():
        if name == GRID:
            continue
        cells = [_percent(row, label) for label in SCENARIOS]
        spl = f"{100 * row['standard spl']:.1f} %"
        told = [TITLES.get(name, f"`{name}`"), *cells, spl, f"{row['episodes']:.0f}"]
        lines.append(f"| {' | '.join(told)} |")
    if GRID in results["cases"]:
        lines += ["", _grid(_rows(results)[GRID])]
    return "\n".join(lines)


def readme(results: Mapping[str, Any]) -> str:
    """Return the table of the README: the learned policies beside the best of the others."""
    lines = ["| pilot | static | standard | crossing | episodes |", "|---|---|---|---|---|"]
    rows = _rows(results)
    for name in ("orca", "scripted", "published", "pretrained", "oracle"):
        if name in rows:
            cells = [_percent(rows[name], label) for label in SCENARIOS]
            told = [TITLES.get(name, f"`{name}`"), *cells, f"{rows[name]['episodes']:.0f}"]
            lines.append(f"| {' | '.join(told)} |")
    return "\n".join(lines)


TITLES = {
    "pretrained": "**`pretrained`**, learned",
    "published": "the original's published policy",
    "oracle": "`oracle`, which knows the future",
}


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
