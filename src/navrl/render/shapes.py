"""Boxes, cylinders, drones and marks as triangles, with light on them."""

from __future__ import annotations

import math
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from navrl.render.camera import Camera

__all__ = ["boxes", "cylinders", "drones", "marks", "shaded", "shadows", "tone"]

Floats = NDArray[np.floating[Any]]
Bytes = NDArray[np.uint8]

SUN = np.array([-0.45, -0.6, 1.2]) / math.sqrt(0.45**2 + 0.6**2 + 1.2**2)


def tone(colour: str) -> NDArray[np.float64]:
    """Return red, green and blue from 0 to 255 of a colour written #rrggbb, (3,)."""
    return np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)], float)


def shaded(triangles: Floats, colours: NDArray[np.float64]) -> Bytes:
    """Return the tones of triangles in the sun, (N, 3), from their colours, (N, 3) or (3,)."""
    normal = _normals(triangles)
    facing = normal @ SUN
    bright = 0.74 + 0.26 * np.maximum(facing, 0) + 0.06 * normal[:, 2] + 0.1 * np.minimum(facing, 0)
    return np.clip(colours * bright[:, None], 0, 255).astype(np.uint8)


def shadows(triangles: Floats) -> Floats:
    """Return what closed bodies shade on the ground: the faces in the sun, along its rays."""
    flat = triangles[_normals(triangles) @ SUN > 0]
    flat[..., :2] -= (SUN[:2] / SUN[2]).astype(np.float32) * np.maximum(flat[..., 2:], 0)
    flat[..., 2] = 0.01
    return flat


def _normals(triangles: Floats) -> Floats:
    edges = triangles[:, 1:] - triangles[:, :1]
    normal = np.cross(edges[:, 0], edges[:, 1])
    return normal / np.maximum(np.linalg.norm(normal, axis=1, keepdims=True), 1e-9)


def boxes(centre: Floats, half: Floats) -> Floats:
    """Return the faces of boxes, (12 N, 3, 3), from centres and half sizes, (N, 3)."""
    return _placed(_box(), centre, half)


def cylinders(centre: Floats, half: Floats) -> Floats:
    """Return the faces of upright cylinders from centres and half sizes, (N, 3)."""
    return _placed(_cylinder(16), centre, half)


def drones(place: Floats, yaw: Floats, radius: Floats) -> Floats:
    """Return quadrotors, (K N, 3, 3), from places (N, 3), headings and radii (N,)."""
    cosine, sine = np.cos(yaw)[:, None, None], np.sin(yaw)[:, None, None]
    mesh = _drone()[None] * radius[:, None, None, None]  # (N, K, 3, 3)
    x = mesh[..., 0] * cosine - mesh[..., 1] * sine
    y = mesh[..., 0] * sine + mesh[..., 1] * cosine
    turned = np.stack([x, y, mesh[..., 2]], axis=-1) + place[:, None, None, :]
    return turned.reshape(-1, 3, 3).astype(np.float32)


def marks(place: Floats, shape: str, radius: Floats, camera: Camera) -> Floats:
    """Return marks that face the camera, (K N, 3, 3), from places (N, 3) and radii in m, (N,)."""
    right, up, _ = camera.axes()
    flat = _mark(shape)  # (K, 3, 2)
    offsets = flat[..., :1] * right + flat[..., 1:] * up  # (K, 3, 3)
    placed = place[:, None, None, :] + offsets * radius[:, None, None, None]
    return placed.reshape(-1, 3, 3).astype(np.float32)


def _placed(mesh: Floats, centre: Floats, half: Floats) -> Floats:
    placed = mesh[None] * half[:, None, None, :] + centre[:, None, None, :]
    return placed.reshape(-1, 3, 3).astype(np.float32)


@cache
def _box() -> Floats:
    """Return a box from -1 to 1, (12, 3, 3), its normals outwards."""
    faces = []
    for axis in range(3):
        for side in (-1.0, 1.0):
            corners = []
            for u, v in ((-1, -1), (1, -1), (1, 1), (-1, 1)):
                point = [0.0, 0.0, 0.0]
                point[axis], point[(axis + 1) % 3], point[(axis + 2) % 3] = side, u * side, float(v)
                corners.append(point)
            faces += [[corners[0], corners[i], corners[i + 1]] for i in (1, 2)]
    return np.array(faces, np.float32)


@cache
def _cylinder(parts: int) -> Floats:
    """Return a cylinder of radius 1 from -1 to 1, its side and its top."""
    angles = np.linspace(0, 2 * math.pi, parts + 1)
    faces = []
    for a, b in pairwise(angles):
        p, q = (math.cos(a), math.sin(a)), (math.cos(b), math.sin(b))
        faces += [[(*p, -1), (*q, -1), (*q, 1)], [(*p, -1), (*q, 1), (*p, 1)]]
        faces.append([(0, 0, 1), (*p, 1), (*q, 1)])
    return np.array(faces, np.float32)


@cache
def _drone() -> Floats:
    """Return a quadrotor of radius 1, its nose along x: a body, two arms, four rotor discs."""
    parts = [_box() * [0.34, 0.22, 0.13] + [0.05, 0, 0]]
    for side in (1, -1):
        arm = _box() * [0.72, 0.06, 0.05]
        c, s = math.cos(side * math.pi / 4), math.sin(side * math.pi / 4)
        turned = [c * arm[..., 0] - s * arm[..., 1], s * arm[..., 0] + c * arm[..., 1], arm[..., 2]]
        parts.append(np.stack(turned, axis=-1))
    disc = _cylinder(10)[2::3] * [0.38, 0.38, 0.03]
    for i in range(4):
        angle = math.pi / 4 + i * math.pi / 2
        hub = np.array([0.66 * math.cos(angle), 0.66 * math.sin(angle), 0.12])
        parts.append(disc + hub)
    return np.concatenate(parts).astype(np.float32)


@cache
def _mark(shape: str) -> Floats:
    """Return the triangles of a flat mark of radius about 1, (K, 3, 2)."""
    angles = np.linspace(0, 2 * math.pi, 17)
    circle = np.stack([np.cos(angles), np.sin(angles)], 1)
    if shape == "ring":
        outer, inner = 0.8 * circle, 0.5 * circle
        pairs = [[outer[i], outer[i + 1], inner[i]] for i in range(16)]
        pairs += [[inner[i], outer[i + 1], inner[i + 1]] for i in range(16)]
        return np.array(pairs, np.float32)
    if shape == "cross":
        bar = np.array([[-1, -0.22], [1, -0.22], [1, 0.22], [-1, 0.22]])
        turned = [bar @ [[c, s], [-s, c]] for c, s in ((0.7071, 0.7071), (0.7071, -0.7071))]
        return np.array([[b[0], b[i], b[i + 1]] for b in turned for i in (1, 2)], np.float32)
    corners = {
        "disc": 0.75 * circle[:-1],
        "diamond": np.array([[0, -1], [1, 0], [0, 1], [-1, 0]]),
        "triangle": np.array([[-0.9, -0.6], [0.9, -0.6], [0, 1.0]]),
        "square": np.array([[-0.75, -0.75], [0.75, -0.75], [0.75, 0.75], [-0.75, 0.75]]),
    }[shape]
    fan = [[corners[0], corners[i], corners[i + 1]] for i in range(1, len(corners) - 1)]
    return np.array(fan, np.float32)
