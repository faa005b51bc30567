"""The flights of `navrl bench deploy`: wired wrongly, behind shields, and with delay.

They are the same in every run of the same sources and policy, so each is flown once and kept in
the temporary folder: a run that was interrupted continues where it stopped.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import Tensor

from navrl.config import FlightSettings
from navrl.deploy.exported_pilot import Command, ExportedPilot, to_goal_frame
from navrl.deploy.rehearsal.delays import success_with_delay
from navrl.deploy.robot_inputs import inputs_of, with_perfect_detector
from navrl.deploy.robot_policy import INPUTS, RobotPolicy
from navrl.deploy.shield import Shield
from navrl.deploy.shielded_pilot import ShieldedPilot, settings_for
from navrl.evaluation.flights import Flights, evaluate
from navrl.evaluation.policy_lookup import Policy
from navrl.evaluation.scenarios import scenario_tasks
from navrl.sim.env import NavigationEnv
from navrl.sim.settings import NavigationSettings

Inputs = dict[str, Tensor]
Act = Callable[[Inputs], Tensor]
Outcomes = Mapping[str, float]
SOURCES = Path(__file__).parents[1] / "src" / "navrl"
FOLDERS = ("deploy", "sim", "evaluation", "policies")  # whose sources decide how a flight ends
WORLDS = 32


def straight(observation: Inputs) -> Tensor:
    """Fly at the goal, whatever is in between."""
    return 2.0 * observation["state"][:, :3]


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
    "all rays free": lambda inputs: inputs | {"lidar": torch.full_like(inputs["lidar"], 4.0)},
    "obstacle velocity relative": _relative,
    "no tracks": lambda inputs: inputs | {"obstacles": torch.zeros_like(inputs["obstacles"])},
}


class KeptFlights:
    """Outcomes by name, in a file for each state of the sources, the policy and the sizes."""

    def __init__(self, *key: object, kept: bool = True) -> None:
        digest = hashlib.sha256(repr(key).encode())
        for folder in FOLDERS:
            for path in sorted((SOURCES / folder).rglob("*.py")):
                digest.update(path.read_bytes())
        name = f"navrl-bench-deploy-{digest.hexdigest()[:16]}.json"
        self._path = Path(tempfile.gettempdir()) / name if kept else None
        self._known: dict[str, Outcomes] = {}
        if self._path is not None and self._path.exists():
            self._known = json.loads(self._path.read_text())

    def flown(self, name: str, fly: Callable[[], Outcomes]) -> Outcomes:
        """Return the outcomes of a case; fly it unless they are known."""
        if name not in self._known:
            self._known[name] = dict(fly())
            if self._path is not None:
                scratch = self._path.with_suffix(".part")
                scratch.write_text(json.dumps(self._known))
                scratch.replace(self._path)
        return self._known[name]


class BenchFlights:
    """Flies the packaged policy, and a straight line, in worlds that no training uses."""

    def __init__(self, policy: Policy, robot: RobotPolicy, seed: int, steps: int | None) -> None:
        self.policy, self.robot, self.seed = policy, robot, seed
        self.steps = steps  # of a flight; None: as long as the task allows

    def wired(self, change: Callable[[Inputs], Inputs], episodes: int) -> Outcomes:
        """Return how flights end whose inputs were changed on their way."""
        env = self._env("crossing", episodes)

        def act(observation: Inputs) -> Tensor:
            inputs = change(inputs_of(env, observation))
            return to_goal_frame(self.robot(*(inputs[name] for name in INPUTS)), env.forward)

        return _outcomes(evaluate(env, act))

    def unshielded(self, act: Act, layout: str, episodes: int) -> Outcomes:
        """Return how flights end without a shield."""
        return _outcomes(evaluate(self._env(layout, episodes), act))

    def shielded(self, act: Act, layout: str, episodes: int, kind: type[Shield]) -> Outcomes:
        """Return how the same flights end behind a shield, and how often it intervened."""
        env = self._env(layout, episodes)
        pilot = ShieldedPilot(act, env, kind(settings_for(env)))
        outcomes = _outcomes(evaluate(env, pilot))
        counts = pilot.counts
        return outcomes | {"interventions": counts.interventions / max(counts.decisions, 1)}

    def delayed(
        self, command: Command, delay_ms: float, episodes: int, *, shield: bool, compensated: bool
    ) -> Outcomes:
        """Return the success with a delay on each way."""
        task, pilot = self._task("crossing", episodes), ExportedPilot(command)
        found = success_with_delay(
            task, pilot, self.seed, 1e-3 * delay_ms, shield=shield, compensated=compensated
        )
        return {"success": found}

    def _task(self, layout: str, episodes: int) -> NavigationSettings:
        flight = FlightSettings(episodes=episodes, worlds=min(WORLDS, episodes))
        task = scenario_tasks([layout], NavigationSettings(), flight, self.policy)[layout]
        if self.steps is not None:
            task.env.max_episode_length = self.steps
        return with_perfect_detector(task)

    def _env(self, layout: str, episodes: int) -> NavigationEnv:
        return NavigationEnv(self._task(layout, episodes), seed=self.seed, auto_reset=False)


def _outcomes(flights: Flights) -> Outcomes:
    names = {
        "success": "success_100",
        "static": "static_collision",
        "moving": "dynamic_collision",
        "time_out": "time_out",
        "clearance": "min_clearance",
    }
    return {name: flights.rate(key)[0] for name, key in names.items()}
