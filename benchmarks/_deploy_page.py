"""Writes the measured tables of docs/deploy.md from results/deploy.json.

python benchmarks/_deploy_page.py     # `navrl bench deploy` does it after a whole run
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "deploy.md"
RESULTS = ROOT / "benchmarks" / "results" / "deploy.json"
BEGIN, END = (
    f"<!-- {word} of what benchmarks/_deploy_page.py writes -->" for word in ("begin", "end")
)
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


def generated(results: Mapping[str, Any]) -> str:
    """Return all tables."""
    cases = {name: case["metrics"] for name, case in results["cases"].items()}
    decisions = [name for name in cases if name.startswith(DECISION)]
    flights = [name for name in cases if not name.startswith(DECISION)]
    pilots = [name for name in flights if name.split(": ")[1].startswith(PILOTS)]
    wired = [name for name in flights if name not in pilots]
    machine, settings = results["machine"], results["settings"]
    return "\n\n".join(
        [
            f"`navrl bench deploy` on {machine['processor']}, {machine['cores']} cores, "
            f"{machine['date'][:10]}, the policy of the package.",
            "A decision for one robot, on one thread:",
            _table(cases, decisions, TIMES, DECISION),
            f"What a wrong wiring costs, {settings['episodes']:,} episodes of crossing in "
            f"{settings['worlds']} unseen worlds:",
            _table(cases, wired, OUTCOMES, "crossing: "),
            "With and without the shield, the same episodes; *convex program* is `QpShield`, the "
            "exact projection on half-spaces:",
            _table(cases, pilots, SHIELD, ""),
        ]
    )


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


def written(page: str, results: Mapping[str, Any]) -> str:
    """Return a page with its tables brought up to date."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{generated(results)}\n\n{END}{after}"


def publish(results: Mapping[str, Any]) -> None:
    """Write the tables of a run into the page."""
    PAGE.write_text(written(PAGE.read_text(), results))


if __name__ == "__main__":
    publish(json.loads(RESULTS.read_text()))
