"""The simulator as a VecEnv of Stable-Baselines3: all drones in one process, which is what makes it
fast.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from navrl.errors import ConfigError, missing_extra
from navrl.sim.env import NavigationEnv
from navrl.sim.step import Step

try:
    from stable_baselines3.common.vec_env import VecEnv
    from stable_baselines3.common.vec_env.base_vec_env import VecEnvIndices
except ImportError as error:
    what = f"{__name__} needs stable-baselines3 ({error})"
    raise missing_extra(what, "gymnasium", "stable-baselines3") from error

from navrl.adapters.gymnasium import (
    Observation,
    TaskSettings,
    action_space_of,
    observation_space_of,
    row_of,
    statistics_of,
    to_numpy,
    with_num_envs,
)
from navrl.adapters.rendering import ChaseCamera, checked_render_mode, render_metadata


class NavigationVecEnv(VecEnv):  # type: ignore[misc]
    """All drones of a simulator as one environment for the algorithms of Stable-Baselines3.

    Use `MultiInputPolicy`, or with `flat` `MlpPolicy`. The info of a drone whose episode ended has
    `terminal_observation`, `TimeLimit.truncated`, `is_success` (it came within 0.5 m of the goal),
    and `episode`: every name of `navrl.sim.episode_statistics.STATISTICS`, and `r` and `l`, so
    that no Monitor is needed.

    Methods and attributes for "each environment" (`env_method`, `get_attr`, `set_attr`) are those
    of the one `simulator`, which all drones share: `env_method("set_world_probabilities", chances)`
    calls it once.

    With `render_mode="rgb_array"` and at most 64 drones, `render()` and `VecVideoRecorder` work.

    >>> from navrl.adapters.stable_baselines3 import NavigationVecEnv
    >>> drones = NavigationVecEnv({"env": {"num_worlds": 1}}, num_envs=4)
    >>> drones.reset()["lidar"].shape
    (4, 1, 36, 4)
    """

    def __init__(
        self,
        settings: TaskSettings = None,
        *,
        seed: int = 0,
        flat: bool = False,
        num_envs: int | None = None,
        render_mode: str | None = None,
    ) -> None:
        self.simulator = NavigationEnv(with_num_envs(settings, num_envs), seed=seed)
        self._render_mode = checked_render_mode(render_mode, self.simulator.num_envs)
        self._camera = ChaseCamera(self.simulator, width=320, height=180)
        self.flat = flat
        self._actions: Any = None
        spaces = observation_space_of(self.simulator, flat=flat), action_space_of(self.simulator)
        super().__init__(self.simulator.num_envs, *spaces)
        self.metadata |= {"render_fps": render_metadata(self.simulator)["render_fps"]}

    def reset(self) -> Observation:
        """Return the first observations of new episodes; a seed given to `seed()` is used once.

        Raises:
            ConfigError: options were given to `set_options()`; there are none.
        """
        unknown = next((name for options in self._options for name in options), None)
        if unknown is not None:
            self._reset_options()
            raise ConfigError(
                f"unknown option {unknown!r} of reset; expected none: all drones begin anew"
            )
        observation = self.simulator.reset(seed=self._seeds[0])
        self.reset_infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        self._reset_seeds()
        self._reset_options()
        return to_numpy(observation, flat=self.flat)

    def step_async(self, actions: Any) -> None:
        """Take the actions of the step that `step_wait` makes."""
        self._actions = actions

    def step_wait(
        self,
    ) -> tuple[Observation, NDArray[np.float32], NDArray[np.bool_], list[dict[str, Any]]]:
        """Return observations, rewards, dones and infos; where an episode ended, the observation is
        the next one's.

        Raises:
            ActionError: the actions have the wrong shape or are not finite; nothing has moved.
        """
        result = self.simulator.step(self._actions)
        done = result.done.numpy()
        return (
            to_numpy(result.observation, flat=self.flat),
            result.reward.numpy(),
            done,
            self._infos(result, done),
        )

    def get_images(self) -> list[NDArray[np.uint8]]:
        """Return a picture of each drone, (180, 320, 3)."""
        return [self._camera.picture(drone) for drone in range(self.num_envs)]

    def close(self) -> None:
        """Do nothing: the simulator holds no resources but memory."""

    def get_attr(self, attr_name: str, indices: VecEnvIndices = None) -> list[Any]:
        """Return an attribute of the simulator, or the `render_mode`, once for each index."""
        drawn = attr_name == "render_mode"
        value = self._render_mode if drawn else getattr(self.simulator, attr_name)
        return [value for _ in self._get_indices(indices)]

    def set_attr(self, attr_name: str, value: Any, indices: VecEnvIndices = None) -> None:
        """Set an attribute of the simulator; indices must be None, since all drones share it."""
        self._refuse_indices(f"set_attr({attr_name!r})", indices)
        setattr(self.simulator, attr_name, value)

    def env_method(
        self,
        method_name: str,
        *method_args: Any,
        indices: VecEnvIndices = None,
        **method_kwargs: Any,
    ) -> list[Any]:
        """Call a method of the simulator once; return its result, once for each drone."""
        self._refuse_indices(f"env_method({method_name!r})", indices)
        value = getattr(self.simulator, method_name)(*method_args, **method_kwargs)
        return [value for _ in range(self.num_envs)]

    def env_is_wrapped(self, wrapper_class: type, indices: VecEnvIndices = None) -> list[bool]:
        """Return False for each index: there are no Gymnasium wrappers inside."""
        return [False for _ in self._get_indices(indices)]

    def _infos(self, result: Step, done: NDArray[np.bool_]) -> list[dict[str, Any]]:
        infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        if done.any():
            final = to_numpy(result.final_observation, flat=self.flat)
            for drone in np.flatnonzero(done).tolist():
                episode = statistics_of(result, drone)
                infos[drone] = {
                    "terminal_observation": row_of(final, drone),
                    "TimeLimit.truncated": bool(result.truncated[drone]),
                    "is_success": episode["success_050"] > 0,
                    "episode": episode,
                }
        return infos

    def _refuse_indices(self, subject: str, indices: VecEnvIndices) -> None:
        if indices is not None and list(self._get_indices(indices)) != list(range(self.num_envs)):
            raise ConfigError(
                f"{subject} is asked for some drones, indices {indices}; expected None: all "
                "drones share one simulator"
            )
