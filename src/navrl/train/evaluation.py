"""Evaluation while a policy learns: on unseen worlds, without touching the drones in training or
their random numbers.
"""

from __future__ import annotations

import copy

from navrl.config import INTERIM, Config
from navrl.evaluate import Act, Flights, conditions, evaluate
from navrl.sim.env import NavigationEnv
from navrl.sim.settings import NavigationSettings
from navrl.train.distributed.split import split_task
from navrl.train.distributed.team import Team

INTERIM_SEED = 1 << 41  # random streams of evaluations are nobody else's


class PeriodicEvaluation:
    """Flies unseen worlds, each process its share of them; made once, flown many times, the same
    flights each time.
    """

    def __init__(self, config: Config, team: Team) -> None:
        flight = copy.copy(config.flight)
        flight.episodes, flight.map_seed = flight.interim_episodes, flight.map_seed + INTERIM
        self.team, self.seed = team, INTERIM_SEED + 1024 * flight.seed + team.rank
        self._tasks: dict[str, NavigationSettings] = conditions(config.task, flight)
        self._environments: dict[str, NavigationEnv] = {}

    def fly(self, pilot: Act) -> dict[str, Flights]:
        """Fly with a pilot; the leader gets all flights by condition, the others nothing."""
        try:
            own = {
                label: vars(self._fly(label, task, pilot)) for label, task in self._tasks.items()
            }
        except Exception:
            if self.team.leads:
                # the others are sending; then they wait for the leader's next step
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
        """Fly this process's share of a condition."""
        if label not in self._environments:
            self._environments[label] = NavigationEnv(
                split_task(task, self.team), seed=self.seed, auto_reset=False
            )
        env = self._environments[label]
        env.reset(seed=self.seed)
        return evaluate(env, pilot)
