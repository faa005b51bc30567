"""Fly policies through scenarios: the same episodes for all of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Protocol

import torch
from torch import Tensor

from navrl.config import Config
from navrl.evaluation import simulator_compiler
from navrl.evaluation.comparison import compare
from navrl.evaluation.flights import Act, Flights, evaluate
from navrl.evaluation.policy_lookup import Policy
from navrl.evaluation.report import cells_of, pooled, summary
from navrl.evaluation.scenarios import scenario_tasks
from navrl.evaluation.tasks import label_of
from navrl.rl.policy import NetworkPilot
from navrl.sim.env import NavigationEnv
from navrl.sim.settings import NavigationSettings
from navrl.sim.step import observation_layout
from navrl.sim.worlds.world_pool import build_pool

__all__ = [
    "FINAL_SEED",
    "Flown",
    "Progress",
    "Watch",
    "decision_latency",
    "fly_scenarios",
    "results_of",
    "unwatched",
]

FINAL_SEED = 1 << 40  # random streams that neither training nor the evaluations during it have seen
WARM_UP, TIMED = 20, 100  # calls before and while a decision is timed

Progress = Callable[[int, int], None]


class Watch(Protocol):
    """Told what an evaluation does; see `api/progress_bars.py` for one that draws bars."""

    def __call__(self, policy: str, label: str, episodes: int) -> AbstractContextManager[Progress]:
        """Return a context for one condition; its value is called with (ended, all episodes)."""


def unwatched(policy: str, label: str, episodes: int) -> AbstractContextManager[Progress]:
    """Return a context that reports nothing."""
    return nullcontext(lambda ended, of: None)


@dataclass(frozen=True)
class Flown:
    """One policy in all conditions of an evaluation."""

    policy: Policy
    flights: dict[str, Flights] = field(default_factory=dict)  # by label: `crossing`, `grid 300+60`
    tasks: dict[str, NavigationSettings] = field(default_factory=dict)
    latency_ms: float | None = None  # median time of a decision for one drone

    @property
    def subtitles(self) -> dict[str, str]:
        """What a drone meets in each condition, in words."""
        return {label: label_of(task) for label, task in self.tasks.items()}


def fly_scenarios(
    policy: Policy,
    names: Collection[str],
    config: Config,
    typed: Collection[str] = (),
    watch: Watch = unwatched,
) -> Flown:
    """Fly a policy through scenarios and return its flights.

    Equal `config.flight` and task settings give every policy the same worlds, starts, goals and
    moving obstacles. Flights are recorded in plain scenarios, not in the cells of a grid.

    Args:
        policy: to be flown, deterministic.
        names: of scenarios.
        config: task and flights.
        typed: dotted keys that the user typed; they win over scenario and training.
        watch: told about progress.
    """
    tasks = scenario_tasks(names, config.task, config.flight, policy, typed)
    for task in [*tasks.values()][:1]:
        _compile(policy, task)
    flights: dict[str, Flights] = {}
    latency: float | None = None
    for label, task in tasks.items():
        recorded = 0 if " " in label else config.flight.recorded
        with watch(policy.name, label, task.env.num_envs) as progress:
            env = NavigationEnv(task, seed=FINAL_SEED + config.flight.seed, auto_reset=False)
            flights[label] = evaluate(
                env, policy, recorded=recorded, scenario=label, progress=progress
            )
            if latency is None and policy.begin is None:
                latency = decision_latency(policy, env.observe())
    return Flown(policy, flights, tasks, latency)


def _compile(policy: Policy, task: NavigationSettings) -> None:
    """Compile what the first flight needs in two processes, if it is not on disk."""
    if simulator_compiler.start():
        build_pool(task, 0)
        if isinstance(policy.act, NetworkPilot):
            shapes = observation_layout(task).shapes
            policy({name: torch.zeros(task.env.num_envs, *shape) for name, shape in shapes.items()})
        simulator_compiler.wait()


def decision_latency(act: Act, observation: Mapping[str, Tensor]) -> float:
    """Return the median time in ms that a policy takes to decide for one drone."""
    one = {name: value[:1] for name, value in observation.items()}
    seconds = []
    for call in range(WARM_UP + TIMED):
        start = time.perf_counter()
        act(one)
        if call >= WARM_UP:
            seconds.append(time.perf_counter() - start)
    return 1e3 * median(seconds)


def results_of(flown: Flown, first: Flown | None = None) -> dict[str, Any]:
    """Return the numbers of a policy, and its paired differences to `first` if that is given."""
    results: dict[str, Any] = {
        "policy": flown.policy.name,
        "decision_ms": flown.latency_ms,
        "conditions": {
            label: {
                "label": flown.subtitles[label],
                **summary(flights),
                "settings": flown.tasks[label].as_dict(),
            }
            for label, flights in flown.flights.items()
        },
    }
    results |= {name: _results_of_cells(cells) for name, cells in cells_of(flown.flights).items()}
    if first is not None:
        results["paired"] = {
            label: compare(first.flights[label], flights)
            for label, flights in flown.flights.items()
        }
    return results


def _results_of_cells(cells: Mapping[str, Flights]) -> dict[str, Any]:
    """Return the success over all cells of a scenario, and in the hardest of them."""
    shares = {cell: flights.share("success_100") for cell, flights in cells.items()}
    hardest = min(shares, key=lambda cell: shares[cell].mean)
    return {
        "success_100": pooled(cells).share("success_100").as_dict(),
        "hardest": {"cell": hardest, **shares[hardest].as_dict()},
    }
