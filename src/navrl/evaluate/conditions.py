"""The settings under which a policy is evaluated."""

from __future__ import annotations

import copy
from collections.abc import Collection

from navrl.config import FlightSettings
from navrl.errors import ConfigError
from navrl.evaluate.policy import INTERFACE, Policy
from navrl.sim.settings import NavigationSettings


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
