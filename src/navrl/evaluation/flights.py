"""Fly one episode per drone and keep how every episode ended."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from navrl.errors import ConfigError
from navrl.evaluation.meter import FlightMeter, spl, time_ratio
from navrl.evaluation.recording import Recorder, Recording
from navrl.evaluation.statistics import Estimate, estimate
from navrl.sim.env import NavigationEnv
from navrl.sim.episode_statistics import STATISTICS

# observations -> velocity commands in the goal frame, m/s, (N, 3)
Act = Callable[[dict[str, Tensor]], Tensor]
OUTCOMES = {
    "success_100": "success: within 1.0 m",
    "success_050": "within 0.5 m of the goal",
    "static_collision": "hit an obstacle",
    "dynamic_collision": "hit a moving obstacle",
    "out_of_bounds": "too high or too low",
    "time_out": "out of time",
}


@dataclass(frozen=True)
class Flights:
    """The statistics of every episode of an evaluation, and a recording of some of them.

    >>> import navrl
    >>> env = navrl.NavigationEnv(
    ...     navrl.NavigationSettings.of(env__num_envs=4, env__num_worlds=1), auto_reset=False
    ... )
    >>> flights = navrl.evaluation.evaluate(env, navrl.load_policy("straight"))
    >>> flights.success.shape, 0 <= flights.share("success_100").mean <= 1
    (torch.Size([4]), True)
    """

    statistics: dict[str, Tensor]  # (N,) each
    world: Tensor  # (N,)
    recording: Recording | None = None

    @classmethod
    def joined(cls, parts: Sequence[Flights]) -> Flights:
        """Return the flights of several processes as one, each in worlds of its own.

        The recording is that of the first.
        """
        first = parts[0]
        offsets = accumulate((int(part.world.max()) + 1 for part in parts[:-1]), initial=0)
        world = torch.cat(
            [part.world + offset for part, offset in zip(parts, offsets, strict=True)]
        )
        statistics = {
            name: torch.cat([part.statistics[name] for part in parts]) for name in first.statistics
        }
        return cls(statistics, world, first.recording)

    @property
    def success(self) -> Tensor:
        """Where an episode came within 1 m of its goal, (N,)."""
        return self.statistics["success_100"] > 0

    def share(self, name: str) -> Estimate:
        """Return the share of episodes with an outcome, with its 95 % interval."""
        return estimate(self.statistics[name], self.world, share=True)

    def mean(self, name: str, *, of_successes: bool = False) -> Estimate:
        """Return the mean of a statistic over all episodes or the successful ones, and interval."""
        values = self.statistics[name]
        if of_successes:
            values = torch.where(self.success, values, torch.nan)
        return estimate(values, self.world)

    def rate(self, name: str) -> tuple[float, float]:
        """Return the mean of a statistic and its standard error between worlds."""
        values = self.statistics[name]
        means = torch.stack([values[self.world == world].mean() for world in self.world.unique()])
        error = means.std().item() / len(means) ** 0.5 if len(means) > 1 else float("nan")
        return values.mean().item(), error


@torch.no_grad()
def evaluate(
    env: NavigationEnv,
    policy: Act,
    *,
    recorded: int = 0,
    scenario: str = "",
    progress: Callable[[int, int], None] = lambda done, of: None,
) -> Flights:
    """Fly one episode with every drone and return how each ended, some of them recorded.

    Args:
        env: made with `auto_reset=False`.
        policy: a function of the observations, or a `Policy`; its method `begin(env)`, if it has
            one, is called once at the start. If its attribute `decides_alone` is true, it decides
            only for the drones that still fly.
        recorded: number of flights to record, all in the first world.
        scenario: named in the recording.
        progress: called after every decision with the numbers of ended and of all episodes.

    >>> import navrl
    >>> env = navrl.NavigationEnv(
    ...     navrl.NavigationSettings.of(env__num_envs=4, env__num_worlds=1), auto_reset=False
    ... )
    >>> flights = navrl.evaluation.evaluate(env, lambda seen: 2 * seen["state"][:, :3])
    >>> sorted(flights.statistics)[:3]
    ['at_goal', 'distance', 'dynamic_collision']
    """
    if env.auto_reset:
        raise ConfigError(
            "evaluate needs an environment made with auto_reset=False: one episode for each drone"
        )
    begin = getattr(policy, "begin", None)
    observation = env.reset()
    if begin is not None:
        begin(env)
    world = env.world
    seconds = env.settings.sim.dt * env.settings.env.action_repeat
    meter = FlightMeter(env.position, env.velocity, env.target, seconds)
    recorder = Recorder(env, torch.nonzero(world == 0)[:recorded, 0]) if recorded else None
    step, flying = env.make_step(), env.flying
    while bool(flying.any()):
        env.step(flying_commands(policy, observation, flying), out=step)
        observation, flying = step.observation, ~step.done
        meter.update(env.position, env.velocity, flying)
        ended = int(step.done.sum())
        if recorder is not None:
            recorder.sample(last=ended == env.num_envs)
        progress(ended, env.num_envs)
    statistics = _statistics(step.statistics, meter, env.settings.env.action_limit)
    name = str(getattr(policy, "name", ""))
    recording = recorder.finish(statistics, scenario=scenario, policy=name) if recorder else None
    return Flights(statistics, world, recording)


def _statistics(rows: Tensor, meter: FlightMeter, limit: float) -> dict[str, Tensor]:
    """Return what is known of every flight, by name."""
    statistics = {name: rows[:, column].clone() for column, name in enumerate(STATISTICS)}
    statistics |= meter.measures()
    reached, distance = statistics["success_100"], statistics["distance"]
    statistics["spl"] = spl(reached, distance, statistics["path_to_goal"])
    statistics["time_ratio"] = time_ratio(statistics["time_to_goal"], distance, limit)
    return statistics


def flying_commands(policy: Act, observation: dict[str, Tensor], flying: Tensor) -> Tensor:
    """Return the commands of all drones, (N, 3); those of ended flights may be zero."""
    if not getattr(policy, "decides_alone", False) or bool(flying.all()):
        return policy(observation)
    rows = torch.nonzero(flying)[:, 0]
    commands = torch.zeros(len(flying), 3)
    commands[rows] = policy({name: part[rows] for name, part in observation.items()})
    return commands
