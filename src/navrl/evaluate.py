"""Evaluation: one episode for each drone in worlds it has not seen, and what became of it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from navrl.config import FlightSettings
from navrl.errors import ConfigError, RegistryError, nearest_name
from navrl.model import load_model
from navrl.registry.find import find_model
from navrl.rl.policy import NetworkPilot
from navrl.rl.scripted import scripted_pilot
from navrl.sim.env import NavigationEnv
from navrl.sim.layout import STATISTICS
from navrl.sim.settings import NavigationSettings

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

PRETRAINED = Path(__file__).parent / "policies" / "pretrained.pt"  # comes with the package

# What a policy sees and how it is obeyed: an evaluation takes these from its training, all else
# from the task.
INTERFACE = (
    "env.action_repeat",
    "env.action_limit",
    "env.num_observed",
    "sensor.lidar_range",
    "sensor.lidar_vfov",
    "sensor.lidar_vbeams",
    "sensor.lidar_hres",
)


@dataclass(frozen=True)
class Policy:
    """Something that flies: observations in, velocity commands in the goal frame out,
    deterministic.
    """

    name: str
    act: Act
    task: NavigationSettings | None = None  # that it was trained with, if it was
    card: Mapping[str, Any] = field(default_factory=dict)  # how it came to be

    def __call__(self, observation: dict[str, Tensor]) -> Tensor:
        """Return the velocity commands for a batch of observations, (N, 3), in m/s."""
        return self.act(observation)


def load_policy(reference: str | Path, task: NavigationSettings | None = None) -> Policy:
    """Return a policy by name (`scripted`, `pretrained`), by its model file or the folder of its
    run, or from the registry.

    Raises:
        ConfigError: there is no such policy, or the file holds none.
        ContainerError: the file is damaged.
    """
    if str(reference) == "scripted":
        return _scripted(task or NavigationSettings())
    path = PRETRAINED if str(reference) == "pretrained" else _found(reference)
    network, trained, card = load_model(path)
    name = "the policy of the package" if path == PRETRAINED else str(reference)
    return Policy(name, NetworkPilot(network, trained.env.action_limit), trained, card)


def _found(reference: str | Path) -> Path:
    """Return the file of a model, by its path, its run, or its name in the registry."""
    try:
        return find_model(reference)
    except RegistryError as error:
        near = nearest_name(str(reference), ("scripted", "pretrained"))
        raise ConfigError(
            f"no policy {str(reference)!a:.200}; expected a model file, a run's folder, "
            "pretrained, scripted, or a name in the "
            f"registry ({error}).{near}"
        ) from error


def _scripted(task: NavigationSettings) -> Policy:
    limit, reach = task.env.action_limit, task.sensor.lidar_range
    return Policy("scripted pilot", lambda observation: scripted_pilot(observation, limit, reach))


def conditions(
    task: NavigationSettings,
    flight: FlightSettings,
    policy: Policy | None = None,
    typed: Collection[str] = (),
) -> dict[str, NavigationSettings]:
    """Return the settings of each condition of an evaluation by its label: static obstacles only,
    and moving ones too.

    The worlds are those of `flight`, unseen in training. What the policy was trained to see and how
    often it decides is taken from its training, except for the dotted keys that the user `typed`.
    """
    moving = copy.deepcopy(task)
    if policy is not None and policy.task is not None:
        _check_sight(task, policy.task, typed)
        for key in set(INTERFACE) - set(typed):
            group, name = key.split(".")
            moving.set(key, copy.deepcopy(getattr(getattr(policy.task, group), name)))
    for key in {"env.obstacles_per_world", "env_dyn.obstacles_per_world"} - set(typed):
        moving.set(key, [])  # a mixture is for learning
    moving.env.num_envs, moving.env.action_frame = flight.episodes, "goal"
    moving.env.change_world_at_reset = False  # as many episodes in one world as in another
    if not moving.env.same_map:
        moving.env.num_worlds, moving.env.map_seed = flight.worlds, flight.map_seed
    static = copy.deepcopy(moving)
    static.env_dyn.num_obstacles, static.env_dyn.obstacles_per_world = 0, []
    return {label_of(settings): settings for settings in (static, moving)}


def _check_sight(
    task: NavigationSettings, trained: NavigationSettings, typed: Collection[str]
) -> None:
    """Refuse settings that change what a trained policy sees."""
    for key in ("sensor.lidar_hres", "sensor.lidar_vbeams", "env.num_observed"):
        group, name = key.split(".")
        wanted, known = getattr(getattr(task, group), name), getattr(getattr(trained, group), name)
        if key in typed and wanted != known:
            raise ConfigError(
                f"{key} is {wanted}; the policy was trained with {known} and can see nothing else"
            )


def label_of(task: NavigationSettings) -> str:
    """Return what a drone meets, in words: `350 static + 80 moving`."""
    own = task.env.world_files
    static = (
        "own worlds"
        if own
        else f"{_span(task.env.obstacles_per_world or [task.env.num_obstacles])} static"
    )
    moving = [
        count // 8 * 8 for count in task.env_dyn.obstacles_per_world or [task.env_dyn.num_obstacles]
    ]
    return f"{static} + {_span(moving)} moving" if any(moving) else static


def _span(counts: list[int]) -> str:
    return str(counts[0]) if len(set(counts)) == 1 else f"{min(counts)}-{max(counts)}"


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
