"""Drones that fly for a viewer: one policy, one world, one step at a time, without end."""

from __future__ import annotations

import copy
from collections import Counter, deque
from collections.abc import Collection, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from navrl.config import Config
from navrl.deploy.shielded_pilot import shielded
from navrl.errors import ConfigError
from navrl.evaluation.names import SCENARIOS
from navrl.evaluation.policy_lookup import Policy
from navrl.evaluation.recording import ending_of
from navrl.evaluation.run import FINAL_SEED
from navrl.evaluation.scenarios import scenario_tasks
from navrl.render.moment import FLYING, Moment, moment_of
from navrl.sim.env import NavigationEnv
from navrl.sim.episode_statistics import STATISTICS

__all__ = ["LiveFlight", "viewable_scenarios"]

HOLD = 2.0  # s that an ended flight stays where it ended before its drone starts anew
TRAIL = 8.0  # s of a drone's way that are drawn
FIELD, LOWEST, HIGHEST = 24.0, 0.5, 4.0  # m: goals are kept within

Floats = NDArray[np.float32]


def viewable_scenarios(config: Config) -> list[str]:
    """Return the scenarios that can be watched: those without cells, `own` with world files."""
    own = bool(config.env.world_files)
    return [name for name, each in SCENARIOS.items() if not each.cells and (name != "own" or own)]


class LiveFlight:
    """Drones of one policy in one unseen world; each starts again two seconds after its end.

    Args:
        policy: to be flown, deterministic.
        scenario: name of a scenario without cells.
        config: task and flights.
        typed: dotted keys that the user typed; they win over scenario and training.
        world: which of the unseen worlds; 0 is the first of an evaluation.
        drones: how many.
        shield: whether commands pass the shield first.

    Raises:
        ConfigError: the policy or the scenario cannot be watched.
    """

    def __init__(
        self,
        policy: Policy,
        scenario: str,
        config: Config,
        typed: Collection[str] = (),
        *,
        world: int = 0,
        drones: int = 16,
        shield: bool = False,
    ) -> None:
        if policy.environment is not None or policy.name == "oracle":
            raise ConfigError(
                f"{policy.name} cannot be watched live: expected a policy of the navigation task "
                "that needs no plan of whole flights; `navrl replay` shows recorded flights"
            )
        flight = copy.copy(config.flight)
        flight.episodes, flight.worlds = drones, 1
        flight.map_seed += world
        (task,) = scenario_tasks([scenario], config.task, flight, policy, typed).values()
        task.sim.num_threads = 1  # a viewer leaves the other cores to a training
        self.env = NavigationEnv(task, seed=FINAL_SEED + flight.seed, auto_reset=False)
        self.seconds_per_step = task.sim.dt * task.env.action_repeat
        self.counts: Counter[str] = Counter()  # ended flights by outcome
        self._shield = shield
        self._observation = self.env.reset()
        self.change_policy(policy)
        self._step = self.env.make_step()
        self._state = [FLYING] * drones
        self._held = np.zeros(drones)  # s since each flight ended
        kept = max(2, round(TRAIL / self.seconds_per_step))
        self._trails = [deque[Floats](maxlen=kept) for _ in range(drones)]

    def change_policy(self, policy: Policy) -> None:
        """Fly on with other weights of the same network; what it sees must not have changed."""
        self._policy = shielded(policy)[0] if self._shield else policy
        if self._policy.begin is not None:
            self._policy.begin(self.env)

    @property
    def drones(self) -> int:
        """Number of drones."""
        return self.env.num_envs

    @property
    def boxes(self) -> Floats:
        """Static boxes, (M, 6): x0, x1, y0, y1, z0, z1."""
        return self.env.pool.worlds[0].boxes

    @property
    def cylinders(self) -> Floats:
        """Static cylinders, (C, 5): x, y, radius, z0, z1."""
        return self.env.pool.worlds[0].cylinders

    @torch.no_grad()
    def step(self) -> None:
        """Fly all drones for one decision; those that ended long enough ago start again."""
        self.env.step(self._policy(self._observation), out=self._step)
        self._observation = self._step.observation
        done = self._step.done.numpy()
        for drone, place in enumerate(self.env.position.numpy()):
            if self._state[drone] == FLYING:
                self._trails[drone].append(place)
                if done[drone]:
                    self._end(drone)
        self._held[done] += self.seconds_per_step
        self._restart(self._held > HOLD)

    def _end(self, drone: int) -> None:
        rows = self._step.statistics
        statistics = {name: rows[:, column] for column, name in enumerate(STATISTICS)}
        self._state[drone] = ending_of(statistics, drone)
        self.counts[self._state[drone]] += 1

    def _restart(self, chosen: NDArray[np.bool_]) -> None:
        if chosen.any():
            self._observation = self.env.reset(mask=chosen)
            self._begin(np.flatnonzero(chosen))

    def _begin(self, drones: Sequence[int] | NDArray[np.int64]) -> None:
        for drone in drones:
            self._state[drone] = FLYING
            self._held[drone] = 0.0
            self._trails[drone].clear()

    def set_goal(self, drone: int, goal: Sequence[float]) -> None:
        """Send a drone to another goal from where it is, at the speed that it has."""
        x, y, z = (float(value) for value in goal)
        target = self.env.target
        target[drone] = torch.tensor(
            [min(max(x, -FIELD), FIELD), min(max(y, -FIELD), FIELD), min(max(z, LOWEST), HIGHEST)]
        )
        mask = torch.zeros(self.drones, dtype=torch.bool)
        mask[drone] = True
        env = self.env
        self._observation = env.place(env.position, target, mask=mask, velocity=env.velocity)
        self._begin([drone])

    def moment(self, followed: int = 0) -> Moment:
        """Return what is to be seen now, with the rays of one drone."""
        order = torch.arange(self.drones)
        trails = [np.array(list(trail) or [], np.float32).reshape(-1, 3) for trail in self._trails]
        now = moment_of(self.env, order, trails, scanned=followed)
        now.state[:] = self._state
        return now
