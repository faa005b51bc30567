"""The saved state of an environment: what it holds, and whether one fits.

A state that does not fit is refused before anything changes. The kernel trusts its arrays: an index
out of range, or a NaN, must never reach them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from navrl.errors import StateError, shown
from navrl.sim.drone_batch import DroneBatch
from navrl.sim.kernels.layout import DELAY, OUTCOME, TIME_OUT, WORLD
from navrl.sim.kernels.parameters import lidar_interval
from navrl.sim.settings import EARLIER

__all__ = ["check_state", "saved_arrays"]

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
LIMITS = {"half": 1, "time": 2**62, "seed": 2**63 - 1, "started": 1}  # of the numbers beside them
UNSAVED_SETTINGS = {
    "sim.num_threads",
    "drone.robot",
}  # that may differ: results do not depend on them


def saved_arrays(batch: DroneBatch) -> dict[str, NDArray[Any]]:
    """Return the arrays that change while drones fly."""
    delayed = ("observed",) if batch.settings.sensor.observation_delay else ()
    held = ("scans",) if lidar_interval(batch.settings) > 1 else ()
    return {name: batch.arrays[name] for name in (*SAVED, *delayed, *held)}


def check_state(batch: DroneBatch, state: Any) -> None:
    """Raise a StateError that says why a state does not fit an environment."""
    names = {*saved_arrays(batch), *LIMITS, "settings"}
    if not isinstance(state, Mapping) or set(state) != names:
        found = set(state) if isinstance(state, Mapping) else set()
        missing, extra = sorted(names - found), sorted(found - names, key=str)
        raise StateError(
            f"environment state lacks {missing or 'nothing'} and has unknown {extra or 'nothing'}"
        )
    _check_settings(batch, state["settings"])
    for name, array in saved_arrays(batch).items():
        _check_array(name, state[name], array)
    for name, limit in LIMITS.items():
        value = state[name]
        if not isinstance(value, bool if name == "started" else int) or not 0 <= value <= limit:
            raise StateError(f"{name} is {shown(value)} in the state; expected 0 to {limit}")
    _check_counters(batch, state["counters"])


def _check_settings(batch: DroneBatch, settings: Any) -> None:
    if not isinstance(settings, Mapping):
        raise StateError(
            f"settings of the state are a {type(settings).__name__}; expected a mapping"
        )
    for group, values in batch.settings.as_dict().items():
        for name, ours in values.items():
            key = f"{group}.{name}"
            theirs = settings.get(group, {}).get(name, EARLIER.get(key))
            if key not in UNSAVED_SETTINGS and theirs != ours:
                raise StateError(
                    f"the state was saved with {key} = {theirs!r}, this environment has {ours!r}"
                )


def _check_array(name: str, value: Any, array: NDArray[Any]) -> None:
    if not isinstance(value, Tensor):
        raise StateError(
            f"{name} is {type(value).__name__} in the state; expected {array.dtype} {array.shape}"
        )
    if tuple(value.shape) != array.shape or value.cpu().numpy().dtype != array.dtype:
        raise StateError(
            f"{name} is {value.dtype} {tuple(value.shape)} in the state; expected {array.dtype} "
            f"{array.shape}"
        )
    if np.issubdtype(array.dtype, np.floating) and not bool(torch.isfinite(value).all()):
        raise StateError(
            f"{name} holds NaN or infinite values in the state; expected finite numbers"
        )


def _check_counters(batch: DroneBatch, counters: Tensor) -> None:
    highest = {
        WORLD: len(batch.pool.worlds) - 1,
        OUTCOME: TIME_OUT,
        DELAY: batch.settings.drone.delay,
    }
    too_high = any((counters[:, column] > limit).any() for column, limit in highest.items())
    if too_high or (counters < 0).any():
        raise StateError(
            "counters of the state name worlds, endings or delays that this environment does not "
            "have"
        )
