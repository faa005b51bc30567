"""A stored rollout by the roles of its arrays: observation, action, reward, episode ends."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from navrl.errors import RolloutError
from navrl.io.rollouts.rollout_keys import array_names, map_arrays
from navrl.io.rollouts.rollout_layout import RolloutInfo
from navrl.io.rollouts.storage import RolloutStorage

__all__ = ["Experience", "array_at", "as_numpy", "read_experience"]

# names of each role: those of navrl's training first, then those of TorchRL
_NAMES = {
    "observation": ("observation", "obs", "agents/observation", "state", "pixels"),
    "next_observation": (
        "next/observation",
        "next/obs",
        "next/agents/observation",
        "next/state",
        "next/pixels",
    ),
    "last_observation": ("last_observation",),
    "action": ("action", "actions", "agents/action"),
    "reward": ("reward", "next/reward", "rewards"),
    "terminated": ("terminated", "next/terminated"),
    "truncated": ("truncated", "next/truncated"),
    "ended": ("ended", "next/done", "done"),
    "cut_value": ("cut_value",),
}


@dataclass(frozen=True)
class Experience:
    """A rollout by the roles of its arrays, environments first, in NumPy."""

    observation: Any  # an array (N, T, ...), or a dict of such
    action: Any
    reward: np.ndarray[Any, Any]  # (N, T)
    terminated: np.ndarray[Any, Any]  # (N, T) bool
    truncated: np.ndarray[Any, Any]  # (N, T) bool
    next_observation: Any | None  # after each step
    last_observation: Any | None  # (N, ...), after the last step

    @property
    def ended(self) -> np.ndarray[Any, Any]:
        """Where an episode ended, (N, T)."""
        return self.terminated | self.truncated

    def episodes(self) -> Iterator[tuple[int, int, int]]:
        """Yield (environment, first step, stop) of every episode, or part of one, in the rollout.

        `stop` is the step after the last.
        """
        for env, ended in enumerate(self.ended):
            start = 0
            for stop in [*(np.flatnonzero(ended) + 1).tolist(), len(ended)]:
                if stop > start:
                    yield env, start, stop
                start = stop

    def after(self, env: int, stop: int) -> Any:
        """Return the observation after the step before `stop`.

        Where it was not stored, the observation before that step is returned.
        """
        if self.next_observation is not None:
            return map_arrays(lambda array: array[env, stop - 1], self.next_observation)
        if (
            stop == self.reward.shape[1]
            and self.last_observation is not None
            and not self.ended[env, stop - 1]
        ):
            return map_arrays(lambda array: array[env], self.last_observation)
        return map_arrays(lambda array: array[env, stop - 1], self.observation)


def read_experience(storage: RolloutStorage, iteration: int) -> Experience:
    """Return a stored rollout by the roles of its arrays, which are found by their names.

    Raises:
        RolloutError: it has no observation, action or reward.
    """
    info = storage.info(iteration)
    turn = info.time_first
    data = as_numpy(storage.load(iteration))
    found = {
        role: next((part for name in names if (part := array_at(data, name)) is not None), None)
        for role, names in _NAMES.items()
    }
    _check_roles(iteration, found, data)
    for role, part in found.items():
        _check_part(info, role, part)

    def steps(role: str) -> Any:
        part = found[role]
        if part is None or not turn:
            return part
        return map_arrays(lambda array: np.swapaxes(array, 0, 1), part)

    reward = _flat(steps("reward"))
    terminated, truncated, ended, cut = (
        _flag(steps(role), reward) for role in ("terminated", "truncated", "ended", "cut_value")
    )
    if found["truncated"] is None:
        truncated = (
            ended & cut
        )  # training stores a value only where a time limit truncated the episode
    if found["terminated"] is None:
        terminated = ended & ~truncated
    return Experience(
        steps("observation"),
        steps("action"),
        reward,
        terminated,
        truncated,
        steps("next_observation"),
        found["last_observation"],
    )


def _check_roles(iteration: int, found: Mapping[str, Any], data: Any) -> None:
    for role in ("observation", "action", "reward"):
        if found[role] is None:
            known = ", ".join(name for name, _ in array_names(data))
            raise RolloutError(
                f"rollout {iteration} has no {role}: none of {', '.join(_NAMES[role])} among "
                f"{known}"
            )


def _check_part(info: RolloutInfo, role: str, part: Any) -> None:
    """Raise `RolloutError` unless every array of a role begins with the rollout's axes."""
    lead: tuple[int, ...] = (info.steps, info.envs) if info.time_first else (info.envs, info.steps)
    if role == "last_observation":
        lead = (info.envs,)
    nested = role.endswith(("observation", "action"))
    arrays = dict(array_names(part)) if nested and isinstance(part, dict) else {"": part}
    for name, array in arrays.items() if part is not None else ():
        fits = isinstance(array, np.ndarray) and array.shape[: len(lead)] == lead
        if not fits or not (nested or array.size == math.prod(lead)):
            where = f"{role}/{name}" if name else role
            found = (
                list(array.shape) if isinstance(array, np.ndarray) else f"a {type(array).__name__}"
            )
            raise RolloutError(
                f"{info.path}: {where} is {found}, expected an array that begins with {list(lead)}"
            )


def as_numpy(data: Any) -> Any:
    """Return nested dicts of NumPy arrays from dicts or TensorDicts.

    bfloat16, which NumPy lacks, becomes float32.
    """
    if hasattr(data, "to_dict") and not isinstance(data, dict):
        data = data.to_dict()
    if isinstance(data, Mapping):
        return {key: as_numpy(value) for key, value in data.items()}
    if isinstance(data, torch.Tensor):
        return (data.float() if data.dtype is torch.bfloat16 else data).numpy()
    return data


def array_at(data: Any, name: str) -> Any:
    """Return what nested dicts hold under a name such as `observation/lidar`, or None."""
    for key in name.split("/"):
        if not isinstance(data, dict) or key not in data:
            return None
        data = data[key]
    return data


def _flat(array: Any) -> Any:
    """Return one number a step, (N, T), without the trailing axis of 1 that TorchRL adds."""
    return array.reshape(array.shape[:2]) if array.size == np.prod(array.shape[:2]) else array


def _flag(array: Any, reward: Any) -> Any:
    return np.zeros(reward.shape, bool) if array is None else _flat(array) != 0
