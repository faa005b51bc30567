"""The velocity nearest to a wish that satisfies half-spaces and a speed limit, exactly.

The incremental method of computational geometry: half-spaces are added one by one. The optimum
moves only when it violates the new one, and then lies on its boundary, where the problem has one
dimension less.
"""

from __future__ import annotations

import math

from navrl.kernel_cache import kernel

__all__ = ["nearest_feasible", "nearest_velocity"]

EPSILON = 1e-9
BISECTIONS = 20


@kernel(nogil=True)
def _on_line(lines, place, x, y, radius):
    """Return the point of a disc nearest to (x, y) on the boundary of a half-plane, within earlier
    ones; the first value tells whether there is one.
    """
    ax, ay, offset = lines[place, 0], lines[place, 1], lines[place, 2]
    room = radius * radius - offset * offset
    if room < 0.0:
        return False, 0.0, 0.0
    high = math.sqrt(room)
    low = -high
    for other in range(place):
        slope = lines[other, 1] * ax - lines[other, 0] * ay
        rest = lines[other, 2] - offset * (lines[other, 0] * ax + lines[other, 1] * ay)
        if abs(slope) < EPSILON:
            if rest > EPSILON:
                return False, 0.0, 0.0
        elif slope > 0.0:
            low = max(low, rest / slope)
        else:
            high = min(high, rest / slope)
        if low > high:
            return False, 0.0, 0.0
    along = min(max(y * ax - x * ay, low), high)
    return True, ax * offset - ay * along, ay * offset + ax * along


@kernel(nogil=True)
def _in_disc(lines, count, x, y, radius):
    """Return the point of a disc nearest to (x, y) within half-planes a . p >= offset."""
    px, py = x, y
    length = math.sqrt(x * x + y * y)
    if length > radius:
        px, py = x * radius / length, y * radius / length
    for place in range(count):
        if lines[place, 0] * px + lines[place, 1] * py < lines[place, 2] - EPSILON:
            found, px, py = _on_line(lines, place, x, y, radius)
            if not found:
                return False, 0.0, 0.0
    return True, px, py


@kernel(nogil=True)
def _on_plane(planes, place, slack, wish, radius, lines, result):
    """Put into `result` the point of a ball nearest to a wish on the boundary of a half-space,
    within earlier ones; return whether there is one.
    """
    nx, ny, nz = planes[place, 0], planes[place, 1], planes[place, 2]
    offset = planes[place, 3] - slack
    room = radius * radius - offset * offset
    if room < 0.0:
        return False
    # two directions e, f in the plane
    if abs(nx) < 0.7:
        ex, ey, ez = 0.0, nz, -ny
    else:
        ex, ey, ez = -nz, 0.0, nx
    length = math.sqrt(ex * ex + ey * ey + ez * ez)
    ex, ey, ez = ex / length, ey / length, ez / length
    fx, fy, fz = ny * ez - nz * ey, nz * ex - nx * ez, nx * ey - ny * ex
    count = 0
    for other in range(place):
        mx, my, mz = planes[other, 0], planes[other, 1], planes[other, 2]
        a, b = mx * ex + my * ey + mz * ez, mx * fx + my * fy + mz * fz
        rest = planes[other, 3] - slack - offset * (mx * nx + my * ny + mz * nz)
        size = math.sqrt(a * a + b * b)
        if size < 1e-7:  # parallel
            if rest > 1e-7:
                return False
            continue
        lines[count, 0], lines[count, 1], lines[count, 2] = a / size, b / size, rest / size
        count += 1
    x = wish[0] * ex + wish[1] * ey + wish[2] * ez
    y = wish[0] * fx + wish[1] * fy + wish[2] * fz
    found, x, y = _in_disc(lines, count, x, y, math.sqrt(room))
    result[0] = nx * offset + ex * x + fx * y
    result[1] = ny * offset + ey * x + fy * y
    result[2] = nz * offset + ez * x + fz * y
    return found


@kernel(nogil=True)
def nearest_feasible(planes, count, slack, wish, radius, lines, result):
    """Put into `result` the velocity nearest to a wish; return False if there is none.

    Args:
        planes: (M, 4) unit normals n and offsets b: n . v >= b - slack.
        count: of planes.
        slack: by which every half-space is widened.
        wish: (3,).
        radius: the greatest speed.
        lines: (M, 3) scratch.
        result: (3,).
    """
    length = math.sqrt(wish[0] ** 2 + wish[1] ** 2 + wish[2] ** 2)
    scale = radius / length if length > radius else 1.0
    for axis in range(3):
        result[axis] = wish[axis] * scale
    for place in range(count):
        dot = (
            planes[place, 0] * result[0]
            + planes[place, 1] * result[1]
            + planes[place, 2] * result[2]
        )
        if dot < planes[place, 3] - slack - EPSILON and not _on_plane(
            planes, place, slack, wish, radius, lines, result
        ):
            return False
    return True


@kernel(nogil=True)
def nearest_velocity(planes, count, wish, radius, lines, result):
    """Put the nearest velocity into `result`; if there is none, that with the least violation."""
    if nearest_feasible(planes, count, 0.0, wish, radius, lines, result):
        return
    low, high = 0.0, 0.0
    for place in range(count):
        high = max(high, planes[place, 3] + radius)
    for _ in range(BISECTIONS):
        middle = 0.5 * (low + high)
        if nearest_feasible(planes, count, middle, wish, radius, lines, result):
            high = middle
        else:
            low = middle
    nearest_feasible(planes, count, high + 1e-6, wish, radius, lines, result)
