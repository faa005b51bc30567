"""Fly a policy under every condition of the robustness card."""

from __future__ import annotations

import copy
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rich import box
from rich.table import Table
from torch import Tensor

from navrl.config import Config
from navrl.evaluation.card.conditions import CONDITIONS, SPEED_LIMIT, Condition
from navrl.evaluation.flights import Act, Flights, evaluate
from navrl.evaluation.policy_lookup import Policy
from navrl.evaluation.report import points
from navrl.evaluation.run import FINAL_SEED, Progress, Watch, unwatched
from navrl.evaluation.scenarios import scenario_tasks
from navrl.evaluation.statistics import Estimate, paired
from navrl.sim.env import NavigationEnv
from navrl.sim.episode_statistics import FAILURES
from navrl.sim.settings import NavigationSettings

__all__ = [
    "CARD_DEFINITIONS",
    "CardRow",
    "card_results",
    "card_table",
    "card_title",
    "fly_card",
    "fly_condition",
]

CARD_DEFINITIONS = """\
change: success less that of the nominal row on the same trips, in percentage points,
    with its 95 % interval from a bootstrap over worlds; intervals of success: card.json
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
    seed = FINAL_SEED + config.flight.seed
    rows: list[CardRow] = []
    for condition in conditions:
        label = f"{condition.group}: {condition.name}"
        with watch(policy.name, label, task.env.num_envs) as progress:
            first = rows[0].flights if rows else None
            rows.append(fly_condition(policy, task, condition, seed, first, progress))
    return rows


def fly_condition(
    policy: Policy,
    task: NavigationSettings,
    condition: Condition,
    seed: int,
    first: Flights | None = None,
    progress: Progress = lambda ended, of: None,
) -> CardRow:
    """Fly a policy under one condition over a task; the change is to the flights `first`."""
    flown, act = _under(condition, task, policy)
    env = NavigationEnv(flown, seed=seed, auto_reset=False)
    flights = evaluate(env, act, progress=progress)
    compared = flights if first is None else first
    change = paired(compared.success, flights.success, flights.world).difference
    return CardRow(condition, flights, change)


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
    return flown, replace(policy, act=_Scaled(policy.act, scale))


class _Scaled:
    """The commands of a pilot, scaled to another speed limit."""

    def __init__(self, act: Act, scale: float) -> None:
        self._act, self._scale = act, scale
        self.decides_alone = bool(getattr(act, "decides_alone", False))

    def __call__(self, observation: dict[str, Tensor]) -> Tensor:
        return self._act(observation) * self._scale


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


def card_title(policy: str, scenario: str, episodes: int, worlds: int) -> str:
    """Return the title of a card."""
    return f"{policy}, {scenario}: {episodes} episodes in {worlds} worlds a row"


def card_table(rows: Sequence[CardRow], title: str) -> Table:
    """Return the card as a table: success, its change, and how the other episodes ended."""
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, collapse_padding=True)
    table.pad_edge = False  # it fits into 80 columns
    table.add_column("condition")
    for heading in ("success", "change", "static", "moving", "bounds", "time"):
        table.add_column(heading, justify="right", no_wrap=True)
    group = rows[0].condition.group
    for row in rows:
        if row.condition.group != group:
            group = row.condition.group
            table.add_row(group, style="bold")
        shares = (f"{100 * row.flights.share(name).mean:.1f}" for name in FAILURES)
        change = "" if row is rows[0] else points(row.change).replace(" to ", ", ")
        name = group if row is rows[0] else f"  {row.condition.name}"
        table.add_row(name, f"{100 * row.success.mean:.1f}", change, *shares)
    table.caption = "success and how the other episodes ended: % of the episodes"
    table.caption_justify = "left"
    return table
