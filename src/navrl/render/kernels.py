"""Triangles and lines into a picture with a depth buffer.

A camera is one array of 16 float32: the unit vectors right, up and ahead (3 each), the eye (3),
the focal length in pixels, the centre of the picture (2), and the nearest depth that is drawn.
The depth buffer holds 1 / depth, which is linear on the screen; nothing drawn is 0.
"""

import math

import numpy as np

from navrl.kernel_cache import kernel

BIAS = 1.002  # lines win against the surface that they lie on


@kernel(nogil=True)
def _seen(camera, place):
    """Return a point of the world as the camera sees it: to the right, up, and ahead, in metres."""
    x, y, z = place[0] - camera[9], place[1] - camera[10], place[2] - camera[11]
    right = camera[0] * x + camera[1] * y + camera[2] * z
    up = camera[3] * x + camera[4] * y + camera[5] * z
    ahead = camera[6] * x + camera[7] * y + camera[8] * z
    return right, up, ahead


@kernel(nogil=True)
def _clipped(camera, triangle, corners):
    """Write the corners of a triangle in front of the near plane as x, y, 1 / depth on the screen.

    Returns how many there are: none, 3, or 4 where one corner was cut off.
    """
    near, focal = camera[15], camera[12]
    count = 0
    for i in range(3):
        ax, ay, az = _seen(camera, triangle[i])
        bx, by, bz = _seen(camera, triangle[(i + 1) % 3])
        if az >= near:
            corners[count, 0] = camera[13] + focal * ax / az
            corners[count, 1] = camera[14] - focal * ay / az
            corners[count, 2] = 1.0 / az
            count += 1
        if (az >= near) != (bz >= near):
            share = (near - az) / (bz - az)
            corners[count, 0] = camera[13] + focal * (ax + (bx - ax) * share) / near
            corners[count, 1] = camera[14] - focal * (ay + (by - ay) * share) / near
            corners[count, 2] = 1.0 / near
            count += 1
    return count


@kernel(nogil=True)
def fill_triangles(colour, depth, camera, triangles, tones, tested):
    """Fill triangles of the world, (N, 3, 3) in m, with one tone each, (N, 3) bytes.

    If `tested`, what is behind something stays hidden and what is visible hides; else all is drawn
    over everything. Only triangles whose corners turn counter-clockwise are drawn: the backs of
    closed bodies are hidden anyway.
    """
    corners = np.empty((4, 3), np.float32)
    for n in range(len(triangles)):
        count = _clipped(camera, triangles[n], corners)
        for last in range(2, count):
            _fill(colour, depth, corners[0], corners[last - 1], corners[last], tones[n], tested)


@kernel(nogil=True, fastmath=True)
def _fill(colour, depth, a, b, c, tone, tested):
    """Fill one triangle of the screen; corners are x, y, 1 / depth."""
    height, width = depth.shape
    left = max(math.ceil(min(a[0], b[0], c[0]) - 0.5), 0)
    right = min(math.floor(max(a[0], b[0], c[0]) - 0.5), width - 1)
    top = max(math.ceil(min(a[1], b[1], c[1]) - 0.5), 0)
    bottom = min(math.floor(max(a[1], b[1], c[1]) - 0.5), height - 1)
    bx, by, cx, cy = b[0] - a[0], b[1] - a[1], c[0] - a[0], c[1] - a[1]
    area = bx * cy - by * cx
    if left > right or top > bottom or area > -1e-9:  # y points down
        return
    # 1 / depth is a plane over the screen
    slope_x = ((b[2] - a[2]) * cy - (c[2] - a[2]) * by) / area
    slope_y = ((c[2] - a[2]) * bx - (b[2] - a[2]) * cx) / area
    red, green, blue = tone[0], tone[1], tone[2]
    for y in range(top, bottom + 1):
        first, last = _span(a, b, c, y + np.float32(0.5), left, right)
        begin = a[2] + slope_y * (y + np.float32(0.5) - a[1])
        for x in range(first, last + 1):
            near = begin + slope_x * (x + np.float32(0.5) - a[0])
            if not tested:
                colour[y, x, 0], colour[y, x, 1], colour[y, x, 2] = red, green, blue
            elif near > depth[y, x]:
                depth[y, x] = near
                colour[y, x, 0], colour[y, x, 1], colour[y, x, 2] = red, green, blue


@kernel(nogil=True)
def _span(a, b, c, y, left, right):
    """Return the first and last pixel of a row whose centres are inside a triangle."""
    low, high = 1e9, -1e9
    for p, q in ((a, b), (b, c), (c, a)):
        if (p[1] <= y) != (q[1] <= y):
            x = p[0] + (y - p[1]) * (q[0] - p[0]) / (q[1] - p[1])
            low, high = min(low, x), max(high, x)
    return max(math.ceil(low - 0.5), left), min(math.floor(high - 0.5), right)


@kernel(nogil=True)
def draw_lines(colour, depth, camera, lines, tones, opacity, thickness):
    """Draw lines of the world, (N, 2, 3) in m, with a tone each and so many pixels thick.

    Lines are hidden by what is before them and hide nothing.
    """
    near = camera[15]
    for n in range(len(lines)):
        ax, ay, az = _seen(camera, lines[n, 0])
        bx, by, bz = _seen(camera, lines[n, 1])
        if az < near and bz < near:
            continue
        if az < near:
            share = (near - az) / (bz - az)
            ax, ay, az = ax + (bx - ax) * share, ay + (by - ay) * share, near
        elif bz < near:
            share = (near - bz) / (az - bz)
            bx, by, bz = bx + (ax - bx) * share, by + (ay - by) * share, near
        focal = camera[12]
        _draw_line(
            colour,
            depth,
            (camera[13] + focal * ax / az, camera[14] - focal * ay / az, 1.0 / az),
            (camera[13] + focal * bx / bz, camera[14] - focal * by / bz, 1.0 / bz),
            tones[n],
            opacity,
            thickness,
        )


@kernel(nogil=True)
def _draw_line(colour, depth, a, b, tone, opacity, thickness):
    """Draw one line of the screen; ends are x, y, 1 / depth."""
    height, width = depth.shape
    dx, dy = b[0] - a[0], b[1] - a[1]
    steep = abs(dy) > abs(dx)
    length = abs(dy) if steep else abs(dx)
    if not length < 1e5 or max(a[0], b[0]) < 0 or max(a[1], b[1]) < 0:
        return
    if min(a[0], b[0]) > width or min(a[1], b[1]) > height:
        return
    steps = int(length) + 1
    spread = thickness * math.sqrt(dx * dx + dy * dy) / max(length, 1e-6)  # across the steps
    across = max(int(spread + 0.5), 1)
    for i in range(steps):
        share = (i + 0.5) / steps
        x, y, near = a[0] + dx * share, a[1] + dy * share, (a[2] + (b[2] - a[2]) * share) * BIAS
        for k in range(across):
            offset = k - (across - 1) / 2.0
            column = int(x + (offset if steep else 0.0))
            row = int(y + (0.0 if steep else offset))
            if 0 <= column < width and 0 <= row < height and near > depth[row, column]:
                for channel in range(3):
                    old = colour[row, column, channel]
                    colour[row, column, channel] = old + (tone[channel] - old) * opacity


@kernel(nogil=True, fastmath=True)
def shrink(colour, factor, small):
    """Write the means of blocks of `factor` x `factor` pixels into a smaller picture."""
    height, width, _ = small.shape
    count = factor * factor
    for y in range(height):
        if factor == 2:  # the usual case, which compiles to vector instructions
            upper, lower = colour[2 * y], colour[2 * y + 1]
            for x in range(width):
                for k in range(3):
                    total = np.uint16(upper[2 * x, k]) + upper[2 * x + 1, k]
                    total += np.uint16(lower[2 * x, k]) + lower[2 * x + 1, k]
                    small[y, x, k] = (total + 2) >> 2
            continue
        for x in range(width):
            for k in range(3):
                total = 0
                for v in range(factor):
                    for u in range(factor):
                        total += colour[y * factor + v, x * factor + u, k]
                small[y, x, k] = (total + count // 2) // count
