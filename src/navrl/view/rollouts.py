"""One drone of a stored rollout as a picture: where it flew, what it earned, and how much room it
had.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from navrl.errors import RolloutError
from navrl.io.rollouts.storage import RolloutStorage
from navrl.navigation_observation import GOAL_DISTANCE, GOAL_HEIGHT
from navrl.view.topdown import make_figure

PATH_COLOUR, REWARD_COLOUR, ROOM_COLOUR, END_COLOUR, GOAL_COLOUR = (
    "#4575b4",
    "#1a9850",
    "#d73027",
    "#7b3294",
    "#f46d43",
)
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
    return DroneFlight(
        reward=None if reward is None else reward[:, 0],
        clearance=None if scan is None else reach - scan.max(1),
        path=position
        if position is not None
        else None
        if state is None or state.shape[1] < 5
        else _from_goal(state),
        relative=position is None,
        ended=np.zeros(info.steps, bool) if ended is None else ended[:, 0] != 0,
        seconds=float(info.metadata.get("seconds_per_step", 1.0)),
    )


def _from_goal(state: Any) -> Any:
    """Return where a drone is seen from its goal, (T, 3), from its observed state: direction,
    distance, height.
    """
    towards = state[:, :2] / np.maximum(np.linalg.norm(state[:, :2], axis=1, keepdims=True), 1e-6)
    return -np.concatenate(
        [
            towards * state[:, GOAL_DISTANCE : GOAL_DISTANCE + 1],
            state[:, GOAL_HEIGHT : GOAL_HEIGHT + 1],
        ],
        1,
    )


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
    time = np.arange(len(flight.ended)) * flight.seconds
    unit = "s" if flight.seconds != 1.0 else "steps"
    for row, (values, label, colour) in enumerate(
        ((flight.reward, "reward", REWARD_COLOUR), (flight.clearance, "clearance (m)", ROOM_COLOUR))
    ):
        axes = figure.add_subplot(grid[row, 1])
        if values is not None:
            axes.plot(time, values, color=colour, linewidth=1.2, marker=".", markersize=3)
        for moment in time[flight.ended]:
            axes.axvline(moment, color=END_COLOUR, linestyle="--", linewidth=0.8)
        axes.set(
            xlabel=f"time ({unit})", ylabel=label if values is not None else f"{label}: not stored"
        )
        axes.grid(alpha=0.3)
    figure.suptitle(f"iteration {iteration}, environment {env}; dashed: an episode ended")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    return flight


def _draw_path(axes: Any, flight: DroneFlight) -> None:
    """Draw the way from above, episode by episode."""
    if flight.path is None:
        axes.set_title("no position or state was stored")
        return
    for number, part in enumerate(flight.parts):
        x, y = flight.path[part, 0], flight.path[part, 1]
        axes.plot(
            x,
            y,
            color=PATH_COLOUR,
            linewidth=1.4,
            alpha=1.0 if number == 0 else 0.6,
            marker=".",
            markersize=3,
        )
        axes.plot(
            x[0],
            y[0],
            "o",
            color=REWARD_COLOUR,
            markersize=6,
            label="begin" if number == 0 else None,
        )
        over = bool(flight.ended[part][-1])
        label = "episode ended" if over else "goes on"
        shown = label not in axes.get_legend_handles_labels()[1]
        style = (
            {"marker": "X", "color": END_COLOUR} if over else {"marker": "D", "color": PATH_COLOUR}
        )
        axes.plot(x[-1], y[-1], markersize=7, linestyle="", label=label if shown else None, **style)
    if flight.relative:
        _draw_goal(axes, flight.path)
    axes.set(
        xlabel="m along the way from start to goal" if flight.relative else "x (m)",
        ylabel="m to its left" if flight.relative else "y (m)",
    )
    axes.set_aspect("equal", adjustable="datalim")
    axes.grid(alpha=0.3)
    axes.legend(loc="best")


def _draw_goal(axes: Any, path: Any) -> None:
    """Mark the goal, unless it is so far that the way would shrink to a dot; then say how far."""
    extent = float(np.ptp(path[:, :2], axis=0).max())
    nearest = float(np.linalg.norm(path[:, :2], axis=1).min())
    if nearest <= 3 * extent:
        axes.plot(0, 0, "*", color=GOAL_COLOUR, markersize=14, label="goal")
    else:
        axes.set_title(f"the goal is {nearest:.1f} m further on, to the right", fontsize="medium")
