"""Export stored rollouts: episodes as a Minari dataset (HDF5), or one row a step as Parquet."""

from __future__ import annotations

import os
import re
import secrets
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from navrl.errors import ConfigError, ContainerError, RolloutError, missing_extra
from navrl.io.container.atomic_files import make_folder, sync_file, sync_folder, sync_tree
from navrl.io.rollouts.experience import Experience, array_at, as_numpy, read_experience
from navrl.io.rollouts.rollout_keys import map_arrays
from navrl.io.rollouts.rollout_layout import RolloutInfo
from navrl.io.rollouts.storage import RolloutStorage

__all__ = ["export_minari", "export_parquet"]

_DATASET = re.compile(r"(?:[A-Za-z0-9][\w.-]*/)*[A-Za-z0-9][\w.-]*-v\d+")
_ROW_GROUP = 1 << 14


def export_minari(
    storage: RolloutStorage,
    root: str | os.PathLike[str],
    dataset_id: str = "navrl/rollouts-v0",
    *,
    iterations: Sequence[int] | None = None,
    description: str = "",
    environment: Any = None,
) -> Path:
    """Write rollouts as a Minari dataset, cut into episodes, and return `ROOT/DATASET_ID/data`.

    With `MINARI_DATASETS_PATH=ROOT`, `minari.load_dataset(dataset_id)` loads it. An episode that
    began before its rollout or continues after it is exported in part, with its last step marked as
    truncated. A Minari episode ends with one more observation: where the rollout does not have it,
    because the environment was reset at once, the last one is repeated. Actions of navrl's
    training, which are in the unit cube, become the velocities in m/s that the environment takes.

    Args:
        storage: of the rollouts.
        root: the folder of Minari's datasets.
        dataset_id: the name of the dataset.
        iterations: which rollouts; all by default.
        description: of the dataset.
        environment: a Gymnasium environment of the task. The dataset gets its spaces and its
            `spec`, so that `dataset.recover_environment()` can make it.

    Raises:
        ConfigError: the dataset exists, its name is invalid, or the environment is of another task.
        MissingExtraError: minari or h5py is not installed.
    """
    episode_buffer, minari_storage = _minari_classes()
    if not _DATASET.fullmatch(dataset_id):
        raise ConfigError(
            f"dataset_id is {dataset_id!r}; expected a name such as navrl/rollouts-v0"
        )
    root = Path(root).absolute()  # h5py and Minari resolve relative paths differently
    chosen = _iterations(storage, iterations)
    first = _for_environment(storage, chosen[0])
    observed, acted, spec = _spaces(first, storage.info(chosen[0]).metadata, environment)
    described = description or f"rollouts of the iterations {', '.join(map(str, chosen))}"
    with _whole_folder(root / dataset_id) as folder:
        target = minari_storage.new(
            folder / "data", observed, acted, env_spec=spec, data_format="hdf5", jpeg_encoding=False
        )
        for iteration in chosen:
            episodes = _minari_episodes(_for_environment(storage, iteration))
            target.update_episodes(episode_buffer(**episode) for episode in episodes)
        target.update_metadata(
            {
                "dataset_id": dataset_id,
                "minari_version": _minari_version(),
                "algorithm_name": "navrl",
                "description": described,
            }
        )
    return root / dataset_id / "data"


def _minari_classes() -> tuple[Any, Any]:
    """Return Minari's EpisodeBuffer and MinariStorage."""
    try:
        import h5py  # noqa: F401 - without it minari fails later, and less clearly
        from minari.data_collector import EpisodeBuffer
        from minari.dataset.minari_storage import MinariStorage
    except ImportError as error:
        raise missing_extra("Minari datasets need minari and h5py", "rollouts") from error
    return EpisodeBuffer, MinariStorage


def export_parquet(
    storage: RolloutStorage,
    path: str | os.PathLike[str],
    *,
    iterations: Sequence[int] | None = None,
) -> Path:
    """Write the arrays of rollouts as one Parquet file, one row a step, and return its path.

    Columns are `iteration`, `environment`, `step`, and the arrays with these axes by name
    (`observation/lidar`). Arrays with more axes are lists of fixed length; the file's metadata has
    their shapes as JSON under `navrl_shapes`.

    Raises:
        MissingExtraError: pyarrow is not installed.
        ConfigError: an array has an element type that Parquet lacks.

    >>> import torch, navrl
    >>> from navrl.io.rollouts import export_parquet
    >>> with navrl.RolloutStorage("rollouts") as storage:
    ...     path = storage.save({"reward": torch.ones(4, 32)}, 0)
    >>> export_parquet(storage, "rollouts.parquet").name
    'rollouts.parquet'
    """
    try:
        import pyarrow.parquet  # noqa: F401
    except ImportError as error:
        raise missing_extra("Parquet files need pyarrow", "rollouts") from error
    path = Path(path)
    make_folder(path.parent)
    scratch = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        _write_tables(scratch, storage, _iterations(storage, iterations))
        sync_file(scratch)
        scratch.replace(path)
    finally:
        scratch.unlink(missing_ok=True)
    sync_folder(path.parent)
    return path


def _write_tables(path: Path, storage: RolloutStorage, iterations: Sequence[int]) -> None:
    """Write rollouts as one Parquet file."""
    from pyarrow.parquet import ParquetWriter

    with ExitStack() as stack:
        writer = None
        for iteration in iterations:
            table = _table(storage, iteration)
            if writer is None:
                writer = stack.enter_context(
                    ParquetWriter(path, table.schema, compression="zstd", use_dictionary=False)
                )
            if table.schema != writer.schema:
                raise ConfigError(
                    f"rollout {iteration} has other arrays than those before it; export it into "
                    "another file"
                )
            writer.write_table(table, row_group_size=_ROW_GROUP)


def _table(storage: RolloutStorage, iteration: int) -> Any:
    import json

    import pyarrow

    info = storage.info(iteration)
    names = [name for name, key in info.keys.items() if key.by_rows]
    data = as_numpy(storage.load(iteration, keys=[tuple(name.split("/")) for name in names]))
    env, step = np.divmod(np.arange(info.envs * info.steps), info.steps)
    columns = {"iteration": np.full(env.size, iteration), "environment": env, "step": step}
    arrays = {name: pyarrow.array(values) for name, values in columns.items()}
    shapes = {}
    for name in names:
        array = _by_environment(data, name, info)
        shapes[name] = list(array.shape[2:])
        if 0 in shapes[name]:
            continue  # Parquet has no lists of zero elements
        flat = pyarrow.array(np.ascontiguousarray(array).reshape(-1))
        arrays[name] = (
            flat
            if array.ndim == 2
            else pyarrow.FixedSizeListArray.from_arrays(flat, int(np.prod(array.shape[2:])))
        )
    table = pyarrow.table(arrays)
    return table.replace_schema_metadata({"navrl_shapes": json.dumps(shapes)})


def _by_environment(data: Any, name: str, info: RolloutInfo) -> np.ndarray[Any, np.dtype[Any]]:
    """Return an array of a rollout, (N, T, ...), that Parquet can hold."""
    array = array_at(data, name)
    axes = (info.steps, info.envs) if info.time_first else (info.envs, info.steps)
    if not isinstance(array, np.ndarray) or array.shape[:2] != axes:
        raise ContainerError(
            f"{info.path}: {name} is no array of environments and steps; the file is damaged"
        )
    if array.dtype.kind == "c":
        raise ConfigError(f"{name} is {array.dtype}; Parquet has no complex numbers")
    return np.swapaxes(array, 0, 1) if info.time_first else array


def _for_environment(storage: RolloutStorage, iteration: int) -> Experience:
    """Return a rollout with actions as the environment takes them."""
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
                f"{_shapes(expected)}; pass the environment that they were collected in"
            )
    return environment.observation_space, environment.action_space, environment.spec


def _shapes(space: Any) -> Any:
    inner = getattr(space, "spaces", None)
    return space.shape if inner is None else {key: _shapes(inner[key]) for key in sorted(inner)}


def _minari_episodes(experience: Experience) -> Iterator[dict[str, Any]]:
    """Yield every episode as the arguments of Minari's EpisodeBuffer."""
    for env, start, stop in experience.episodes():

        def cut(array: Any, env: int = env, steps: slice = slice(start, stop)) -> Any:
            return array[env, steps]

        truncated = cut(experience.truncated).copy()
        truncated[-1] |= not experience.terminated[env, stop - 1]
        seen = map_arrays(cut, experience.observation)
        yield {
            "observations": _joined(seen, experience.after(env, stop)),
            "actions": map_arrays(cut, experience.action),
            "rewards": cut(experience.reward),
            "terminations": cut(experience.terminated),
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
    """Yield a temporary folder to fill, which is renamed to `path` at the end."""
    if path.exists():
        raise ConfigError(f"{path} exists; choose another dataset_id, or remove it")
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
