"""Any sensor's hits in the layout that the policy was trained on: (azimuths, beams) ranges."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from navrl.deploy.node_messages import Array, LevelScan, Points, Rays, Scan, rotated, yaw_of
from navrl.errors import MessageError


@dataclass(frozen=True)
class ScanLayout:
    """The rays of a policy: evenly spaced azimuths, beams at given elevations."""

    azimuths: int
    elevations: tuple[float, ...]  # degrees, ascending
    reach: float  # m; also the range of a ray that hits nothing

    @property
    def shape(self) -> tuple[int, int]:
        """Number of azimuths and of beams."""
        return self.azimuths, len(self.elevations)

    @property
    def step(self) -> float:
        """Angle between neighbouring azimuths, rad."""
        return 2 * math.pi / self.azimuths


def bin_hits(layout: ScanLayout, offsets: Array, bearing: float) -> Array:
    """Return ranges, (azimuths, beams), for hits relative to the robot, (P, 3), world axes.

    A cell has the nearest hit within half a step of its ray, in azimuth and in elevation; a cell
    without hits is free. Hits above and below all beams are left out.
    """
    ranges = np.full(layout.shape, layout.reach)
    distance = np.linalg.norm(offsets, axis=1)
    near = (distance > 1e-6) & (distance < layout.reach)
    offsets, distance = offsets[near], distance[near]
    turned = np.arctan2(offsets[:, 1], offsets[:, 0]) - bearing
    azimuth = np.rint(turned / layout.step).astype(int) % layout.azimuths
    elevation = np.degrees(np.arcsin(np.clip(offsets[:, 2] / distance, -1, 1)))
    beams = np.asarray(layout.elevations)
    beam = np.abs(elevation[:, None] - beams).argmin(1)
    spacing = np.diff(beams).min() if len(beams) > 1 else math.inf
    seen = np.abs(elevation - beams[beam]) <= spacing / 2 + 1e-9
    np.minimum.at(ranges, (azimuth[seen], beam[seen]), distance[seen])
    return ranges


def from_scan(layout: ScanLayout, scan: Scan, bearing: float) -> tuple[Array, float]:
    """Return ranges and the bearing of azimuth 0, within half a step of the wanted bearing."""
    if scan.ranges.shape != layout.shape:
        raise MessageError(f"the scan has the shape {scan.ranges.shape}; expected {layout.shape}")
    ranges = np.minimum(scan.ranges, layout.reach)
    turned = math.remainder(scan.bearing - bearing, 2 * math.pi)
    steps = round(turned / layout.step)
    return np.roll(ranges, steps, axis=0), scan.bearing - steps * layout.step


def from_level_scan(layout: ScanLayout, scan: LevelScan, attitude: Array, bearing: float) -> Array:
    """Return ranges for a 2-D scan: what it hits is taken for a wall from the ground up."""
    angles = yaw_of(attitude) + scan.first_angle + scan.step * np.arange(len(scan.ranges))
    hit = np.isfinite(scan.ranges) & (scan.ranges > 0)
    flat = scan.ranges[hit, None] * np.stack([np.cos(angles[hit]), np.sin(angles[hit])], 1)
    level = np.concatenate([flat, np.zeros((len(flat), 1))], 1)
    plane = bin_hits(ScanLayout(layout.azimuths, (0.0,), layout.reach), level, bearing)
    slant = plane / np.cos(np.radians(np.asarray(layout.elevations)))
    return np.minimum(np.where(plane < layout.reach, slant, layout.reach), layout.reach)


def from_points(
    layout: ScanLayout,
    cloud: Points,
    position: Array,
    attitude: Array,
    bearing: float,
    world_frame: str,
) -> Array:
    """Return ranges for hits in the world frame, or in the body frame of the robot."""
    points = cloud.points[np.isfinite(cloud.points).all(1)]
    in_world = cloud.frame == world_frame
    offsets = points - position if in_world else rotated(attitude, points)
    return bin_hits(layout, offsets, bearing)


def from_rays(layout: ScanLayout, rays: Rays, position: Array) -> Array:
    """Return ranges for the end points of rays that were cast from the goal's bearing."""
    expected = layout.shape[0] * layout.shape[1]
    if len(rays.points) != expected:
        raise MessageError(
            f"there are {len(rays.points)} rays; expected {expected}: "
            f"{layout.azimuths} azimuths x {len(layout.elevations)} beams"
        )
    distance = np.linalg.norm(rays.points - position, axis=1)
    return np.minimum(distance, layout.reach).reshape(layout.shape)
