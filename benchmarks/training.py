"""Training beside its peers: the same network, the same environment, the same batch, the same two
threads.

An iteration is 32 decisions of 1024 drones, then 4 epochs of 16 minibatches: collection, update,
and all that lies between. Every contestant is a process of its own (`_training_peers/`), in a
virtual environment that is made here, with the settings that make it fastest on a CPU; each module
says which. They take turns, one iteration each, and sleep in between. How many cores the sleepers
used all the same, and what the rest of the machine did meanwhile, is measured too: the last two
lines of the gates, which say whether the run was a quiet one (two threads of OpenMP are many times
slower beside other work). Memory is the sum of the peaks of a contestant's processes, so that two
processes pay twice for what they share. "GEMM limit" is no trainer: only the matrix products that
all of them need.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from _training_peers.process import ContestantProcess
from _training_peers.task import Task
from navrl.benchmark import Case, Column, Gate, Results, Suite
from navrl.benchmark.peers import python_of


@dataclass(frozen=True)
class Entry:
    """A contestant: its module, and what its environment needs beyond what is installed here."""

    module: str
    note: str
    package: str = ""  # the import without which it cannot run
    requirements: tuple[str, ...] = ()


OURS = "navrl"
LIMIT = "GEMM limit"
TORCHRL = "TorchRL"
TORCHRL_PLAIN = "TorchRL collector, plain update"
BASELINES, RSL_RL, SKRL = "Stable-Baselines3", "rsl_rl", "skrl"
TORCHRL_PINS = ("torchrl==0.14.1", "tensordict==0.14.3")

ENTRIES = {
    OURS: Entry("navrl_trainer", "two processes of one thread, gradients summed"),
    "plain loop": Entry("plain_loop", "PyTorch, conv2d, buffers made once"),
    TORCHRL: Entry("torchrl_collector", "Collector, GAE, ClipPPOLoss", "torchrl", TORCHRL_PINS),
    TORCHRL_PLAIN: Entry(
        "torchrl_plain", "Collector, and the update of the plain loop", "torchrl", TORCHRL_PINS
    ),
    BASELINES: Entry(
        "stable_baselines",
        "PPO",
        "stable_baselines3",
        ("stable-baselines3==2.9.2", "gymnasium==1.4.0"),
    ),
    RSL_RL: Entry("rsl_rl_runner", "OnPolicyRunner, PPO", "rsl_rl", ("rsl-rl-lib==5.5.1",)),
    SKRL: Entry(
        "skrl_trainer", "SequentialTrainer, PPO", "skrl", ("skrl==2.1.1", "gymnasium==1.4.0")
    ),
    LIMIT: Entry("gemm_limit", "the network's matrix products alone"),
}
# One thread: on a busy machine two threads of OpenMP wait for each other far longer than they
# compute.
SMOKE = Task(drones=64, steps=4, epochs=1, minibatches=2, worlds=2, threads=1)


def interpreter(name: str, entry: Entry, *, smoke: bool) -> Callable[[], str]:
    """Return what gives a contestant its Python: the running one if it needs no more, else one of
    its own.
    """
    if smoke or not entry.requirements:
        return lambda: sys.executable
    folder = entry.package if entry.package == "torchrl" else name
    return lambda: python_of(folder, entry.requirements)


def runs_here(entry: Entry) -> bool:
    return not entry.package or importlib.util.find_spec(entry.package) is not None


def gates() -> list[Gate]:
    """Return what is promised, end to end."""

    def speed(*peers: str) -> Callable[[Results], float]:
        return lambda results: min(results.ratio("frames_per_second", OURS, peer) for peer in peers)

    def worst(metric: str) -> Callable[[Results], float]:
        return lambda results: max(results.median(name, metric) for name in ENTRIES)

    limits = {
        "times TorchRL, the faster of the two": (speed(TORCHRL, TORCHRL_PLAIN), 2.5, 3.5),
        "times Stable-Baselines3": (speed(BASELINES), 2.2, 2.8),
        "times rsl_rl": (speed(RSL_RL), 2.3, 3.2),
    }
    return [
        *(Gate(name, value, at_least=least) for name, (value, least, _) in limits.items()),
        *(
            Gate(name, value, at_least=most, stretch=True)
            for name, (value, _, most) in limits.items()
        ),
        Gate("share of the GEMM limit", speed(LIMIT), at_least=0.6, stretch=True),
        Gate("quiet: cores of the others' work", worst("other_cores"), at_most=0.1, stretch=True),
        Gate(
            "quiet: cores of a contestant that waits",
            worst("waiting_cores"),
            at_most=0.02,
            stretch=True,
        ),
    ]


def suite(smoke: bool) -> Suite:
    task = SMOKE if smoke else Task()
    chosen = {name: entry for name, entry in ENTRIES.items() if not smoke or runs_here(entry)}
    processes = {
        name: ContestantProcess(entry.module, task, interpreter(name, entry, smoke=smoke))
        for name, entry in chosen.items()
    }

    def close() -> None:
        for process in processes.values():
            process.close()

    notes = {
        name: "; ".join(filter(None, [entry.note, ", ".join(entry.requirements)]))
        for name, entry in chosen.items()
    }
    return Suite(
        name="training",
        title=f"Training: {task.drones} drones x {task.steps} decisions, {task.epochs} epochs x "
        f"{task.minibatches} "
        f"minibatches, {task.threads} threads",
        cases=[Case(name, process.measure, notes[name]) for name, process in processes.items()],
        columns=[
            Column("frames_per_second", "frames/s", ",.0f"),
            Column("collection", "collection", ",.0f"),
            Column("update", "update", ",.0f"),
            Column("memory", "memory MB", ",.0f", 1e-6),
        ],
        gates=[] if smoke else gates(),
        packages=("torchrl", "tensordict", "stable-baselines3"),
        repeats=7,
        settings={
            "task": task.as_json(),
            "not installed, so left out": sorted(set(ENTRIES) - set(chosen)),
        },
        close=close,
    )
