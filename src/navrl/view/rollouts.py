"""One drone of a stored rollout as a picture: path, obstacles it saw, rewards and clearance."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from navrl.deploy.tracks import horizontal_offset
from navrl.errors import RolloutError
from navrl.io.rollouts.storage import RolloutStorage
from navrl.navigation_observation import (
    GOAL_DIRECTION,
    GOAL_DISTANCE,
    GOAL_HEIGHT,
    OBSTACLE,
    OBSTACLE_DIRECTION,
    OBSTACLE_DISTANCE,
)
from navrl.view.topdown import make_figure

PATH_COLOUR, REWARD_COLOUR, ROOM_COLOUR, END_COLOUR, GOAL_COLOUR = (
    "#4575b4",
    "#1a9850",
    "#d73027",
    "#7b3294",
    "#f46d43",
)
STATIC_COLOUR, MOVING_COLOUR = "#8997a8", "#e69f00"
RANGE = 4.0  # m, of the LiDAR where the file does not name one


@dataclass(frozen=True)
class DroneFlight:
    """What one drone lived through in a rollout; None where the rollout does not tell."""

    reward: Any | None  # (T,)
    clearance: Any | None  # (T,) m: the shortest LiDAR ray
    path: Any | None  # (T, 3) m
    # the path is relative to the goal, its first axis along the way from start to goal
    relative: bool
    ended: Any  # (T,) bool
    seconds: float  # of a step
    reach: float  # m, range of the LiDAR: the clearance is this where nothing is nearer
    # what it saw at each step, in the frame of the path, with NaN for nothing
    rays: Any | None = None  # (T, rays, 2) m: where rays ended on an obstacle
    moving: Any | None = None  # (T, obstacles, 2) m: moving obstacles

    @property
    def saturated(self) -> Any:
        """Where nothing was within the range of the LiDAR, (T,) bool."""
        none = np.zeros(len(self.ended), bool)
        return none if self.clearance is None else self.clearance >= self.reach - 1e-6

    @property
    def parts(self) -> list[slice]:
        """The stretches of steps that belong to one episode each."""
        stops = [*(np.flatnonzero(self.ended) + 1), len(self.ended)]
        starts = [0, *stops[:-1]]
        return [
            slice(int(start), int(stop))
            for start, stop in zip(starts, stops, strict=True)
            if stop > start
        ]


def read_flight(storage: RolloutStorage, iteration: int, env: int) -> DroneFlight:
    """Return the flight of one environment; only its part of the file is decoded."""
    info = storage.info(iteration)

    def read(*names: str) -> Any | None:
        for name in names:
            if name in info.keys and info.keys[name].by_rows:
                part = storage.load(iteration, envs=env, keys=[tuple(name.split("/"))])
                for key in name.split("/"):
                    part = part[key]
                return np.asarray(part).reshape(info.steps, -1)
        return None

    scan = read("observation/lidar", "lidar", "agents/observation/lidar")
    reach = float(info.metadata.get("lidar_range", RANGE))
    position = read("position")
    state = read("observation/state", "state", "agents/observation/state")
    ended, reward = read("ended", "done", "next/done", "terminated"), read("reward", "next/reward")
    relative = position is None and state is not None and state.shape[1] >= 5
    path = position if position is not None else _from_goal(state) if relative else None
    tracks = read("observation/dynamic_obstacle", "dynamic_obstacle")
    fixed = relative and path is not None
    return DroneFlight(
        reward=None if reward is None else reward[:, 0],
        clearance=None if scan is None else reach - scan.max(1),
        path=path,
        relative=position is None,
        ended=np.zeros(info.steps, bool) if ended is None else ended[:, 0] != 0,
        seconds=float(info.metadata.get("seconds_per_step", 1.0)),
        reach=reach,
        rays=_ray_ends(path, scan, reach, info) if fixed and scan is not None else None,
        moving=_moving(path, tracks) if fixed and tracks is not None else None,
    )


def _ray_ends(path: Any, scan: Any, reach: float, info: Any) -> Any | None:
    """Return where rays ended on an obstacle, (T, rays, 2), in the frame of the path.

    A drone faces along the way from its start to its goal, which is the first axis of that frame.
    """
    name = next(name for name in info.keys if name.endswith("lidar"))
    azimuths, beams = info.keys[name].shape[-2:]
    sensor = info.metadata.get("task", {}).get("sensor", {})
    lowest, highest = sensor.get("lidar_vfov", (0.0, 0.0))
    rise = np.radians(np.linspace(lowest, highest, beams))
    length = (reach - scan.reshape(-1, azimuths, beams)) * np.cos(rise)
    angle = (2 * np.pi * np.arange(azimuths) / azimuths)[:, None]
    ends = np.stack([length * np.cos(angle), length * np.sin(angle)], axis=-1)
    ends[scan.reshape(-1, azimuths, beams) <= 1e-6] = np.nan
    return path[:, None, :2] + ends.reshape(len(path), -1, 2)


def _moving(path: Any, tracks: Any) -> Any:
    """Return the observed moving obstacles, (T, K, 2), in the frame of the path."""
    rows = tracks.reshape(len(path), -1, len(OBSTACLE))
    places = horizontal_offset(rows[..., OBSTACLE_DIRECTION], rows[..., OBSTACLE_DISTANCE])
    places[np.abs(rows).sum(-1) == 0] = np.nan
    return path[:, None, :2] + places


def _from_goal(state: Any) -> Any:
    """Return where a drone is seen from its goal, (T, 3), from its observed state: direction,
    distance, height.
    """
    flat = horizontal_offset(state[:, GOAL_DIRECTION], state[:, GOAL_DISTANCE])
    return -np.concatenate([flat, state[:, GOAL_HEIGHT, None]], 1)


def save_flight(storage: RolloutStorage, iteration: int, env: int, path: Path) -> DroneFlight:
    """Draw the flight of one environment, and return it.

    Raises:
        RolloutError: the rollout tells neither of rewards, nor of rays, nor of places.
    """
    flight = read_flight(storage, iteration, env)
    if flight.reward is None and flight.clearance is None and flight.path is None:
        raise RolloutError(
            f"rollout {iteration} has no reward, lidar, state or position; there is nothing to draw"
        )
    figure = make_figure(11.0, 5.0)
    grid = figure.add_gridspec(2, 2, width_ratios=(1.2, 1))
    _draw_path(figure.add_subplot(grid[:, 0]), flight)
    _draw_values(figure.add_subplot(grid[0, 1]), flight, flight.reward, "reward", REWARD_COLOUR)
    axes = figure.add_subplot(grid[1, 1])
    _draw_values(axes, flight, flight.clearance, "clearance (m)", ROOM_COLOUR)
    figure.suptitle(f"iteration {iteration}, environment {env}; dashed: an episode ended")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    return flight


def _draw_values(axes: Any, flight: DroneFlight, values: Any, label: str, colour: str) -> None:
    """Draw what was measured in every step over time, and where episodes ended."""
    time = np.arange(len(flight.ended)) * flight.seconds
    unit = "s" if flight.seconds != 1.0 else "steps"
    if values is not None:
        axes.plot(time, values, color=colour, linewidth=1.2, marker=".", markersize=3)
    if values is flight.clearance and flight.saturated.any():
        axes.axhline(flight.reach, color=ROOM_COLOUR, linestyle=":", linewidth=1.0)
        axes.set_title(
            f"at {flight.reach:g} m: nothing within the range of the LiDAR", fontsize="small"
        )
    for moment in time[flight.ended]:
        axes.axvline(moment, color=END_COLOUR, linestyle="--", linewidth=0.8)
    axes.set(
        xlabel=f"time ({unit})", ylabel=label if values is not None else f"{label}: not stored"
    )
    axes.grid(alpha=0.3)


def _draw_path(axes: Any, flight: DroneFlight) -> None:
    """Draw the way from above, episode by episode."""
    if flight.path is None:
        axes.set_title("no position or state was stored")
        return
    _draw_seen(axes, flight)
    for number, part in enumerate(flight.parts):
        over = bool(flight.ended[part][-1])
        _draw_part(axes, flight.path[part, 0], flight.path[part, 1], over, first=number == 0)
    if flight.relative:
        _draw_goal(axes, flight.path)
    axes.set(
        xlabel="m along the way from start to goal" if flight.relative else "x (m)",
        ylabel="m to its left" if flight.relative else "y (m)",
    )
    axes.set_aspect("equal", adjustable="datalim")
    axes.grid(alpha=0.3)
    axes.legend(loc="best")


def _draw_part(axes: Any, x: Any, y: Any, over: bool, *, first: bool) -> None:
    """Draw the way of one episode, or of a part of one, with its ends."""
    axes.plot(
        x,
        y,
        color=PATH_COLOUR,
        linewidth=1.4,
        alpha=1.0 if first else 0.6,
        marker=".",
        markersize=3,
    )
    axes.plot(x[0], y[0], "o", color=REWARD_COLOUR, markersize=6, label="begin" if first else None)
    label = "episode ended" if over else "episode continues"
    shown = label not in axes.get_legend_handles_labels()[1]
    style = {"marker": "X", "color": END_COLOUR} if over else {"marker": "D", "color": PATH_COLOUR}
    axes.plot(x[-1], y[-1], markersize=7, linestyle="", label=label if shown else None, **style)


def _draw_seen(axes: Any, flight: DroneFlight) -> None:
    """Draw the obstacles seen in the longest episode; each episode has a frame of its own."""
    part = max(flight.parts, key=lambda one: one.stop - one.start)
    for seen, colour, label in (
        (flight.rays, STATIC_COLOUR, "seen by rays"),
        (flight.moving, MOVING_COLOUR, "moving obstacles seen"),
    ):
        if seen is not None:
            points = seen[part].reshape(-1, 2)
            points = points[~np.isnan(points[:, 0])]
            if len(points):
                axes.plot(*points.T, ".", color=colour, markersize=2.5, label=label, zorder=0)


def _draw_goal(axes: Any, path: Any) -> None:
    """Mark the goal, unless it is so far that the way would shrink to a dot; then say how far."""
    extent = float(np.ptp(path[:, :2], axis=0).max())
    nearest = float(np.linalg.norm(path[:, :2], axis=1).min())
    if nearest <= 3 * extent:
        axes.plot(0, 0, "*", color=GOAL_COLOUR, markersize=14, label="goal")
    else:
        axes.set_title(f"the goal is {nearest:.1f} m further on, to the right", fontsize="medium")
