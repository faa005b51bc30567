"""Evaluation during training: on unseen worlds, with environments and random numbers of its own."""

from __future__ import annotations

import copy

from navrl.config import PERIODIC_EVALUATION_OFFSET, Config
from navrl.evaluate import Act, Flights, conditions, evaluate
from navrl.sim.env import NavigationEnv
from navrl.sim.settings import NavigationSettings
from navrl.train.distributed.split import split_task
from navrl.train.distributed.team import Team

SEED_OFFSET = 1 << 41  # keeps the random streams of evaluations apart from those of training


class PeriodicEvaluation:
    """Flies the same unseen worlds each time, split over the processes."""

    def __init__(self, config: Config, team: Team) -> None:
        flight = copy.copy(config.flight)
        flight.episodes, flight.map_seed = (
            flight.interim_episodes,
            flight.map_seed + PERIODIC_EVALUATION_OFFSET,
        )
        self.team, self.seed = team, SEED_OFFSET + 1024 * flight.seed + team.rank
        self._tasks: dict[str, NavigationSettings] = conditions(config.task, flight)
        self._environments: dict[str, NavigationEnv] = {}

    def fly(self, pilot: Act) -> dict[str, Flights]:
        """Fly with a pilot; return all flights by condition on rank 0, nothing elsewhere."""
        try:
            own = {
                label: vars(self._fly(label, task, pilot)) for label, task in self._tasks.items()
            }
        except Exception:
            if self.team.leads:
                # receive what the other ranks send, so that they wait for the next step
                self.team.gather(None)
            raise
        everybody = self.team.gather(own)
        if not self.team.leads:
            return {}
        return {
            label: Flights.joined([Flights(**flights[label]) for flights in everybody])
            for label in self._tasks
        }

    def _fly(self, label: str, task: NavigationSettings, pilot: Act) -> Flights:
        """Fly this process's part of a condition."""
        if label not in self._environments:
            self._environments[label] = NavigationEnv(
                split_task(task, self.team), seed=self.seed, auto_reset=False
            )
        env = self._environments[label]
        env.reset(seed=self.seed)
        return evaluate(env, pilot)
