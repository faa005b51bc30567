"""Checks of what callers pass to the simulator; nothing moves before they have passed."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from navrl.errors import ActionError, ConfigError, shown
from navrl.sim.kernels.step_kernel import first_bad_action
from navrl.sim.step import Step

FASTEST = 1e6  # m/s: no action may exceed it
FARTHEST = 1e4  # m: no drone may be placed farther out


def checked_seed(seed: int) -> int:
    """Return a seed as an int, or raise a ConfigError."""
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or not 0 <= seed < 2**63:
        raise ConfigError(f"seed is {shown(seed)}; expected a whole number from 0 to 2**63 - 1")
    return int(seed)


def checked_actions(action: Tensor | NDArray[Any], num_envs: int) -> NDArray[np.float32]:
    """Return actions as a contiguous array (N, 3), or raise an ActionError."""
    if isinstance(action, Tensor):
        plain = action.is_cpu and not action.requires_grad
        action = action.numpy() if plain else action.detach().cpu().numpy()
    try:
        if np.iscomplexobj(action):
            raise TypeError("they are complex")
        array = np.ascontiguousarray(action, np.float32)
    except (TypeError, ValueError) as error:
        raise ActionError(
            f"actions of type {type(action).__name__} are not numbers: {error}"
        ) from error
    if array.shape != (num_envs, 3):
        raise ActionError(
            f"actions have shape {array.shape}; expected ({num_envs}, 3), one velocity per drone"
        )
    bad = first_bad_action(array, FASTEST)
    if bad >= 0:
        raise ActionError(
            f"the action of drone {bad} is {array[bad].tolist()}; expected finite velocities in "
            "m/s. No drone has moved: fix the policy's output and step again"
        )
    return array


def checked_step(out: Step, num_envs: int, width: int) -> Step:
    """Return step buffers that fit an environment, or raise an ActionError."""
    if not isinstance(out, Step):
        raise ActionError(f"out is a {type(out).__name__}; expected buffers made with make_step()")
    if out.packed.shape != (num_envs, width) or not out.in_place():
        raise ActionError(
            f"out has buffers of shape {tuple(out.packed.shape)}; expected ({num_envs}, {width}), "
            "not moved since make_step() made them"
        )
    return out


def checked_mask(mask: Tensor | NDArray[np.bool_] | None, num_envs: int) -> NDArray[np.bool_]:
    """Return a copy of a mask (N,), all True for None, or raise an ActionError."""
    if mask is None:
        return np.ones(num_envs, np.bool_)
    array = np.array(mask.cpu().numpy() if isinstance(mask, Tensor) else mask)
    if array.shape != (num_envs,) or array.dtype != np.bool_:
        raise ActionError(
            f"mask has shape {array.shape} and type {array.dtype}; expected ({num_envs},) and bool"
        )
    return array


def checked_points(name: str, values: ArrayLike, num_envs: int) -> NDArray[np.float32]:
    """Return points or velocities as an array (N, 3), or raise an ActionError."""
    array = numbers_of(values)
    fits = array is not None and array.shape in ((3,), (num_envs, 3))
    if array is None or not fits or not (np.abs(array) <= FARTHEST).all():
        short = array is None or array.size < 4
        found = f"{values!r:.60}" if short else f"an array of shape {np.shape(values)}"
        raise ActionError(
            f"{name} is {found}; expected finite numbers of shape (3,) or ({num_envs}, 3), at most "
            f"{FARTHEST:g}"
        )
    return np.ascontiguousarray(np.broadcast_to(array, (num_envs, 3)), np.float32)


def checked_worlds(values: ArrayLike, num_envs: int, num_worlds: int) -> NDArray[np.int32]:
    """Return world numbers as an array (N,), or raise an ActionError."""
    array = numbers_of(values)
    fits = array is not None and array.shape in ((), (num_envs,))
    if array is None or not fits or not np.isin(array, np.arange(num_worlds)).all():
        raise ActionError(
            f"world is {values!r:.60}; expected 0 to {num_worlds - 1}, one number or {num_envs}"
        )
    return np.broadcast_to(array, (num_envs,)).astype(np.int32)


def checked_probabilities(values: ArrayLike, num_worlds: int) -> NDArray[np.float64]:
    """Return the probabilities (W,) of worlds, summing to one, or raise a ConfigError."""
    array = numbers_of(values)
    if array is None:
        raise ConfigError(f"world probabilities are {values!r:.60}; expected {num_worlds} numbers")
    fits = array.shape == (num_worlds,) and np.isfinite(array).all()
    if not fits or array.min() < 0 or array.sum() <= 0:
        raise ConfigError(
            f"world probabilities have shape {array.shape}; expected {num_worlds} numbers, one per "
            "world, at least 0 and not all 0"
        )
    return array / array.sum()


def numbers_of(values: ArrayLike) -> NDArray[np.float64] | None:
    """Return values as an array of numbers, or None if they are not numbers."""
    try:
        return np.asarray(values, np.float64)
    except (TypeError, ValueError, OverflowError):
        return None
