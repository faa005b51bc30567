"""Writes the measured tables of docs/deploy.md from results/deploy.json.

python benchmarks/_deploy_page.py     # `navrl bench deploy` does it after a whole run
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from _page import ROOT, rewrite

PAGE = ROOT / "docs" / "deploy.md"
RESULTS = ROOT / "benchmarks" / "results" / "deploy.json"
WRITER = "benchmarks/_deploy_page.py"
DECISION = "decision: "
RIGHT = "crossing: as the contract says"
TIMES = {"p50": ("median us", 1e6, ".0f"), "p99": ("p99 us", 1e6, ".0f")}
OUTCOMES = {
    "success": ("success %", 100, ".1f"),
    "static": ("hit an obstacle %", 100, ".1f"),
    "moving": ("hit a moving one %", 100, ".1f"),
    "time_out": ("time-out %", 100, ".1f"),
}
SHIELD = OUTCOMES | {
    "interventions": ("commands changed %", 100, ".1f"),
    "clearance": ("least clearance m", 1, ".2f"),
}
PILOTS = ("policy", "straight line")
DELAY = "delay: "
# Names of the flights with a delay, and titles of their rows.
DELAYED = {
    "": "as measured",
    " + compensation": "compensated",
    " + shield": "as measured, with the shield",
    " + shield + compensation": "compensated, with the shield",
}
TOLERATED = 0.02  # loss of success


def generated(results: Mapping[str, Any]) -> str:
    """Return all tables."""
    cases = {name: case["metrics"] for name, case in results["cases"].items()}
    decisions = [name for name in cases if name.startswith(DECISION)]
    pilots = [name for name in cases if name.split(": ")[1].startswith(PILOTS)]
    delays = [name for name in cases if name.startswith(DELAY)]
    wired = [name for name in cases if name not in (*decisions, *pilots, *delays)]
    machine, settings = results["machine"], results["settings"]
    return "\n\n".join(
        [
            f"`navrl bench deploy` on {machine['processor']}, {machine['cores']} cores, "
            f"{machine['date'][:10]}, the policy of the package, {settings['worlds']} unseen "
            "worlds.",
            "A decision for one robot, on one thread:",
            _table(cases, decisions, TIMES, DECISION),
            f"What a wrong wiring costs, {settings['fewer_episodes']:,} episodes of crossing:",
            _table(cases, wired, OUTCOMES, "crossing: "),
            f"With and without the shield, the same {settings['episodes']:,} episodes; *straight "
            "line* flies at the goal and looks at nothing, *convex program* is `QpShield`:",
            _table(cases, pilots, SHIELD, ""),
            "Success in % with a delay on each way, from the sensors and to the motors, the same "
            f"{settings['delayed_episodes']:,} episodes of crossing:",
            _delays(cases, delays),
        ]
    )


def _delays(cases: Mapping[str, Mapping[str, float]], names: Sequence[str]) -> str:
    """Return the table of delays, and the longest that costs little."""
    alone = [name for name in names if "+" not in name]
    headings = [name.removeprefix(DELAY) for name in alone]
    rule = "|---|" + "---:|" * (len(alone) + 1)
    lines = ["| | " + " | ".join(headings) + " | tolerated |", rule]
    for suffix, title in DELAYED.items():
        if any(name + suffix not in cases for name in alone):
            continue  # results that are older than this row
        shares = [_median(cases[name + suffix]["success"]) for name in alone]
        fit = 0
        while fit + 1 < len(shares) and shares[fit + 1] >= shares[0] - TOLERATED:
            fit += 1
        cells = " | ".join(f"{100 * share:.1f}" for share in shares)
        lines.append(f"| {title} | {cells} | {headings[fit]} |")
    return "\n".join([*lines, "", "Tolerated is the longest delay that costs at most 2 points."])


def _table(
    cases: Mapping[str, Mapping[str, float]],
    names: Sequence[str],
    columns: Mapping[str, tuple[str, float, str]],
    prefix: str,
) -> str:
    lines = [
        "| | " + " | ".join(heading for heading, _, _ in columns.values()) + " |",
        "|---|" + "---:|" * len(columns),
    ]
    for name in names:
        cells = [
            f"{_median(cases[name][metric]) * scale:{form}}" if metric in cases[name] else ""
            for metric, (_, scale, form) in columns.items()
        ]
        lines.append(f"| {name.removeprefix(prefix)} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _median(value: Any) -> float:
    return float(value["median"] if isinstance(value, Mapping) else value)


def publish(results: Mapping[str, Any]) -> None:
    """Write the tables of a run into the page."""
    rewrite(PAGE, WRITER, generated(results))


if __name__ == "__main__":
    publish(json.loads(RESULTS.read_text()))
