"""NavRL's own trainer as `navrl train preset=quick` runs it: one process of one thread per core."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from _learning_peers.course import Run
from _training_peers.navrl_trainer import assemble
from navrl.rl.networks.navigation import NavigationNetwork
from navrl.training.denormals import flushed_denormals
from navrl.training.distributed.team import Team
from navrl.training.ppo_trainer import PPOTrainer

LEARN, SAVE = "learn", "save"


@flushed_denormals()
def follow(team: Team, run: Run) -> None:
    """Take the steps that the leader broadcasts, until it is gone; a dict is a state to load."""
    trainer = PPOTrainer(run.config, team)
    while step := team.broadcast(None):
        if isinstance(step, dict):
            trainer.load(step)
        elif step == LEARN:
            trainer.learn(trainer.collect())
        else:
            team.gather(trainer.own_state())


class NavrlLearner:
    """Rank 0; the other ranks end with it."""

    network: NavigationNetwork

    def __init__(self, run: Run) -> None:
        self._held = ExitStack()
        self.team = assemble(run.threads, follow, run, self._held)
        self.trainer = PPOTrainer(run.config, self.team)
        self.trainer.task.compile()
        if not isinstance(self.trainer.network, NavigationNetwork):
            raise TypeError(f"network is {type(self.trainer.network).__name__}")
        self.network = self.trainer.network

    def iterate(self, decisions: int) -> int:
        self.team.broadcast(LEARN)
        self.trainer.learn(self.trainer.collect())
        return self.trainer.frames_per_iteration

    def state(self) -> dict[str, Any]:
        own, shared = self.trainer.own_state(), self.trainer.shared_state()
        self.team.broadcast(SAVE)
        return shared | {"ranks": self.team.gather(own)}

    def load(self, state: dict[str, Any]) -> None:
        self.team.broadcast(state)
        self.trainer.load(state)


def make(run: Run) -> NavrlLearner:
    return NavrlLearner(run)
