"""NavigationEnv: thousands of drones that fly to goals among obstacles, stepped together on the
CPU.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from navrl.errors import ConfigError, shown
from navrl.sim.drone_batch import DroneBatch
from navrl.sim.inputs import (
    checked_actions,
    checked_mask,
    checked_points,
    checked_probabilities,
    checked_seed,
    checked_step,
    checked_worlds,
)
from navrl.sim.kernels.layout import (
    ACTIVE,
    ATTITUDE,
    EPISODE,
    FORWARD,
    POSITION,
    TARGET,
    VELOCITY,
    WORLD,
)
from navrl.sim.saved_state import check_state, saved_arrays
from navrl.sim.settings import NavigationSettings
from navrl.sim.step import Step, observation_layout
from navrl.sim.worlds.world_pool import WorldPool, build_pool, draw_origins

__all__ = ["NavigationEnv"]


class NavigationEnv:
    """A batch of drones, each flying to its goal in a world of the pool.

    `step(action)` returns a new `Step`, safe to keep; `step(action, out=step)` fills one made by
    `make_step()` and allocates nothing. With `auto_reset` an ended episode is followed at once by
    the next one: `observation` is then the first of the new episode and `final_observation` the
    last of the old one. Without it an ended drone stays where it is until `reset(mask=...)`.

    Actions are velocity commands in m/s, (N, 3), in the frame `env.action_frame`; in the goal frame
    they are limited to `env.action_limit` on each axis, and to `drone.vertical_speed` in height.
    With `env.planar` heights and vertical commands are ignored. Equal seeds give equal bits,
    whatever the number of threads; drone i flies the same episodes whatever the number of drones.

    Args:
        settings: of the task; the defaults for None. They are copied.
        seed: of everything random but the maps, which `env.map_seed` draws.
        auto_reset: whether ended episodes are followed by new ones.

    Raises:
        ConfigError: a setting or the seed is impossible.
        WorldError: a world file cannot be used.

    >>> import navrl
    >>> env = navrl.NavigationEnv(navrl.NavigationSettings.of(env__num_envs=4, env__num_worlds=1))
    >>> observation = env.reset()
    >>> step = env.step(2 * observation["state"][:, :3])  # straight at the goal, 2 m/s
    >>> step.reward.shape, step.observation["lidar"].shape
    (torch.Size([4]), torch.Size([4, 1, 36, 4]))
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
        self.layout = observation_layout(self.settings)
        self._batch = DroneBatch(
            self.settings,
            self.pool,
            width=self.layout.width,
            seed=self._seed,
            auto_reset=auto_reset,
        )
        self._started = False

    # ------------------------------------------------------------------ flying

    def reset(
        self, *, seed: int | None = None, mask: Tensor | NDArray[np.bool_] | None = None
    ) -> dict[str, Tensor]:
        """Begin new episodes, everywhere or where the mask holds; return the observation of all
        drones in new tensors.

        With a seed, everything random starts again from it, moving obstacles included.
        """
        chosen, counters = checked_mask(mask, self.num_envs), self._batch.arrays["counters"]
        if seed is not None:
            if mask is not None:
                raise ConfigError(
                    "reset takes a seed or a mask, not both: a seed resets all drones"
                )
            self._reseed(checked_seed(seed))
        elif self._started:
            counters[chosen, EPISODE] += 1
        else:
            chosen[:] = True  # the first reset: all drones begin
        self._started = True
        self._batch.reset(chosen)
        return self.observe()

    def _reseed(self, seed: int) -> None:
        """Start all random numbers from a seed, as in a new environment."""
        self._seed = seed
        self._batch.parameters["seed"] = seed
        draw_origins(self.pool, seed)
        self._batch.arrays["counters"][:] = 0
        self._batch.assign_worlds()
        self._batch.begin_worlds()

    def step(self, action: Tensor | NDArray[Any], *, out: Step | None = None) -> Step:
        """Fly all drones for one decision: `env.action_repeat` simulated steps.

        Raises:
            ActionError: the action has the wrong shape or holds NaN or infinity; nothing has moved.
        """
        actions = checked_actions(action, self.num_envs)
        if out is None:
            result = self.make_step()
        else:
            result = checked_step(out, self.num_envs, self.layout.width)
        if not self._started:
            self.reset()
        self._batch.fly(actions, result)
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
        """Begin episodes from given starts to given targets, (N, 3) or (3,), world frame; return
        the observation of all drones.

        The drones face their targets, at rest unless a velocity (world frame) is given.
        """
        chosen = checked_mask(mask, self.num_envs)
        starts, targets = (
            checked_points(name, values, self.num_envs)
            for name, values in (("start", start), ("target", target))
        )
        velocities = None
        if velocity is not None:
            velocities = checked_points("velocity", velocity, self.num_envs)
            if self.settings.env.planar:
                velocities[:, 2] = 0
        worlds = None if world is None else self._world_numbers(world)
        counters = self._batch.arrays["counters"]
        if self._started:
            counters[chosen, EPISODE] += 1
        else:
            self.reset()
        if worlds is not None:
            counters[chosen, WORLD] = worlds[chosen]
        self._batch.place(chosen, starts, targets)
        if velocities is not None:
            self._batch.set_field(VELOCITY, np.flatnonzero(chosen), velocities[chosen])
        return self.observe()

    # ------------------------------------------------------------------ schedules

    def set_world_probabilities(self, probabilities: ArrayLike) -> None:
        """Set how often each world of the pool is drawn at a reset, for a curriculum."""
        chances = checked_probabilities(probabilities, len(self.pool.worlds))
        self._batch.arrays["chances"][:] = np.cumsum(chances)

    def set_collision_penalty(self, penalty: float) -> None:
        """Change `reward.collision` from the next step on, for a schedule. It is not part of the
        saved state.
        """
        if not 0 <= penalty <= 1e6:
            raise ConfigError(f"the collision penalty is {penalty!r}; expected 0 to 1e6")
        self._batch.parameters["weight_collision"] = penalty

    def set_all_worlds(self, world: int) -> None:
        """Move every drone to one world of the pool, from the next `reset()` on."""
        self._batch.arrays["counters"][:, WORLD] = self._world_numbers(world)

    # ------------------------------------------------------------------ looking

    def observe(self) -> dict[str, Tensor]:
        """Return what all drones observe now, by name, in new tensors."""
        return self.layout.split(self.observe_packed())

    def observe_packed(self) -> Tensor:
        """Return what all drones observe now as packed rows, (N, width), in a new tensor."""
        if not self._started:
            self.reset()
        step = self.make_step()
        self._batch.observe(step)
        return step.packed

    @property
    def position(self) -> Tensor:
        """Positions in m, world frame, a copy, (N, 3)."""
        return torch.from_numpy(self._batch.field(POSITION, 3))

    @property
    def velocity(self) -> Tensor:
        """Velocities in m/s, world frame, a copy, (N, 3)."""
        return torch.from_numpy(self._batch.field(VELOCITY, 3))

    @property
    def target(self) -> Tensor:
        """Targets in m, world frame, a copy, (N, 3)."""
        return torch.from_numpy(self._batch.field(TARGET, 3))

    @property
    def yaw(self) -> Tensor:
        """Headings in radians, counter-clockwise from +x, a copy, (N,)."""
        w, x, y, z = torch.from_numpy(self._batch.field(ATTITUDE, 4)).unbind(1)
        return torch.atan2(2 * (w * z + x * y), 1 - 2 * (y * y + z * z))

    @property
    def forward(self) -> Tensor:
        """The x axis of each goal frame, horizontal, in the world frame, a copy, (N, 2)."""
        return torch.from_numpy(self._batch.field(FORWARD, 2))

    @property
    def world(self) -> Tensor:
        """The number of each drone's world, a copy, (N,)."""
        return torch.from_numpy(self._batch.arrays["counters"][:, WORLD].astype(np.int64))

    @property
    def flying(self) -> Tensor:
        """Which drones are in an episode, (N,); without `auto_reset` an ended one is not."""
        return torch.from_numpy(self._batch.field(ACTIVE, 1)[:, 0] > 0)

    def obstacles(self, world: int) -> dict[str, Tensor]:
        """Return the moving obstacles of a world as they are now: position and velocity (D, 3),
        world frame, width (D,) in m, tall (D,).
        """
        self._world_numbers(world)
        now = torch.from_numpy(self._batch.tracks(world))
        count = now.shape[-1]
        sizes = torch.from_numpy(self.pool.moving_sizes[world, :, :count].copy())
        return {"position": now[0].T, "velocity": now[1].T, "width": sizes[0], "tall": sizes[1] > 0}

    # ------------------------------------------------------------------ saving

    def state_dict(self) -> dict[str, Any]:
        """Return everything needed to continue bit for bit in an environment of equal settings."""
        arrays = {
            name: torch.from_numpy(array.copy())
            for name, array in saved_arrays(self._batch).items()
        }
        return {
            **arrays,
            "half": self._batch.half,
            "time": self._batch.time,
            "seed": self._seed,
            "started": self._started,
            "settings": self.settings.as_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved state.

        Raises:
            StateError: the state does not fit; nothing has changed.
        """
        check_state(self._batch, state)
        for name, array in saved_arrays(self._batch).items():
            array[...] = state[name].numpy()
        self._batch.half, self._batch.time = state["half"], state["time"]
        self._seed, self._started = state["seed"], state["started"]
        self._batch.parameters["seed"] = self._seed

    def __getstate__(self) -> dict[str, Any]:
        """Return what a copy or another process needs to continue."""
        return {
            "settings": self.settings,
            "auto_reset": self.auto_reset,
            "state": self.state_dict(),
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Become a copy with arrays of its own."""
        NavigationEnv.__init__(self, state["settings"], auto_reset=state["auto_reset"])
        self.load_state_dict(state["state"])

    def _world_numbers(self, values: ArrayLike) -> NDArray[np.int32]:
        return checked_worlds(values, self.num_envs, len(self.pool.worlds))
