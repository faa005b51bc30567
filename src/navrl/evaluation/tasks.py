"""The settings under which a policy is flown: unseen worlds, its own sensor, no curriculum."""

from __future__ import annotations

import copy
from collections.abc import Collection
from dataclasses import replace

from navrl.config import FlightSettings
from navrl.errors import ConfigError
from navrl.evaluation.names import CROSSING
from navrl.evaluation.policy_lookup import INTERFACE, Policy
from navrl.sim.robots import measuring_errors, robot_of
from navrl.sim.settings import NavigationSettings

__all__ = ["conditions", "flight_task", "label_of"]

# What a training varies between worlds, trips and episodes to learn more from them. Evaluations of
# all policies have these values, so that their numbers can be compared, unless the user types some.
LEARNING_ONLY: dict[str, object] = {
    "env.obstacles_per_world": [],
    "env_dyn.obstacles_per_world": [],
    "env.crossing_share": 0.0,
    "env.midway_share": 0.0,
    "sensor.position_noise": 0.0,
    "sensor.observation_delay": 0,
    "sensor.perfect_share": 0.0,
    "drone.mass_variation": 0.0,
    "drone.thrust_variation": 0.0,
    "drone.wind": 0.0,
    "drone.delay": 0,
}


def flight_task(
    task: NavigationSettings,
    flight: FlightSettings,
    policy: Policy | None = None,
    typed: Collection[str] = (),
) -> NavigationSettings:
    """Return the task as it is flown in an evaluation: one episode a drone, in unseen worlds.

    The policy's robot is that of its training, except for the dotted keys that the user `typed`.
    Noise, misses, delays, wind and variations that the training added are off: a robot has the
    errors of measurement that its file gives it.
    """
    flown = copy.deepcopy(task)
    if policy is not None and policy.task is not None:
        _check_robot(task, policy, typed)
        _check_sight(task, policy.task, typed)
        for key in set(INTERFACE) - set(typed):
            group, name = key.split(".")
            flown.set(key, copy.deepcopy(getattr(getattr(policy.task, group), name)))
    fixed = LEARNING_ONLY | measuring_errors(flown)
    for key in set(fixed) - set(typed):
        flown.set(key, copy.deepcopy(fixed[key]))
    flown.env.num_envs, flown.env.action_frame = flight.episodes, "goal"
    flown.env.change_world_at_reset = False  # as many episodes in one world as in another
    if not flown.env.same_map:
        flown.env.num_worlds, flown.env.map_seed = flight.worlds, flight.map_seed
    return flown


def conditions(task: NavigationSettings, flight: FlightSettings) -> dict[str, NavigationSettings]:
    """Return the conditions of an evaluation during training by label, the hardest last.

    The task without moving obstacles, with them, and with trips across the field. Together they
    fly twice `flight.episodes`: a quarter of them without moving obstacles.

    >>> import navrl
    >>> from navrl.config import FlightSettings
    >>> from navrl.evaluation import conditions
    >>> [*conditions(navrl.NavigationSettings(), FlightSettings(episodes=64))]
    ['350 static', '350 static + 80 moving', 'crossing 350 static + 80 moving']
    """
    moving = flight_task(task, flight)
    static, crossing = copy.deepcopy(moving), copy.deepcopy(moving)
    static.env_dyn.num_obstacles, static.env_dyn.obstacles_per_world = 0, []
    crossing.env.layout = CROSSING
    chosen = [static, moving]
    if moving.env.layout != CROSSING and not moving.env.world_files:
        chosen.append(crossing)
        static.env.num_envs = max(1, flight.episodes // 2)
        moving.env.num_envs = crossing.env.num_envs = max(1, 3 * flight.episodes // 4)
    return {label_of(settings): settings for settings in chosen}


def _check_robot(task: NavigationSettings, policy: Policy, typed: Collection[str]) -> None:
    """Refuse another robot than the policy's, typed as `robot=`; `navrl eval` has its own check."""
    if "drone.robot" in typed:
        robot = robot_of(task)
        if "env.action_repeat" not in typed:
            robot = replace(robot, control_rate=0.0)
        policy.on_robot(robot)


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
    """Return what a drone meets, in words: `crossing 350 static + 80 moving`.

    >>> import navrl
    >>> from navrl.evaluation import label_of
    >>> label_of(navrl.NavigationSettings.of(env__num_obstacles=350, env_dyn__num_obstacles=80))
    '350 static + 80 moving'
    """
    own = task.env.world_files
    static = (
        "own worlds"
        if own
        else f"{_span(task.env.obstacles_per_world or [task.env.num_obstacles])} static"
    )
    moving = [
        count // 8 * 8 for count in task.env_dyn.obstacles_per_world or [task.env_dyn.num_obstacles]
    ]
    met = f"{static} + {_span(moving)} moving" if any(moving) else static
    trips = "" if own or task.env.layout == "random" else task.env.layout
    return f"{TRIPS.get(trips, trips)} {met}" if trips else met


TRIPS = {CROSSING: "crossing"}  # layouts by the name that users know


def _span(counts: list[int]) -> str:
    return str(counts[0]) if len(set(counts)) == 1 else f"{min(counts)}-{max(counts)}"
