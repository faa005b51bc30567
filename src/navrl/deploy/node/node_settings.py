"""The settings of a node."""

from __future__ import annotations

from dataclasses import dataclass

from navrl.errors import ConfigError

LONGEST_MEMORY = 10.0  # s


@dataclass(frozen=True)
class NodeSettings:
    """When a node flies and when it stops.

    >>> from navrl.deploy import NodeSettings
    >>> NodeSettings(max_age=0.2).dry_run
    True
    """

    dry_run: bool = True  # decide and report, but send no command
    armed: bool = False  # at the start; else a message must arm it
    world_frame: str = "map"  # of odometry, goal and tracks
    max_age: float = 0.5  # s: older inputs stop the robot
    max_ahead: float = 0.1  # s: inputs stamped further in the future are refused
    stop_distance: float = 1.0  # m from the goal at which the robot is stopped
    compensation: bool = True  # carry inputs forward to the time when the command acts
    actuation_delay: float = 0.0  # s from sending a command until the robot receives it
    # s: a moving obstacle that newer lists leave out flies on at its last velocity; 0: no memory
    track_memory: float = 0.5
    needs_tracks: bool = True  # stop without a list of moving obstacles, an empty one included
    max_position: float = 1e4  # m: further from the origin is refused
    max_speed: float = 20.0  # m/s: faster odometry is refused

    def check(self) -> None:
        """Raise a ConfigError that names the first setting with an impossible value."""
        for name in ("max_age", "max_ahead", "stop_distance", "max_position", "max_speed"):
            value = getattr(self, name)
            if not 0 < value < 1e9:
                raise ConfigError(f"{name} is {value!r}; expected a number above 0")
        if not 0 <= self.actuation_delay <= self.max_age:
            raise ConfigError(
                f"actuation_delay is {self.actuation_delay!r}; expected 0 to max_age, "
                f"{self.max_age:g} s: a robot that answers later cannot be flown from here"
            )
        if not 0 <= self.track_memory <= LONGEST_MEMORY:
            raise ConfigError(
                f"track_memory is {self.track_memory!r}; expected 0 (none) to {LONGEST_MEMORY:g} s"
            )
        if not self.world_frame:
            raise ConfigError("world_frame is empty; expected the frame of the odometry, like map")
