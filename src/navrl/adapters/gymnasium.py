"""The simulator as Gymnasium environments: one for the whole batch of drones, and one for a single
drone.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from navrl.adapters.gymnasium_registry import ENVIRONMENT_ID as ENVIRONMENT_ID
from navrl.adapters.gymnasium_registry import register_in
from navrl.adapters.rendering import RENDER_MODES, ChaseCamera, checked_render_mode, render_metadata
from navrl.errors import ActionError, ConfigError, missing_extra, nearest_name
from navrl.navigation_observation import navigation_layout
from navrl.sim.env import NavigationEnv
from navrl.sim.episode_statistics import STATISTICS
from navrl.sim.settings import NavigationSettings
from navrl.sim.step import Step

try:
    import gymnasium
    from gymnasium.spaces import Box, Dict
    from gymnasium.vector import AutoresetMode, VectorEnv
    from gymnasium.vector.utils import batch_space
except ImportError as error:
    raise missing_extra(f"{__name__} needs gymnasium ({error})", "gymnasium") from error

STATISTICS_KEY = "flight"  # not `episode`, which Gymnasium's RecordEpisodeStatistics writes
# of the parts in a flat observation
PACKED_ORDER = tuple(navigation_layout().shapes)  # of the parts of a flat observation
SHORT_NAMES = {"r": "return", "l": "length"}  # what other libraries call two of the statistics

Observation = NDArray[np.float32] | dict[str, NDArray[np.float32]]
TaskSettings = NavigationSettings | Mapping[str, Any] | None


class NavigationVectorEnv(VectorEnv):  # type: ignore[misc]
    """All drones of a simulator as one Gymnasium vector environment.

    Observations are dictionaries of float32 arrays (`state`, `lidar`, `direction`,
    `dynamic_obstacle`), or with `flat` one array that joins them in the order of PACKED_ORDER.
    Actions are velocity commands in m/s, (N, 3). What is returned is never written again.

    When episodes end, their statistics are in `info["flight"]`, with the mask `info["_flight"]`:
    every name of `navrl.sim.episode_statistics.STATISTICS`, and `r` and `l` for return and length.
    In the mode SAME_STEP they are in `info["final_info"]`, beside `info["final_obs"]`.

    Args:
        settings: of the task; NavigationSettings, or a nested mapping such as `{"env":
            {"num_obstacles": 50}}`.
        seed: of everything random, until `reset(seed=...)`.
        autoreset_mode: Gymnasium's NEXT_STEP, SAME_STEP or DISABLED.
        flat: join the parts of an observation to one array.
        num_envs: the number of drones, instead of that in the settings.
        statistics_key: another name for `flight`.
        render_mode: `rgb_array` for `render()`, with at most 64 drones.

    >>> from navrl.adapters.gymnasium import NavigationVectorEnv
    >>> drones = NavigationVectorEnv({"env": {"num_worlds": 1}}, num_envs=4)
    >>> observation, info = drones.reset(seed=1)
    >>> observation["lidar"].shape
    (4, 1, 36, 4)
    """

    def __init__(
        self,
        settings: TaskSettings = None,
        *,
        seed: int = 0,
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        flat: bool = False,
        num_envs: int | None = None,
        statistics_key: str = STATISTICS_KEY,
        render_mode: str | None = None,
    ) -> None:
        self.autoreset_mode = _checked_mode(autoreset_mode)
        at_once = self.autoreset_mode is AutoresetMode.SAME_STEP
        self.simulator = NavigationEnv(
            with_num_envs(settings, num_envs), seed=seed, auto_reset=at_once
        )
        self.num_envs = self.simulator.num_envs
        self.flat = flat
        self.statistics_key = statistics_key
        self.render_mode = checked_render_mode(render_mode, self.num_envs)
        self.metadata = {**render_metadata(self.simulator), "autoreset_mode": self.autoreset_mode}
        self._camera = ChaseCamera(self.simulator, width=320, height=180)
        self.single_observation_space = observation_space_of(self.simulator, flat=flat)
        self.single_action_space = action_space_of(self.simulator)
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self._ended = np.zeros(self.num_envs, np.bool_)  # drones that wait for a reset

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Return the observations after new episodes have begun, everywhere or where
        `options["reset_mask"]` holds.

        With a seed, everything random begins anew, so it cannot be combined with a mask.
        """
        mask = _reset_mask(options)
        observation = self.simulator.reset(seed=seed, mask=mask)
        super().reset(seed=None if seed is None else int(seed))
        self._ended = np.zeros(self.num_envs, np.bool_) if mask is None else self._ended & ~mask
        return to_numpy(observation, flat=self.flat), {}

    def step(
        self, actions: Any
    ) -> tuple[
        Observation, NDArray[np.float32], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]
    ]:
        """Return observations, rewards, terminations, truncations and infos after one decision of
        every drone.

        Raises:
            ActionError: the actions have the wrong shape or are not finite, or, in the mode
                DISABLED, an ended drone has not been reset; nothing has moved.
        """
        waiting = self._ended
        if waiting.any():
            if self.autoreset_mode is AutoresetMode.DISABLED:
                raise ActionError(
                    f"the episodes of drones {np.flatnonzero(waiting)[:10].tolist()} have "
                    "ended; expected a reset "
                    "before the next step: call reset(options={'reset_mask': terminated | "
                    "truncated})"
                )
            result = self.simulator.step(_without_rows(actions, waiting))
            self._begin_next_episodes(result, waiting)
        else:
            result = self.simulator.step(actions)
        done = result.done.numpy()
        if self.autoreset_mode is not AutoresetMode.SAME_STEP:
            self._ended = done.copy()
        return (
            to_numpy(result.observation, flat=self.flat),
            result.reward.numpy(),
            result.terminated.numpy(),
            result.truncated.numpy(),
            self._info(result, done) if done.any() else {},
        )

    def render(self) -> tuple[NDArray[np.uint8], ...] | None:
        """Return a picture of each drone, (180, 320, 3), or None without a render mode."""
        if self.render_mode is None:
            return None
        return tuple(self._camera.picture(drone) for drone in range(self.num_envs))

    def _begin_next_episodes(self, result: Step, waiting: NDArray[np.bool_]) -> None:
        """Begin the next episode of waiting drones, and make their rows of the result those of a
        reset.
        """
        first = self.simulator.reset(mask=waiting)
        rows = torch.from_numpy(np.flatnonzero(waiting))
        for name, part in result.observation.items():
            part[rows] = first[name][rows]
        result.reward[rows] = 0.0
        result.terminated[rows] = False
        result.truncated[rows] = False

    def _info(self, result: Step, done: NDArray[np.bool_]) -> dict[str, Any]:
        """Return the infos of a step in which episodes ended, in the form of Gymnasium's
        SyncVectorEnv.
        """
        info = {
            self.statistics_key: _masked_statistics(result.statistics.numpy(), done),
            f"_{self.statistics_key}": done.copy(),
        }
        if self.autoreset_mode is not AutoresetMode.SAME_STEP:
            return info
        final = to_numpy(result.final_observation, flat=self.flat)
        final_observations = np.full(self.num_envs, None, dtype=object)
        for drone in np.flatnonzero(done).tolist():
            final_observations[drone] = row_of(final, drone)
        return {
            "final_obs": final_observations,
            "_final_obs": done.copy(),
            "final_info": info,
            "_final_info": done.copy(),
        }


class NavigationSingleEnv(gymnasium.Env):  # type: ignore[misc]
    """One drone as a Gymnasium environment: for checkers, demonstrations and code that knows
    nothing else.

    Training is much faster with all drones in one `NavigationVectorEnv`. Without a seed, every copy
    flies differently until `reset(seed=...)`. The statistics of an ended episode are in
    `info["flight"]`. The arguments are those of `NavigationVectorEnv`.

    >>> from navrl.adapters.gymnasium import NavigationSingleEnv
    >>> drone = NavigationSingleEnv({"env": {"num_worlds": 1}})
    >>> observation, info = drone.reset(seed=1)
    >>> observation["state"].shape
    (8,)
    """

    # Gymnasium declares it so; every environment has its own with the speed of its decisions.
    metadata: dict[str, Any] = {"render_modes": [*RENDER_MODES], "render_fps": 12}  # noqa: RUF012

    def __init__(
        self,
        settings: TaskSettings = None,
        *,
        seed: int | None = None,
        flat: bool = False,
        statistics_key: str = STATISTICS_KEY,
        render_mode: str | None = None,
    ) -> None:
        self.render_mode = checked_render_mode(render_mode)
        first_seed = int(self.np_random.integers(2**63)) if seed is None else seed
        self.simulator = NavigationEnv(
            with_num_envs(settings, 1), seed=first_seed, auto_reset=False
        )
        self.flat = flat
        self.statistics_key = statistics_key
        self.observation_space = observation_space_of(self.simulator, flat=flat)
        self.action_space = action_space_of(self.simulator)
        self.metadata = render_metadata(self.simulator)
        self._camera = ChaseCamera(self.simulator)

    def render(self) -> NDArray[np.uint8] | None:
        """Return a picture of the drone, (360, 640, 3), or None without a render mode."""
        return None if self.render_mode is None else self._camera.picture()

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Return the first observation of a new episode."""
        _refuse_unknown(options, known=())
        observation = self.simulator.reset(seed=seed)
        super().reset(seed=None if seed is None else int(seed))
        return row_of(to_numpy(observation, flat=self.flat), 0), {}

    def step(self, action: Any) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Return observation, reward, terminated, truncated and info after one decision.

        Raises:
            ActionError: the action has the wrong shape or is not finite; the drone has not moved.
        """
        result = self.simulator.step([action])  # type: ignore[arg-type]
        terminated, truncated = bool(result.terminated[0]), bool(result.truncated[0])
        info = {self.statistics_key: statistics_of(result, 0)} if terminated or truncated else {}
        observation = row_of(to_numpy(result.observation, flat=self.flat), 0)
        return observation, float(result.reward[0]), terminated, truncated, info


def register() -> None:
    """Register ENVIRONMENT_ID with Gymnasium; importing this module has done so."""
    register_in(gymnasium.envs.registration)


def make_recorded(settings: Mapping[str, Any], **options: Any) -> gymnasium.Env:
    """Return the environment of a task; Gymnasium makes the same one from its `spec`.

    Raises:
        ConfigError: a setting is unknown or impossible.
    """
    known = gymnasium.spec(ENVIRONMENT_ID)
    return gymnasium.make(
        known,
        settings={name: dict(group) for name, group in settings.items()},
        disable_env_checker=True,
        **options,
    )


# ---------------------------------------------------------------------- spaces


def action_space_of(simulator: NavigationEnv) -> Box:
    """Return the space of one drone's action: a velocity in m/s."""
    limit = simulator.settings.env.action_limit
    return Box(-limit, limit, (3,), np.float32)


def observation_space_of(simulator: NavigationEnv, *, flat: bool) -> Box | Dict:
    """Return the space of one drone's observation: a Dict of boxes, or one Box that joins them."""
    boxes = {part.name: Box(*part.bounds(), dtype=np.float32) for part in simulator.layout.parts}
    if not flat:
        return Dict(boxes)
    low = np.concatenate([box.low.ravel() for box in boxes.values()])
    high = np.concatenate([box.high.ravel() for box in boxes.values()])
    return Box(low, high, dtype=np.float32)


# ---------------------------------------------------------------------- from and to the simulator


def with_num_envs(settings: TaskSettings, num_envs: int | None) -> NavigationSettings | None:
    """Return the settings for another number of drones, as a copy, or as they are for None."""
    if isinstance(settings, Mapping):
        settings = NavigationSettings.from_mapping(settings)
    if num_envs is None:
        return settings
    changed = copy.deepcopy(settings) if settings is not None else NavigationSettings()
    changed.env.num_envs = num_envs
    return changed


def to_numpy(observation: Mapping[str, Tensor], *, flat: bool) -> Observation:
    """Return an observation of all drones as arrays, or joined to one array; views wherever
    possible.
    """
    if flat:
        return torch.cat([observation[name].flatten(1) for name in PACKED_ORDER], dim=1).numpy()
    return {name: part.numpy() for name, part in observation.items()}


def row_of(observation: Observation, drone: int) -> Observation:
    """Return what one drone sees, of an observation of all."""
    if isinstance(observation, dict):
        return {name: part[drone] for name, part in observation.items()}
    return observation[drone]


def statistics_of(result: Step, drone: int) -> dict[str, float]:
    """Return the statistics of the episode of a drone that has just ended, by name."""
    values = dict(zip(STATISTICS, result.statistics[drone].tolist(), strict=True))
    return {**values, **{short: values[name] for short, name in SHORT_NAMES.items()}}


def _masked_statistics(
    statistics: NDArray[np.float32], done: NDArray[np.bool_]
) -> dict[str, NDArray[Any]]:
    """Return the statistics of ended episodes by name, (N,) each and 0 elsewhere, with a mask for
    each.
    """
    columns = {
        name: np.where(done, statistics[:, column], 0) for column, name in enumerate(STATISTICS)
    }
    columns |= {short: columns[name].copy() for short, name in SHORT_NAMES.items()}
    return {**columns, **{f"_{name}": done.copy() for name in columns}}


def _without_rows(actions: Any, ignored: NDArray[np.bool_]) -> Any:
    """Return a copy of the actions with zeros in ignored rows; what is no batch of actions stays
    for the simulator.
    """
    try:
        array = np.array(actions, np.float32)
    except (TypeError, ValueError):
        return actions
    if array.shape == (len(ignored), 3):
        array[ignored] = 0.0
    return array


def _checked_mode(mode: AutoresetMode | str) -> AutoresetMode:
    try:
        return AutoresetMode(mode)
    except ValueError as error:
        choices = ", ".join(f"AutoresetMode.{choice.name}" for choice in AutoresetMode)
        raise ConfigError(f"autoreset_mode is {mode!r}; expected one of {choices}") from error


def _reset_mask(options: Mapping[str, Any] | None) -> NDArray[np.bool_] | None:
    """Return the mask in the options of a reset, or None for all drones."""
    _refuse_unknown(options, known=("reset_mask",))
    mask = (options or {}).get("reset_mask")
    return None if mask is None else np.asarray(mask)


def _refuse_unknown(options: Mapping[str, Any] | None, known: tuple[str, ...]) -> None:
    for name in options or {}:
        if name not in known:
            expected = " or ".join(repr(choice) for choice in known) or "none"
            raise ConfigError(
                f"unknown option {name!r} of reset; expected {expected}.{nearest_name(name, known)}"
            )


register()
