"""Rehearse a policy, fly the same episodes in the simulator alone, and compare the two."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from navrl.config import FlightSettings
from navrl.deploy.exported_folder import read_contract
from navrl.deploy.exported_pilot import Command, ExportedPilot, exported_policy
from navrl.deploy.node.node_settings import NodeSettings
from navrl.deploy.rehearsal.delays import DELAYS_MS, Delayed, success_with_delay, tolerated_ms
from navrl.deploy.rehearsal.link import LinkSettings
from navrl.deploy.rehearsal.node_process import NodeProcess
from navrl.deploy.rehearsal.rehearsal import Rehearsal, Rehearsed
from navrl.deploy.rehearsal.simulated_robot import SimulatedRobot
from navrl.deploy.shielded_pilot import shielded
from navrl.deploy.transports.transport import Transport
from navrl.deploy.verify import load_command
from navrl.errors import ConfigError
from navrl.evaluation.flights import Flights, evaluate
from navrl.evaluation.scenarios import parse_scenarios, scenario_tasks
from navrl.evaluation.statistics import paired
from navrl.sim.env import NavigationEnv
from navrl.sim.episode_statistics import FAILURES
from navrl.sim.settings import NavigationSettings

MEAN_JITTER = 0.8  # s of delay for each s of jitter: a normal distribution, folded
OUTCOMES = ("success", *FAILURES)


@dataclass(frozen=True)
class Plan:
    """What is rehearsed."""

    folder: Path
    scenario: str = "crossing"
    episodes: int = 32
    shield: bool = False
    link: LinkSettings = field(default_factory=LinkSettings)
    speed: float = 0.0  # simulated seconds in each second; 0: lock-step
    seed: int = 7
    transport: str = "udp"
    compensation: bool = True  # the node knows the link's latency, and makes up for it

    def check(self) -> None:
        """Raise a ConfigError that names the first part that is impossible."""
        self.link.check()
        if not 1 <= self.episodes <= 4096:
            raise ConfigError(f"episodes is {self.episodes}; expected 1 to 4096")
        if not 0 <= self.speed <= 1000:
            raise ConfigError(f"speed is {self.speed}; expected 0 (lock-step) to 1000")
        if len(parse_scenarios(self.scenario)) != 1:
            raise ConfigError(f"--scenario is {self.scenario!r}; expected one scenario")


@dataclass(frozen=True)
class Comparison:
    """What a rehearsal found."""

    plan: Plan
    rehearsed: Rehearsed
    simulated: Flights
    delays: Sequence[Delayed] = ()

    def as_dict(self) -> dict[str, Any]:
        """Return the numbers as plain values."""
        world = self.simulated.world.numpy()
        pairs = paired(self.simulated.success.float(), self.rehearsed.success, world)
        plan = self.plan
        answers = self.rehearsed.answers_ms
        return {
            "policy": str(plan.folder),
            "scenario": plan.scenario,
            "episodes": len(self.rehearsed.endings),
            "shield": plan.shield,
            "speed": plan.speed,
            "transport": plan.transport,
            "compensation": plan.compensation,
            "link": self._link(),
            "simulated": {name: _simulated(self.simulated, name) for name in OUTCOMES},
            "rehearsed": {name: self.rehearsed.share(name) for name in OUTCOMES},
            "only_simulated": pairs.only_a,
            "only_rehearsed": pairs.only_b,
            "mcnemar_p": pairs.p,
            "answer_ms": median(answers) if answers else None,
            "delays": [{"delay_ms": one.delay_ms, "success": one.success} for one in self.delays],
            "tolerated_delay_ms": tolerated_ms(list(self.delays)) if self.delays else None,
        }

    def _link(self) -> dict[str, float]:
        link = self.plan.link
        return {
            "latency_ms": 1e3 * link.latency,
            "jitter_ms": 1e3 * link.jitter,
            "loss": link.loss,
            "skew_ms": 1e3 * link.skew,
            "lost_messages": self.rehearsed.lost,
        }


def _simulated(flights: Flights, name: str) -> float:
    if name == "success":
        return float(flights.success.float().mean())
    failed = (flights.statistics[name] > 0) & ~flights.success
    return float(failed.float().mean())


class Stage:
    """What a rehearsal is doing, for people who wait."""

    def begin(self, name: str, steps: int) -> None:
        """Begin a stage of so many steps."""

    def done(self, told: str = "") -> None:
        """Note that a step is done."""


def rehearse(
    plan: Plan,
    open_robot: Callable[[str], Transport],
    node_options: Sequence[str] = (),
    *,
    sweep: Sequence[float] = DELAYS_MS,
    stage: Stage | None = None,
) -> Comparison:
    """Fly a plan, rehearsed and simulated, and return both.

    Args:
        plan: what to fly.
        open_robot: returns the robot's end of the transport, given the address that the node
            printed when it was ready.
        node_options: further arguments of `navrl node`.
        sweep: delays in ms, each way, to fly in the simulator; the first is the reference.
        stage: told about progress.

    Raises:
        ConfigError: the plan is impossible, or the folder holds no exported policy.
        TransportError: the node ended, or did not answer.
    """
    plan.check()
    read_contract(plan.folder)  # a folder without a policy is told before anything is loaded
    stage = stage or Stage()
    command = load_command(plan.folder, "onnx")
    policy = exported_policy(plan.folder, command)
    task = _task(plan, policy)
    stage.begin("simulated", 1)
    flown = shielded(policy)[0] if plan.shield else policy
    simulated = evaluate(NavigationEnv(task, seed=plan.seed, auto_reset=False), flown)
    stage.done()
    stage.begin("rehearsed", plan.episodes)
    options = [*node_options, *_node_options(plan)]
    with NodeProcess(plan.folder, options) as node:
        rehearsed = _rehearsed(plan, task, node, open_robot, stage)
    stage.begin("delays", len(sweep))
    delays = _swept(plan, task, command, sweep, stage)
    return Comparison(plan, rehearsed, simulated, delays)


def _rehearsed(
    plan: Plan,
    task: NavigationSettings,
    node: NodeProcess,
    open_robot: Callable[[str], Transport],
    stage: Stage,
) -> Rehearsed:
    """Play the robot of a running node, and return how the episodes ended."""
    transport = open_robot(node.wait_until_ready())
    try:
        rehearsal = Rehearsal(
            SimulatedRobot(task, plan.seed),
            transport,
            plan.link,
            speed=plan.speed,
            alive=node.check,
            seed=plan.seed,
        )
        return rehearsal.run(plan.episodes, lambda episode, ending: stage.done(ending))
    finally:
        transport.close()


def _swept(
    plan: Plan, task: NavigationSettings, command: Command, sweep: Sequence[float], stage: Stage
) -> list[Delayed]:
    """Return the success with each delay in ms, in the simulator."""
    delays = []
    for delay in sweep:
        pilot = ExportedPilot(command)
        share = success_with_delay(
            task, pilot, plan.seed, 1e-3 * delay, shield=plan.shield, compensated=plan.compensation
        )
        delays.append(Delayed(delay, share))
        stage.done(f"{delay:g} ms")
    return delays


def _node_options(plan: Plan) -> list[str]:
    """Return how the node is started: it is told the delay of the link, unless that is too long."""
    options = ["--shield"] if plan.shield else []
    if not plan.compensation:
        return [*options, "--no-compensation"]
    latency = plan.link.latency + MEAN_JITTER * plan.link.jitter
    return [*options, "--actuation-delay", str(min(latency, NodeSettings().max_age))]


def _task(plan: Plan, policy: Any) -> NavigationSettings:
    flight = FlightSettings(episodes=plan.episodes, worlds=min(32, plan.episodes))
    return scenario_tasks([plan.scenario], NavigationSettings(), flight, policy)[plan.scenario]
