"""A policy outside the simulator: how fast each exported form decides, what a wrong contract costs,
and what the shield saves.

Decisions are timed one at a time, on one thread. Flights cross the field (350 static and 80 moving
obstacles) in 32 worlds that no training uses; all cases of a layout fly the same episodes, once.
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
from torch import Tensor

from navrl.benchmark import Case, Column, Gate, Suite
from navrl.deploy.policy_export import export_policy, robot_policy
from navrl.deploy.qp_shield import QpShield
from navrl.deploy.robot_inputs import inputs_of, sampled_inputs
from navrl.deploy.robot_policy import INPUTS
from navrl.deploy.shield import Shield
from navrl.deploy.shielded_pilot import ShieldedPilot, settings_for
from navrl.deploy.verify import crossing, load_command
from navrl.evaluation.flights import evaluate
from navrl.evaluation.policy_lookup import load_policy
from navrl.sim.env import NavigationEnv

sys.path.insert(0, str(Path(__file__).parent))
from _deploy_page import publish

SEED = 7
Inputs = dict[str, Tensor]


def _turned(steps: int) -> Callable[[Inputs], Inputs]:
    return lambda inputs: inputs | {"lidar": inputs["lidar"].roll(steps, 1)}


def _clockwise(inputs: Inputs) -> Inputs:
    return inputs | {"lidar": inputs["lidar"].flip(1).roll(1, 1)}


def _relative(inputs: Inputs) -> Inputs:
    obstacles = inputs["obstacles"].clone()
    obstacles[:, :, 3:6] -= inputs["velocity"][:, None]
    return inputs | {"obstacles": obstacles}


# How robots are commonly wired wrongly.
MISTAKES: dict[str, Callable[[Inputs], Inputs]] = {
    "as the contract says": lambda inputs: inputs,
    "scan turned by 10 degrees": _turned(1),
    "scan turned by 30 degrees": _turned(3),
    "scan clockwise": _clockwise,
    "beams upside down": lambda inputs: inputs | {"lidar": inputs["lidar"].flip(2)},
    "range minus distance": lambda inputs: inputs | {"lidar": 4.0 - inputs["lidar"]},
    "obstacle velocity relative": _relative,
    "no tracks": lambda inputs: inputs | {"obstacles": torch.zeros_like(inputs["obstacles"])},
}


SHIELDS: dict[str, type[Shield]] = {"shield": Shield, "convex program": QpShield}


class Bench:
    """The packaged policy in every form, and flights with it."""

    def __init__(self, smoke: bool) -> None:
        self.policy = load_policy("pretrained")
        self.robot = robot_policy(self.policy)
        self.episodes = 8 if smoke else 1024
        self.decisions = 50 if smoke else 2000
        self.steps = 32 if smoke else None  # of a flight; None: as long as the task allows
        self.folder = tempfile.TemporaryDirectory(prefix="navrl-bench-")
        self._exported: Path | None = None
        self._flown: dict[str, Mapping[str, float]] = {}
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

        def measure() -> Mapping[str, float]:
            if name not in self._flown:
                self._flown[name] = fly()
            return self._flown[name]

        return Case(name, measure)

    def wired(self, change: Callable[[Inputs], Inputs]) -> Mapping[str, float]:
        """Fly with inputs that were changed on their way."""
        env = self._env("crossing")

        def act(observation: Inputs) -> Tensor:
            inputs = change(inputs_of(env, observation))
            world = self.robot(*(inputs[name] for name in INPUTS))
            forward = env.forward
            x, y = world[:, 0], world[:, 1]
            c, s = forward[:, 0], forward[:, 1]
            return torch.stack([x * c + y * s, y * c - x * s, world[:, 2]], 1)

        return _outcomes(evaluate(env, act))

    def shielded(
        self, act: Callable[[Inputs], Tensor], layout: str, kind: type[Shield]
    ) -> Mapping[str, float]:
        env = self._env(layout)
        pilot = ShieldedPilot(act, env, kind(settings_for(env)))
        outcomes = _outcomes(evaluate(env, pilot))
        counts = pilot.counts
        return outcomes | {"interventions": counts.interventions / counts.decisions}

    def unshielded(self, act: Callable[[Inputs], Tensor], layout: str) -> Mapping[str, float]:
        return _outcomes(evaluate(self._env(layout), act))

    def _env(self, layout: str) -> NavigationEnv:
        env = crossing(self.policy, self.episodes, SEED)
        if layout == "crossing" and self.steps is None:
            return env
        if layout != "crossing":
            env.settings.env.layout = "random"
        if self.steps is not None:
            env.settings.env.max_episode_length = self.steps
        return NavigationEnv(env.settings, seed=SEED, auto_reset=False)


def straight(observation: Inputs) -> Tensor:
    """Fly at the goal, whatever is in between."""
    return 2.0 * observation["state"][:, :3]


def _outcomes(flights: object) -> Mapping[str, float]:
    names = {
        "success": "success_100",
        "static": "static_collision",
        "moving": "dynamic_collision",
        "time_out": "time_out",
        "clearance": "min_clearance",
    }
    return {name: flights.rate(key)[0] for name, key in names.items()}  # type: ignore[attr-defined]


def suite(smoke: bool) -> Suite:
    """Return the benchmark."""
    bench = Bench(smoke)
    cases = [
        Case("decision: torch, eager", bench.eager),
        Case("decision: navrl's own pilot", bench.pilot),
        Case("decision: onnxruntime", lambda: bench.exported_form("onnx")),
        Case("decision: C", lambda: bench.exported_form("c")),
        Case("decision: shield", lambda: bench.shield(Shield)),
        Case("decision: shield, convex program", lambda: bench.shield(QpShield)),
    ]
    for name, change in MISTAKES.items():
        cases.append(bench.flown(f"crossing: {name}", lambda change=change: bench.wired(change)))
    for layout, name, act in (
        ("crossing", "policy", bench.policy),
        ("standard", "policy", bench.policy),
        ("crossing", "straight line", straight),
    ):
        cases.append(bench.flown(f"{layout}: {name}", partial(bench.unshielded, act, layout)))
        for shield, kind in SHIELDS.items():
            behind = partial(bench.shielded, act, layout, kind)
            cases.append(bench.flown(f"{layout}: {name} + {shield}", behind))

    def added_time_outs(results: object) -> float:
        with_shield = results.median("standard: policy + shield", "time_out")  # type: ignore[attr-defined]
        return with_shield - results.median("standard: policy", "time_out")  # type: ignore[attr-defined]

    return Suite(
        "deploy",
        "Outside the simulator",
        cases,
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
        [
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
            Gate(
                "standard: gained by the shield",
                lambda r: (
                    r.median("standard: policy + shield", "success")
                    - r.median("standard: policy", "success")
                ),
                at_least=0.02,
            ),
            Gate("standard: time-outs added by the shield", added_time_outs, at_most=0.01),
            Gate(
                "crossing: straight line with the shield",
                lambda r: r.median("crossing: straight line + shield", "success"),
                at_least=0.65,
            ),
        ],
        packages=("torch", "onnxruntime"),
        repeats=3,
        settings={"episodes": bench.episodes, "worlds": 32, "decisions": bench.decisions},
        close=bench.folder.cleanup,
        publish=publish,
    )
