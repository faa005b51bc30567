"""Gymnasium environments under our contract: by their id, or made by the caller."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from navrl.environments.observation_parts import part_of, write_part
from navrl.errors import ConfigError, missing_extra
from navrl.observation import ObservationLayout, Part
from navrl.rl.action_space import ActionSpace, Box, Discrete
from navrl.rl.environment import Environment, EpisodeCounter, Step, check_action

try:
    import gymnasium
    from gymnasium import spaces
    from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
except ImportError as error:
    raise missing_extra(f"{__name__} needs gymnasium ({error})", "gymnasium") from error

__all__ = ["GymnasiumEnvironment", "make_gymnasium"]

SUCCESS = ("is_success", "success")  # what libraries call it in the info of an episode's last step
ALONE = "observation"  # the name of an observation that has only one part


def make_gymnasium(
    make: str | Callable[[], gymnasium.Env], num_envs: int, options: Mapping[str, Any] | None = None
) -> GymnasiumEnvironment:
    """Return so many copies of an environment, stepped one after the other in this process.

    Args:
        make: an id such as `HalfCheetah-v5`, or what makes one environment.
        num_envs: how many.
        options: keyword arguments of the environment.

    Raises:
        ConfigError: there is no such environment, or its spaces are not supported.
    """
    options = dict(options or {})
    if isinstance(make, str):
        identity = make

        def make_one() -> gymnasium.Env:
            return gymnasium.make(identity, **options)
    else:
        factory = make

        def make_one() -> gymnasium.Env:
            return factory(**options)

    try:
        vector = SyncVectorEnv([make_one] * num_envs, autoreset_mode=AutoresetMode.SAME_STEP)
    except gymnasium.error.Error as error:
        told = str(error).rstrip()
        raise ConfigError(
            f"env.id is {make!r}; Gymnasium says: {told}{'' if told.endswith(('.', '?')) else '.'} "
            "Install the package that registers it, or name its module too: env.id=package:Name-v0"
        ) from error
    return GymnasiumEnvironment(vector)


class GymnasiumEnvironment(Environment):
    """A Gymnasium vector environment that begins the next episode in the step that ends one.

    Observations may be boxes, discrete, or dictionaries of them; actions a box of floats or
    discrete. The statistic `success` is `is_success` or `success` of the last step's info, NaN
    where the environment does not say. Episodes cannot be saved, so that resuming begins new ones.
    """

    statistics = ("return", "length", "success")

    def __init__(self, env: VectorEnv) -> None:
        mode = env.metadata.get("autoreset_mode")
        if mode is not AutoresetMode.SAME_STEP:
            raise ConfigError(
                f"the vector environment has autoreset_mode {mode}; expected "
                "gymnasium.vector.AutoresetMode.SAME_STEP, which keeps the last observation"
            )
        self.env = env
        self.num_envs = env.num_envs
        self._leaves = dict(_leaves(env.single_observation_space))
        self.observation = ObservationLayout(
            tuple(_part(name, space) for name, space in self._leaves.items())
        )
        self.action = _action_space(env.single_action_space)
        self._counter = EpisodeCounter(self.num_envs)
        self._rows: Tensor | None = None

    def reset(self, *, seed: int | None = None) -> Tensor:
        """Begin new episodes everywhere, and return their first observations, (N, width)."""
        seen, _ = self.env.reset(seed=seed)
        self._counter.reset()
        self._rows = self._pack(seen, torch.zeros(self.num_envs, self.observation.width))
        return self._rows.clone()

    def step(self, action: Tensor, *, out: Step) -> Step:
        """Take one step everywhere and write what comes of it into `out`."""
        check_action(self, action)
        if self._rows is None:
            self.reset()
        seen, reward, terminated, truncated, info = self.env.step(self._taken(action))
        self._rows = self._pack(seen, out.packed).clone()
        out.reward.copy_(torch.from_numpy(np.asarray(reward)))
        out.terminated.copy_(torch.from_numpy(np.asarray(terminated)))
        out.truncated.copy_(torch.from_numpy(np.asarray(truncated)))
        for number in np.flatnonzero(terminated | truncated).tolist():
            final = _batched(info["final_obs"][number])
            self._pack(final, out.final_packed[number : number + 1])
        self._counter.count(out, _success(info, self.num_envs))
        return out

    def observe(self) -> Tensor:
        """Return the present observations, (N, width), in a new tensor."""
        return self.reset() if self._rows is None else self._rows.clone()

    def close(self) -> None:
        """Close all environments."""
        self.env.close()

    def _taken(self, action: Tensor) -> NDArray[Any]:
        """Return an action as the environment takes it."""
        space = self.env.single_action_space
        array = action.detach().cpu().numpy()
        if isinstance(space, spaces.Discrete):
            return array.astype(space.dtype) + space.start
        return array.reshape(self.num_envs, *space.shape).astype(space.dtype)

    def _pack(self, seen: Any, rows: Tensor) -> Tensor:
        for name, space in self._leaves.items():
            values = seen
            for key in name.split(".") if isinstance(seen, dict) else ():
                values = values[key]
            if isinstance(space, spaces.Discrete):
                values = np.eye(space.n, dtype=np.float32)[np.asarray(values) - space.start]
            write_part(self.observation, name, values, rows)
        return rows


def _leaves(space: spaces.Space, prefix: str = "") -> Iterator[tuple[str, spaces.Space]]:
    """Yield every simple space of nested dictionaries, with its dotted name."""
    if isinstance(space, spaces.Dict):
        for name, inner in space.items():
            yield from _leaves(inner, f"{prefix}.{name}" if prefix else str(name))
    elif isinstance(space, spaces.Box | spaces.Discrete | spaces.MultiBinary):
        yield prefix or ALONE, space
    else:
        raise ConfigError(
            f"observation {prefix or ALONE!r} is a {type(space).__name__}; expected Box, Discrete, "
            "MultiBinary or a Dict of them: gymnasium.wrappers.FlattenObservation makes one Box"
        )


def _part(name: str, space: spaces.Space) -> Part:
    if isinstance(space, spaces.Discrete):
        return Part(name, (int(space.n),), "vector", scaled=True)
    return part_of(name, tuple(space.shape), space.dtype)


def _action_space(space: spaces.Space) -> ActionSpace:
    if isinstance(space, spaces.Discrete):
        return Discrete(int(space.n))
    if isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.floating):
        return Box(
            tuple(space.low.ravel().astype(float).tolist()),
            tuple(space.high.ravel().astype(float).tolist()),
        )
    raise ConfigError(
        f"actions are a {space}; expected Discrete or a Box of floats: wrap the environment in a "
        "gymnasium.ActionWrapper that takes one of these"
    )


def _batched(seen: Any) -> Any:
    """Return the observation of one environment as a batch of one."""
    if isinstance(seen, dict):
        return {name: _batched(value) for name, value in seen.items()}
    return np.asarray(seen)[None]


def _success(info: Mapping[str, Any], count: int) -> Tensor:
    """Return whether the episodes that ended were successes; NaN where nothing says so."""
    final = info.get("final_info", {})
    result = torch.full((count,), torch.nan)
    for name in SUCCESS:
        if name in final:
            said = torch.from_numpy(np.asarray(final[f"_{name}"], dtype=np.bool_))
            result[said] = torch.from_numpy(np.asarray(final[name], dtype=np.float32))[said]
    return result
