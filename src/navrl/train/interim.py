"""Evaluation while a policy learns: on unseen worlds, without touching the drones in training or their random numbers."""

from __future__ import annotations

import copy

from navrl.config import INTERIM, Config
from navrl.evaluate import Act, Flights, conditions, evaluate
from navrl.sim.env import NavigationEnv
from navrl.sim.settings import NavigationSettings
from navrl.train.share import share_of
from navrl.train.team import Team

INTERIM_SEED = 1 << 41  # random streams of evaluations are nobody else's


class InterimEvaluation:
    """Flies unseen worlds, each process its share of them; made once, flown many times, the same flights each time."""

    def __init__(self, config: Config, team: Team) -> None:
        flight = copy.copy(config.flight)
        flight.episodes, flight.map_seed = flight.interim_episodes, flight.map_seed + INTERIM
        self.team, self.seed = team, INTERIM_SEED + 1024 * flight.seed + team.rank
        self._tasks: dict[str, NavigationSettings] = conditions(config.task, flight)
        self._environments: dict[str, NavigationEnv] = {}

    def fly(self, pilot: Act) -> dict[str, Flights]:
        """Fly with a pilot; the leader gets all flights by condition, the others nothing."""
        results = {}
        for label, task in self._tasks.items():
            if label not in self._environments:
                self._environments[label] = NavigationEnv(share_of(task, self.team), seed=self.seed, auto_reset=False)
            env = self._environments[label]
            env.reset(seed=self.seed)
            flights = self.team.gather(vars(evaluate(env, pilot)))
            if self.team.leads:
                results[label] = Flights.joined([Flights(**parts) for parts in flights])
        return results
