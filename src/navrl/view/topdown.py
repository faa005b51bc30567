"""Worlds and flights from above, as pictures and animations."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from navrl.errors import missing_extra
from navrl.evaluation.recording import Recording
from navrl.render.palette import LIGHT, OUTCOME_NAMES
from navrl.sim.env import NavigationEnv
from navrl.sim.worlds.world_file import World

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# matplotlib's markers of how a flight ended
MARKS = {
    "success_100": "*",
    "static_collision": "X",
    "dynamic_collision": "D",
    "out_of_bounds": "^",
    "time_out": "s",
}
MOVING = LIGHT.moving
DPI = 110


def make_figure(width: float, height: float) -> Figure:
    """Return an empty figure of so many inches."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise missing_extra("pictures need matplotlib", "view") from error
    figure = Figure(figsize=(width, height), dpi=DPI, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def draw_world(axes: Axes, world: World | Recording) -> Any:
    """Draw the static obstacles of a world, darker where higher; return what a colour bar needs."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.collections import PatchCollection
    from matplotlib.colors import Normalize
    from matplotlib.patches import Circle, Rectangle

    boxes = [Rectangle((b[0], b[2]), b[1] - b[0], b[3] - b[2]) for b in world.boxes]
    rounds = [Circle((c[0], c[1]), c[2]) for c in world.cylinders]
    heights = np.concatenate([world.boxes[:, 5], world.cylinders[:, 4]])
    scale = ScalarMappable(Normalize(0.0, 6.0), "Greys")
    if boxes or rounds:
        axes.add_collection(
            PatchCollection([*boxes, *rounds], facecolor=scale.to_rgba(heights), edgecolor="none")
        )
    axes.add_patch(Rectangle((-25, -25), 50, 50, fill=False, edgecolor="#bbbbbb"))
    axes.set(xlim=(-26, 26), ylim=(-26, 26), aspect="equal", xlabel="x (m)", ylabel="y (m)")
    return scale


def save_world(env: NavigationEnv, path: Path, *, world: int = 0, close_up: bool = True) -> None:
    """Write a picture of a world with its drones, goals, moving obstacles and rays."""
    figure = make_figure(13.0 if close_up else 8.0, 7.0)
    whole, *near = figure.subplots(1, 2 if close_up else 1, squeeze=False)[0]
    scale = draw_world(whole, env.pool.worlds[world])
    figure.colorbar(scale, ax=whole, label="height (m)", shrink=0.8)
    drones = torch.nonzero(env.world == world)[:, 0]
    _draw_moving(whole, env, world)
    _draw_drones(whole, env, drones)
    whole.set_title(
        f"{env.pool.worlds[world].name}: {len(drones)} drones, {env.pool.moving_counts[world]} "
        "moving obstacles"
    )
    for axes in near:
        _draw_close_up(axes, env, world, drones)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


def _draw_close_up(axes: Axes, env: NavigationEnv, world: int, drones: torch.Tensor) -> None:
    """Draw the world around the drone with the most within its LiDAR's range."""
    busiest = (
        drones[env.observe()["lidar"][drones].flatten(1).sum(1).argmax()] if len(drones) else 0
    )
    centre = env.position[busiest]
    draw_world(axes, env.pool.worlds[world])
    _draw_moving(axes, env, world)
    _draw_rays(axes, env, drones)
    _draw_drones(axes, env, drones)
    reach = env.settings.sensor.lidar_range * 1.3
    axes.set(
        xlim=(centre[0] - reach, centre[0] + reach), ylim=(centre[1] - reach, centre[1] + reach)
    )
    axes.set_title(f"drone {int(busiest)} at z = {centre[2]:.2f} m, and the rays of its level beam")


def _draw_moving(axes: Axes, env: NavigationEnv, world: int) -> None:
    from matplotlib.patches import Circle, Rectangle

    moving = env.obstacles(world)
    for (x, y, _), (vx, vy, _), width, tall in zip(
        *(moving[k].tolist() for k in ("position", "velocity", "width", "tall")), strict=True
    ):
        shape = (
            Circle((x, y), width / 2)
            if tall
            else Rectangle((x - width / 2, y - width / 2), width, width)
        )
        shape.set(facecolor=MOVING, alpha=0.85 if tall else 0.45, edgecolor="none")
        axes.add_patch(shape)
        axes.plot([x, x + vx], [y, y + vy], color=MOVING, linewidth=0.8)


def _draw_drones(axes: Axes, env: NavigationEnv, drones: torch.Tensor) -> None:
    position, target, yaw = env.position[drones], env.target[drones], env.yaw[drones]
    for start, goal in zip(position, target, strict=True):
        axes.plot(
            [start[0], goal[0]], [start[1], goal[1]], color="#91bfdb", linewidth=0.5, zorder=1
        )
    axes.plot(
        target[:, 0],
        target[:, 1],
        "*",
        color="#fdae61",
        markeredgecolor="black",
        markersize=11,
        linestyle="none",
        label="goal",
    )
    axes.plot(
        position[:, 0],
        position[:, 1],
        "o",
        color="#2166ac",
        markersize=5,
        linestyle="none",
        label="drone",
    )
    axes.quiver(
        position[:, 0], position[:, 1], yaw.cos(), yaw.sin(), color="#2166ac", scale=30, width=0.004
    )
    axes.legend(loc="upper right")


def _draw_rays(axes: Axes, env: NavigationEnv, drones: torch.Tensor) -> None:
    """Draw the rays of the beam nearest to level, red where they end at something."""
    sensor = env.settings.sensor
    low, high = sensor.lidar_vfov
    elevations = np.linspace(low, high, sensor.lidar_vbeams)
    beam = int(np.abs(elevations).argmin())
    scan = env.observe()["lidar"][drones, 0, :, beam]
    lengths = (sensor.lidar_range - scan) * math.cos(math.radians(elevations[beam]))
    azimuths = torch.arange(scan.shape[1]) * (2 * math.pi / scan.shape[1])
    for start, yaw, row, seen in zip(
        env.position[drones], env.yaw[drones], lengths, scan, strict=True
    ):
        ends = start[:2] + row[:, None] * torch.stack(
            [(azimuths + yaw).cos(), (azimuths + yaw).sin()], 1
        )
        for end, value in zip(ends, seen, strict=True):
            colour = "#d73027" if value > 1e-6 else "#a6d96a"
            axes.plot([start[0], end[0]], [start[1], end[1]], color=colour, linewidth=0.6, zorder=2)


def save_flights(recording: Recording, path: Path) -> None:
    """Write a picture of recorded flights from above: failures on top, moving obstacles as arrows.

    An arrow goes from where a moving obstacle was at the start to where it was two seconds later.
    """
    figure = make_figure(11.4, 8.0)
    axes = figure.subplots()
    scale = draw_world(axes, recording)
    _draw_arrows(axes, recording)
    # successes first, so that failures are drawn over them
    for outcome in reversed(OUTCOME_NAMES):
        colour, failed = getattr(LIGHT, outcome), outcome != "success_100"
        for flight in np.flatnonzero(np.array(recording.outcome) == outcome):
            track = recording.position[: recording.lengths[flight] + 1, flight]
            axes.plot(*track[:, :2].T, color=colour, linewidth=1.9 if failed else 0.9)
            axes.plot(*track[0, :2], "o", color=colour, markersize=3.5)
            axes.plot(*track[-1, :2], MARKS[outcome], color=colour, markersize=9 if failed else 5)
    axes.plot(*recording.goal[:, :2].T, "o", color="#444444", markersize=6, fillstyle="none")
    _legend(figure, Counter(recording.outcome))
    figure.colorbar(scale, ax=axes, label="height (m)", shrink=0.6)
    kind = f"{recording.scenario}: " if recording.scenario else ""
    axes.set_title(f"{kind}{recording.flights} flights in {recording.world}")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


def _draw_arrows(axes: Axes, recording: Recording) -> None:
    """Draw how the moving obstacles go in the first two seconds."""
    if not len(recording.moving_width):
        return
    later = min(round(2.0 / recording.seconds_per_frame), len(recording.moving_position) - 1)
    start, end = recording.moving_position[0, :, :2], recording.moving_position[later, :, :2]
    axes.quiver(
        *start.T,
        *(end - start).T,
        angles="xy",
        scale_units="xy",
        scale=1.0,
        color=LIGHT.moving,
        width=0.003,
        zorder=1.5,
    )


def _legend(figure: Figure, counts: Mapping[str, int]) -> None:
    """Explain the colours beside the picture, where they hide nothing."""
    from matplotlib.lines import Line2D

    keys = [
        Line2D([], [], color=LIGHT.moving, marker=">", linestyle="-", label="moving obstacle, 2 s"),
        Line2D([], [], color="#444444", marker="o", fillstyle="none", linestyle="", label="goal"),
    ]
    for outcome, words in OUTCOME_NAMES.items():
        if counts[outcome]:
            label, colour = f"{counts[outcome]} {words}", getattr(LIGHT, outcome)
            keys.append(Line2D([], [], color=colour, marker=MARKS[outcome], label=label))
    figure.legend(handles=keys, loc="outside right upper", frameon=False)


def save_animation(recording: Recording, path: Path, *, frames: int = 120, rate: int = 15) -> None:
    """Write a GIF of recorded flights: the replay's scene, each outcome coloured as it happens."""
    from navrl.view.video import VideoSettings, write_video

    seconds = float(recording.lengths.max(initial=1)) * recording.seconds_per_frame
    speed = max(seconds * rate / frames, 0.1)
    settings = VideoSettings(width=640, height=400, frames_per_second=rate, speed=speed)
    write_video(recording, path, settings)
