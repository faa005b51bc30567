"""The simulator beside MuJoCo and PyTorch: the same drones, the same boxes, the same 144 rays, in
one run.

Every case steps drones that are spread over the map of seed 0 (350 static boxes) and 80 moving
obstacles. They hover, and their poses are restored every BURST steps, so that all rounds see the
same scene and nobody drifts to the empty edge. Ours and PyTorch do the whole step: controller,
rotors, rigid body, moving obstacles, rays, observation, reward, endings. MuJoCo does less: rigid
body, contacts, rays; no controller, no moving obstacles, no reward.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch

from navrl.benchmark import Case, Column, Gate, Results, Suite
from navrl.sim import reference
from navrl.sim.env import NavigationEnv
from navrl.sim.settings import NavigationSettings

THREADS = 2
PEER_DRONES = 256
BURST = 10


def spread(number: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return starts and targets all over the arena, (number, 3) each."""
    generator = np.random.default_rng(seed)
    low, high = (-20.0, -20.0, 0.5), (20.0, 20.0, 2.5)
    return generator.uniform(low, high, (number, 3)), generator.uniform(low, high, (number, 3))


def clear_poses(env: NavigationEnv, number: int) -> tuple[np.ndarray, np.ndarray]:
    """Return starts more than 0.4 m from every box and moving obstacle where there are such, and
    targets.
    """
    starts, targets = spread(max(16 * number, 8192))
    boxes, moving = env.pool.worlds[0].boxes, env.obstacles(0)
    centres, half = moving["position"].numpy(), moving["width"].numpy() / 2
    low = np.concatenate([boxes[:, [0, 2]], centres[:, :2] - half[:, None]])
    high = np.concatenate([boxes[:, [1, 3]], centres[:, :2] + half[:, None]])
    gaps = [np.maximum(np.maximum(low - point, point - high), 0) for point in starts[:, :2]]
    room = np.array([np.hypot(gap[:, 0], gap[:, 1]).min(initial=9.0) for gap in gaps])
    # The first that are clear; in a crowd the clearest.
    chosen = np.argsort(-np.minimum(room, 0.4), kind="stable")[:number]
    return starts[chosen], targets[chosen]


class Ours:
    """Our environment; `measure` restores the poses and times a burst of steps, many times."""

    def __init__(
        self,
        number: int,
        *,
        threads: int = THREADS,
        static: int = 350,
        moving: int = 80,
        attempts: int = 1000,
        bursts: int = 10,
    ) -> None:
        settings = NavigationSettings.of(
            env__num_envs=number,
            env__num_worlds=1,
            env__map_seed=0,
            env__num_obstacles=static,
            env__placement_attempts=attempts,
            env_dyn__num_obstacles=moving,
            sim__num_threads=threads,
        )
        self.env = NavigationEnv(settings, seed=0)
        self.env.place(*clear_poses(self.env, number))
        self.saved = self.env.state_dict()
        self.step = self.env.make_step()
        self.actions = torch.zeros(number, 3)
        self.bursts = max(bursts, 2 * bursts * 1024 // number)

    def measure(self) -> Mapping[str, float]:
        times = []
        for _ in range(self.bursts):
            self.env.load_state_dict(self.saved)
            start = time.perf_counter()
            for _ in range(BURST):
                self.env.step(self.actions, out=self.step)
            times.append(time.perf_counter() - start)
        return {"steps_per_second": self.env.num_envs * BURST / float(np.median(times))}


class Eager:
    """The whole step in float32 torch, eager: the readable reference, but for rays that test only
    the boxes in reach.
    """

    def __init__(self, ours: Ours, number: int) -> None:
        env = ours.env
        self.boxes = torch.from_numpy(env.pool.worlds[0].boxes)
        moving = env.obstacles(0)
        position, velocity = moving["position"][None], moving["velocity"][None]
        self.moving = reference.MovingObstacles(position, velocity, moving["width"], moving["tall"])
        self.goal = torch.zeros_like(position)
        starts, targets = (torch.from_numpy(points).float() for points in clear_poses(env, number))
        self.target, self.direction = targets, targets - starts
        self.drone = reference.hover(starts, reference.facing_yaw(starts, targets))
        self.heights = reference.start_height_range(starts, targets)
        self.azimuths = torch.arange(36) * (2 * math.pi / 36)
        self.elevations = torch.deg2rad(torch.linspace(-10.0, 20.0, 4))
        self.number = number

    def rays(self, position: torch.Tensor, yaw: torch.Tensor) -> torch.Tensor:
        """Return ray lengths, (N, 36, 4); the beams of an azimuth share its slab test."""
        gap_x = torch.maximum(
            self.boxes[:, 0] - position[:, :1], position[:, :1] - self.boxes[:, 1]
        ).clamp_min(0)
        gap_y = torch.maximum(
            self.boxes[:, 2] - position[:, 1:2], position[:, 1:2] - self.boxes[:, 3]
        ).clamp_min(0)
        squared = gap_x * gap_x + gap_y * gap_y  # (N, M)
        most = int((squared <= 16).sum(1).max())
        near = self.boxes[squared.topk(most, largest=False).indices]  # (N, K, 6)
        angle = yaw[:, None] + self.azimuths  # (N, 36)
        inverse_x, inverse_y = 1 / angle.cos()[..., None], 1 / angle.sin()[..., None]
        x, y, z = (position[:, axis, None, None] for axis in range(3))
        # (N, 36, K)
        ax, bx = ((near[:, None, :, 0] - x) * inverse_x, (near[:, None, :, 1] - x) * inverse_x)
        ay, by = (near[:, None, :, 2] - y) * inverse_y, (near[:, None, :, 3] - y) * inverse_y
        entry = torch.maximum(torch.minimum(ax, bx), torch.minimum(ay, by)).clamp_min(0)
        leave = torch.minimum(torch.maximum(ax, bx), torch.maximum(ay, by))
        result = []
        for slope, cosine in zip(
            self.elevations.tan().tolist(), self.elevations.cos().tolist(), strict=True
        ):
            top = (near[:, None, :, 5] - z) / (slope if abs(slope) > 1e-6 else 1e-6)
            bottom = -z / (slope if abs(slope) > 1e-6 else 1e-6)
            first = torch.maximum(entry, torch.minimum(top, bottom))
            last = torch.minimum(leave, torch.maximum(top, bottom))
            hit = torch.where(first <= last, first, 1e9).amin(2)
            hit = torch.minimum(hit, bottom[..., 0]) if slope < -1e-6 else hit
            result.append((hit / cosine).clamp_max(4.0))
        return torch.stack(result, 2)

    def step(self) -> None:
        drone = reference.step_rigid_body(
            self.drone, reference.lee_controller(self.drone, torch.zeros(self.number, 3))
        )
        position, velocity, _ = reference.advance_obstacles(
            self.moving.position,
            self.moving.velocity,
            self.goal,
            self.moving.position,
            self.moving.is_tall,
            1,
            torch.rand(self.moving.position.shape),
            torch.rand(self.moving.position.shape[:-1]),
        )
        moving = reference.MovingObstacles(
            position, velocity, self.moving.width, self.moving.is_tall
        )
        distances = self.rays(drone.position, reference.yaw_of(drone.attitude))
        seen = reference.observe(drone, self.target, self.direction, moving)
        terms = reference.reward_terms(
            drone,
            self.drone.velocity,
            self.target,
            distances,
            self.heights,
            seen["nearest_clearance"],
        )
        reference.total_reward(terms)
        reference.terminations(drone, self.target, distances, seen)

    def measure(self) -> Mapping[str, float]:
        torch.set_num_threads(THREADS)
        with torch.inference_mode():
            start = time.perf_counter()
            self.step()
            return {"steps_per_second": self.number / (time.perf_counter() - start)}


def mujoco_model(boxes: np.ndarray) -> str:
    """Return a MuJoCo model of a drone with four rotors, the ground and collidable boxes."""
    geoms = "".join(
        f'<geom type="box" group="1" pos="{(x0 + x1) / 2} {(y0 + y1) / 2} {z1 / 2}" '
        f'size="{(x1 - x0) / 2} {(y1 - y0) / 2} {z1 / 2}"/>'
        for x0, x1, y0, y1, _, z1 in boxes
    )
    angles = (0.0, math.pi / 2, math.pi, -math.pi / 2)
    sites = "".join(
        f'<site name="r{i}" pos="{0.17 * math.cos(a)} {0.17 * math.sin(a)} 0"/>'
        for i, a in enumerate(angles)
    )
    motors = "".join(
        f'<motor site="r{i}" gear="0 0 1 0 0 {0.016 * (-1) ** i}" ctrlrange="0 6"/>'
        for i in range(4)
    )
    return f"""<mujoco><option timestep="0.016"/><worldbody><geom type="plane" group="1" size="25 25 0.1"/>{geoms}
    <body pos="0 0 2"><freejoint/><inertial pos="0 0 0" mass="0.716" diaginertia="0.007 0.007 0.012"/>
    <geom type="sphere" group="2" size="0.17" mass="0"/>{sites}</body></worldbody><actuator>{motors}</actuator></mujoco>"""  # noqa: E501


class MuJoCo:
    """MuJoCo: for each drone one physics step with contacts and 144 rays (`mj_multiRay`), on two
    threads.
    """

    def __init__(self, ours: Ours, number: int) -> None:
        import mujoco

        self.mujoco = mujoco
        self.model = mujoco.MjModel.from_xml_string(mujoco_model(ours.env.pool.worlds[0].boxes))
        self.data = [mujoco.MjData(self.model) for _ in range(THREADS)]
        for data in self.data:
            mujoco.mj_forward(self.model, data)
        self.starts, targets = clear_poses(ours.env, number)
        heading = targets - self.starts
        # (number, 144, 3)
        self.directions = ray_directions(np.arctan2(heading[:, 1], heading[:, 0]))
        self.groups = np.array([0, 1, 0, 0, 0, 0], np.uint8)
        self.distance = np.zeros((number, 144))
        self.pool = ThreadPoolExecutor(THREADS)

    def work(self, part: int) -> None:
        data, hit = self.data[part], np.zeros(144, np.int32)
        for drone in range(part, len(self.starts), THREADS):
            data.qpos[:3] = self.starts[drone]
            data.qpos[3:7] = (1, 0, 0, 0)
            data.qvel[:] = 0
            data.ctrl[:] = 1.756
            self.mujoco.mj_step(self.model, data)
            self.rays(data, data.qpos[:3], drone, hit)

    def rays(self, data: object, origin: np.ndarray, drone: int, hit: np.ndarray) -> None:
        self.mujoco.mj_multiRay(
            self.model,
            data,
            origin,
            self.directions[drone].reshape(-1),
            self.groups,
            1,
            -1,
            hit,
            self.distance[drone],
            None,
            144,
            4.0,
        )

    def measure(self) -> Mapping[str, float]:
        start = time.perf_counter()
        list(self.pool.map(self.work, range(THREADS)))
        return {"steps_per_second": len(self.starts) / (time.perf_counter() - start)}


def ray_directions(yaw: np.ndarray) -> np.ndarray:
    """Return the unit vectors of the 36 x 4 rays for each yaw, (N, 144, 3)."""
    azimuths = yaw[:, None] + np.arange(36) * (2 * np.pi / 36)
    elevations = np.deg2rad(np.linspace(-10, 20, 4))
    flat = (
        np.stack([np.cos(azimuths), np.sin(azimuths)], -1)[:, :, None] * np.cos(elevations)[:, None]
    )
    up = np.broadcast_to(np.sin(elevations)[:, None], (*flat.shape[:-1], 1))
    return np.concatenate([flat, up], -1).reshape(len(yaw), -1, 3)


class RayError:
    """The largest difference of our rays from float64 brute force over many poses, in metres."""

    def __init__(self, number: int) -> None:
        self.ours = Ours(number)

    def measure(self) -> Mapping[str, float]:
        env = self.ours.env
        env.load_state_dict(self.ours.saved)
        boxes = torch.from_numpy(env.pool.worlds[0].boxes).double()
        azimuths = torch.arange(36, dtype=torch.float64) * (2 * math.pi / 36)
        elevations = torch.deg2rad(torch.linspace(-10, 20, 4, dtype=torch.float64))
        scene = reference.Scene(boxes, torch.zeros(0, 5, dtype=torch.float64))
        exact = reference.cast_rays(
            scene, env.position.double(), env.yaw.double(), azimuths, elevations, 4.0
        )
        return {"ray_error": (4 - env.observe()["lidar"][:, 0].double() - exact).abs().max().item()}


def suite(smoke: bool) -> Suite:
    sizes = (64, 1024) if smoke else (64, 1024, 4096, 16384)
    peers = 32 if smoke else PEER_DRONES
    bursts = 2 if smoke else 10
    main = Ours(1024, bursts=bursts)
    cases: list[tuple[str, Callable[[], Mapping[str, float]], str]] = [
        (f"navrl, {n} drones", Ours(n, bursts=bursts).measure, "") for n in sizes if n != 1024
    ]
    cases += [
        ("navrl, 1024 drones", main.measure, ""),
        ("navrl, 1024 drones, 1 thread", Ours(1024, threads=1, bursts=bursts).measure, ""),
        (
            "navrl, 1024 drones, 3500 static",
            Ours(1024, static=3500, bursts=bursts).measure,
            "as the maps are drawn",
        ),
        (
            "navrl, 1024 drones, 3500 strewn",
            Ours(1024, static=3500, attempts=1, bursts=bursts).measure,
            "without the maps' spacing rule, which puts most of the 3500 on top of each other",
        ),
        ("navrl, 1024 drones, 800 moving", Ours(1024, moving=800, bursts=bursts).measure, ""),
        ("torch eager", Eager(main, peers).measure, f"{peers} drones"),
        ("MuJoCo, step + 144 rays", MuJoCo(main, peers).measure, f"{peers} drones, contacts on"),
        ("ray error", RayError(64 if smoke else 512).measure, "against float64 brute force"),
    ]
    ours, biggest = "navrl, 1024 drones", f"navrl, {sizes[-1]} drones"

    def ratio(case: str, peer: str) -> Callable[[Results], float]:
        return lambda results: results.ratio("steps_per_second", case, peer)

    gates = [
        Gate("times MuJoCo", ratio(ours, "MuJoCo, step + 144 rays"), at_least=150),
        Gate("times torch eager", ratio(ours, "torch eager"), at_least=30),
        Gate(
            "thread efficiency",
            lambda r: ratio(ours, "navrl, 1024 drones, 1 thread")(r) / THREADS,
            at_least=0.9,
        ),
        Gate(
            f"cost of a drone, 64 over {sizes[-1]}", ratio(biggest, "navrl, 64 drones"), at_most=1.3
        ),
        Gate(
            f"cost of a drone, {sizes[-1]} over 64", ratio("navrl, 64 drones", biggest), at_most=1.3
        ),
        Gate(
            "cost of 10 x static obstacles",
            ratio(ours, "navrl, 1024 drones, 3500 static"),
            at_most=3.0,
        ),
        Gate(
            "cost of 10 x moving obstacles",
            ratio(ours, "navrl, 1024 drones, 800 moving"),
            at_most=1.8,
        ),
        Gate("ray error in m", lambda r: r.median("ray error", "ray_error"), at_most=1e-4),
        Gate(
            "cost of 10 x strewn obstacles",
            ratio(ours, "navrl, 1024 drones, 3500 strewn"),
            at_most=3.0,
            stretch=True,
        ),
        Gate("times MuJoCo", ratio(ours, "MuJoCo, step + 144 rays"), at_least=300, stretch=True),
        Gate(
            "million steps a second",
            lambda r: r.median(ours, "steps_per_second") / 1e6,
            at_least=4.0,
            stretch=True,
        ),
    ]
    return Suite(
        name="simulator",
        title="Simulator: whole environment steps a second, 350 static and 80 moving obstacles, "
        "drones all over the map",
        cases=[Case(*case) for case in cases],
        columns=[
            Column("steps_per_second", "steps/s", ",.0f"),
            Column("ray_error", "error in m", ".1e"),
        ],
        gates=gates,
        packages=("mujoco",),
        repeats=9,
        settings={"threads": THREADS, "peer drones": peers, "lidar": "36 x 4", "range": 4.0},
    )
