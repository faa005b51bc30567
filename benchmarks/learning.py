"""Minutes and decisions until a policy succeeds, for navrl and three other PPO libraries.

    navrl bench learning                              # hours; stop it and call it again to resume
    navrl bench learning --repeats 1                  # one seed
    NAVRL_LEARNING_MINUTES=4 navrl bench learning     # at most so many minutes of training per run
    NAVRL_LEARNING_RECIPES=quick navrl bench learning  # peers with the settings of quick only

Every learner trains the same task (our simulator in the settings of preset=quick) and the same
network with the same action distribution, from the same random weights of a seed. Peers run with
the settings published for their library and with those of preset=quick; see
`_learning_peers/recipes.py`. After every 30 s of training, the policy flies the `standard` scenario
in worlds that nobody trains in; that time is not counted. A run ends at 80 % success, after 40
minutes of training, or after 24 million decisions.

A run is a process of its own and has a folder of its own in `.cache/bench/learning`. A finished run
is not repeated; with a longer limit of minutes it goes on where it ended. Remove the folder to
start over. Peers that are not installed get virtual environments of their own.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from _learning_page import page, publish
from _learning_peers.course import TARGETS, Run
from _learning_peers.recipes import ISAAC_LAB, QUICK
from _learning_peers.training import RESULT, Course
from navrl.benchmark import Case, Column, Gate, Results, Suite
from navrl.benchmark.peers import cache, existing_python, python_of
from navrl.errors import BenchmarkError

__all__ = ["page", "suite"]

MINUTES, RECIPES = "NAVRL_LEARNING_MINUTES", "NAVRL_LEARNING_RECIPES"
OURS, BASELINES, RSL_RL, SKRL = "navrl", "Stable-Baselines3", "rsl_rl", "skrl"
UNTAUGHT = "navrl, without teacher"


@dataclass(frozen=True)
class Entry:
    """A learner: its module, and what its environment needs beyond what is installed here."""

    module: str
    package: str = ""  # the import without which it cannot run
    requirements: tuple[str, ...] = ()
    overrides: tuple[str, ...] = ()  # of the settings of preset=quick


ENTRIES = {
    OURS: Entry("navrl_trainer"),
    UNTAUGHT: Entry("navrl_trainer", overrides=("algo.imitation=0",)),
    BASELINES: Entry(
        "stable_baselines", "stable_baselines3", ("stable-baselines3==2.9.2", "gymnasium==1.4.0")
    ),
    RSL_RL: Entry("rsl_rl_runner", "rsl_rl", ("rsl-rl-lib==5.5.1",)),
    SKRL: Entry("skrl_agent", "skrl", ("skrl==2.1.1", "gymnasium==1.4.0")),
}
SMOKE = Run(
    OURS,
    QUICK,
    episodes=8,
    decisions=1024,
    threads=1,
    overrides=("env.num_envs=64", "env.num_worlds=4", "env_dyn.obstacles_per_world=[8]"),
)


def contenders(*, smoke: bool = False) -> dict[str, tuple[Entry, str]]:
    """Return the cases: each learner with its recipe; a smoke run has each learner once."""
    found = {name: (ENTRIES[name], QUICK) for name in ([OURS] if smoke else [OURS, UNTAUGHT])}
    both = f"{ISAAC_LAB},{QUICK}"
    recipes = ISAAC_LAB if smoke else os.environ.get(RECIPES, both)
    if recipes not in (both, ISAAC_LAB, QUICK):
        raise BenchmarkError(f"{RECIPES} is {recipes!r}; expected {ISAAC_LAB}, {QUICK} or {both}")
    for name in (BASELINES, RSL_RL, SKRL):
        if recipes != QUICK:
            found[name] = ENTRIES[name], ISAAC_LAB
        if recipes != ISAAC_LAB:
            found[f"{name}, settings of quick"] = ENTRIES[name], QUICK
    return found


def interpreter(name: str, entry: Entry, *, smoke: bool) -> str:
    """Return the Python of a learner; empty: a smoke run without the peer."""
    if not entry.package or importlib.util.find_spec(entry.package) is not None:
        return sys.executable
    return (
        existing_python(name, entry.requirements) if smoke else python_of(name, entry.requirements)
    )


def folder_of(run: Run, above: Path) -> Path:
    """Return the folder of a run, which other settings do not share."""
    lasting = replace(run, minutes=0.0)  # a longer limit goes on where a shorter one ended
    digest = hashlib.sha256(lasting.as_json().encode()).hexdigest()[:8]
    return above / f"{run.learner}-{run.recipe}-{run.seed}-{digest}"


def carry_out(run: Run, python: str, folder: Path) -> dict[str, Any]:
    """Train in a process of its own until the run is finished, and return its curve.

    Raises:
        BenchmarkError: the process failed; its last lines are in the message.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if not course_of(folder).finished(run):
        threads = str(run.threads)
        environment = {
            **os.environ,
            "PYTHONPATH": str(Path(__file__).parent),
            "PYTHONWARNINGS": "ignore",
            "CUDA_VISIBLE_DEVICES": "",
            **{f"{name}_NUM_THREADS": threads for name in ("OMP", "MKL", "NUMBA")},
        }
        command = [python, "-m", "_learning_peers", run.as_json(), str(folder)]
        with (folder / "log.txt").open("a") as log:
            status = subprocess.run(command, env=environment, stdout=log, stderr=log).returncode
        if status:
            told = "\n".join((folder / "log.txt").read_text().splitlines()[-12:])
            raise BenchmarkError(f"{folder} ended with status {status}:\n{told}")
    return asdict(course_of(folder))


def course_of(folder: Path) -> Course:
    """Return how far the run of a folder has come."""
    result = folder / RESULT
    return Course(**json.loads(result.read_text())) if result.exists() else Course()


def reached(curve: list[dict[str, float]], target: float) -> dict[str, float]:
    """Return the first point of a curve at a target; infinite if there is none."""
    never = {"minutes": float("inf"), "decisions": float("inf")}
    point = next((point for point in curve if point["success"] >= target), never)
    label = f"{100 * target:.0f} %"
    return {f"minutes to {label}": point["minutes"], f"decisions to {label}": point["decisions"]}


def metrics_of(found: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers of a run."""
    curve, seconds = found["curve"], found["seconds"]
    values = {
        "best": max(point["success"] for point in curve),
        "last": curve[-1]["success"],
        "minutes": seconds / 60,
        "decisions": found["decisions"],
        "decisions_per_second": found["decisions"] / seconds if seconds else 0.0,
    }
    for target in TARGETS:
        values |= reached(curve, target)
    return values


def suite(smoke: bool) -> Suite:
    """Return the benchmark: a case for each learner and recipe, a round for each seed."""
    base = SMOKE if smoke else Run(OURS, QUICK, minutes=float(os.environ.get(MINUTES, "40")))
    scratch = TemporaryDirectory() if smoke else None
    above = Path(scratch.name) if scratch else cache() / "learning"
    curves: dict[str, list[Any]] = {}
    missing: list[str] = []
    cases = []
    for name, (entry, recipe) in contenders(smoke=smoke).items():
        owner = next(known for known in ENTRIES if ENTRIES[known] is entry)
        if smoke and not interpreter(owner, entry, smoke=True):
            missing.append(name)
            cases.append(Case(f"{name} (not installed)", dict, "not installed"))
            continue
        overrides = base.overrides + entry.overrides
        run = replace(base, learner=entry.module, recipe=recipe, overrides=overrides)
        measure = _measured(run, owner, entry, above, curves.setdefault(name, []), smoke=smoke)
        cases.append(Case(name, measure, ", ".join(entry.requirements)))
    return Suite(
        name="learning",
        title=f"Learning: until {' and '.join(f'{t:.0%}' for t in TARGETS)} success in standard, "
        f"at most {base.minutes:g} minutes and {base.decisions:,} decisions a run",
        cases=cases,
        columns=[
            *(
                Column(f"{unit} to {100 * target:.0f} %", f"{unit} to {target:.0%}", form, scale)
                for target in TARGETS
                for unit, form, scale in (("minutes", ".1f", 1.0), ("decisions", ",.0f", 1.0))
            ),
            Column("best", "best %", ".1f", 100),
            Column("minutes", "minutes", ".1f"),
            Column("decisions_per_second", "decisions/s", ",.0f"),
        ],
        gates=[] if smoke else [first_gate()],
        packages=("torch", "stable-baselines3", "rsl-rl-lib", "skrl"),
        repeats=3,
        warm_up=False,
        settings={"run": asdict(base), "curves": curves, "not installed": missing},
        close=scratch.cleanup if scratch else lambda: None,
        publish=publish,
    )


def _measured(
    run: Run, name: str, entry: Entry, above: Path, curves: list[Any], *, smoke: bool
) -> Callable[[], dict[str, float]]:
    """Return what carries out one run for each call: seed 0, then 1, and so on."""

    def measure() -> dict[str, float]:
        seeded = replace(run, seed=len(curves))
        python = interpreter(name, entry, smoke=smoke)
        found = carry_out(seeded, python, folder_of(seeded, above))
        curves.append(found["curve"])
        return metrics_of(found)

    return measure


def first_gate() -> Gate:
    """Return the promise that navrl reaches the last target before the peers."""
    metric = f"minutes to {100 * TARGETS[-1]:.0f} %"

    def value(results: Results) -> float:
        peers = [
            results.median(name, metric) for name in contenders() if name not in (OURS, UNTAUGHT)
        ]
        return min(peers) / results.median(OURS, metric)

    return Gate(f"{metric}: the fastest peer / navrl", value, at_least=1.0, stretch=True)
