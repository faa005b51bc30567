"""The shield's compiled part: the nearest velocity command that meets nothing within its horizon.

Everything is relative to the robot, in one frame, in m and m/s. The robot's velocity approaches a
command with a time constant, the lag, so its path is a curve; it is followed in straight pieces.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from navrl.deploy.shield_threats import (
    GAP,
    HALF_HEIGHT,
    HALF_WIDTH,
    NEAR,
    SPEED,
    STANDING,
    THREAT,
    UNLIMITED,
    VX,
    VY,
    VZ,
    X,
    Y,
    Z,
    add_columns,
    add_moving,
    order_nearest_first,
    speed_of,
)
from navrl.kernel_cache import kernel

# Why a command was changed, in the order of `navrl.deploy.shield.REASONS`.
CLEAN, STATIC, MOVING, HEIGHT, NO_CLEAN_VELOCITY, INVALID = range(6)
NEVER = 2.0  # a contact beyond the horizon; contacts count from 0 (now) to 2 (at the horizon)
LATEST = 3.0  # a contact at `c` costs `contact_cost` times (LATEST - c)
SLACK = 0.02  # m: inside a margin, a command may come nearer by as much as this
STANDSTILL = 0.05  # m/s: a slower command has no direction
CHANGED = 1e-6  # m/s: less is rounding


@njit(nogil=True)
def _fly(times, held, velocity, vx, vy, vz, path):
    """Write the path of a command: where each piece begins, and its velocity.

    Until `times`, the robot has come as far as `held` seconds at its present velocity and the rest
    at the command would bring it.
    """
    last = times.shape[0] - 1
    for piece in range(last + 1):
        kept, flown = held[piece], times[piece] - held[piece]
        path[piece, 0] = flown * vx + kept * velocity[0]
        path[piece, 1] = flown * vy + kept * velocity[1]
        path[piece, 2] = flown * vz + kept * velocity[2]
    for piece in range(last):
        share = 1.0 / (times[piece + 1] - times[piece])
        for axis in range(3):
            path[piece, 3 + axis] = (path[piece + 1, axis] - path[piece, axis]) * share
    path[last, 3], path[last, 4], path[last, 5] = vx, vy, vz


@njit(nogil=True)
def _entry(threat, margin, time, piece):
    """Return after how many s of a piece of the path the robot is within a margin of a threat.

    A negative number if it never is; where it already is, 0 if it comes nearer.
    """
    x = threat[X] + threat[VX] * time - piece[0]
    y = threat[Y] + threat[VY] * time - piece[1]
    vx, vy = threat[VX] - piece[3], threat[VY] - piece[4]
    radius = threat[HALF_WIDTH] + margin
    outside, closing = x * x + y * y - radius * radius, x * vx + y * vy
    if outside > 0.0 and closing >= 0.0:
        return -1.0
    squared = vx * vx + vy * vy
    discriminant = closing * closing - squared * outside
    if outside > 0.0 and discriminant <= 0.0:
        return -1.0
    root, squared = math.sqrt(max(discriminant, 0.0)), max(squared, 1e-9)
    enters = max((-closing - root) / squared, 0.0)
    if threat[HALF_HEIGHT] < UNLIMITED:
        z, vz = threat[Z] + threat[VZ] * time - piece[2], threat[VZ] - piece[5]
        half, leaves = threat[HALF_HEIGHT] + margin, (root - closing) / squared
        if abs(vz) < 1e-6:
            if abs(z) > half:
                return -1.0
        else:
            one, other = (-half - z) / vz, (half - z) / vz
            enters, leaves = max(enters, min(one, other)), min(leaves, max(one, other))
            if enters > leaves:
                return -1.0
        if abs(z) - threat[HALF_HEIGHT] > math.sqrt(x * x + y * y) - threat[HALF_WIDTH]:
            closing = z * vz
    if enters == 0.0 and time == 0.0 and closing >= 0.0:
        return -1.0
    return enters


@njit(nogil=True)
def _is_left_behind(threat, margin, velocity, vx, vy):
    """Tell whether neither the present velocity nor the command leads towards a threat beside."""
    x, y = threat[X], threat[Y]
    radius = threat[HALF_WIDTH] + margin
    if x * x + y * y < radius * radius:
        return False
    if x * (vx - threat[VX]) + y * (vy - threat[VY]) > 0.0:
        return False
    return x * (velocity[0] - threat[VX]) + y * (velocity[1] - threat[VY]) <= 0.0


@njit(nogil=True)
def _first_contact(limits, times, threats, order, count, goal, velocity, command, path, enough):
    """Return the first contact as a share of its horizon (from 0 to 2), and its kind.

    A contact at or before `enough` ends the search, and its threat is the first to be tried next
    time: commands that are alike hit the same things. What is met behind the goal, in `goal` m,
    does not count.
    """
    first, kind = NEVER, CLEAN
    vx, vy, _ = command
    speed = speed_of(command)
    fastest = max(speed, speed_of(velocity))
    wide = limits.static_radius + limits.static_growth * speed
    arrival = goal / max(speed, 1e-6)  # s
    for number in range(count):
        threat = threats[order[number]]
        standing = threat[STANDING] > 0.0
        horizon = limits.static_horizon if standing else limits.moving_horizon
        margin = wide if standing else limits.moving_margin
        margin = min(max(threat[GAP] - SLACK, limits.body), margin, threat[GAP])
        if threat[GAP] - margin > 0.5 * first * horizon * (fastest + threat[SPEED]):
            continue  # too far to be met before that
        if _is_left_behind(threat, margin, velocity, vx, vy):
            continue
        for piece in range(times.shape[0]):
            begin, end = times[piece], min(horizon, arrival)
            if begin >= end or NEVER * begin / horizon >= first:
                break
            if piece + 1 < times.shape[0]:
                end = min(end, times[piece + 1])
            enters = _entry(threat, margin, begin, path[piece])
            if enters < 0.0 or begin + enters >= end:
                continue
            contact = NEVER * (begin + enters) / horizon
            if contact < first:
                first, kind = contact, STATIC if standing else MOVING
                if first <= enough:
                    order[0], order[number] = order[number], order[0]
                    return first, kind
            break
    return first, kind


@njit(nogil=True)
def _nearness(limits, times, threats, begin, count, path):
    """Return what it costs to come so near to moving obstacles that a turn of theirs would hit."""
    cost = 0.0
    if limits.turning_cost == 0.0:
        return cost
    for number in range(begin, count):
        threat = threats[number]
        if threat[NEAR] == 0.0:
            continue
        missing, wide = 0.0, limits.turning_gap + threat[HALF_WIDTH]
        for piece in range(1, times.shape[0]):
            x = threat[X] + threat[VX] * times[piece] - path[piece, 0]
            y = threat[Y] + threat[VY] * times[piece] - path[piece, 1]
            if x * x + y * y > wide * wide:
                continue
            gap = math.sqrt(x * x + y * y) - threat[HALF_WIDTH]
            if threat[HALF_HEIGHT] < UNLIMITED:
                z = threat[Z] + threat[VZ] * times[piece] - path[piece, 2]
                gap = max(gap, abs(z) - threat[HALF_HEIGHT])
            missing = max(missing, limits.turning_gap - gap)
        cost += limits.turning_cost * missing * missing
    return cost


@njit(nogil=True)
def _climbs(limits, height, climb):
    """Return the lowest and highest vertical velocity that keeps the robot within its heights."""
    after = height + limits.lag * climb
    low = (limits.lowest - after) / limits.height_horizon
    high = (limits.highest - after) / limits.height_horizon
    top = limits.climb
    return max(min(low, top), -top), min(max(high, -top), top)


@njit(nogil=True)
def _within_limits(limits, velocity, climbs, vx, vy, vz):
    """Return a command within the limits of height, change and speed."""
    vz = min(max(vz, climbs[0]), climbs[1])
    dx, dy, dz = vx - velocity[0], vy - velocity[1], vz - velocity[2]
    change = math.sqrt(dx * dx + dy * dy + dz * dz)
    if change > limits.change:
        scale = limits.change / change
        vx = velocity[0] + scale * dx
        vy = velocity[1] + scale * dy
        vz = velocity[2] + scale * dz
    top, climb = limits.speed, limits.climb
    return min(max(vx, -top), top), min(max(vy, -top), top), min(max(vz, -climb), climb)


@njit(nogil=True)
def _candidate(limits, candidate, wanted):
    """Return a sampled command: turned from the wanted one, at a share of the possible speed."""
    speed = math.sqrt(wanted[0] * wanted[0] + wanted[1] * wanted[1])
    ahead, left = 1.0, 0.0
    if speed > STANDSTILL:
        ahead, left = wanted[0] / speed, wanted[1] / speed
    x = ahead * candidate[0] - left * candidate[1]
    y = left * candidate[0] + ahead * candidate[1]
    fastest = min(max(limits.speed, speed), limits.speed / max(abs(x), abs(y)))
    scale = candidate[2] * fastest
    return x * scale, y * scale, wanted[2] + candidate[3] * limits.speed


@njit(nogil=True)
def _cheapest(
    limits,
    times,
    held,
    threats,
    order,
    walls,
    count,
    climbs,
    velocity,
    wanted,
    goal,
    candidates,
    path,
    out,
):
    """Write the cheapest command; return why it is not the wanted one, and its first contact."""
    speed = math.sqrt(wanted[0] ** 2 + wanted[1] ** 2 + wanted[2] ** 2)
    _fly(times, held, velocity, wanted[0], wanted[1], wanted[2], path)
    command = (wanted[0], wanted[1], wanted[2])
    first, why = _first_contact(
        limits, times, threats, order, count, goal, velocity, command, path, -1.0
    )
    out[0], out[1], out[2] = wanted[0], wanted[1], wanted[2]
    best, best_first = _nearness(limits, times, threats, walls, count, path), first
    if why != CLEAN:
        best += limits.contact_cost * (LATEST - first)
    elif best == 0.0:
        return CLEAN, NEVER
    else:
        why = MOVING
    changed = False
    for number in range(candidates.shape[0]):
        vx, vy, vz = _candidate(limits, candidates[number], wanted)
        vx, vy, vz = _within_limits(limits, velocity, climbs, vx, vy, vz)
        cost = (vx - wanted[0]) ** 2 + (vy - wanted[1]) ** 2 + (vz - wanted[2]) ** 2
        along = (vx * wanted[0] + vy * wanted[1] + vz * wanted[2]) / max(speed, 1e-6)
        cost += limits.slowing * max(speed - along, 0.0) ** 2
        if cost >= best:
            continue
        _fly(times, held, velocity, vx, vy, vz, path)
        cost += _nearness(limits, times, threats, walls, count, path)
        if cost >= best:
            continue
        enough = LATEST - (best - cost) / limits.contact_cost
        command = (vx, vy, vz)
        first, _ = _first_contact(
            limits, times, threats, order, count, goal, velocity, command, path, enough
        )
        if first < NEVER:
            cost += limits.contact_cost * (LATEST - first)
        if cost < best:
            best, best_first, changed = cost, first, True
            out[0], out[1], out[2] = vx, vy, vz
    return why if changed else CLEAN, best_first


@njit(nogil=True)
def _is_finite(values):
    for value in values.flat:
        if not math.isfinite(value):
            return False
    return True


@njit(nogil=True)
def _distance(start, end):
    """Return how far it is from one point to another; infinity where one is not finite."""
    squared = 0.0
    for axis in range(3):
        squared += (end[axis] - start[axis]) ** 2
    return math.sqrt(squared) if math.isfinite(squared) else math.inf


@kernel(nogil=True)
def filter_velocities(
    rules,
    times,
    held,
    desired,
    position,
    velocity,
    bearing,
    lidar,
    obstacles,
    goals,
    sines,
    cosines,
    candidates,
    tall_from,
    out,
    reason,
    changed,
):
    """Write the safe command of every robot, whether it differs from the desired one, and why.

    `rules` are the usual limits, and those where nothing is clean by them: less margin, and
    contacts cost more.
    """
    limits = rules[0]
    threats = np.zeros((lidar.shape[1] * lidar.shape[2] + obstacles.shape[1], THREAT))
    order = np.zeros(threats.shape[0], np.int64)
    path = np.zeros((times.shape[0], 6))
    wanted = np.zeros(3)
    for robot in range(desired.shape[0]):
        usable = _is_finite(desired[robot]) and _is_finite(position[robot])
        usable = usable and _is_finite(velocity[robot]) and _is_finite(lidar[robot])
        usable = usable and _is_finite(obstacles[robot]) and math.isfinite(bearing[robot])
        if not usable:
            out[robot, 0] = out[robot, 1] = out[robot, 2] = 0.0
            reason[robot], changed[robot] = INVALID, True
            continue
        own, height = velocity[robot], position[robot, 2]
        goal = _distance(position[robot], goals[robot])
        climbs = _climbs(limits, height, own[2])
        climb = min(max(desired[robot, 2], -limits.climb), limits.climb)
        wanted[0], wanted[1], wanted[2] = _within_limits(
            limits, own, climbs, desired[robot, 0], desired[robot, 1], climb
        )
        walls = add_columns(limits, height, bearing[robot], lidar[robot], sines, cosines, threats)
        count = add_moving(
            limits, times, position[robot], own, obstacles[robot], threats, walls, tall_from
        )
        order_nearest_first(threats, count, order)
        why, first = CLEAN, NEVER
        for number in range(2):
            why, first = _cheapest(
                rules[number],
                times,
                held,
                threats,
                order,
                walls,
                count,
                climbs,
                own,
                wanted,
                goal,
                candidates,
                path,
                out[robot],
            )
            if first >= NEVER:
                break
        if first < NEVER:
            why = NO_CLEAN_VELOCITY
        limited = climb < climbs[0] or climb > climbs[1]
        reason[robot] = HEIGHT if why == CLEAN and limited else why
        changed[robot] = False
        for axis in range(3):
            changed[robot] |= abs(out[robot, axis] - desired[robot, axis]) > CHANGED
