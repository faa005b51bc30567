"""Exact ray casting against boxes and upright cylinders, vectorised over azimuths.

All beams of one azimuth share one test in the horizontal plane; they differ only in slope. An
obstacle is hit by the few azimuths that it subtends, so its angle is estimated first, and only the
groups of azimuths that can hit it are tested, a whole group at once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numba import float32, int64
from numpy.typing import NDArray

from navrl.sim.settings import SensorSettings
from navrl.sim.worlds.terrain import GROUND
from navrl.sim.worlds.world_pool import CELL, GRID, GRID_ORIGIN
from navrl.simd import (
    WIDTH,
    aligned_zeros,
    bits_of,
    floor,
    gather,
    inner,
    lane_numbers,
    load,
    load_columns,
    log,
    lowest_bit,
    maximum,
    minimum,
    smallest,
    splat,
    sqrt,
    store,
    store_interleaved,
    total,
    where,
)

MISS = 1e9  # m, the length of a ray that hits nothing
STEEP = 1e7  # stands for 1 / 0
BEAM = 3  # constants per beam

# A batch of shapes in the scratch memory, WIDTH floats per row: the shapes, then what
# `find_azimuths` finds: first azimuth, number of azimuths, squared distance.
X0, X1, Y0, Y1, Z0, Z1, CYLINDER, BEGIN, COUNT, SQUARED = (row * WIDTH for row in range(10))
REACH = 10 * WIDTH  # then, for each azimuth, the squared length of its longest ray
BATCH = REACH + 384  # up to 360 azimuths


@dataclass(frozen=True)
class LidarTables:
    """The constants of the LiDAR as the kernel reads them."""

    # (2, P): cosines, then sines, of the azimuths, repeated to fill the last group
    azimuths: NDArray[np.float32]
    # (V, BEAM): 1 / slope, 1 / cosine, ground distance per metre of height (0: hits no ground)
    beams: NDArray[np.float32]
    count: int  # azimuths; P is this, rounded up to whole groups

    @property
    def scratch_size(self) -> int:
        """Floats of scratch for a scan: directions (2, P), rays (V, P), a batch of shapes."""
        return (2 + len(self.beams)) * self.azimuths.shape[1] + BATCH


def make_tables(settings: SensorSettings) -> LidarTables:
    """Return the tables of a LiDAR."""
    count = round(360.0 / settings.lidar_hres)
    padded = -(-count // WIDTH) * WIDTH
    angles = 2 * np.pi * (np.arange(padded) % count) / count
    low, high = settings.lidar_vfov
    elevations = np.deg2rad(np.linspace(low, high, settings.lidar_vbeams))
    slopes = np.tan(elevations)
    level = np.abs(slopes) < 1e-7
    inverse = np.where(level, STEEP, 1 / np.where(level, 1.0, slopes))
    beams = np.stack(
        [inverse, 1 / np.cos(elevations), np.where(slopes < -1e-7, -inverse, 0.0)], axis=1
    )
    azimuths = aligned_zeros((2, padded))
    azimuths[:] = np.cos(angles), np.sin(angles)
    return LidarTables(azimuths, beams.astype(np.float32), count)


@inner
def _start_scan(scratch, x, y, z, cosine, sine, lidar, reach):
    """Write the inverse directions of all azimuths at a yaw, and the horizontal distance at which
    each beam hits the ground.
    """
    azimuths, beams, padded, number = lidar.azimuths, lidar.beams, lidar.padded, lidar.number
    buried = z <= float32(0.0) and abs(x) <= float32(GROUND) and abs(y) <= float32(GROUND)
    near_border = abs(x) + reach > float32(GROUND) or abs(y) + reach > float32(GROUND)
    for base in range(0, padded, WIDTH):
        cosines, sines = load(azimuths, base), load(azimuths, padded + base)
        dx, dy = cosines * cosine - sines * sine, sines * cosine + cosines * sine
        store(scratch, base, 1.0 / where(maximum(dx, -dx) > 1e-7, dx, 1e-7))
        store(scratch, padded + base, 1.0 / where(maximum(dy, -dy) > 1e-7, dy, 1e-7))
        for v in range(number):
            row = (2 + v) * padded + base
            ground = z * beams[v * BEAM + 2]
            if buried:
                store(scratch, row, splat(0.0))
            elif beams[v * BEAM + 2] <= float32(0.0) or ground * beams[v * BEAM + 1] >= reach:
                store(scratch, row, splat(MISS))
            elif near_border:
                hit_x, hit_y = dx * ground + x, dy * ground + y
                outside = maximum(maximum(hit_x, -hit_x), maximum(hit_y, -hit_y)) > GROUND
                store(scratch, row, where(outside, MISS, ground))
            else:
                store(scratch, row, splat(ground))


@inner
def _angle(y, x):
    """Return atan2(y, x) of lanes to within 2e-3: enough to choose azimuths with a margin."""
    ax, ay = maximum(x, -x), maximum(y, -y)
    ratio = minimum(ax, ay) / maximum(maximum(ax, ay), 1e-12)
    square = ratio * ratio
    result = ((square * -0.0464964749 + 0.15931422) * square - 0.327622764) * square * ratio + ratio
    result = where(ay > ax, 0.5 * math.pi - result, result)
    result = where(x < 0.0, math.pi - result, result)
    return where(y < 0.0, -result, result)


@inner
def find_azimuths(scratch, batch, shapes, number, x, y, z, cosine, sine, count, limit, half_height):
    """Write `number` shapes (columns x0 to z1, cylinder) into the batch, relative to the LiDAR, and
    the azimuths that can hit each of them.

    Returns a bit for each shape that can be hit at all, and the squared distance of the nearest:
    with a `half_height`, the horizontal one of those that an upright cylinder can touch.
    """
    x0, x1, y0, y1 = shapes[0] - x, shapes[1] - x, shapes[2] - y, shapes[3] - y
    z0, z1, cylinder = shapes[4] - z, shapes[5] - z, shapes[6]
    store(scratch, batch + X0, x0)
    store(scratch, batch + X1, x1)
    store(scratch, batch + Y0, y0)
    store(scratch, batch + Y1, y1)
    store(scratch, batch + Z0, z0)
    store(scratch, batch + Z1, z1)
    store(scratch, batch + CYLINDER, cylinder)
    gap_x, gap_y = maximum(maximum(x0, -x1), 0.0), maximum(maximum(y0, -y1), 0.0)
    gap_z = maximum(maximum(z0, -z1), 0.0)
    squared = where(lane_numbers() < float32(number), gap_x * gap_x + gap_y * gap_y, MISS)
    centre_x, centre_y = (x0 + x1) * 0.5, (y0 + y1) * 0.5
    radius = ((x1 - x0) * (x1 - x0) + (y1 - y0) * (y1 - y0)) * 0.25
    distance = centre_x * centre_x + centre_y * centre_y
    sine_half = sqrt(radius / maximum(distance, 1e-12))
    # s + 0.5709 s^3 is never less than asin(s); the constant covers the error of the angle.
    half = sine_half + sine_half * sine_half * sine_half * 0.5709 + 0.005
    angle = _angle(centre_y * cosine - centre_x * sine, centre_x * cosine + centre_y * sine)
    per_radian = float32(count) * float32(0.5 / math.pi)
    begin = floor((angle - half) * per_radian) + 1.0
    hits = minimum(floor((angle + half) * per_radian) - begin + 1.0, float32(count))
    begin = where(begin < 0.0, begin + float32(count), begin)
    inside = distance <= radius  # within the circle around the shape: every azimuth may hit it
    begin, hits = where(inside, 0.0, begin), where(inside, float32(count), hits)
    hits = where(squared > limit, 0.0, hits)
    store(scratch, batch + BEGIN, begin)
    store(scratch, batch + COUNT, hits)
    store(scratch, batch + SQUARED, squared)
    surface = squared
    if bits_of(cylinder > 0.0):
        gap_round = maximum(sqrt(distance) - (x1 - x0) * 0.5, 0.0)
        surface = where(cylinder > 0.0, gap_round * gap_round, squared)
    if half_height > float32(0.0):
        beside = where(gap_z < half_height, surface, MISS)
        return bits_of(hits > 0.0), smallest(where(squared >= MISS, MISS, beside))
    surface = where(squared >= MISS, MISS, surface + gap_z * gap_z)
    return bits_of(hits > 0.0), smallest(surface)


@inner
def _hit_group(scratch, base, batch, lane, lidar):
    """Shorten the rays of one group of azimuths that hit a shape of the batch."""
    beams, padded, number = lidar.beams, lidar.padded, lidar.number
    x0, x1 = scratch[batch + X0 + lane], scratch[batch + X1 + lane]
    y0, y1 = scratch[batch + Y0 + lane], scratch[batch + Y1 + lane]
    z0, z1 = scratch[batch + Z0 + lane], scratch[batch + Z1 + lane]
    inverse_x, inverse_y = load(scratch, base), load(scratch, padded + base)
    if scratch[batch + CYLINDER + lane] > float32(0.0):
        centre_x = (x0 + x1) * float32(0.5)
        centre_y = (y0 + y1) * float32(0.5)
        radius = (x1 - x0) * float32(0.5)
        along = centre_x / inverse_x + centre_y / inverse_y
        discriminant = along * along - (centre_x * centre_x + centre_y * centre_y - radius * radius)
        half = sqrt(maximum(discriminant, 0.0))
        entry, leave = maximum(along - half, 0.0), where(discriminant >= 0.0, along + half, -1.0)
    else:
        ax, bx, ay, by = x0 * inverse_x, x1 * inverse_x, y0 * inverse_y, y1 * inverse_y
        entry = maximum(maximum(minimum(ax, bx), minimum(ay, by)), 0.0)
        leave = minimum(maximum(ax, bx), maximum(ay, by))
    for v in range(number):
        row = (2 + v) * padded + base
        first, second = z0 * beams[v * BEAM], z1 * beams[v * BEAM]
        low, high = min(first, second), max(first, second)
        inside = maximum(entry, low)
        hit = where(inside <= minimum(leave, high), inside, MISS)
        store(scratch, row, minimum(load(scratch, row), hit))


@inner
def cast_at_batch(scratch, batch, visible, crowded, lidar):
    """Shorten the rays that hit the shapes of the batch whose bits are set, one group of azimuths
    at a time.

    If `crowded`, a shape is skipped where all rays that could hit it are known to end before it.
    """
    while visible:
        lane = lowest_bit(visible)
        visible &= visible - 1
        squared, first = scratch[batch + SQUARED + lane], int64(scratch[batch + BEGIN + lane])
        left = int64(scratch[batch + COUNT + lane])
        while left > 0:
            base = first // WIDTH * WIDTH
            end = min(base + WIDTH, lidar.count)
            number = min(left, end - first)
            own = ((int64(1) << number) - 1) << (first - base)
            if not crowded or bits_of(load(scratch, batch + REACH + base) > squared) & own:
                _hit_group(scratch, base, batch, lane, lidar)
            left -= number
            first = end if end < lidar.count else int64(0)


@inner
def _drop_hidden(scratch, batch, visible):
    """Clear the bits of the shapes behind what was hit; only of those that at most two azimuths can
    hit.
    """
    begin = load(scratch, batch + BEGIN)
    reach = maximum(
        gather(scratch, batch + REACH, begin), gather(scratch, batch + REACH, begin + 1.0)
    )
    return visible & bits_of(
        where(load(scratch, batch + COUNT) > 2.0, MISS, reach) > load(scratch, batch + SQUARED)
    )


@inner
def _longest_rays(scratch, batch, lidar, reach):
    """Write the squared horizontal length of the longest ray of each azimuth; return the longest of
    all, not squared.
    """
    beams, count, padded, number = lidar.beams, lidar.count, lidar.padded, lidar.number
    farthest = splat(0.0)
    for base in range(0, padded, WIDTH):
        longest = splat(0.0)
        for v in range(number):
            longest = maximum(
                longest,
                minimum(load(scratch, (2 + v) * padded + base), reach / beams[v * BEAM + 1]),
            )
        store(scratch, batch + REACH + base, longest * longest)
        farthest = maximum(farthest, longest)
    # after the last azimuth comes the first
    scratch[batch + REACH + count] = scratch[batch + REACH]
    return -smallest(-farthest)


@inner
def cast_rays(scratch, x, y, z, cosine, sine, worlds, world, lidar, reach, half_height):
    """Cast all rays from a pose at the static shapes of a world, and write their horizontal lengths
    to the scratch memory.

    Returns the squared distance of the nearest shape; see `find_azimuths` for `half_height`.
    """
    batch = (2 + lidar.number) * lidar.padded
    _start_scan(scratch, x, y, z, cosine, sine, lidar, reach)
    cell_x = min(max(int64((x - float32(GRID_ORIGIN)) / float32(CELL)), 0), GRID - 1)
    cell_y = min(max(int64((y - float32(GRID_ORIGIN)) / float32(CELL)), 0), GRID - 1)
    cell = world * (GRID * GRID + 1) + cell_x * GRID + cell_y
    first, last = int64(worlds.near_start[cell]), int64(worlds.near_start[cell + 1])
    nearest = float32(MISS)
    for q in range(first, last, WIDTH):
        number = min(last - q, WIDTH)
        shapes = load_columns(worlds.shapes, worlds.near, q)
        visible, closest = find_azimuths(
            scratch,
            batch,
            shapes,
            number,
            x,
            y,
            z,
            cosine,
            sine,
            lidar.count,
            reach * reach,
            half_height,
        )
        nearest = min(nearest, closest)
        if q > first:
            # Crowded: skip what is hidden behind earlier hits. The list is sorted by distance from
            # the cell, so the first shape farther away than the longest ray plus the diagonal of
            # the cell ends the search.
            farthest = _longest_rays(scratch, batch, lidar, reach)
            if scratch[batch + SQUARED] > (farthest + float32(1.42 * CELL)) ** 2:
                break
            visible = _drop_hidden(scratch, batch, visible)
        cast_at_batch(scratch, batch, visible, q > first, lidar)
    return nearest


@inner
def measure(scratch, lidar, reach):
    """Return the shortest ray and the mean logarithm, rays clipped to [1e-6 m, reach]."""
    beams, count, padded, number = lidar.beams, lidar.count, lidar.padded, lidar.number
    shortest, logarithms = splat(reach), splat(0.0)
    for base in range(0, padded, WIDTH):
        real = lane_numbers() < float32(count - base)
        product = splat(1.0)
        for v in range(number):
            distance = minimum(load(scratch, (2 + v) * padded + base) * beams[v * BEAM + 1], reach)
            shortest = minimum(shortest, distance)
            product = product * where(real, maximum(distance, 1e-6), 1.0)
            # four factors of at least 1e-6 are far above the smallest float
            if v % 4 == 3 or v == number - 1:
                logarithms = logarithms + log(product)
                product = splat(1.0)
    return smallest(shortest), total(logarithms) / float32(count * number)


@inner
def write_scan(scratch, lidar, reach, image, index):
    """Write `reach - distance` of every ray, azimuth by azimuth; padding goes past the end of the
    image.
    """
    beams, count, padded, number = lidar.beams, lidar.count, lidar.padded, lidar.number
    if number == 4:
        first, step = 2 * padded, padded
        for base in range(0, padded, WIDTH):
            store_interleaved(
                image,
                index + 4 * base,
                maximum(reach - load(scratch, first + base) * beams[1], 0.0),
                maximum(reach - load(scratch, first + step + base) * beams[1 * BEAM + 1], 0.0),
                maximum(reach - load(scratch, first + 2 * step + base) * beams[2 * BEAM + 1], 0.0),
                maximum(reach - load(scratch, first + 3 * step + base) * beams[3 * BEAM + 1], 0.0),
            )
        return
    for v in range(number):
        for a in range(count):
            distance = scratch[(2 + v) * padded + a] * beams[v * BEAM + 1]
            image[index + a * number + v] = max(reach - distance, float32(0.0))
