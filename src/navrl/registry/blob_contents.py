"""What a file to be registered holds: a model, a checkpoint, or something else."""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from navrl.errors import ContainerError, RegistryError
from navrl.registry.metric_names import evaluation_metrics

__all__ = ["CHECKPOINT", "FILE", "MODEL", "Contents", "as_one_file", "read_contents"]

MODEL, CHECKPOINT, FILE = "model", "checkpoint", "file"
MODEL_KIND = "navrl.policy"  # navrl.models.KIND, without loading the networks
# bytes of an array that is read: scalars, and bytes that are the key of a dict
_LARGEST_KEY = 1 << 16


@dataclass(frozen=True)
class Contents:
    """What a file says about itself."""

    kind: str
    facts: dict[str, Any] = field(default_factory=dict)  # iteration, frames, seed
    config: dict[str, Any] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    parameters: int = 0  # numbers in the tensors of a model


def read_contents(path: Path, shown: str) -> Contents:
    """Return what a file holds, after verifying every byte; no tensor is loaded.

    Args:
        path: the file.
        shown: how errors call it.

    Raises:
        RegistryError: the file is a damaged container, or holds only differences to another file.
    """
    from navrl.io.checkpoint.checkpoint_file import verify_checkpoint
    from navrl.io.container.index import MAGIC, read_index

    with open(path, "rb") as file:
        if file.read(len(MAGIC)) != MAGIC:
            return Contents(FILE)
    try:
        index = read_index(path)
        if index.document.get("base"):
            raise RegistryError(
                f"{shown} holds only differences to another file; register the output of `navrl "
                f"convert {shown} X.pt` instead"
            )
        verify_checkpoint(path, workers=1)
        state = _state(path, index.document.get("state"))
        contents = _contents(state, sum(math.prod(entry.shape) for entry in index.arrays))
        json.dumps(contents.config)
    except ContainerError as error:
        raise RegistryError(
            f"{shown} is damaged: {str(error).replace(str(path), shown)}"
        ) from error
    except (TypeError, ValueError) as error:
        raise RegistryError(
            f"{shown}: its settings are not plain values: {str(error)[:200]}"
        ) from error
    return contents


@contextmanager
def as_one_file(path: Path) -> Iterator[Path]:
    """Yield the file, or a temporary one that holds a checkpoint of several parts."""
    from navrl.io.checkpoint.conversion import convert_checkpoint
    from navrl.io.checkpoint.parts import parts_of
    from navrl.io.container.index import read_index

    try:
        parts = parts_of(read_index(path)).parts
    except (ContainerError, OSError, ValueError):  # reported when the file is placed and read
        parts = ()
    if not parts:
        yield path
        return
    with tempfile.TemporaryDirectory() as folder:
        try:
            yield convert_checkpoint(path, Path(folder) / path.name, to="navrl")
        except ContainerError as error:
            raise RegistryError(f"{path} is damaged: {error}") from error


def _state(path: Path, tree: Any) -> Any:
    """Return the state of a checkpoint without its tensors.

    NumPy scalars and bytes keep their values: they may be keys of a dict.
    """
    import numpy as np

    from navrl.io.container.container_reader import Container
    from navrl.io.container.element_types import NUMPY_DTYPES
    from navrl.io.container.tree_reader import unpack_state

    nothing = np.zeros((), np.uint8)
    with Container(path) as container:
        entries = container.index.arrays

        def small_array(number: int) -> Any:
            entry = entries[number]
            if entry.size > _LARGEST_KEY or entry.element not in NUMPY_DTYPES:
                return nothing
            (data,) = container.read([entry], [np.empty(entry.size, np.uint8)], workers=1)
            return data.view(NUMPY_DTYPES[entry.element]).reshape(entry.shape)

        return unpack_state(tree, lambda number: None, small_array)


def _contents(state: Any, parameters: int) -> Contents:
    if not isinstance(state, Mapping):
        return Contents(FILE)
    if state.get("kind") == MODEL_KIND:
        card = state["card"] if isinstance(state.get("card"), Mapping) else {}
        config = {
            "network": state.get("network"),
            **(state["task"] if isinstance(state.get("task"), Mapping) else {}),
            **({"env": state["environment"]} if "environment" in state else {}),
        }
        return Contents(MODEL, _facts(card), config, _metrics(card.get("evaluation")), parameters)
    if isinstance(state.get("config"), Mapping) and "ranks" in state:
        config = dict(state["config"])
        return Contents(CHECKPOINT, _facts(state) | _facts(config), config)
    return Contents(FILE)


def _facts(values: Mapping[str, Any]) -> dict[str, Any]:
    found = {key: values.get(key) for key in ("iteration", "frames", "seed")}
    return {
        key: value
        for key, value in found.items()
        if isinstance(value, int) and abs(value) < 1 << 63
    }


def _metrics(evaluation: Any) -> dict[str, float]:
    """Return the metrics of the hardest condition of an evaluation, which is its last."""
    if not isinstance(evaluation, Mapping) or not evaluation:
        return {}
    return evaluation_metrics([*evaluation.values()][-1])
