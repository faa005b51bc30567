"""What every learner trains and how all are judged: task, network, held-out worlds."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from functools import cached_property

import torch

from navrl.config import Config, load_config
from navrl.environments.navigation_task import NavigationTask, collision_penalty, split_task
from navrl.evaluation import evaluate, scenario_tasks
from navrl.evaluation.run import FINAL_SEED
from navrl.rl.accelerate import accelerate
from navrl.rl.networks.navigation import NavigationNetwork
from navrl.rl.policy import NetworkPilot
from navrl.sim.env import NavigationEnv
from navrl.sim.settings import NavigationSettings

SCENARIO, WORLDS = "standard", 32
TARGETS = (0.7, 0.8)  # success; a run ends at the last one


@dataclass(frozen=True)
class Run:
    """One training: who learns with which settings, and for how long."""

    learner: str  # a module of this folder
    recipe: str  # a name in `recipes.RECIPES`
    seed: int = 0
    minutes: float = 40.0  # of training at most, evaluations not counted
    interval: float = 30.0  # seconds of training between evaluations
    episodes: int = 1024  # of an evaluation
    decisions: int = 24_000_000  # at most
    threads: int = 2
    overrides: tuple[str, ...] = ()  # of the task

    def as_json(self) -> str:
        """Return the run as the argument of its process."""
        return json.dumps(asdict(self))

    @cached_property
    def config(self) -> Config:
        """The settings of `preset=quick`; peers take task, discount and network from it."""
        return load_config(
            [
                "preset=quick",
                f"seed={self.seed}",
                f"processes={self.threads}",
                f"max_frame_num={self.decisions}",
                *self.overrides,
            ]
        )

    def task(self) -> NavigationSettings:
        """Return the task of a learner that trains in one process."""
        task = split_task(self.config.task, 0, 1)
        task.sim.num_threads = self.threads
        return task

    def network(self) -> NavigationNetwork:
        """Return the policy's network with the random weights of the seed."""
        torch.manual_seed(self.seed)
        network = NavigationTask(self.config).new_network()
        if not isinstance(network, NavigationNetwork):
            raise TypeError(f"network is {type(network).__name__}; expected NavigationNetwork")
        return network

    def collision_penalty(self, decisions: int) -> float:
        """Return what a collision costs after so many decisions, for every learner alike."""
        return collision_penalty(self.config, decisions / self.decisions)


class Judge:
    """Flies a network with mean actions in worlds that no learner trains in."""

    def __init__(self, run: Run) -> None:
        worlds = min(WORLDS, run.episodes)
        repeat = run.config.env.action_repeat
        config = load_config(
            [
                f"flight.episodes={run.episodes}",
                f"flight.worlds={worlds}",
                f"env.action_repeat={repeat}",
            ]
        )
        (task,) = scenario_tasks([SCENARIO], config.task, config.flight).values()
        self.limit = task.env.action_limit
        self.env = NavigationEnv(task, seed=FINAL_SEED, auto_reset=False)

    def success(self, network: NavigationNetwork) -> float:
        """Return the share of episodes that come within 1 m of their goals; always the same."""
        self.env.reset(seed=FINAL_SEED)
        flights = evaluate(self.env, NetworkPilot(accelerate(network), self.limit))
        return flights.share("success_100").mean
