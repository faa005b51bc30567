"""A policy outside the simulator: how fast each exported form decides, what a wrong contract costs,
what the shield saves, and how much delay is tolerated.

Decisions are timed one at a time, on one thread. Flights (350 static and 80 moving obstacles) are
in 32 worlds that no training uses; all cases of a layout fly the same episodes, once. A run that is
interrupted continues with the flights that are missing.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import numpy as np
import torch

from navrl.benchmark import Case, Column, Gate, Results, Suite
from navrl.deploy.exported_pilot import Command
from navrl.deploy.policy_export import export_policy, robot_policy
from navrl.deploy.qp_shield import QpShield
from navrl.deploy.robot_inputs import sampled_inputs
from navrl.deploy.robot_policy import INPUTS
from navrl.deploy.shield import Shield
from navrl.deploy.verify import crossing, load_command
from navrl.evaluation.policy_lookup import load_policy

sys.path.insert(0, str(Path(__file__).parent))
from _deploy_flights import MISTAKES, WORLDS, BenchFlights, Inputs, KeptFlights, straight
from _deploy_page import DELAYED, publish

SEED = 7
DELAYS_MS = (0, 40, 80, 120, 160)
SHIELDS: dict[str, type[Shield]] = {"shield": Shield, "convex program": QpShield}


class Bench:
    """The packaged policy in every form, and flights with it."""

    def __init__(self, smoke: bool) -> None:
        self.policy = load_policy("pretrained")
        self.robot = robot_policy(self.policy)
        self.episodes = 8 if smoke else 2048
        self.fewer = 8 if smoke else 512  # for wrong wirings, whose effects are large
        self.delayed_episodes = 8 if smoke else 256  # every simulated step of them is observed
        self.decisions = 50 if smoke else 2000
        self.mistakes = list(MISTAKES)[: 2 if smoke else None]
        self.delays_ms = DELAYS_MS[: 3 if smoke else None]
        self.flights = BenchFlights(self.policy, self.robot, SEED, 32 if smoke else None)
        weights = float(sum(p.double().abs().sum() for p in self.robot.parameters()))
        sizes = (self.episodes, self.fewer, self.delayed_episodes)
        self.kept = KeptFlights(weights, sizes, SEED, kept=not smoke)
        self.folder = tempfile.TemporaryDirectory(prefix="navrl-bench-")
        self._exported: Path | None = None
        self._command: Command | None = None
        inputs, _ = sampled_inputs(self.policy.task, self.policy, 64, SEED)
        self.single = [
            {name: value[i : i + 1] for name, value in inputs.items()} for i in range(64)
        ]

    @property
    def exported(self) -> Path:
        if self._exported is None:
            self._exported = export_policy("pretrained", self.folder.name)
        return self._exported

    # ------------------------------------------------------------------ decisions

    def latency(self, decide: Callable[[Inputs], object]) -> Mapping[str, float]:
        """Return the median and the 99th percentile of a decision, in seconds."""
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        times = []
        with torch.no_grad():
            for number in range(self.decisions + 20):
                inputs = self.single[number % len(self.single)]
                start = time.perf_counter()
                decide(inputs)
                times.append(time.perf_counter() - start)
        torch.set_num_threads(threads)
        return {"p50": float(np.median(times[20:])), "p99": float(np.percentile(times[20:], 99))}

    def eager(self) -> Mapping[str, float]:
        return self.latency(lambda inputs: self.robot(*(inputs[name] for name in INPUTS)))

    def pilot(self) -> Mapping[str, float]:
        env = crossing(self.policy, 1, SEED)
        observation = env.reset()
        return self.latency(lambda inputs: self.policy(observation))

    def exported_form(self, name: str) -> Mapping[str, float]:
        command = load_command(self.exported, name)
        arrays = {
            id(row): {key: value.numpy() for key, value in row.items()} for row in self.single
        }
        return self.latency(lambda inputs: command(arrays[id(inputs)]))

    def shield(self, kind: type[Shield]) -> Mapping[str, float]:
        shield = kind()
        rows = {
            id(row): {key: value.double().numpy() for key, value in row.items()}
            for row in self.single
        }
        wanted = np.array([[2.0, 0.0, 0.0]])

        def decide(inputs: Inputs) -> object:
            row = rows[id(inputs)]
            return shield(
                wanted,
                position=row["position"],
                velocity=row["velocity"],
                lidar=row["lidar"],
                obstacles=row["obstacles"],
                goal=row["goal"],
            )

        return self.latency(decide)

    # ------------------------------------------------------------------ flights

    def flown(self, name: str, fly: Callable[[], Mapping[str, float]]) -> Case:
        """Return flights as a case: they are the same in every round, so they are flown once."""
        return Case(name, lambda: self.kept.flown(name, fly))

    def delayed(self, delay_ms: float, shield: bool, compensated: bool) -> Mapping[str, float]:
        """Return the success of the ONNX file with a delay on each way."""
        if self._command is None:
            self._command = load_command(self.exported, "onnx")
        return self.flights.delayed(
            self._command, delay_ms, self.delayed_episodes, shield=shield, compensated=compensated
        )


def _decisions(bench: Bench) -> list[Case]:
    return [
        Case("decision: torch, eager", bench.eager),
        Case("decision: navrl's own pilot", bench.pilot),
        Case("decision: onnxruntime", lambda: bench.exported_form("onnx")),
        Case("decision: C", lambda: bench.exported_form("c")),
        Case("decision: shield", lambda: bench.shield(Shield)),
        Case("decision: shield, convex program", lambda: bench.shield(QpShield)),
    ]


def _flights(bench: Bench) -> list[Case]:
    flights, episodes = bench.flights, bench.episodes
    cases = [
        bench.flown(f"crossing: {name}", partial(flights.wired, MISTAKES[name], bench.fewer))
        for name in bench.mistakes
    ]
    for layout in ("crossing", "standard"):
        for name, act in (("policy", bench.policy), ("straight line", straight)):
            alone = partial(flights.unshielded, act, layout, episodes)
            cases.append(bench.flown(f"{layout}: {name}", alone))
            for shield, kind in SHIELDS.items():
                if kind is QpShield and act is straight:
                    continue
                behind = partial(flights.shielded, act, layout, episodes, kind)
                cases.append(bench.flown(f"{layout}: {name} + {shield}", behind))
    for delay in bench.delays_ms:
        for suffix in DELAYED:
            fly = partial(bench.delayed, delay, "shield" in suffix, "compensation" in suffix)
            cases.append(bench.flown(f"delay: {delay} ms{suffix}", fly))
    return cases


def _gained(results: Results, metric: str) -> float:
    """Return by how much the shield changes a share of the standard flights."""
    alone = results.median("standard: policy", metric)
    return results.median("standard: policy + shield", metric) - alone


def _lost(results: Results, suffix: str) -> float:
    """Return the success that a delay of 80 ms on each way costs in spite of the compensation."""
    at_once = results.median(f"delay: 0 ms{suffix} + compensation", "success")
    return at_once - results.median(f"delay: 80 ms{suffix} + compensation", "success")


GATES = [
    Gate("C decision, us", lambda r: 1e6 * r.median("decision: C", "p50"), at_most=60),
    Gate(
        "onnxruntime decision, us",
        lambda r: 1e6 * r.median("decision: onnxruntime", "p50"),
        at_most=150,
    ),
    Gate(
        "own pilot, times onnxruntime",
        lambda r: r.ratio("p50", "decision: navrl's own pilot", "decision: onnxruntime"),
        at_most=1.5,
    ),
    Gate("shield p99, us", lambda r: 1e6 * r.median("decision: shield", "p99"), at_most=50),
    Gate(
        "crossing with the shield",
        lambda r: r.median("crossing: policy + shield", "success"),
        at_least=0.95,
    ),
    Gate("standard: gained by the shield", lambda r: _gained(r, "success"), at_least=0.02),
    Gate("standard: time-outs added by the shield", lambda r: _gained(r, "time_out"), at_most=0.01),
    Gate("lost by 80 ms each way, compensated", lambda r: _lost(r, ""), at_most=0.02),
    Gate(
        "lost by 80 ms each way, compensated, with the shield",
        lambda r: _lost(r, " + shield"),
        at_most=0.02,
    ),
    Gate(
        "crossing: straight line with the shield",
        lambda r: r.median("crossing: straight line + shield", "success"),
        at_least=0.65,
    ),
]


def suite(smoke: bool) -> Suite:
    """Return the benchmark."""
    bench = Bench(smoke)
    return Suite(
        "deploy",
        "Outside the simulator",
        _decisions(bench) + _flights(bench),
        [
            Column("p50", "median us", ".0f", 1e6),
            Column("p99", "p99 us", ".0f", 1e6),
            Column("success", "success %", ".1f", 100),
            Column("static", "static %", ".1f", 100),
            Column("moving", "moving %", ".1f", 100),
            Column("time_out", "time-out %", ".1f", 100),
            Column("interventions", "intervened %", ".1f", 100),
            Column("clearance", "clearance m", ".2f"),
        ],
        GATES,
        packages=("torch", "onnxruntime"),
        repeats=3,
        settings={
            "episodes": bench.episodes,
            "fewer_episodes": bench.fewer,
            "delayed_episodes": bench.delayed_episodes,
            "worlds": WORLDS,
            "decisions": bench.decisions,
        },
        close=bench.folder.cleanup,
        publish=publish,
    )
