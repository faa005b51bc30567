"""Save a nested state to a file and load it again; every byte is verified on loading."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from navrl.arguments import as_mapping, as_path, whole_number
from navrl.errors import CheckpointError, ContainerError
from navrl.io.checkpoint import torch_files
from navrl.io.checkpoint.differences import add_bases, base_of, verify_bases
from navrl.io.checkpoint.parts import check_part, parts_of
from navrl.io.checkpoint.rounded_moments import narrow_moments
from navrl.io.container.atomic_files import irregular_kind
from navrl.io.container.codecs import DEFAULT_CODEC, MAX_LEVEL, Bytes
from navrl.io.container.container_reader import Container
from navrl.io.container.container_writer import Written, write_container
from navrl.io.container.devices import usable_device
from navrl.io.container.element_types import NUMPY_DTYPES
from navrl.io.container.index import MAGIC, ArrayEntry, Index, naming_file, open_to_read
from navrl.io.container.snapshot import is_plain, live_sources
from navrl.io.container.state_tree import check_json, pack_state
from navrl.io.container.tensor_types import NAME_OF_TORCH_DTYPE, TORCH_DTYPES, tensor_bytes
from navrl.io.container.tree_reader import unpack_state, widened_arrays

__all__ = ["find_checkpoint", "load_checkpoint", "save_checkpoint", "verify_checkpoint"]

KIND = "checkpoint"
_SUFFIXES = (".lz4", ".navrl")


class NoCheckpointError(CheckpointError):
    """There is no checkpoint at a path."""


def save_checkpoint(
    state: Any,
    path: str | os.PathLike[str],
    *,
    codec: str = DEFAULT_CODEC,
    level: int | None = None,
    metadata: Mapping[str, Any] | None = None,
    lossy_moments: bool = False,
) -> Written:
    """Write a state to a file and return its sizes; the file is then whole and on the disk.

    Nothing may write to the tensors meanwhile; use `AsyncCheckpointSaver` while training goes on.
    `lossy_moments` rounds the moments of optimisers, and nothing else, to bfloat16: see
    `navrl.io.checkpoint.rounded_moments`.

    Raises:
        UnsupportedStateError: the state holds an object that cannot be stored.
        ConfigError: there is no such codec or level.
        OSError: the disk is full or the folder not writable; an earlier file is untouched.

    >>> import torch, navrl
    >>> written = navrl.save_checkpoint({"weight": torch.zeros(100_000)}, "a.pt")
    >>> written.stored_bytes < written.raw_bytes
    True
    """
    path, packed = as_path("path", path), pack_state(state)
    if level is not None:
        level = whole_number("level", level, 0, MAX_LEVEL)
    document = {**checkpoint_document(metadata), "state": packed.tree}
    sources = live_sources(packed)
    if lossy_moments:
        sources = narrow_moments(sources, packed)
    return write_container(path, sources, document, codec=codec, level=level)


def checkpoint_document(
    metadata: Mapping[str, Any] | None, sequence: int | None = None
) -> dict[str, Any]:
    """Return the document in the index of a checkpoint, without the `state`."""
    return {
        "kind": KIND,
        "created": time.time(),
        **({} if sequence is None else {"sequence": sequence}),
        "metadata": check_json(as_mapping("metadata", metadata), "metadata"),
    }


def find_checkpoint(path: str | os.PathLike[str]) -> Path:
    """Return the file of a checkpoint: the path itself, or with `.lz4` or `.navrl` added or
    removed.

    If there are several, the one that was modified last, with a warning.

    Raises:
        NoCheckpointError: there is none, and the message lists the names that were tried; or the
            path is a directory, a pipe or the like.

    >>> from navrl.io import find_checkpoint, save_checkpoint
    >>> written = save_checkpoint({"step": 7}, "a.pt.navrl")
    >>> find_checkpoint("a.pt").name
    'a.pt.navrl'
    """
    path = as_path("path", path)
    suffixes = _SUFFIXES if path.name else ()  # `.` and `/` have none to add to
    candidates = [path, *(path.with_name(path.name + suffix) for suffix in suffixes)]
    if path.suffix in _SUFFIXES:
        candidates.append(path.with_suffix(""))
    # unlike Path.is_file, isfile never raises
    there = [candidate for candidate in candidates if os.path.isfile(candidate)]
    if there:
        return _newest(there)
    for candidate in candidates:
        if (kind := irregular_kind(candidate)) is not None:
            advice = _one_in(candidate)
            raise NoCheckpointError(f"{candidate}: found {kind}, expected a checkpoint{advice}")
    tried = ", ".join(candidate.name for candidate in candidates)
    meant = path.parent / "checkpoints" / path.name  # where a run keeps them
    near = f". Did you mean {meant}?" if os.path.isfile(meant) else ""
    raise NoCheckpointError(f"{path}: no such checkpoint; tried {tried} in {path.parent}{near}")


def _newest(files: Sequence[Path]) -> Path:
    """Return the file that was modified last; warn whoever looked for one if there are several."""
    newest = max(files, key=lambda file: file.stat().st_mtime_ns)
    if len(files) > 1:
        names = " and ".join(file.name for file in files)
        warnings.warn(
            f"{newest.parent} holds {names}; {newest.name}, modified last, is used. Remove "
            "the other",
            RuntimeWarning,
            stacklevel=4,
        )
    return newest


def _one_in(folder: Path) -> str:
    """Return advice to name a checkpoint in the folder, if it is one."""
    if not os.path.isdir(folder):
        return ""
    for name in ("latest", "checkpoints/latest", "model.pt"):
        if os.path.isfile(folder / name):
            return f"; name one in it: {folder / name}"
    return "; name a file in it"


def load_checkpoint(
    path: str | os.PathLike[str],
    device: str | torch.device = "cpu",
    *,
    workers: int | None = None,
    into: Any = None,
    trusted: bool = False,
) -> Any:
    """Return the state that was saved, every byte of it verified.

    Args:
        path: the file, with or without `.lz4` or `.navrl`; `torch.save` files are read too.
        device: where the tensors go.
        workers: threads that read and decompress; None is one for each core.
        into: a state of the same structure whose tensors are filled in place, which needs no fresh
            memory; tensors that it lacks are created. If the file turns out to be damaged, its
            tensors may hold a mixture: load another file, or call `verify_checkpoint` first.
        trusted: allow a pickle to run the code that it refers to; only `torch.save` files with
            classes of their own need it.

    Raises:
        ConfigError: this machine has no such device.
        CheckpointError: there is no such file, or it does not fit `into`.
        ContainerError: the file is damaged; the message names the file and the tensor.

    >>> import torch, navrl
    >>> written = navrl.save_checkpoint({"weight": torch.ones(3), "step": 7}, "a.pt")
    >>> navrl.load_checkpoint("a.pt")
    {'weight': tensor([1., 1., 1.]), 'step': 7}
    """
    device = usable_device(device)
    if workers is not None:
        workers = whole_number("workers", workers, 1)
    found = find_checkpoint(path)
    with naming_file(found), open(open_to_read(found), "rb") as file:
        start = file.read(len(MAGIC))
    if start != MAGIC:
        return torch_files.load(found, start, device, trusted=trusted, into=into)
    with Container(found) as container:
        state = _Loading(container, device, workers, into).state()
        parts = parts_of(container.index)
    for part in parts.parts:
        with Container(check_part(found, part)) as container:
            loaded = _Loading(container, device, workers, None).state()
        _append_part(found, state, parts.key, loaded)
    return state


def _append_part(path: Path, state: Any, key: str, part: Any) -> None:
    """Append the state of a part to the list that it continues."""
    values = state.get(key) if isinstance(state, dict) else None
    if not isinstance(values, list):
        raise ContainerError(
            f"{path}: has parts of a list {key!r:.60}, which its state lacks; the file is damaged"
        )
    values.append(part)


def verify_checkpoint(path: str | os.PathLike[str], *, workers: int | None = None) -> Index:
    """Check every byte of a container, its bases and its parts without loading; return its index.

    Raises:
        FileNotFoundError: `path` does not exist.
        ContainerError: the file is damaged or not a container; the message names the file and the
            tensor. Or a base or a part is damaged, missing, or was replaced.

    >>> from navrl.io import save_checkpoint, verify_checkpoint
    >>> written = save_checkpoint({"step": 7}, "a.pt", metadata={"success": 0.9})
    >>> verify_checkpoint("a.pt").document["metadata"]
    {'success': 0.9}
    """
    with Container(path) as container:
        container.verify(workers=workers)
        verify_bases(container.index, workers)
        index = container.index
    for part in parts_of(index).parts:
        with Container(check_part(Path(path), part)) as container:
            container.verify(workers=workers)
    return index


class _Loading:
    """One load of a checkpoint: reads its arrays to their places and builds the state."""

    def __init__(
        self, container: Container, device: torch.device, workers: int | None, into: Any
    ) -> None:
        self._container = container
        self._index = container.index
        self._device = device
        self._workers = workers
        self._tree = checkpoint_tree(container)
        self._live = _live_tensors(into) if into is not None else {}
        self._widened = self._named(widened_arrays, self._tree)

    def state(self) -> Any:
        base = base_of(self._index)
        elements = base.elements if base else {}  # of arrays that are stored as differences
        entries = [
            replace(entry, element=elements.get(entry.name, entry.element))
            for entry in self._index.arrays
        ]
        for number, entry in enumerate(entries):
            self._check(entry, self._widened.get(number, entry.element))
        outputs = [self._output(entry) for entry in entries]
        self._container.read(self._index.arrays, outputs, workers=self._workers)
        add_bases(
            self._index,
            dict(zip((entry.name for entry in entries), outputs, strict=True)),
            self._workers,
        )
        tensors = [
            self._tensor(number, entry, outputs[number]) for number, entry in enumerate(entries)
        ]

        def tensor(number: int) -> Any:
            if entries[number].element not in TORCH_DTYPES:
                raise self._lacking(entries[number], entries[number].element)
            return tensors[number]

        return self._named(
            unpack_state, self._tree, tensor, lambda i: _array(entries[i], outputs[i])
        )

    def _named(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function that does not know the file, and name the file in its errors."""
        try:
            return function(*arguments)
        except ContainerError as error:
            raise ContainerError(f"{self._index.path}: {error}") from error

    def _check(self, entry: ArrayEntry, element: str) -> None:
        if element != entry.element and (entry.element, element) != ("bfloat16", "float32"):
            raise ContainerError(
                f"{self._index.path}: {entry.name} is {entry.element}, to be widened to {element}; "
                "only bfloat16 is ever widened, to float32: the file is damaged, use an older "
                "checkpoint"
            )
        numpy_alone = element == entry.element and element in NUMPY_DTYPES  # it may be an array
        if not {element, entry.element} <= TORCH_DTYPES.keys() and not numpy_alone:
            raise self._lacking(entry, element)
        live = self._live.get(entry.name)
        if live is None:
            return
        found = f"{element} {list(entry.shape)}"
        expected = f"{live[0]} {list(live[1].shape)}"
        if found != expected:
            raise CheckpointError(
                f"{self._index.path}: {entry.name} is {found}, to be loaded into {expected}"
            )

    def _lacking(self, entry: ArrayEntry, element: str) -> CheckpointError:
        told = f"{self._index.path}: {entry.name} is {element}; this torch lacks it: upgrade torch"
        return CheckpointError(told)

    def _output(self, entry: ArrayEntry) -> Bytes:
        element, tensor = self._live.get(entry.name, ("", None))
        if tensor is not None and element == entry.element and is_plain(tensor):
            if not tensor.is_inference():
                # torch does not count writes through NumPy. Counted before it begins, this one
                # is noticed by a snapshot that is being copied.
                torch.autograd.graph.increment_version(tensor)
            return tensor_bytes(tensor)
        return np.empty(entry.size, np.uint8)

    def _tensor(self, number: int, entry: ArrayEntry, output: Bytes) -> Any:
        dtype = TORCH_DTYPES.get(entry.element)
        if dtype is None:
            return None  # a NumPy array, or `tensor` raises
        if entry.size:
            tensor = torch.from_numpy(output).view(dtype).reshape(entry.shape)
        else:
            tensor = torch.empty(entry.shape, dtype=dtype)
        _, live = self._live.get(entry.name, ("", None))
        if live is not None:
            if live.data_ptr() != tensor.data_ptr():
                live.detach().copy_(tensor)
            return live
        return tensor.to(self._device, TORCH_DTYPES[self._widened.get(number, entry.element)])


def checkpoint_tree(container: Container) -> Any:
    """Return the tree of a checkpoint's state."""
    document = container.index.document
    if document.get("kind") != KIND or "state" not in document:
        kind = f"{document.get('kind')!r:.60}"
        raise ContainerError(f"{container.index.path}: holds {kind}, not a checkpoint")
    return document["state"]


def _array(entry: ArrayEntry, output: Bytes) -> Any:
    if entry.element not in NUMPY_DTYPES:
        raise ContainerError(f"{entry.name}: NumPy has no {entry.element}")
    return output.view(NUMPY_DTYPES[entry.element]).reshape(entry.shape)


def _live_tensors(into: Any) -> dict[str, tuple[str, torch.Tensor]]:
    """Return element type and tensor by name, for every tensor of a state."""
    packed = pack_state(into)
    return {
        name: (NAME_OF_TORCH_DTYPE[value.dtype], value)
        for name, value in zip(packed.names(), packed.values, strict=True)
        if isinstance(value, torch.Tensor)
    }
