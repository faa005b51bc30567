"""The services of the original NavRL's ROS packages, answered by an exported policy and the shield.

Names and fields are the original's, so that its navigation node can call ours unchanged.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from navrl.deploy.node.scans import ScanLayout, bin_hits
from navrl.deploy.node_messages import Array
from navrl.deploy.shield import Shield, ShieldSettings
from navrl.deploy.tracks import TRACK, horizontal_offset, observed_tracks
from navrl.deploy.transports.transport import Service
from navrl.errors import ConfigError, MessageError
from navrl.navigation_observation import (
    GOAL_DIRECTION,
    GOAL_DISTANCE,
    GOAL_HEIGHT,
    OBSTACLE,
    STATE,
    VELOCITY,
)

if TYPE_CHECKING:
    from navrl.sim.worlds.world_file import World

POLICY = ("/rl_navigation/GetPolicyInference", "navigation_runner/srv/GetPolicyInference")
SAFE_ACTION = ("/safe_action/get_safe_action", "navigation_runner/srv/GetSafeAction")
RAY_CAST = ("/occupancy_map/raycast", "map_manager/srv/RayCast")
OBSTACLES = ("/onboard_detector/get_dynamic_obstacles", "onboard_detector/srv/GetDynamicObstacles")
MOST_RAYS = 100_000
Fields = Mapping[str, Any]


class OriginalServices:
    """Answers the original's service calls.

    Args:
        policy: an exported policy, such as `RobotRunner`.
        layout: of its scan.
        world: what rays are cast at; None: no ray-cast service.
        tracks: returns the moving obstacles known now, (K, 8).
    """

    def __init__(
        self,
        policy: Callable[..., Any],
        layout: ScanLayout,
        *,
        world: World | None = None,
        tracks: Callable[[], Array] = lambda: np.zeros((0, TRACK)),
    ) -> None:
        self.policy, self.layout, self.world, self._tracks = policy, layout, world, tracks

    def table(self) -> dict[tuple[str, str], Service]:
        """Return the services by name and type."""
        table: dict[tuple[str, str], Service] = {
            POLICY: self.policy_inference,
            SAFE_ACTION: self.safe_action,
            OBSTACLES: self.dynamic_obstacles,
        }
        if self.world is not None:
            table[RAY_CAST] = self.ray_cast
        return table

    def policy_inference(self, request: Fields) -> dict[str, Any]:
        """Return the velocity in the world frame for an observation as the original makes it.

        state (1, 8), lidar (1, 1, azimuths, beams) as range minus distance, direction (3,), and
        dynamic_obstacle (1, 1, rows, 10), each flat with its shape beside it.
        """
        state = _shaped(request, "state").reshape(-1)
        scan = _shaped(request, "lidar").reshape(-1)
        rows = _shaped(request, "dynamic_obstacle")
        direction = _shaped(request, "direction").reshape(-1)
        expected = len(STATE), 3, len(OBSTACLE)
        if (len(state), len(direction), rows.shape[-1]) != expected:
            raise MessageError(
                f"state has {len(state)} numbers, direction {len(direction)}, a moving obstacle "
                f"{rows.shape[-1]}; expected {', '.join(map(str, expected))}"
            )
        if scan.size != self.layout.shape[0] * self.layout.shape[1]:
            raise MessageError(f"lidar has {scan.size} rays; expected {self.layout.shape}")
        flat = horizontal_offset(state[GOAL_DIRECTION], state[GOAL_DISTANCE])
        goal = np.array([*flat, state[GOAL_HEIGHT]])
        command = self.policy(  # in the goal frame, around the robot
            position=np.zeros(3),
            velocity=state[VELOCITY],
            goal=goal,
            start=goal - np.array([1.0, 0.0, 0.0]),
            lidar=self.layout.reach - scan.reshape(self.layout.shape),
            obstacles=observed_tracks(rows.reshape(1, -1, len(OBSTACLE)), np.zeros(1))[0],
        )
        bearing = math.atan2(direction[1], direction[0])
        x, y, z = (float(part) for part in command)
        cosine, sine = math.cos(bearing), math.sin(bearing)
        return {"action": [x * cosine - y * sine, x * sine + y * cosine, z]}

    def safe_action(self, request: Fields) -> dict[str, Any]:
        """Return the velocity that the shield lets pass."""
        position = _vector(request["agent_position"])
        reach = float(request["laser_range"])
        hits = np.asarray(request["laser_points"], np.float64).reshape(-1, 3) - position
        layout = ScanLayout(self.layout.azimuths, self.layout.elevations, reach)
        limit = float(request["max_velocity"])
        if not (0 < limit < 100 and 0 < reach < 1000):
            raise MessageError(
                f"max_velocity is {limit} and laser_range {reach}; expected numbers above 0"
            )
        result = _shield(limit, reach, self.layout.elevations)(
            _vector(request["rl_velocity"]),
            position=position,
            velocity=_vector(request["agent_velocity"]),
            lidar=bin_hits(layout, hits, 0.0),
            obstacles=_obstacles(request),
        )
        return {"safe_action": _named(result.velocity[0])}

    def ray_cast(self, request: Fields) -> dict[str, Any]:
        """Return where rays from a point end, flat, azimuth-major; a miss ends at the range."""
        if self.world is None:
            raise ConfigError("there is no world to cast rays at; start the node with --world FILE")
        hres, beams = float(request["hres"]), int(request["vbeams"])
        if not 0 < hres <= 360 or not beams >= 1 or int(360 / hres) * beams > MOST_RAYS:
            raise MessageError(
                f"hres is {hres} and vbeams {beams}; expected at most {MOST_RAYS} rays"
            )
        position = _vector(request["position"])
        azimuths = np.radians(hres) * np.arange(int(360 / hres)) + float(request["start_angle"])
        elevations = np.radians(np.linspace(request["vfov_min"], request["vfov_max"], beams))
        reach = float(request["range"])
        ends = _ends_of_rays(self.world, position, azimuths, elevations, reach)
        return {"points": ends.reshape(-1).tolist()}

    def dynamic_obstacles(self, request: Fields) -> dict[str, Any]:
        """Return the moving obstacles within a range, the nearest first."""
        position = _vector(request["current_position"])
        tracks = self._tracks()
        tracks = tracks[tracks[:, 6] > 0]
        distance = np.linalg.norm(tracks[:, :2] - position[:2], axis=1)
        chosen = tracks[np.argsort(distance)][: int((distance <= request["range"]).sum())]
        return {
            "position": [_named(row[:3]) for row in chosen],
            "velocity": [_named(row[3:6]) for row in chosen],
            "size": [_named(row[[6, 6, 7]]) for row in chosen],
        }


@functools.lru_cache(maxsize=16)
def _shield(limit: float, reach: float, elevations: tuple[float, ...]) -> Shield:
    return Shield(ShieldSettings(speed_limit=limit, lidar_range=reach, elevations=elevations))


def _obstacles(request: Fields) -> Array:
    """Return the moving obstacles of a request as tracks, (K, 8)."""
    places, velocities, sizes = (
        np.array([_vector(one) for one in request[name]]).reshape(-1, 3)
        for name in ("obs_position", "obs_velocity", "obs_size")
    )
    if not len(places) == len(velocities) == len(sizes):
        raise MessageError("obs_position, obs_velocity and obs_size differ in length")
    width = np.hypot(sizes[:, 0], sizes[:, 1])[:, None]  # the circle around the box
    return np.concatenate([places, velocities, width, sizes[:, 2:3]], 1)


def _shaped(request: Fields, name: str) -> Array:
    values = np.asarray(request[name], np.float64)
    shape = [int(size) for size in request[f"{name}_shape"]]
    if not shape or math.prod(shape) != values.size:
        raise MessageError(f"{name} has {values.size} numbers; its shape says {shape}")
    return values.reshape(shape)


def _vector(named: Any) -> Array:
    vector = np.array([named["x"], named["y"], named["z"]], np.float64)
    if not np.isfinite(vector).all():
        raise MessageError("a vector holds NaN or infinity")
    return vector


def _ends_of_rays(
    world: World, position: Array, azimuths: Array, elevations: Array, reach: float
) -> Array:
    """Return where rays from a point end, (azimuths, elevations, 3)."""
    import torch

    from navrl.sim.reference import Scene, cast_rays

    scene = Scene(
        torch.from_numpy(world.boxes).double(), torch.from_numpy(world.cylinders).double()
    )
    length = cast_rays(
        scene,
        torch.from_numpy(position)[None],
        torch.zeros(1, dtype=torch.float64),
        torch.from_numpy(azimuths),
        torch.from_numpy(elevations),
        reach,
    )[0].numpy()
    level = np.cos(elevations)
    level_x, level_y = np.cos(azimuths)[:, None] * level, np.sin(azimuths)[:, None] * level
    upwards = np.broadcast_to(np.sin(elevations), length.shape)
    ends: Array = position + length[:, :, None] * np.stack([level_x, level_y, upwards], -1)
    return ends


def _named(vector: Array) -> dict[str, float]:
    return dict(zip("xyz", map(float, vector), strict=True))
