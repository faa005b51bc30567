"""The robustness card of the policy in the package, for docs/evaluation.md.

    navrl bench card

As `navrl eval pretrained --card --episodes 1024`, and again with `--coast` where the detector
misses obstacles. An interrupted run goes on with the next row.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from functools import cached_property, partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from _kept import Kept
from _page import ROOT, rewrite
from navrl.benchmark import Case, Column, Suite
from navrl.config import load_config
from navrl.deploy.coasting_pilot import coasting
from navrl.evaluation import load_policy, scenario_tasks
from navrl.evaluation.card.card_rows import CardRow, card_results, card_title, fly_condition
from navrl.evaluation.card.conditions import CONDITIONS, Condition
from navrl.evaluation.run import FINAL_SEED
from navrl.sim.episode_statistics import FAILURES

SCENARIO = "standard"
PARTIAL = ROOT / "benchmarks" / "results" / "card.partial.json"
PICTURE = ROOT / "docs" / "images" / "card.png"
MEMORY = ", with memory"  # behind the name of a condition
MISSING = "sensor.detection_dropout"
CHOSEN = ("success_100", "change")  # numbers with an interval


class Bench:
    """Flies the rows; the nominal one is kept in memory to compare the others with."""

    def __init__(self, smoke: bool) -> None:
        self.words = ["flight.episodes=1024", "flight.worlds=32"]
        if smoke:
            self.words = ["flight.episodes=4", "flight.worlds=2", "env.max_episode_length=40"]
        self.config = load_config(self.words)
        self.policy = load_policy("pretrained")
        flight = self.config.flight
        tasks = scenario_tasks([SCENARIO], self.config.task, flight, self.policy)
        self.task, self.seed = tasks[SCENARIO], FINAL_SEED + flight.seed

    @cached_property
    def nominal(self) -> CardRow:
        """The first row."""
        return fly_condition(self.policy, self.task, CONDITIONS[0], self.seed)

    def row(self, condition: Condition, *, memory: bool = False) -> dict[str, float]:
        """Fly one row, with or without a memory of moving obstacles, and return its numbers."""
        flown = self.nominal
        if memory or condition is not CONDITIONS[0]:
            policy = coasting(self.policy) if memory else self.policy
            flown = fly_condition(policy, self.task, condition, self.seed, flown.flights)
        (values,) = card_results([flown])
        intervals = {
            f"{name} {part}": values[name][part] for name in CHOSEN for part in values[name]
        }
        return intervals | {name: values[name] for name in ("success_050", "spl", *FAILURES)}


def suite(smoke: bool) -> Suite:
    """Return the benchmark: a case for each row."""
    bench = Bench(smoke)
    kept = Kept(None if smoke else PARTIAL)

    def case(condition: Condition, *, memory: bool = False) -> Case:
        name = f"{condition.group}: {condition.name}{MEMORY if memory else ''}"
        settings = [bench.words, dict(condition.settings)]
        row = partial(bench.row, condition, memory=memory)
        return Case(name, lambda: kept.measured(name, settings, row))

    def cases() -> Iterator[Case]:
        for condition in CONDITIONS[:3] if smoke else CONDITIONS:
            yield case(condition)
            if MISSING in condition.settings or condition is CONDITIONS[0]:
                yield case(condition, memory=True)

    def publish_and_clear(results: Mapping[str, Any]) -> None:
        publish(results)
        kept.clear()

    return Suite(
        name="card",
        title=f"Robustness of the policy in the package, scenario {SCENARIO}",
        cases=[*cases()],
        columns=[
            Column("success_100 mean", "success %", ".1f", 100),
            Column("change mean", "change", "+.1f", 100),
            *(Column(name, name.replace("_", " "), ".1f", 100) for name in FAILURES),
        ],
        packages=("torch", "numba"),
        repeats=1,
        warm_up=False,
        settings={
            "scenario": SCENARIO,
            "episodes": bench.config.flight.episodes,
            "worlds": bench.config.flight.worlds,
        },
        publish=publish_and_clear,
    )


# -------------------------------------------------------------------- the page


def publish(results: Mapping[str, Any]) -> None:
    """Write the table and the picture of docs/evaluation.md."""
    from navrl.view.card_picture import save_card

    settings = results["settings"]
    title = card_title("pretrained", SCENARIO, settings["episodes"], settings["worlds"])
    rows = [row for row in rows_of(results) if not row["condition"].endswith(MEMORY)]
    save_card(rows, title, PICTURE)
    rewrite(ROOT / "docs" / "evaluation.md", "card", page(results))


def rows_of(results: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the rows as `card.json` has them."""
    rows = []
    for case, found in results["cases"].items():
        group, _, condition = case.partition(": ")
        row: dict[str, Any] = {"group": group, "condition": condition}
        for metric, value in found["metrics"].items():
            name, _, part = metric.partition(" ")
            if part:
                row.setdefault(name, {})[part] = value["median"]
            else:
                row[name] = value["median"]
        rows.append(row)
    return rows


def page(results: Mapping[str, Any]) -> str:
    """Return the picture and the table."""
    settings = results["settings"]
    lines = [
        f"`pretrained` in `{SCENARIO}`, {settings['episodes']} episodes in {settings['worlds']} "
        "worlds a row; in %, changes in percentage points, with 95 % intervals:",
        "",
        "![Success of the policy under each condition](images/card.png)",
        "",
        "| condition | success | change | hit an obstacle | hit a moving one | out of time |",
        "|---|---|---|---:|---:|---:|",
    ]
    for row in rows_of(results):
        success, change = (_told(row[name], sign) for name, sign in zip(CHOSEN, " +", strict=True))
        failed = ("static_collision", "dynamic_collision", "time_out")
        shares = " | ".join(f"{100 * row[name]:.1f}" for name in failed)
        first = row["group"] == CONDITIONS[0].group
        name = row["group"] if first else f"{row['group']}: {row['condition']}"
        if row["condition"].endswith(MEMORY):
            first, name = False, "— with `--coast`"
        lines.append(f"| {name} | {success} | {'' if first else change} | {shares} |")
    return "\n".join(lines)


def _told(value: Mapping[str, float], sign: str) -> str:
    """Return a number with its interval, in percent."""
    mean, low, high = (f"{100 * value[part]:{sign}.1f}".strip() for part in ("mean", "low", "high"))
    return f"{mean} ({low}{', ' if sign == '+' else ' - '}{high})"
