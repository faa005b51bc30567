"""NavigationEnv: thousands of drones that fly to goals among obstacles, stepped together on the
CPU.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from navrl.errors import ActionError, ConfigError, StateError, shown
from navrl.sim.episode_statistics import STATISTICS
from navrl.sim.kernels import step_kernel
from navrl.sim.kernels.detection import NEAREST
from navrl.sim.kernels.layout import (
    ACTIVE,
    ARRAYS,
    ATTITUDE,
    COUNTERS,
    DELAY,
    EPISODE,
    FIELDS,
    FORWARD,
    OUTCOME,
    POSITION,
    TARGET,
    TIME_OUT,
    VELOCITY,
    WORLD,
)
from navrl.sim.kernels.lidar import LidarTables, make_tables
from navrl.sim.kernels.parameters import make_parameters
from navrl.sim.settings import EARLIER, NavigationSettings
from navrl.sim.step import Step, observation_layout
from navrl.sim.threads import start_threads
from navrl.sim.worlds.world_pool import WorldPool, build_pool, draw_origins
from navrl.simd import WIDTH, aligned_zeros

IMPORTED_BY = os.getpid()
UNREASONABLE = 1e6  # m/s: no action may be beyond it
FARTHEST = 1e4  # m: no drone may be placed beyond it
SAVED = (
    "state",
    "counters",
    "running",
    "history",
    "chances",
    "origins",
    "positions",
    "velocities",
    "goals",
    "tracks",
)


class NavigationEnv:
    """A batch of drones, each flying to its goal in a world of the pool.

    `step(action)` returns a new `Step`, safe to keep; `step(action, out=step)` fills one made by
    `make_step()`, with nothing allocated or copied. With `auto_reset` an ended episode is followed
    at once by the next one: `observation` is then the first of the new episode and
    `final_observation` the last of the old. Without it an ended drone stays where it is until
    `reset(mask)`.

    Actions are velocity commands in m/s, (N, 3), in the frame `env.action_frame`; in the goal frame
    they are limited to `env.action_limit` on each axis. Equal seeds give equal bits, whatever the
    number of threads; drone i lives the same life whatever the number of drones.
    """

    def __init__(
        self, settings: NavigationSettings | None = None, *, seed: int = 0, auto_reset: bool = True
    ) -> None:
        if not isinstance(settings, NavigationSettings | None):
            example = "NavigationSettings.of(env__num_envs=64)"
            raise ConfigError(
                f"settings is {shown(settings)}; expected NavigationSettings, such as {example}"
            )
        self.settings = copy.deepcopy(settings) if settings is not None else NavigationSettings()
        self.settings.check()
        self.auto_reset = auto_reset
        self.num_envs = self.settings.env.num_envs
        self._seed = checked_seed(seed)
        self.pool: WorldPool = build_pool(self.settings, self._seed)
        tables = make_tables(self.settings.sensor)
        self.layout = observation_layout(self.settings)
        started = 1 if self.settings.sim.num_threads == 1 else start_threads()
        threads = self.settings.sim.num_threads or started
        self._threads = max(1, min(threads, -(-self.num_envs // WIDTH)))
        self._half, self._time = 0, 0
        self._allocate(tables)
        self._begin_worlds()
        self._started = False

    # ------------------------------------------------------------------ flying

    def reset(
        self, *, seed: int | None = None, mask: Tensor | NDArray[np.bool_] | None = None
    ) -> dict[str, Tensor]:
        """Begin new episodes, everywhere or where the mask holds; return the observation of all
        drones (new tensors).

        With a seed, everything random begins anew: the moving obstacles, and every drone's stream.
        """
        chosen = self._mask(mask)
        if seed is not None:
            if mask is not None:
                raise ConfigError(
                    "reset takes a seed or a mask, not both: a seed begins everything anew"
                )
            self._seed = checked_seed(seed)
            self._record["seed"] = self._seed
            draw_origins(self.pool, self._seed)
            self._arrays["counters"][:] = 0
            self._arrays["counters"][:, WORLD] = np.arange(self.num_envs) % len(self.pool.worlds)
            self._begin_worlds()
        elif self._started:
            self._arrays["counters"][chosen, EPISODE] += 1
        else:
            chosen[:] = True  # nobody flies yet: everybody begins
        self._started = True
        step_kernel.reset_where(self._record, self._addresses, chosen)
        return self.observe()

    def step(self, action: Tensor | NDArray[Any], *, out: Step | None = None) -> Step:
        """Fly all drones for one decision: `action_repeat` simulated steps.

        Raises:
            ActionError: the action has the wrong shape or holds NaN or infinity; nothing has moved.
        """
        actions = self._actions(action)
        result = self.make_step() if out is None else self._checked_step(out)
        if not self._started:
            self.reset()
        half = 1 - self._half
        self._run(actions, result, half, flying=True)
        self._half = half
        self._time += self.settings.env.action_repeat
        return result

    def make_step(self) -> Step:
        """Return buffers for `step(action, out=...)`."""
        return Step(self.layout, self.num_envs)

    def place(
        self,
        start: ArrayLike,
        target: ArrayLike,
        *,
        mask: Tensor | NDArray[np.bool_] | None = None,
        velocity: ArrayLike | None = None,
        world: ArrayLike | None = None,
    ) -> dict[str, Tensor]:
        """Begin episodes at given starts and targets, (N, 3) or (3,); return the observation of all
        drones.

        The drones face their targets, at rest unless a velocity (world frame) is given.
        """
        chosen = self._mask(mask)
        starts, targets = self._points("start", start), self._points("target", target)
        velocities = None if velocity is None else self._points("velocity", velocity)
        worlds = None if world is None else self._world_numbers(world)
        if self._started:
            self._arrays["counters"][chosen, EPISODE] += 1
        else:
            self.reset()
        if worlds is not None:
            self._arrays["counters"][chosen, WORLD] = worlds[chosen]
        step_kernel.place_where(self._record, self._addresses, chosen, starts, targets)
        if velocities is not None:
            rows = np.flatnonzero(chosen)
            self._arrays["state"][rows // WIDTH, VELOCITY : VELOCITY + 3, rows % WIDTH] = (
                velocities[rows]
            )
        return self.observe()

    def set_world_probabilities(self, probabilities: ArrayLike) -> None:
        """Say how often each world of the pool is drawn at a reset: the hook for a curriculum over
        difficulties.
        """
        chances, number = _numbers(probabilities), len(self.pool.worlds)
        if chances is None:
            raise ConfigError(
                f"world probabilities are {probabilities!r:.60}; expected {number} numbers"
            )
        if (
            chances.shape != (number,)
            or not np.isfinite(chances).all()
            or chances.min() < 0
            or chances.sum() <= 0
        ):
            raise ConfigError(
                f"world probabilities of shape {chances.shape}; expected {number} numbers of at "
                "least 0, not all 0: "
                "one for each world of the pool"
            )
        self._arrays["chances"][:] = np.cumsum(chances / chances.sum())

    def set_collision_penalty(self, penalty: float) -> None:
        """Change `reward.collision` from the next step on: the hook for a schedule. It is not part
        of the saved state.
        """
        if not 0 <= penalty <= 1e6:
            raise ConfigError(f"the collision penalty is {penalty!r}; expected 0 to 1e6")
        self._record["weight_collision"] = penalty

    def set_all_worlds(self, world: int) -> None:
        """Move every drone to one world of the pool; it takes effect with the next `reset()`."""
        self._arrays["counters"][:, WORLD] = self._world_numbers(world)

    # ------------------------------------------------------------------ looking

    def observe(self) -> dict[str, Tensor]:
        """Return what all drones see now, in new tensors."""
        return self.layout.split(self.observe_packed())

    def observe_packed(self) -> Tensor:
        """Return what all drones see now as packed rows, (N, width), a new tensor."""
        if not self._started:
            self.reset()
        step = self.make_step()
        self._run(self._no_action, step, self._half, flying=False)
        return step.packed

    @property
    def position(self) -> Tensor:
        """Where the drones are, a copy, (N, 3)."""
        return torch.from_numpy(self._blocks(POSITION, 3))

    @property
    def velocity(self) -> Tensor:
        """World velocities in m/s, a copy, (N, 3)."""
        return torch.from_numpy(self._blocks(VELOCITY, 3))

    @property
    def target(self) -> Tensor:
        """Where the drones must go, a copy, (N, 3)."""
        return torch.from_numpy(self._blocks(TARGET, 3))

    @property
    def yaw(self) -> Tensor:
        """Headings in radians, counter-clockwise from +x, a copy, (N,)."""
        w, x, y, z = torch.from_numpy(self._blocks(ATTITUDE, 4)).unbind(1)
        return torch.atan2(2 * (w * z + x * y), 1 - 2 * (y * y + z * z))

    @property
    def forward(self) -> Tensor:
        """Unit vectors along x of each goal frame, horizontal in the world, a copy, (N, 2)."""
        return torch.from_numpy(self._blocks(FORWARD, 2))

    @property
    def world(self) -> Tensor:
        """The world of each drone, a copy, (N,)."""
        return torch.from_numpy(self._arrays["counters"][:, WORLD].astype(np.int64))

    @property
    def flying(self) -> Tensor:
        """Which drones are in an episode, (N,); without `auto_reset` an ended one is not."""
        return torch.from_numpy(self._blocks(ACTIVE, 1)[:, 0] > 0)

    def obstacles(self, world: int) -> dict[str, Tensor]:
        """Return where the moving obstacles of a world are now: position and velocity (D, 3), width
        (D,), tall (D,).
        """
        self._world_numbers(world)
        count = int(self.pool.moving_counts[world])
        now = torch.from_numpy(self._arrays["tracks"][self._half, -1, world, ..., :count].copy())
        sizes = torch.from_numpy(self.pool.moving_sizes[world, :, :count].copy())
        return {"position": now[0].T, "velocity": now[1].T, "width": sizes[0], "tall": sizes[1] > 0}

    # ------------------------------------------------------------------ saving

    def state_dict(self) -> dict[str, Any]:
        """Return everything needed to continue bit for bit in an environment made with equal
        settings.
        """
        arrays = {name: torch.from_numpy(array.copy()) for name, array in self._saved().items()}
        scalars = {
            "half": self._half,
            "time": self._time,
            "seed": self._seed,
            "started": self._started,
        }
        return {**arrays, **scalars, "settings": self.settings.as_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved state; a state that does not fit is refused before anything
        changes.
        """
        saved = self._saved()
        names = {*saved, "half", "time", "seed", "started", "settings"}
        if not isinstance(state, Mapping) or set(state) != names:
            found = set(state) if isinstance(state, Mapping) else set()
            missing, extra = sorted(names - found), sorted(found - names)
            raise StateError(
                f"environment state lacks {missing or 'nothing'} and has unknown "
                f"{extra or 'nothing'}"
            )
        self._check_saved_settings(state["settings"])
        self._check_saved_values(state)
        for name, array in saved.items():
            array[...] = state[name].numpy()
        self._half, self._time = state["half"], state["time"]
        self._seed, self._started = state["seed"], state["started"]
        self._record["seed"] = self._seed

    def _check_saved_settings(self, settings: Any) -> None:
        if not isinstance(settings, Mapping):
            raise StateError(
                f"settings of the state are a {type(settings).__name__}; expected a mapping"
            )
        for group, values in self.settings.as_dict().items():
            for key, ours in values.items():
                theirs = settings.get(group, {}).get(key, EARLIER.get(f"{group}.{key}"))
                if (group, key) != ("sim", "num_threads") and theirs != ours:
                    raise StateError(
                        f"the state was saved with {group}.{key} = {theirs!r}, this environment "
                        f"has {ours!r}"
                    )

    def _check_saved_values(self, state: Mapping[str, Any]) -> None:
        """Refuse what the kernel would follow out of its arrays, and NaN, which it is compiled not
        to expect.
        """
        for name, array in self._saved().items():
            value = state[name]
            if (
                not isinstance(value, Tensor)
                or tuple(value.shape) != array.shape
                or value.cpu().numpy().dtype != array.dtype
            ):
                found = (
                    f"{value.dtype} {tuple(value.shape)}"
                    if isinstance(value, Tensor)
                    else type(value).__name__
                )
                raise StateError(
                    f"{name} is {found} in the state; expected {array.dtype} {array.shape}"
                )
            if value.is_floating_point() and not bool(torch.isfinite(value).all()):
                raise StateError(
                    f"{name} holds NaN or infinite values in the state; expected finite numbers"
                )
        limits = {"half": 1, "time": 2**62, "seed": 2**63 - 1, "started": 1}
        for name, limit in limits.items():
            value = state[name]
            if not isinstance(value, bool if name == "started" else int) or not 0 <= value <= limit:
                raise StateError(f"{name} is {value!r} in the state; expected 0 to {limit}")
        counters = state["counters"]
        highest = {
            WORLD: len(self.pool.worlds) - 1,
            OUTCOME: TIME_OUT,
            DELAY: self.settings.drone.delay,
        }
        if (counters < 0).any() or any(
            (counters[:, column] > limit).any() for column, limit in highest.items()
        ):
            raise StateError(
                "counters of the state name worlds, endings or delays that this environment "
                "does not have"
            )

    def __getstate__(self) -> dict[str, Any]:
        """Return what a copy or another process needs to continue."""
        return {
            "settings": self.settings,
            "auto_reset": self.auto_reset,
            "state": self.state_dict(),
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Become a copy, with arrays of its own."""
        NavigationEnv.__init__(self, state["settings"], auto_reset=state["auto_reset"])
        self.load_state_dict(state["state"])

    # ------------------------------------------------------------------ inside

    def _allocate(self, tables: LidarTables) -> None:
        """Make all arrays; the kernel is given their addresses once and for all, so none may ever
        be replaced.
        """
        blocks, pool = -(-self.num_envs // WIDTH), self.pool
        number = len(pool.worlds)
        shape = pool.moving_origins.shape
        substeps = self.settings.env.action_repeat
        scratch = tables.scratch_size + NEAREST
        self._arrays: dict[str, NDArray[Any]] = {
            "state": aligned_zeros((blocks, FIELDS, WIDTH)),
            "counters": np.zeros((self.num_envs, COUNTERS), np.int32),
            "running": np.zeros((self.num_envs, len(STATISTICS)), np.float32),
            "history": np.zeros((self.num_envs, self.settings.drone.delay + 1, 3), np.float32),
            "observed": np.zeros(self._past_observations(), np.float32),
            "shapes": pool.shapes,
            "near": pool.near,
            "near_start": pool.near_start,
            "points": pool.points,
            "point_ranges": pool.point_ranges,
            "chances": np.cumsum(np.full(number, 1 / number)).astype(np.float32),
            "counts": pool.moving_counts,
            "sizes": pool.moving_sizes,
            "origins": pool.moving_origins,
            "positions": aligned_zeros(shape),
            "velocities": aligned_zeros(shape),
            "goals": aligned_zeros(shape),
            "tracks": aligned_zeros((2, substeps, number, 2, 3, pool.padded_moving)),
            "azimuths": tables.azimuths,
            "beams": tables.beams,
            "scratch": aligned_zeros((self._threads, scratch)),
        }
        self._addresses = np.array(
            [_address(name, self._arrays[name]) for name in ARRAYS], np.int64
        )
        sizes = {
            "worlds": number,
            "moving": pool.padded_moving,
            "azimuths": tables.count,
            "padded_azimuths": tables.azimuths.shape[1],
            "beams": len(tables.beams),
            "row": self.layout.width,
            "scratch": scratch,
        }
        self._record = make_parameters(self.settings, self._seed, self.auto_reset, sizes)
        self._arrays["counters"][:, WORLD] = np.arange(self.num_envs) % number
        # so that the lanes beyond the last drone stay finite
        self._arrays["state"][:, ATTITUDE] = 1.0
        self._no_action = np.zeros((self.num_envs, 3), np.float32)
        # No chunks: this only compiles it, here rather than in a forked child, where compiling may
        # wait for ever.
        step_kernel.step_serial(
            step_kernel.step_address(),
            self._record,
            self._addresses,
            self._addresses,
            self._no_action,
            0,
            0,
            False,
            0,
        )

    def _run(self, actions: NDArray[np.float32], step: Step, half: int, *, flying: bool) -> None:
        # A forked child must not enter the threads of its parent: they are not there, and OpenMP
        # ends it.
        alone = self._threads == 1 or os.getpid() != IMPORTED_BY
        run = step_kernel.step_serial if alone else step_kernel.step_parallel
        run(
            step_kernel.step_address(),
            self._record,
            self._addresses,
            step.addresses,
            actions,
            half,
            self._time,
            flying,
            self._threads,
        )

    def _begin_worlds(self) -> None:
        """Put the moving obstacles at their origins, and compute their first step ahead."""
        self._arrays["positions"][:] = self._arrays["origins"]
        self._arrays["velocities"][:] = 0
        self._arrays["goals"][:] = 0
        self._arrays["tracks"][..., 0, :, :] = self.pool.moving_origins
        self._arrays["tracks"][..., 1, :, :] = 0
        step_kernel.begin_worlds(self._record, self._addresses)
        self._half, self._time = 0, self.settings.env.action_repeat

    def _past_observations(self) -> tuple[int, ...]:
        """Return the shape of the kept observations; the kernel wants an address also if there are
        none.
        """
        delay = self.settings.sensor.observation_delay
        return (self.num_envs, delay + 1, self.layout.width) if delay else (1,)

    def _saved(self) -> dict[str, NDArray[Any]]:
        """Return the arrays that change while drones fly."""
        delayed = ("observed",) if self.settings.sensor.observation_delay else ()
        return {name: self._arrays[name] for name in (*SAVED, *delayed)}

    def _blocks(self, field: int, size: int) -> NDArray[np.float32]:
        """Return a copy of a field of all drones, (N, size), or (N,) for one."""
        values = self._arrays["state"][:, field : field + size]
        return np.ascontiguousarray(values.transpose(0, 2, 1).reshape(-1, size)[: self.num_envs])

    def _actions(self, action: Tensor | NDArray[Any]) -> NDArray[np.float32]:
        if isinstance(action, Tensor):
            action = (
                action.numpy()
                if action.is_cpu and not action.requires_grad
                else action.detach().cpu().numpy()
            )
        try:
            if np.iscomplexobj(action):
                raise TypeError("they are complex")
            array = np.ascontiguousarray(action, np.float32)
        except (TypeError, ValueError) as error:
            raise ActionError(
                f"actions of type {type(action).__name__} are no numbers: {error}"
            ) from error
        if array.shape != (self.num_envs, 3):
            raise ActionError(
                f"actions of shape {array.shape}; expected ({self.num_envs}, 3): one velocity "
                "for each drone"
            )
        bad = step_kernel.first_bad_action(array, UNREASONABLE)
        if bad >= 0:
            raise ActionError(
                f"the action of drone {bad} is {array[bad].tolist()}; expected finite "
                "velocities in m/s. "
                "No drone has moved: mend the policy's output and step again"
            )
        return array

    def _checked_step(self, out: Step) -> Step:
        if not isinstance(out, Step):
            raise ActionError(
                f"out is a {type(out).__name__}; expected buffers made with make_step()"
            )
        if out.packed.shape != (self.num_envs, self.layout.width) or not out.in_place():
            raise ActionError(
                f"out has buffers of shape {tuple(out.packed.shape)}; expected "
                f"({self.num_envs}, {self.layout.width}), "
                "where they were made: make them with make_step()"
            )
        return out

    def _mask(self, mask: Tensor | NDArray[np.bool_] | None) -> NDArray[np.bool_]:
        if mask is None:
            return np.ones(self.num_envs, np.bool_)
        array = np.array(mask.cpu().numpy() if isinstance(mask, Tensor) else mask)
        if array.shape != (self.num_envs,) or array.dtype != np.bool_:
            raise ActionError(
                f"mask of shape {array.shape} and type {array.dtype}; expected "
                f"({self.num_envs},) and bool"
            )
        return array

    def _points(self, name: str, values: ArrayLike) -> NDArray[np.float32]:
        array = _numbers(values)
        if (
            array is None
            or array.shape not in ((3,), (self.num_envs, 3))
            or not (np.abs(array) <= FARTHEST).all()
        ):
            found = (
                f"{values!r:.60}"
                if array is None or array.size < 4
                else f"an array of shape {array.shape}"
            )
            raise ActionError(
                f"{name} is {found}; expected finite numbers of shape (3,) or ({self.num_envs}, "
                f"3), at most {FARTHEST:g}"
            )
        return np.ascontiguousarray(np.broadcast_to(array, (self.num_envs, 3)), np.float32)

    def _world_numbers(self, values: ArrayLike) -> NDArray[np.int32]:
        array, number = _numbers(values), len(self.pool.worlds)
        if (
            array is None
            or array.shape not in ((), (self.num_envs,))
            or not np.isin(array, np.arange(number)).all()
        ):
            raise ActionError(
                f"world is {values!r:.60}; expected 0 to {number - 1}, one number or "
                f"{self.num_envs}"
            )
        return np.broadcast_to(array, (self.num_envs,)).astype(np.int32)


def _numbers(values: ArrayLike) -> NDArray[np.float64] | None:
    """Return values as numbers, or None where they are none."""
    try:
        return np.asarray(values, np.float64)
    except (TypeError, ValueError, OverflowError):
        return None


def checked_seed(seed: int) -> int:
    """Return a seed that the simulator takes, or raise a ConfigError."""
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or not 0 <= seed < 2**63:
        raise ConfigError(f"seed is {seed!r}; expected a whole number from 0 to 2**63 - 1")
    return int(seed)


def _address(name: str, array: NDArray[Any]) -> int:
    if not array.flags.c_contiguous:
        raise StateError(f"{name} is not contiguous: the kernel reads it flat")
    return int(array.ctypes.data)
