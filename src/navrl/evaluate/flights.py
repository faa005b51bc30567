"""Fly one episode per drone and keep how every episode ended."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from navrl.errors import ConfigError
from navrl.sim.env import NavigationEnv
from navrl.sim.episode_statistics import STATISTICS

# observations -> velocity commands in the goal frame, m/s, (N, 3)
Act = Callable[[dict[str, Tensor]], Tensor]
OUTCOMES = {
    "success_100": "within 1.0 m of the goal",
    "success_050": "within 0.5 m of the goal",
    "static_collision": "hit an obstacle",
    "dynamic_collision": "hit a moving obstacle",
    "out_of_bounds": "too high or too low",
    "time_out": "out of time",
}


@dataclass(frozen=True)
class Flights:
    """What an evaluation saw: the statistics of every episode, and the paths of the recorded
    ones.
    """

    statistics: dict[str, Tensor]  # (N,) each
    world: Tensor  # (N,)
    paths: Tensor  # (T, R, 3) positions of the recorded drones, one row a decision
    lengths: Tensor  # (R,) decisions until the episode ended
    recorded: Tensor  # (R,) which drones
    obstacles: Tensor  # (T, D, 3) positions of the first world's moving obstacles

    @classmethod
    def joined(cls, parts: Sequence[Flights]) -> Flights:
        """Return the flights of several processes as one; their worlds are different ones, recorded
        are the first's.
        """
        first = parts[0]
        offsets = accumulate((int(part.world.max()) + 1 for part in parts[:-1]), initial=0)
        world = torch.cat(
            [part.world + offset for part, offset in zip(parts, offsets, strict=True)]
        )
        statistics = {
            name: torch.cat([part.statistics[name] for part in parts]) for name in first.statistics
        }
        return cls(statistics, world, first.paths, first.lengths, first.recorded, first.obstacles)

    def rate(self, name: str) -> tuple[float, float]:
        """Return the mean of a statistic over all episodes, and the standard error between
        worlds.
        """
        values = self.statistics[name]
        means = torch.stack([values[self.world == world].mean() for world in self.world.unique()])
        error = means.std().item() / len(means) ** 0.5 if len(means) > 1 else float("nan")
        return values.mean().item(), error

    def of_successes(self, name: str) -> float:
        """Return the mean of a statistic over the episodes that reached the goal within 1 m, or
        NaN.
        """
        reached = self.statistics["success_100"] > 0
        return self.statistics[name][reached].mean().item() if reached.any() else float("nan")


@torch.no_grad()
def evaluate(
    env: NavigationEnv,
    policy: Act,
    *,
    recorded: int = 0,
    progress: Callable[[int, int], None] = lambda done, of: None,
) -> Flights:
    """Fly one episode with every drone of an environment made with `auto_reset=False`, and return
    what happened.
    """
    if env.auto_reset:
        raise ConfigError(
            "evaluate needs an environment made with auto_reset=False: one episode for each drone"
        )
    observation = env.reset()
    world = env.world
    shown = torch.nonzero(world == 0)[:recorded, 0]
    ended = torch.zeros(env.num_envs, dtype=torch.bool)
    lengths = torch.zeros(len(shown), dtype=torch.long)
    paths, obstacles = [env.position[shown]], [env.obstacles(0)["position"]]
    step = env.make_step()
    while not ended.all():
        env.step(policy(observation), out=step)
        observation = step.observation
        lengths += ~ended[shown]
        ended = step.done
        if recorded:
            paths.append(env.position[shown])
            obstacles.append(env.obstacles(0)["position"])
        progress(int(ended.sum()), env.num_envs)
    statistics = {
        name: step.statistics[:, column].clone() for column, name in enumerate(STATISTICS)
    }
    return Flights(statistics, world, torch.stack(paths), lengths, shown, torch.stack(obstacles))
