"""Writes the measured table of docs/environments.md from results/environments.json.

python benchmarks/_environment_page.py     # `navrl bench environments` does it after a whole run
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from _page import ROOT, rewrite

PAGE = ROOT / "docs" / "environments.md"
RESULTS = ROOT / "benchmarks" / "results" / "environments.json"
WRITER = "benchmarks/_environment_page.py"

NOTE = (
    "These networks run in PyTorch and these environments as they are: the compiled simulator and\n"
    "network of our own task have no part in it, and steps a second are about those of the peers\n"
    "(fewer from pixels). navrl normalises observations and values by default, Stable-Baselines3\n"
    "neither; rsl_rl's runner is set to normalise observations."
)


def generated(results: Mapping[str, Any]) -> str:
    """Return the table and the machine it was measured on."""
    machine = results["machine"]
    lines = [
        f"`navrl bench environments` on {machine['processor']}, {machine['date'][:10]}: the same "
        "seconds of one processor for all, mean return of "
        f"{results['settings']['episodes']} episodes with deterministic actions.",
        "",
        "| environment | trainer | seconds | steps | return before | return after |",
        "|---|---|---:|---:|---:|---:|",
    ]
    for name, case in results["cases"].items():
        task, _, trainer = name.rpartition(": ")
        values = {metric: found["median"] for metric, found in case["metrics"].items()}
        title = f"**{trainer}**" if trainer == "navrl" else trainer
        seconds = case["note"].removesuffix(" s")
        lines.append(
            f"| {task} | {title} | {seconds} | {values['frames']:,.0f} | {values['start']:,.1f} | "
            f"{values['end']:,.1f} |"
        )
    lines += ["", NOTE]
    return "\n".join(lines)


def write_page(results: Mapping[str, Any]) -> None:
    """Write the table into the page."""
    rewrite(PAGE, WRITER, generated(results))


if __name__ == "__main__":
    write_page(json.loads(RESULTS.read_text()))
