"""A shield between a policy and the motors: the nearest velocity that meets nothing it can see.

    shield = Shield()
    result = shield(desired, position=position, velocity=velocity, lidar=ranges, bearing=bearing,
                    obstacles=tracks)
    send(result.velocity)           # result.intervened, result.reason

The same code runs in simulation, in training and on a robot. It assumes that obstacles keep their
velocity and that the robot answers after a fixed lag; both are approximations, so it prevents most
collisions, not all.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from navrl.deploy import shield_kernel
from navrl.deploy.shield_threats import Limits
from navrl.deploy.tracks import TALL
from navrl.errors import ActionError, ConfigError

if TYPE_CHECKING:
    from torch import Tensor

# By the numbers in `ShieldResult.reason`.
REASONS = (
    "clean",
    "static obstacle",
    "moving obstacle",
    "height limit",
    "no clean velocity",
    "invalid input",
)
NO_CLEAN_VELOCITY, INVALID = shield_kernel.NO_CLEAN_VELOCITY, shield_kernel.INVALID
TURNS = (0, 6, 12, 20, 30, 45, 60, 80, 105, 135, 180)  # degrees from the desired, to both sides
SPEEDS = (1.0, 0.75, 0.5, 0.25)  # of the fastest command in that direction
CLIMBS = (0.0, -0.2, 0.2, -0.5, 0.5)  # of the limit, added to the desired climb
PIECES = (0.0, 1 / 3, 0.8, 1.45, 2.45)  # of the lag: where the straight pieces of a path begin
SHORTEST_LAG = 0.05  # s: pieces are no shorter for a robot that answers faster
BODY_MARGIN = 0.04  # m around the body that is kept free where nothing more is possible
CONTACT_COST, TIGHT_CONTACT_COST = 20.0, 1e4  # (m/s)^2, with all margins and with the body's
CHANGED = shield_kernel.CHANGED
UNLIMITED = ("acceleration_limit", "climb_limit")  # settings that may be infinite


@dataclass(frozen=True)
class ShieldSettings:
    """What the shield keeps away from, and how far it looks ahead.

    >>> from navrl.deploy import Shield, ShieldSettings
    >>> careful = Shield(ShieldSettings(static_radius=0.5, speed_limit=1.0))
    """

    speed_limit: float = 2.0  # m/s on each axis
    climb_limit: float = math.inf  # m/s up and down, where that is less than the speed limit
    acceleration_limit: float = math.inf  # m/s^2, as an average over the lag
    lag: float = 1 / 2.2  # s, time constant of the robot's velocity after a command
    body_radius: float = 0.3  # m
    static_radius: float = 0.34  # m kept free around the robot at rest ...
    static_growth: float = 0.055  # ... and more by this many m for each m/s of the command
    static_horizon: float = 2.0  # s
    moving_margin: float = 0.5  # m from the robot's centre to moving obstacles
    moving_horizon: float = 2.4  # s
    turning_gap: float = 1.0  # m: nearer to a moving obstacle, room for a turn of it is sought ...
    turning_cost: float = 6.0  # ... at (m/s)^2 of detour for each m^2 that is missing
    lowest: float = 0.35  # m above the ground
    highest: float = 3.8  # m above the ground
    height_horizon: float = 0.4  # s
    lidar_range: float = 4.0  # m; a ray of this length has hit nothing
    elevations: tuple[float, ...] = (-10.0, 0.0, 10.0, 20.0)  # degrees, of the LiDAR's beams
    ground: float = 0.08  # m above the ground: hits below are the ground itself
    slowing: float = 2.0  # how much more a loss of speed costs than a detour of the same size

    def check(self) -> None:
        """Raise a ConfigError that names the first setting with an impossible value."""
        for part in fields(self):
            value = getattr(self, part.name)
            if part.name == "elevations":
                if not value or any(not -90 < angle < 90 for angle in value):
                    raise ConfigError(
                        f"elevations are {value!r}; expected degrees between -90 and 90"
                    )
            elif not value >= 0 or (value == math.inf and part.name not in UNLIMITED):
                raise ConfigError(f"{part.name} is {value!r}; expected a number of at least 0")
        if self.speed_limit <= 0 or self.lowest >= self.highest:
            raise ConfigError(
                f"speed_limit is {self.speed_limit}, heights are {self.lowest} to {self.highest}; "
                "expected a speed above 0 and lowest below highest"
            )

    def limits(self) -> Limits:
        """Return the settings as the kernel reads them."""
        body = self.body_radius + BODY_MARGIN
        change = self.acceleration_limit * self.lag if self.lag > 0 else math.inf
        return Limits(
            float(self.speed_limit),
            float(min(self.climb_limit, self.speed_limit)),
            float(change),
            float(self.lag),
            float(body),
            float(max(self.static_radius, body)),
            float(self.static_growth),
            float(self.static_horizon),
            float(max(self.moving_margin, body)),
            float(self.moving_horizon),
            float(self.turning_gap),
            float(self.turning_cost),
            float(self.lowest),
            float(self.highest),
            float(self.height_horizon),
            float(self.lidar_range),
            float(self.ground),
            float(self.slowing),
            CONTACT_COST,
        )

    def tight_limits(self) -> Limits:
        """Return the limits where nothing is clean: only the body's own margin counts."""
        usual = self.limits()
        return usual._replace(
            static_radius=usual.body,
            static_growth=0.0,
            moving_margin=usual.body,
            turning_cost=0.0,
            contact_cost=TIGHT_CONTACT_COST,
        )


@dataclass(frozen=True)
class ShieldResult:
    """What the shield made of a batch of commands.

    >>> import numpy as np
    >>> from navrl.deploy import ShieldResult
    >>> result = ShieldResult(np.zeros((2, 3)), np.array([False, True]), np.array([0, 1]))
    >>> result.reasons()
    ['clean', 'static obstacle']
    """

    velocity: NDArray[np.float64]  # (N, 3) m/s, within the limits
    intervened: NDArray[np.bool_]  # (N,) whether the command was changed
    reason: NDArray[np.int64]  # (N,) a number of `REASONS`

    def reasons(self) -> list[str]:
        """Return why each command was changed, in words."""
        return [REASONS[number] for number in self.reason]


@dataclass
class ShieldCounts:
    """How often the shield was asked, and how often it changed a command, by reason."""

    decisions: int = 0
    interventions: int = 0
    reasons: dict[str, int] = field(default_factory=lambda: dict.fromkeys(REASONS[1:], 0))

    def add(self, result: ShieldResult, where: NDArray[np.bool_] | None = None) -> None:
        """Count a batch, or the robots of it that `where` marks."""
        chosen = np.ones(len(result.reason), bool) if where is None else where
        self.decisions += int(chosen.sum())
        self.interventions += int((result.intervened & chosen).sum())
        for number, name in enumerate(REASONS[1:], 1):
            self.reasons[name] += int(((result.reason == number) & chosen).sum())

    def told(self) -> str:
        """Return the counts in a sentence."""
        share = 100 / max(self.decisions, 1)
        because = ", ".join(f"{name} {n * share:.2f} %" for name, n in self.reasons.items() if n)
        changed = f"{self.interventions * share:.1f} % of {self.decisions:,} commands"
        return f"the shield changed {changed}" + (f" ({because})" if because else "")


class Shield:
    """Replaces velocity commands that would hit something by the nearest ones that would not.

    Of 405 sampled commands and the desired one, it takes the nearest to the desired one that has
    no contact within the horizons. Where there is none, margins shrink to the body's; where that
    does not help, it takes the command whose first contact is latest, and says so. Input that is
    not finite, or older than `max_age`, stops the robot.

    >>> import numpy as np
    >>> from navrl.deploy import Shield
    >>> wall = np.full((1, 36, 4), 4.0)
    >>> wall[:, [35, 0, 1]] = 0.5  # half a metre ahead
    >>> result = Shield()(
    ...     [[2.0, 0.0, 0.0]],
    ...     position=[[0.0, 0.0, 1.5]],
    ...     velocity=[[0.0, 0.0, 0.0]],
    ...     lidar=wall,
    ...     bearing=0.0,
    ...     goal=[[10.0, 0.0, 1.5]],
    ... )
    >>> bool(result.intervened[0]), bool(result.velocity[0, 0] < 2.0)
    (True, True)
    """

    def __init__(self, settings: ShieldSettings | None = None, *, max_age: float = 0.5) -> None:
        self.settings = settings or ShieldSettings()
        self.settings.check()
        self.max_age = max_age  # s
        rules = [self.settings.limits(), self.settings.tight_limits()]
        self._rules = np.array(rules, dtype=[(name, float) for name in Limits._fields])
        lag = self.settings.lag
        self._times = np.array(PIECES) * max(lag, SHORTEST_LAG)
        self._held = lag * (1 - np.exp(-self._times / lag)) if lag > 0 else 0 * self._times
        angles = np.radians(np.asarray(self.settings.elevations, float))
        order = np.argsort(angles, kind="stable")
        ordered = bool((np.diff(order) > 0).all())
        self._upwards = slice(None) if ordered else order  # beams as the kernel takes them
        angles = angles[order]
        self._sines, self._cosines = np.sin(angles), np.cos(angles)
        self._candidates = _candidates()

    def __call__(
        self,
        desired: ArrayLike | Tensor,
        *,
        position: ArrayLike | Tensor,
        velocity: ArrayLike | Tensor,
        lidar: ArrayLike | Tensor,
        bearing: ArrayLike | Tensor = 0.0,
        obstacles: ArrayLike | Tensor | None = None,
        goal: ArrayLike | Tensor | None = None,
        age: float = 0.0,
    ) -> ShieldResult:
        """Return the commands to send.

        Args:
            desired: (N, 3) or (3,) velocity commands in m/s, world frame like everything here.
            position: of the robots; z is the height above the ground.
            velocity: of the robots.
            lidar: (N, azimuths, beams) ranges in metres, azimuths counter-clockwise from `bearing`.
            bearing: (N,) or one angle in radians, of the first azimuth in the world.
            obstacles: (N, K, 8) x, y, z, vx, vy, vz, width, height of moving obstacles; a width of
                0 or less is an empty slot.
            goal: what lies beyond it is not flown to, so it does not count.
            age: s since the inputs were measured.

        Raises:
            ActionError: a shape does not fit.
        """
        wanted = _rows("desired", desired, 3)
        number = len(wanted)
        place, own = _rows("position", position, 3, number), _rows("velocity", velocity, 3, number)
        ranges = self._ranges(lidar, number)
        tracks = _tracks(obstacles, number)
        angles = np.empty(number)
        angles[:] = bearing
        goals = np.full((number, 3), np.inf) if goal is None else _rows("goal", goal, 3, number)
        velocities, reason = np.zeros((number, 3)), np.zeros(number, np.int64)
        changed = np.ones(number, bool)
        if not 0 <= age <= self.max_age:
            reason[:] = INVALID
        else:
            self._filter(
                wanted, place, own, angles, ranges, tracks, goals, velocities, reason, changed
            )
        return ShieldResult(velocities, changed, reason)

    def _filter(
        self,
        wanted: NDArray[np.float64],  # (N, 3)
        place: NDArray[np.float64],  # (N, 3)
        own: NDArray[np.float64],  # (N, 3)
        angles: NDArray[np.float64],  # (N,)
        ranges: NDArray[np.float64],  # (N, azimuths, beams)
        tracks: NDArray[np.float64],  # (N, K, 8)
        goals: NDArray[np.float64],  # (N, 3)
        velocities: NDArray[np.float64],  # (N, 3), written
        reason: NDArray[np.int64],  # (N,), written
        changed: NDArray[np.bool_],  # (N,), written
    ) -> None:
        """Write the commands to send, whether they differ from the wanted ones, and why."""
        shield_kernel.filter_velocities(
            self._rules,
            self._times,
            self._held,
            wanted,
            place,
            own,
            angles,
            ranges,
            tracks,
            goals,
            self._sines,
            self._cosines,
            self._candidates,
            TALL,
            velocities,
            reason,
            changed,
        )

    def _ranges(self, lidar: ArrayLike | Tensor, number: int) -> NDArray[np.float64]:
        beams = len(self.settings.elevations)
        ranges = np.asarray(lidar, float)
        if ranges.ndim == 2 and number == 1:
            ranges = ranges[None]
        if ranges.ndim != 3 or ranges.shape[0] != number or ranges.shape[2] != beams:
            raise ActionError(
                f"lidar has the shape {ranges.shape}; expected ({number}, azimuths, {beams}): a "
                "range in metres for each azimuth and each of the shield's elevations"
            )
        return _owned(ranges[:, :, self._upwards])


def _candidates() -> NDArray[np.float64]:
    """Return the sampled commands, (C, 4): cosine and sine of the turn, speed, and climb."""
    turns = [math.radians(side * turn) for turn in TURNS for side in (1, -1)]
    level = [(1.0, 0.0, 0.0)] + [
        (math.cos(turn), math.sin(turn), speed)
        for speed in SPEEDS
        for turn in dict.fromkeys(turns)
        if turn > -math.pi
    ]
    return np.array([(*each, climb) for climb in CLIMBS for each in level])


def _rows(
    name: str, value: ArrayLike | Tensor, columns: int, number: int | None = None
) -> NDArray[np.float64]:
    rows = np.atleast_2d(np.asarray(value, float))
    if number is not None and number > 1 and rows.shape == (1, columns):
        rows = np.broadcast_to(rows, (number, columns))
    if rows.ndim != 2 or rows.shape[1] != columns or len(rows) != (number or len(rows)):
        wanted = f"({number or 'N'}, {columns})"
        raise ActionError(f"{name} has the shape {np.shape(value)}; expected {wanted}")
    return _owned(rows)


def _tracks(obstacles: ArrayLike | Tensor | None, number: int) -> NDArray[np.float64]:
    tracks = np.zeros((number, 0, 8)) if obstacles is None else np.asarray(obstacles, float)
    if tracks.ndim == 2 and number == 1:
        tracks = tracks[None]
    if tracks.ndim != 3 or tracks.shape[0] != number or tracks.shape[2] != 8:
        raise ActionError(
            f"obstacles have the shape {tracks.shape}; expected ({number}, K, 8): x, y, z, vx, vy, "
            "vz, width and height of each"
        )
    return _owned(tracks)


def _owned(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the values contiguous and writable: numba compiles again for every other kind."""
    flags = values.flags
    return values if flags.c_contiguous and flags.writeable else np.array(values, order="C")
