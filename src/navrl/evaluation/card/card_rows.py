"""Fly a policy under every condition of the robustness card."""

from __future__ import annotations

import copy
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rich.table import Table

from navrl.config import Config
from navrl.evaluation.card.conditions import CONDITIONS, SPEED_LIMIT, Condition
from navrl.evaluation.flights import Flights, evaluate
from navrl.evaluation.policy_lookup import Policy
from navrl.evaluation.report import percent, points
from navrl.evaluation.run import FINAL_SEED, Watch, unwatched
from navrl.evaluation.scenarios import scenario_tasks
from navrl.evaluation.statistics import Estimate, paired
from navrl.sim.env import NavigationEnv
from navrl.sim.settings import NavigationSettings

__all__ = ["CARD_DEFINITIONS", "CardRow", "card_results", "card_table", "fly_card"]

FAILURES = ("static_collision", "dynamic_collision", "out_of_bounds", "time_out")

CARD_DEFINITIONS = """\
(a - b): 95 % interval from a bootstrap over worlds
change: success less that of the nominal row on the same trips, in percentage points
missed: each moving obstacle at each decision; noise: standard deviation on each axis, or of a ray
delay, wind and mass: drawn anew for each episode, up to the value
speed limit: the commands of the policy are scaled to it"""


@dataclass(frozen=True)
class CardRow:
    """How a policy does under one condition."""

    condition: Condition
    flights: Flights
    change: Estimate  # of success, to the first row on the same trips

    @property
    def success(self) -> Estimate:
        """The share of successful episodes."""
        return self.flights.share("success_100")


def fly_card(
    policy: Policy,
    scenario: str,
    config: Config,
    typed: Collection[str] = (),
    watch: Watch = unwatched,
    conditions: Sequence[Condition] = CONDITIONS,
) -> list[CardRow]:
    """Fly a policy under each condition and return the rows of its card.

    All rows have the same worlds and trips; the first is the one the others are compared with.

    Args:
        policy: to be flown, deterministic.
        scenario: the worlds and trips; one without cells.
        config: task and flights.
        typed: dotted keys that the user typed; they hold in every row that does not set them.
        watch: told about progress.
        conditions: the rows.
    """
    (task,) = scenario_tasks([scenario], config.task, config.flight, policy, typed).values()
    rows: list[CardRow] = []
    for condition in conditions:
        label = f"{condition.group}: {condition.name}"
        with watch(policy.name, label, task.env.num_envs) as progress:
            flown, act = _under(condition, task, policy)
            env = NavigationEnv(flown, seed=FINAL_SEED + config.flight.seed, auto_reset=False)
            flights = evaluate(env, act, scenario=scenario, progress=progress)
        first = rows[0].flights if rows else flights
        change = paired(first.success, flights.success, flights.world).difference
        rows.append(CardRow(condition, flights, change))
    return rows


def _under(
    condition: Condition, task: NavigationSettings, policy: Policy
) -> tuple[NavigationSettings, Policy]:
    """Return the task under a condition, and the policy with its commands scaled to the limit."""
    flown = copy.deepcopy(task)
    for key, value in condition.settings.items():
        flown.set(key, copy.deepcopy(value))
    if SPEED_LIMIT not in condition.settings:
        return flown, policy
    scale = flown.env.action_limit / task.env.action_limit
    return flown, replace(policy, act=lambda observation: policy.act(observation) * scale)


def card_results(rows: Sequence[CardRow]) -> list[dict[str, Any]]:
    """Return the rows as plain values for JSON."""
    return [
        {
            "group": row.condition.group,
            "condition": row.condition.name,
            "settings": dict(row.condition.settings),
            "success_100": row.success.as_dict(),
            "change": row.change.as_dict(),
            "spl": row.flights.mean("spl").mean,
            **{name: row.flights.share(name).mean for name in ("success_050", *FAILURES)},
        }
        for row in rows
    ]


def card_table(rows: Sequence[CardRow], title: str) -> Table:
    """Return the card as a table: success, its change, and how the other episodes ended."""
    flights = rows[0].flights
    counted = f"{len(flights.world)} episodes in {len(flights.world.unique())} worlds a row"
    table = Table(title=f"{title}: {counted}", title_justify="left")
    table.add_column("condition", no_wrap=True)
    for heading in ("success", "change", "static", "moving", "bounds", "time"):
        table.add_column(heading, justify="right")
    group = ""
    for row in rows:
        if row.condition.group != group:
            group = row.condition.group
            table.add_section()
        shares = (f"{100 * row.flights.share(name).mean:.1f}" for name in FAILURES)
        change = "" if row is rows[0] else points(row.change)
        name = f"{group}: {row.condition.name}"
        table.add_row(name, percent(row.success), change, *shares)
    table.caption = "static, moving, bounds, time: % of episodes that ended so"
    return table
