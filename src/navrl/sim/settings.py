"""The settings of the navigation task: one dataclass per group of keys that a user types
(`env.num_envs=1024`).
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from navrl.errors import ConfigError, nearest_name, shown

CROSSING_LAYOUTS = ("navrl_eval", "walled")
LAYOUTS = ("random", *CROSSING_LAYOUTS)
FRAMES = ("goal", "world")
COLLISIONS = ("rays", "sphere", "cylinder")
MODELS = ("hummingbird", "first_order", "quadrotor")

MAXIMUM_ENVIRONMENTS = 1 << 20
MAXIMUM_WORLDS = 4096
MAXIMUM_OBSTACLES = 20_000
MAXIMUM_MOVING = 4096


@dataclass
class TaskSettings:
    """Keys `env.*`: how many drones fly, where, and what ends an episode."""

    num_envs: int = 1024  # drones that fly side by side
    num_worlds: int = 64  # pool of maps, each with its own moving obstacles
    num_obstacles: int = 350  # static boxes in a map
    # a curriculum: counts for worlds 0, 1, ...; cycled
    obstacles_per_world: list[int] = field(default_factory=list)
    map_seed: int = 1  # world w is drawn with seed map_seed + w, or all with map_seed if same_map
    same_map: bool = False  # all worlds are one map
    # YAML, PNG or NPZ instead of random maps; cycled
    world_files: list[str] = field(default_factory=list)
    # boxes of 0.3 or 0.7 m as in the original; else any of 0.3, 0.4, ... 0.9 m
    quantised_widths: bool = True
    placement_attempts: int = 1000  # tries to place a box before it is put where it fell
    change_world_at_reset: bool = True  # each episode is in another world of the pool
    # `random`: starts and targets on random edges. `navrl_eval`: a row of parallel lines across the
    # field. `walled`: the same, with walls along both sides, so that no drone flies around
    layout: str = "random"
    max_episode_length: int = 2200  # simulated steps
    action_repeat: int = 1  # simulated steps for each decision
    action_frame: str = "goal"  # velocity commands in the goal frame, or in the world frame
    action_limit: float = 2.0  # m/s, the largest speed command on each axis
    goal_ends_episode: bool = True  # else a drone at its goal flies on until time is up
    goal_radius: float = 0.5  # m around the target that count as the goal
    # m from a random start to its random target; 0: any, as in the original
    min_trip_length: float = 2.0
    # of the trips, this share leads from one edge of the field to the opposite one ...
    crossing_share: float = 0.0
    midway_share: float = 0.0  # ... and of those, this share starts somewhere on the way
    # `rays`: a LiDAR ray is shorter than the radius. `sphere`, `cylinder`: an obstacle reaches into
    # the sphere, or into the upright cylinder, around the drone
    collision: str = "rays"
    collision_radius: float = 0.3  # m, of the drone
    collision_height: float = 0.0  # m, of the cylinder
    # two dimensions: no vertical command, and all moving obstacles stand on the ground
    planar: bool = False
    num_observed: int = 5  # nearest moving obstacles in the observation


@dataclass
class MovingSettings:
    """Keys `env_dyn.*`: the moving obstacles."""

    num_obstacles: int = 80  # in each world, rounded down to a multiple of 8
    obstacles_per_world: list[int] = field(default_factory=list)  # a curriculum, as in `env`
    vel_range: list[float] = field(default_factory=lambda: [0.5, 1.5])  # speeds, m/s
    local_range: list[float] = field(default_factory=lambda: [5.0, 5.0, 4.5])  # m around the origin
    # heights drawn from (-y, 2z - y) around the origin as in the original, else (-z, z)
    asymmetric_goals: bool = True
    visible_to_lidar: bool = False  # else only the list of detected obstacles has them


@dataclass
class SensorSettings:
    """Keys `sensor.*`: the LiDAR, and how well a drone knows what it observes.

    Noise, missed detections and delay change observations, never rewards or endings.
    """

    lidar_range: float = 4.0  # m that a ray sees at most
    lidar_vfov: list[float] = field(default_factory=lambda: [-10.0, 20.0])  # degrees up
    lidar_vbeams: int = 4  # rays one above the other
    lidar_hres: float = 10.0  # degrees between neighbouring rays
    lidar_hfov: float = 360.0  # degrees around the heading; rays outside report nothing
    lidar_rate: float = 0.0  # Hz, scans; 0: a new one for every decision
    noise: float = 0.0  # m, standard deviation of a ray
    dropout: float = 0.0  # probability that a ray reports nothing
    detection_range: float = 0.0  # m to the moving obstacles that are detected; 0: the LiDAR's
    # probability that a moving obstacle is missed at a decision, each drone for itself
    detection_dropout: float = 0.0
    detection_noise: float = 0.0  # m, standard deviation of a moving obstacle's position, each axis
    position_noise: float = 0.0  # m, standard deviation of the drone's own position, each axis
    observation_delay: int = 0  # decisions that an observation is old
    # of the episodes, this share has none of the noise, dropout, misses and delay above
    perfect_share: float = 0.0


@dataclass
class DroneSettings:
    """Keys `drone.*`: the vehicle, and how much it differs from one episode to the next."""

    robot: str = "hummingbird"  # name of the robot; robot=NAME sets this with all its settings
    # hummingbird: a rigid body under a Lee controller. quadrotor: the same with the constants
    # below. first_order: the velocity follows its command with a time constant
    model_name: str = "hummingbird"
    time_constant: float = 0.3  # s, of the first-order model
    damping: float = 0.2  # 1/s, of velocity and rotation through the air
    max_acceleration: float = 0.0  # m/s², the most that is asked of the vehicle; 0: no limit
    vertical_speed: float = 0.0  # m/s, the fastest climb and descent; 0: env.action_limit
    mass: float = 0.716  # kg; this and the next eight: of model_name=quadrotor
    inertia: list[float] = field(default_factory=lambda: [0.007, 0.007, 0.012])  # kg m²
    arm: float = 0.17  # m, from the centre to a rotor
    rotor_thrust: float = 6.003  # N, the most that one of the four rotors gives
    rotor_moment: float = 0.016  # m, drag moment of a rotor divided by its thrust
    rotor_time_constant: float = 0.0285  # s, of a rotor's speed
    velocity_gain: float = 2.2  # 1/s
    attitude_gain: list[float] = field(default_factory=lambda: [100.0, 100.0, 2.92])  # 1/s²
    rate_gain: list[float] = field(default_factory=lambda: [14.3, 14.3, 2.08])  # 1/s
    mass_variation: float = 0.0  # 0.1: mass within 10 % of the nominal one
    thrust_variation: float = 0.0  # the same for the thrust of the rotors
    wind: float = 0.0  # m/s, the fastest horizontal wind
    delay: int = 0  # simulated steps, the longest delay of a command


# Settings of `drone` that only model_name=quadrotor reads.
AIRFRAME = (
    "mass",
    "inertia",
    "arm",
    "rotor_thrust",
    "rotor_moment",
    "rotor_time_constant",
    "velocity_gain",
    "attitude_gain",
    "rate_gain",
)
# Thrust of all rotors divided by the weight: below, a quadrotor cannot hold its height.
WEAKEST = 1.2


def _term(weight: float, formula: str, unit: str = "", *, once: bool = False) -> float:
    """Return a field of RewardSettings: the weight of a reward term, and what the term is."""
    details = {"formula": formula, "unit": unit, "once": once}
    weighted: float = field(default=weight, metadata=details)
    return weighted


@dataclass
class RewardSettings:
    """Keys `reward.*`: the table of reward terms, each with its weight, formula and unit.

    A term is listed here, computed in `kernels/reward.py` and, readably, in `reference/rules.py`.
    Its sum over an episode is the statistic `reward_<name>`.
    """

    progress: float = _term(1.0, "velocity component towards the target", "m/s")
    alive: float = _term(0.0, "1")
    static: float = _term(0.3, "mean over the LiDAR rays of ln(length / log_reference)")
    dynamic: float = _term(
        0.3, "mean over the observed moving obstacles of ln(clearance / log_reference)"
    )
    smoothness: float = _term(0.0, "-|velocity - velocity one simulated step before|", "m/s")
    height: float = _term(
        8.0, "-(height beyond those of start and target, less a margin of 0.2 m)²", "m²"
    )
    goal: float = _term(2.0, "1 when the goal ends the episode", once=True)
    collision: float = _term(4.0, "-1 when a collision or the height bounds end it", once=True)
    log_reference: float = 4.0  # m: the distance at which the logarithm of a clearance is zero
    # terms that count at every simulated step are rates: multiplied by the time step
    per_second: bool = True


@dataclass(frozen=True)
class RewardTerm:
    """One term of the reward; `reward.<name>` is its weight."""

    name: str
    formula: str
    unit: str  # of the formula; empty for a pure number
    once: bool  # counts when an episode ends; else at every simulated step


REWARD_TERMS = tuple(
    RewardTerm(each.name, **each.metadata)
    for each in dataclasses.fields(RewardSettings)
    if "formula" in each.metadata
)


@dataclass
class SimulationSettings:
    """Keys `sim.*`: time and threads."""

    dt: float = 0.016  # s, of a simulated step
    gravity: float = 9.81  # m/s²
    num_threads: int = 0  # 0: as many as numba is given


# Values of settings that a task saved by an earlier version does not name.
EARLIER: dict[str, Any] = {
    "env.min_trip_length": 0.0,
    "env.crossing_share": 0.0,
    "env.midway_share": 0.0,
    "sensor.detection_dropout": 0.0,
    "sensor.detection_noise": 0.0,
    "sensor.position_noise": 0.0,
    "sensor.observation_delay": 0,
    "sensor.perfect_share": 0.0,
    "env.collision_height": 0.0,
    "env.planar": False,
    "sensor.lidar_hfov": 360.0,
    "sensor.lidar_rate": 0.0,
    "sensor.detection_range": 0.0,
    "drone.robot": "hummingbird",
    "drone.max_acceleration": 0.0,
    "drone.vertical_speed": 0.0,
    **{f"drone.{name}": getattr(DroneSettings(), name) for name in AIRFRAME},
    **{f"reward.{term.name}": 0.0 for term in REWARD_TERMS},
}


@dataclass
class NavigationSettings:
    """Everything that defines the navigation task. The defaults are the better task; see
    `conf/env/navrl_exact.yaml`.

    >>> import navrl
    >>> navrl.NavigationSettings.of(env__num_envs=64, sensor__lidar_range=6.0).sensor.lidar_range
    6.0
    """

    env: TaskSettings = field(default_factory=TaskSettings)
    env_dyn: MovingSettings = field(default_factory=MovingSettings)
    sensor: SensorSettings = field(default_factory=SensorSettings)
    drone: DroneSettings = field(default_factory=DroneSettings)
    reward: RewardSettings = field(default_factory=RewardSettings)
    sim: SimulationSettings = field(default_factory=SimulationSettings)

    @classmethod
    def of(cls, **overrides: Any) -> NavigationSettings:
        """Return the defaults with dotted overrides, double underscores for dots:
        `of(env__num_envs=8)`.
        """
        settings = cls()
        for key, value in overrides.items():
            settings.set(key.replace("__", "."), value)
        return settings

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Mapping[str, Any]]) -> NavigationSettings:
        """Return the defaults with the values of a nested mapping; an unknown key is an error."""
        settings = cls()
        for group, values in mapping.items():
            if not isinstance(values, Mapping):
                raise ConfigError(
                    f"{str(group)[:60]} is {shown(values)}; expected settings by name"
                )
            for key, value in values.items():
                settings.set(f"{group}.{key}", value)
        return settings

    def set(self, key: str, value: Any) -> None:
        """Set one value by its dotted key."""
        known = self.keys()
        if key not in known:
            raise ConfigError(f"unknown setting {shown(key)}.{nearest_name(key, known)}")
        group, name = key.split(".")
        setattr(getattr(self, group), name, value)

    @classmethod
    def keys(cls) -> list[str]:
        """Return every dotted key."""
        instance = cls()
        return [
            f"{g.name}.{f.name}"
            for g in dataclasses.fields(cls)
            for f in dataclasses.fields(getattr(instance, g.name))
        ]

    def as_dict(self) -> dict[str, Any]:
        """Return the settings as nested plain values."""
        return dataclasses.asdict(self)

    def check(self) -> None:
        """Raise a ConfigError that names the first setting with an impossible value."""
        for key in self.keys():
            group, name = key.split(".")
            _check_type(
                key,
                getattr(getattr(self, group), name),
                getattr(getattr(NavigationSettings(), group), name),
            )
        for key, holds, expected in _RULES:
            group, name = key.split(".")
            value = getattr(getattr(self, group), name)
            if not holds(value):
                raise ConfigError(f"{key} is {shown(value)}; expected {expected}")
        height_range = self.sensor.lidar_vfov
        if self.sensor.lidar_vbeams > 1 and height_range[0] >= height_range[1]:
            raise ConfigError(
                f"sensor.lidar_vfov is {height_range}; expected [lowest, highest] with lowest < "
                "highest"
            )
        self._check_body()

    def _check_body(self) -> None:
        """Refuse settings of the body that contradict each other."""
        env, drone = self.env, self.drone
        if env.collision == "cylinder" and env.collision_height <= 0:
            raise ConfigError(
                "env.collision is cylinder and env.collision_height is 0; expected its height in m"
            )
        if env.planar and drone.model_name != "first_order":
            raise ConfigError(
                f"env.planar is true and drone.model_name is {drone.model_name}, which tilts and "
                "climbs; expected drone.model_name=first_order"
            )
        self._check_airframe()

    def _check_airframe(self) -> None:
        drone = self.drone
        changed = [name for name in AIRFRAME if getattr(drone, name) != EARLIER[f"drone.{name}"]]
        if drone.model_name != "quadrotor" and changed:
            raise ConfigError(
                f"drone.{changed[0]} is {shown(getattr(drone, changed[0]))}, but "
                f"drone.model_name={drone.model_name} does not read it; expected "
                "drone.model_name=quadrotor"
            )
        thrust, weight = 4 * drone.rotor_thrust, drone.mass * self.sim.gravity
        if drone.model_name == "quadrotor" and thrust < WEAKEST * weight:
            raise ConfigError(
                f"drone.rotor_thrust is {drone.rotor_thrust:g} N: four rotors give {thrust:g} N, "
                f"the weight is {weight:.3g} N; expected at least {WEAKEST:g} times the weight"
            )


def _check_type(key: str, value: Any, example: Any) -> None:
    if isinstance(example, bool) or isinstance(value, bool):
        fits = isinstance(value, bool) and isinstance(example, bool)
    elif isinstance(example, float):
        fits = isinstance(value, int | float)
    elif isinstance(example, list):
        kinds = (int, float) if example and isinstance(example[0], float) else (int, str)
        fits = isinstance(value, list | tuple) and all(
            isinstance(v, kinds) and not isinstance(v, bool) for v in value
        )
    else:
        fits = isinstance(value, type(example))
    if not fits:
        expected = type(example).__name__
        found = f"{shown(value)} of type {type(value).__name__}"
        raise ConfigError(f"{key} is {found}; expected {expected}, such as {example!r}")


_Rule = tuple[str, Callable[[Any], bool], str]


def _between(key: str, low: float, high: float) -> _Rule:
    return key, lambda value: low <= value <= high, f"a value from {low:.7g} to {high:.7g}"


def _one_of(key: str, choices: tuple[str, ...]) -> _Rule:
    return key, lambda value: value in choices, f"one of {', '.join(choices)}"


def _divides_circle(value: float) -> bool:
    return 1.0 <= value <= 180.0 and abs(360.0 / value - round(360.0 / value)) < 1e-6


def _positive(count: int) -> Callable[[Any], bool]:
    return lambda value: len(value) == count and all(0 < v < 1e6 for v in value)


def _is_name(value: str) -> bool:
    return re.fullmatch(r"[A-Za-z0-9_-]{1,60}", value) is not None


def _counts_up_to(limit: int) -> Callable[[Any], bool]:
    return lambda value: all(isinstance(v, int) and 0 <= v <= limit for v in value)


_RULES: list[_Rule] = [
    _between("env.num_envs", 1, MAXIMUM_ENVIRONMENTS),
    _between("env.num_worlds", 1, MAXIMUM_WORLDS),
    _between("env.num_obstacles", 0, MAXIMUM_OBSTACLES),
    (
        "env.obstacles_per_world",
        _counts_up_to(MAXIMUM_OBSTACLES),
        f"counts from 0 to {MAXIMUM_OBSTACLES}",
    ),
    _between("env.map_seed", 0, 2**32 - 1 - MAXIMUM_WORLDS),
    ("env.world_files", lambda value: all(isinstance(v, str) for v in value), "a list of paths"),
    _between("env.placement_attempts", 1, 100_000),
    _one_of("env.layout", LAYOUTS),
    _between("env.max_episode_length", 1, 1_000_000),
    _between("env.action_repeat", 1, 64),
    _one_of("env.action_frame", FRAMES),
    _between("env.action_limit", 0.01, 50.0),
    _between("env.goal_radius", 0.01, 10.0),
    _between("env.min_trip_length", 0.0, 40.0),
    _between("env.crossing_share", 0.0, 1.0),
    _between("env.midway_share", 0.0, 1.0),
    _one_of("env.collision", COLLISIONS),
    _between("env.collision_radius", 0.01, 2.0),
    _between("env.collision_height", 0.0, 5.0),
    _between("env.num_observed", 1, 32),
    _between("env_dyn.num_obstacles", 0, MAXIMUM_MOVING),
    (
        "env_dyn.obstacles_per_world",
        _counts_up_to(MAXIMUM_MOVING),
        f"counts from 0 to {MAXIMUM_MOVING}",
    ),
    (
        "env_dyn.vel_range",
        lambda v: len(v) == 2 and 0 <= v[0] <= v[1] <= 50,
        "[slowest, fastest] in m/s, 0 to 50",
    ),
    (
        "env_dyn.local_range",
        lambda v: len(v) == 3 and all(0 < x <= 40 for x in v),
        "[x, y, z] in m, each 0 to 40",
    ),
    _between("sensor.lidar_range", 0.5, 20.0),
    (
        "sensor.lidar_vfov",
        lambda v: len(v) == 2 and all(-85 <= x <= 85 for x in v),
        "two angles from -85 to 85",
    ),
    _between("sensor.lidar_vbeams", 1, 64),
    ("sensor.lidar_hres", _divides_circle, "degrees from 1 to 180 that divide the circle evenly"),
    _between("sensor.lidar_hfov", 1.0, 360.0),
    _between("sensor.lidar_rate", 0.0, 1000.0),
    _between("sensor.detection_range", 0.0, 40.0),
    _between("sensor.noise", 0.0, 1.0),
    _between("sensor.dropout", 0.0, 1.0),
    _between("sensor.detection_dropout", 0.0, 1.0),
    _between("sensor.detection_noise", 0.0, 10.0),
    _between("sensor.position_noise", 0.0, 10.0),
    _between("sensor.observation_delay", 0, 32),
    _between("sensor.perfect_share", 0.0, 1.0),
    _one_of("drone.model_name", MODELS),
    _between("drone.time_constant", 0.001, 10.0),
    _between("drone.damping", 0.0, 10.0),
    ("drone.robot", _is_name, "a name of letters, digits, - and _, at most 60 of them"),
    _between("drone.max_acceleration", 0.0, 1000.0),
    _between("drone.vertical_speed", 0.0, 50.0),
    _between("drone.mass", 0.001, 1000.0),
    ("drone.inertia", _positive(3), "[x, y, z] in kg m², each above 0"),
    _between("drone.arm", 0.001, 10.0),
    _between("drone.rotor_thrust", 0.001, 10_000.0),
    _between("drone.rotor_moment", 0.0001, 1.0),
    _between("drone.rotor_time_constant", 0.0001, 1.0),
    _between("drone.velocity_gain", 0.01, 100.0),
    ("drone.attitude_gain", _positive(3), "[x, y, z] in 1/s², each above 0"),
    ("drone.rate_gain", _positive(3), "[x, y, z] in 1/s, each above 0"),
    _between("drone.mass_variation", 0.0, 0.5),
    _between("drone.thrust_variation", 0.0, 0.5),
    _between("drone.wind", 0.0, 20.0),
    _between("drone.delay", 0, 32),
    *(_between(f"reward.{term.name}", -1e6, 1e6) for term in REWARD_TERMS),
    _between("reward.log_reference", 1e-3, 100.0),
    _between("sim.dt", 0.001, 0.05),
    _between("sim.gravity", 0.0, 30.0),
    _between("sim.num_threads", 0, 1024),
]
