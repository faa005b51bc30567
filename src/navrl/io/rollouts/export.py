"""Stored rollouts for other tools: episodes as a Minari dataset (HDF5), or one row a step as
Parquet.
"""

from __future__ import annotations

import math
import os
import re
import secrets
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from navrl.errors import ConfigError, ContainerError, RolloutError, missing_extra
from navrl.io.container.atomic_files import make_folder, sync_file, sync_folder, sync_tree
from navrl.io.rollouts.rollout_layout import RolloutInfo, array_names
from navrl.io.rollouts.storage import RolloutStorage

__all__ = ["Experience", "export_minari", "export_parquet", "read_experience"]

_DATASET = re.compile(r"(?:[A-Za-z0-9][\w.-]*/)*[A-Za-z0-9][\w.-]*-v\d+")
_ROW_GROUP = 1 << 14
# Where the parts of a step are looked for: as navrl's training names them, then as TorchRL does.
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
    next_observation: Any | None  # what each step led to
    last_observation: Any | None  # (N, ...) what the last step led to

    @property
    def ended(self) -> np.ndarray[Any, Any]:
        """Where an episode ended, (N, T)."""
        return self.terminated | self.truncated

    def episodes(self) -> Iterator[tuple[int, int, int]]:
        """Yield (environment, first step, step after the last) of every episode, or part of one, in
        the rollout.
        """
        for env, ended in enumerate(self.ended):
            start = 0
            for stop in [*(np.flatnonzero(ended) + 1).tolist(), len(ended)]:
                if stop > start:
                    yield env, start, stop
                start = stop

    def after(self, env: int, stop: int) -> Any:
        """Return what the step before `stop` led to; where nobody stored it, the last that was seen
        before.
        """
        if self.next_observation is not None:
            return _map(lambda array: array[env, stop - 1], self.next_observation)
        if (
            stop == self.reward.shape[1]
            and self.last_observation is not None
            and not self.ended[env, stop - 1]
        ):
            return _map(lambda array: array[env], self.last_observation)
        return _map(lambda array: array[env, stop - 1], self.observation)


def read_experience(storage: RolloutStorage, iteration: int) -> Experience:
    """Return a stored rollout by the roles of its arrays, which are known by their names.

    Raises:
        RolloutError: it has no observation, action or reward.
    """
    info = storage.info(iteration)
    turn = info.time_first
    data = _numpy(storage.load(iteration))
    found = {
        role: next((part for name in names if (part := _at(data, name)) is not None), None)
        for role, names in _NAMES.items()
    }
    for role in ("observation", "action", "reward"):
        if found[role] is None:
            known = ", ".join(name for name, _ in array_names(data))
            raise RolloutError(
                f"rollout {iteration} has no {role}: none of {', '.join(_NAMES[role])} among "
                f"{known}"
            )

    for role, part in found.items():
        _check_part(info, role, part)

    def steps(role: str) -> Any:
        part = found[role]
        return (
            part if part is None or not turn else _map(lambda array: np.swapaxes(array, 0, 1), part)
        )

    reward = _flat(steps("reward"))
    terminated, truncated, ended, cut = (
        _flag(steps(role), reward) for role in ("terminated", "truncated", "ended", "cut_value")
    )
    if found["truncated"] is None:
        truncated = ended & cut  # training notes a value only where a time limit cut the episode
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


def _check_part(info: RolloutInfo, role: str, part: Any) -> None:
    """Raise `RolloutError` unless every array of a part has the environments and steps of the
    rollout.
    """
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


def export_minari(
    storage: RolloutStorage,
    root: str | os.PathLike[str],
    dataset_id: str = "navrl/rollouts-v0",
    *,
    iterations: Sequence[int] | None = None,
    description: str = "",
    environment: Any = None,
) -> Path:
    """Write rollouts as a Minari dataset, cut into episodes, and return its folder
    `ROOT/DATASET_ID/data`.

    With `MINARI_DATASETS_PATH=ROOT`, `minari.load_dataset(dataset_id)` loads it. An episode that
    began before its rollout or goes on after it is there in part; its last step is then marked as
    truncated. A Minari episode ends with one more observation: where the rollout does not have it,
    as where a new episode began at once, the last one is repeated. Actions of navrl's training,
    which are in the unit cube, become the velocities in m/s that the environment takes.

    Args:
        storage: of the rollouts.
        root: the folder of Minari's datasets.
        dataset_id: the name of the dataset.
        iterations: which rollouts; all by default.
        description: of the dataset.
        environment: a Gymnasium environment of the task. The dataset gets its spaces, and its
            `spec`, so that `dataset.recover_environment()` makes it again.

    Raises:
        ConfigError: the dataset is there already, its name is none, or the environment is of
            another task.
        MissingExtraError: minari or h5py is not installed.
    """
    try:
        import h5py  # noqa: F401 - minari fails later, and less clearly
        from minari.data_collector import EpisodeBuffer
        from minari.dataset.minari_storage import MinariStorage
    except ImportError as error:
        raise missing_extra("Minari datasets need minari and h5py", "rollouts") from error
    if not _DATASET.fullmatch(dataset_id):
        raise ConfigError(
            f"dataset_id is {dataset_id!r}; expected a name such as navrl/rollouts-v0"
        )
    root = Path(root).absolute()  # h5py and Minari resolve relative ones differently
    chosen = _iterations(storage, iterations)
    first = _for_environment(storage, chosen[0])
    observed, acted, spec = _spaces(first, storage.info(chosen[0]).metadata, environment)
    with _whole_folder(root / dataset_id) as folder:
        target = MinariStorage.new(
            folder / "data", observed, acted, env_spec=spec, data_format="hdf5", jpeg_encoding=False
        )
        for iteration in chosen:
            episodes = _minari_episodes(_for_environment(storage, iteration))
            target.update_episodes(EpisodeBuffer(**episode) for episode in episodes)
        target.update_metadata(
            {
                "dataset_id": dataset_id,
                "minari_version": _minari_version(),
                "algorithm_name": "navrl",
                "description": description
                or f"rollouts of the iterations {', '.join(map(str, chosen))}",
            }
        )
    return root / dataset_id / "data"


def export_parquet(
    storage: RolloutStorage,
    path: str | os.PathLike[str],
    *,
    iterations: Sequence[int] | None = None,
) -> Path:
    """Write rollouts as one Parquet file, one row a step, and return its path; arrays with
    environments and steps only.

    Columns are `iteration`, `environment`, `step`, and the arrays by their names
    (`observation/lidar`); those with more axes are lists of fixed length, whose shape is in the
    metadata of the file, as JSON under `navrl_shapes`.

    Raises:
        MissingExtraError: pyarrow is not installed.
        ConfigError: an array has an element type that Parquet lacks.
    """
    try:
        import pyarrow.parquet as parquet
    except ImportError as error:
        raise missing_extra("Parquet files need pyarrow", "rollouts") from error
    path = Path(path)
    make_folder(path.parent)
    scratch = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    writer = None
    try:
        for iteration in _iterations(storage, iterations):
            table = _table(storage, iteration)
            writer = writer or parquet.ParquetWriter(
                scratch, table.schema, compression="zstd", use_dictionary=False
            )
            if table.schema != writer.schema:
                raise ConfigError(
                    f"rollout {iteration} has other arrays than those before it; export it into "
                    "another file"
                )
            writer.write_table(table, row_group_size=_ROW_GROUP)
        if writer is not None:
            writer.close()
        sync_file(scratch)
        scratch.replace(path)
    finally:
        scratch.unlink(missing_ok=True)
    sync_folder(path.parent)
    return path


def _table(storage: RolloutStorage, iteration: int) -> Any:
    import json

    import pyarrow

    info = storage.info(iteration)
    names = [name for name, key in info.keys.items() if key.by_rows]
    data = _numpy(storage.load(iteration, keys=[tuple(name.split("/")) for name in names]))
    env, step = np.divmod(np.arange(info.envs * info.steps), info.steps)
    columns = {"iteration": np.full(env.size, iteration), "environment": env, "step": step}
    arrays = {name: pyarrow.array(values) for name, values in columns.items()}
    shapes = {}
    axes = (info.steps, info.envs) if info.time_first else (info.envs, info.steps)
    for name in names:
        array = _at(data, name)
        if not isinstance(array, np.ndarray) or array.shape[:2] != axes:
            raise ContainerError(
                f"{info.path}: {name} is no array of environments and steps; the file is damaged"
            )
        array = np.swapaxes(array, 0, 1) if info.time_first else array
        if array.dtype.kind == "c":
            raise ConfigError(f"{name} is {array.dtype}; Parquet has no complex numbers")
        shapes[name] = list(array.shape[2:])
        if 0 in shapes[name]:
            continue  # nothing in it, and Parquet has no lists of no elements
        flat = pyarrow.array(np.ascontiguousarray(array).reshape(-1))
        arrays[name] = (
            flat
            if array.ndim == 2
            else pyarrow.FixedSizeListArray.from_arrays(flat, int(np.prod(array.shape[2:])))
        )
    table = pyarrow.table(arrays)
    return table.replace_schema_metadata({"navrl_shapes": json.dumps(shapes)})


def _for_environment(storage: RolloutStorage, iteration: int) -> Experience:
    """Return a rollout with the actions that the environment takes."""
    experience = read_experience(storage, iteration)
    limit = storage.info(iteration).metadata.get("action_limit")
    if limit is None or isinstance(experience.action, dict):
        return experience
    return replace(experience, action=experience.action * np.float32(2 * limit) - np.float32(limit))


def _spaces(
    experience: Experience, metadata: Mapping[str, Any], environment: Any
) -> tuple[Any, Any, Any]:
    """Return the spaces of observations and actions, and the environment's spec or None."""
    from gymnasium.spaces import Box

    observed, acted = _space(experience.observation), _space(experience.action)
    limit = metadata.get("action_limit")
    if limit is not None and isinstance(acted, Box):
        acted = Box(-limit, limit, acted.shape, acted.dtype)
    if environment is None:
        return observed, acted, None
    for name, found, expected in (
        ("observations", observed, environment.observation_space),
        ("actions", acted, environment.action_space),
    ):
        if _shapes(found) != _shapes(expected):
            raise ConfigError(
                f"the rollouts have {name} of {_shapes(found)}, the environment has "
                f"{_shapes(expected)}; expected the "
                "environment that they were collected in"
            )
    return environment.observation_space, environment.action_space, environment.spec


def _shapes(space: Any) -> Any:
    inner = getattr(space, "spaces", None)
    return space.shape if inner is None else {key: _shapes(inner[key]) for key in sorted(inner)}


def _minari_episodes(experience: Experience) -> Iterator[dict[str, Any]]:
    """Yield every episode as Minari wants it."""
    for env, start, stop in experience.episodes():
        seen = _map(
            lambda array, env=env, start=start, stop=stop: array[env, start:stop],
            experience.observation,
        )
        truncated = experience.truncated[env, start:stop].copy()
        truncated[-1] |= not experience.terminated[env, stop - 1]
        yield {
            "observations": _joined(seen, experience.after(env, stop)),
            "actions": _map(
                lambda array, env=env, start=start, stop=stop: array[env, start:stop],
                experience.action,
            ),
            "rewards": experience.reward[env, start:stop],
            "terminations": experience.terminated[env, start:stop],
            "truncations": truncated,
        }


def _joined(seen: Any, last: Any) -> Any:
    if isinstance(seen, dict):
        return {key: _joined(part, last[key]) for key, part in seen.items()}
    return np.concatenate([seen, np.asarray(last, seen.dtype)[None]])


def _space(part: Any) -> Any:
    """Return the Gymnasium space of arrays (N, T, ...)."""
    from gymnasium import spaces

    if isinstance(part, dict):
        return spaces.Dict({key: _space(inner) for key, inner in part.items()})
    if part.dtype.kind == "f":
        low, high = -np.inf, np.inf
    elif part.dtype.kind == "b":
        low, high = 0, 1
    else:
        low, high = np.iinfo(part.dtype).min, np.iinfo(part.dtype).max
    return spaces.Box(low, high, part.shape[2:], part.dtype)


def _minari_version() -> str:
    import importlib.metadata

    return importlib.metadata.version("minari")


@contextmanager
def _whole_folder(path: Path) -> Iterator[Path]:
    """Give a folder to fill that gets its name when it is complete."""
    if path.exists():
        raise ConfigError(f"{path} is there already; name another dataset, or remove it")
    make_folder(path.parent)
    scratch = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    scratch.mkdir()
    try:
        yield scratch
        sync_tree(scratch)
        scratch.rename(path)
        sync_folder(path.parent)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _iterations(storage: RolloutStorage, iterations: Sequence[int] | None) -> list[int]:
    chosen = storage.list() if iterations is None else [*iterations]
    if not chosen:
        raise RolloutError(f"{storage.folder}: no rollouts to export")
    return chosen


def _numpy(data: Any) -> Any:
    """Return nested dicts, or TensorDicts, of NumPy arrays; what NumPy has no type for is
    widened.
    """
    if hasattr(data, "to_dict") and not isinstance(data, dict):
        data = data.to_dict()
    if isinstance(data, Mapping):
        return {key: _numpy(value) for key, value in data.items()}
    if isinstance(data, torch.Tensor):
        return (data.float() if data.dtype is torch.bfloat16 else data).numpy()
    return data


def _map(function: Any, part: Any) -> Any:
    return (
        {key: _map(function, inner) for key, inner in part.items()}
        if isinstance(part, dict)
        else function(part)
    )


def _at(data: Any, name: str) -> Any:
    for key in name.split("/"):
        if not isinstance(data, dict) or key not in data:
            return None
        data = data[key]
    return data


def _flat(array: Any) -> Any:
    """Return a number for each step, (N, T), without the further axis of one that TorchRL gives
    it.
    """
    return array.reshape(array.shape[:2]) if array.size == np.prod(array.shape[:2]) else array


def _flag(array: Any, reward: Any) -> Any:
    return np.zeros(reward.shape, bool) if array is None else _flat(array) != 0
