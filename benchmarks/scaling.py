"""Training on many machines: what a rank computes and sends, what a checkpoint costs it, and what a
model fitted to that says for more ranks than there are here.

    navrl bench scaling

- "train": PPO on the navigation task with 2048 drones in 1, 2 and 4 ranks of one thread each, from
  the package's policy with a learning rate of zero. Compute is the processor time of a rank outside
  of all-reduces, so it can be read where ranks share cores.
- "share": one rank alone with fewer drones, as one of many ranks has them.
- "save": the same training with short iterations, and checkpoints as `navrl train` writes them.
- Links: all-reduces of a gradient, and of 40 bytes, over loopback, and through a process that
  forwards every connection with a delay and a rate (_scaling_link.py).

docs/scaling.md is written from the results. An interrupted run goes on with the next case.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from _kept import PACKAGE, Kept
from _page import ROOT
from _scaling_link import Link
from _scaling_model import DIRECT, LINKS, SMALL, link_case
from _scaling_page import publish
from _scaling_team import in_team
from _scaling_work import reduce, save, train
from navrl.benchmark import Case, Column, Gate, Results, Suite
from navrl.evaluation import load_policy

PARTIAL = ROOT / "benchmarks" / "results" / "scaling.partial.json"
SOURCES = ("training/**/*.py", "io/**/*.py")
FIXED = (
    "sim.num_threads=1",
    "env.num_worlds=8",
    "env.action_repeat=5",  # as in the training of the policy
    "network.relative_motion=true",  # the network of the policy
    "env_dyn.num_obstacles=80",
    "algo.feature_extractor.learning_rate=0",
    "algo.actor.learning_rate=0",
    "algo.critic.learning_rate=0",
    "max_frame_num=1_000_000_000",
)
SAVING = ("algo.training_frame_num=1", "algo.num_minibatches=4", "eval_interval=0")
METRICS = 5  # numbers that are summed with each gradient


class Sizes:
    """How much is measured."""

    def __init__(self, smoke: bool) -> None:
        self.drones, self.steps = (16, 2) if smoke else (2048, 32)
        self.minibatches = 2 if smoke else 32
        self.ranks = (1, 2) if smoke else (1, 2, 4)
        # drones of one rank: iterations
        self.shares = {4: 1} if smoke else {512: 4, 128: 8, 32: 16, 8: 16}
        self.iterations = 1 if smoke else 3
        self.saves = 2 if smoke else 12
        self.interval = 2 if smoke else 8  # iterations between two saves
        self.links = LINKS[:2] if smoke else LINKS
        self.repeats = 3 if smoke else 60  # of an all-reduce

    def words(self, drones: int) -> list[str]:
        """Return the settings of a training."""
        return [
            *FIXED,
            f"env.num_envs={drones}",
            f"algo.training_frame_num={self.steps}",
            f"algo.num_minibatches={self.minibatches}",
        ]


def gradient_bytes() -> int:
    """Return the size of the all-reduce of a minibatch."""
    network = load_policy("pretrained").act.network.network  # type: ignore[attr-defined]
    return 4 * (sum(parameter.numel() for parameter in network.parameters()) + METRICS)


class Bench:
    """Runs the teams; the links of one team are measured together."""

    def __init__(self, sizes: Sizes) -> None:
        self.sizes, self.gradient = sizes, gradient_bytes()
        self._reduced: dict[str, dict[str, float]] = {}

    def train(self, ranks: int, drones: int, iterations: int) -> dict[str, float]:
        """Return the costs of an iteration: means over the ranks."""
        found = in_team(ranks, train, self.sizes.words(drones), iterations)
        values = {name: mean(one[name] for one in found) for name in found[0]}
        return values | {"frames_per_second": values["frames"] / values["iteration"]}

    def save(self, ranks: int) -> dict[str, float]:
        """Return the costs of a checkpoint, as rank 0 sees them."""
        words = [*self.sizes.words(self.sizes.drones), *SAVING]
        words.append(f"save_interval={self.sizes.interval}")
        values: dict[str, float] = in_team(ranks, save, words, self.sizes.saves)[0]
        return values

    def link(self, link: Link, ranks: int) -> dict[str, float]:
        """Return the seconds of all-reduces over a link."""
        case = link_case(link, ranks)
        if case not in self._reduced:
            links = [DIRECT] if link is DIRECT else [*self.sizes.links]
            order = (links, (SMALL, self.gradient), self.sizes.repeats)
            found = in_team(ranks, reduce, *order, linked=link is not DIRECT)[0]
            for one in links:
                small, large = (found[one.name][size] for size in (SMALL, self.gradient))
                values = {"small": small["seconds"], "gradient": large["seconds"]}
                values |= {} if one is DIRECT else {"sent": large["sent"]}
                self._reduced[link_case(one, ranks)] = values
        return self._reduced.pop(case)

    def measures(self) -> dict[str, Callable[[], Mapping[str, float]]]:
        """Return all cases."""
        sizes, teams = self.sizes, [ranks for ranks in self.sizes.ranks if ranks > 1]
        return {
            **{
                f"train: {_ranks(n)}": partial(self.train, n, sizes.drones, sizes.iterations)
                for n in sizes.ranks
            },
            **{
                f"share: {drones} drones": partial(self.train, 1, drones, iterations)
                for drones, iterations in sizes.shares.items()
            },
            **{f"save: {_ranks(n)}": partial(self.save, n) for n in sizes.ranks},
            **{
                link_case(link, n): partial(self.link, link, n)
                for n in teams
                for link in (DIRECT, *sizes.links)
            },
        }


def _ranks(number: int) -> str:
    return "1 rank" if number == 1 else f"{number} ranks"


def suite(smoke: bool) -> Suite:
    """Return the benchmark."""
    sizes = Sizes(smoke)
    bench = Bench(sizes)
    sources = [path for pattern in SOURCES for path in sorted(PACKAGE.glob(pattern))]
    sources += sorted((ROOT / "benchmarks").glob("_scaling_*.py"))
    kept, rounds = Kept(None if smoke else PARTIAL, sources), Counter[str]()

    def measured(name: str, measure: Callable[[], Mapping[str, float]]) -> Mapping[str, float]:
        rounds[name] += 1
        settings = [*sizes.words(sizes.drones), *SAVING]
        return kept.measured(f"{name}, round {rounds[name]}", settings, measure)

    def publish_and_clear(results: Mapping[str, Any]) -> None:
        publish(results)
        kept.clear()

    return Suite(
        name="scaling",
        title=f"Scaling: PPO with {sizes.drones} drones in {sizes.ranks[-1]} ranks and fewer, "
        f"{os.cpu_count()} cores",
        cases=[
            Case(name, partial(measured, name, measure))
            for name, measure in bench.measures().items()
        ],
        columns=[
            Column("frames_per_second", "frames/s", ",.0f"),
            Column("iteration", "iteration ms", ",.0f", 1e3),
            Column("compute", "compute ms", ",.0f", 1e3),
            Column("reduce", "all-reduce ms", ",.0f", 1e3),
            Column("save", "save ms", ".2f", 1e3),
            Column("small", "40 B ms", ".2f", 1e3),
            Column("gradient", "gradient ms", ".2f", 1e3),
        ],
        gates=[] if smoke else gates(sizes.ranks),
        packages=("torch", "numba", "matplotlib"),
        repeats=2,
        warm_up=False,  # every measurement starts new processes and warms them up
        settings={
            "drones": sizes.drones,
            "steps": sizes.steps,
            "minibatches": sizes.minibatches,
            "gradient": bench.gradient,
            "ranks": list(sizes.ranks),
            "shares": [*sizes.shares],
        },
        publish=publish_and_clear,
    )


def gates(ranks: Sequence[int]) -> list[Gate]:
    """Return what is promised."""

    def slowest(results: Results) -> float:
        return 1e3 * max(results.median(f"save: {_ranks(number)}", "save") for number in ranks)

    def growth(results: Results) -> float:
        return results.ratio("save", f"save: {_ranks(ranks[-1])}", f"save: {_ranks(ranks[0])}")

    return [
        Gate("median save with any number of ranks, ms", slowest, at_most=2.0),
        Gate(f"save: {ranks[-1]} ranks over 1", growth, at_most=1.5, stretch=True),
    ]
