"""The held-out evaluation of a version: one line of text in its tag `judged`.

standard: 90.8 % (89.4 - 92.0), 2048 episodes in 32 worlds; crossing: 84.1 % (...), ...
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = ["HELD_OUT", "held_out_of_run", "held_out_results", "held_out_text"]

HELD_OUT = "judged"  # the tag


def held_out_text(rows: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the results of an evaluation, scenario by scenario, for the tag.

    `rows` are summaries by scenario, as in `evaluation.json` under `conditions`.
    """
    return "; ".join(f"{scenario}: {_told(row)}" for scenario, row in rows.items())


def held_out_results(text: str) -> dict[str, str]:
    """Return the results in a tag by scenario."""
    parts = (part.partition(": ") for part in text.split("; "))
    return {scenario: result for scenario, _, result in parts}


def held_out_of_run(folder: Path) -> str:
    """Return the text for the model of a run or evaluation folder; empty if it has no results."""
    try:
        rows = json.loads((folder / "evaluation.json").read_text())["conditions"]
        return held_out_text(rows)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return ""


def _told(row: Mapping[str, Any]) -> str:
    """Return a result with its interval, episodes and worlds."""
    rate = row.get("success_rate")
    if isinstance(rate, int | float):
        told = f"{100 * rate:.1f} %"
        outcome = row.get("outcomes", {}).get("success_100", {})
        low, high = outcome.get("low"), outcome.get("high")
        if low is not None and high is not None and low == low:
            told += f" ({100 * low:.1f} - {100 * high:.1f})"
    else:
        told = f"return {row['mean_return']:.5g}"
    worlds = f" in {row['worlds']} worlds" if "worlds" in row else ""
    return f"{told}, {row['episodes']} episodes{worlds}"
