"""CheckpointDirectory: the checkpoints of one training run, saved and loaded by step, pruned."""

from __future__ import annotations

import math
import os
import re
import threading
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

import torch

from navrl.arguments import as_mapping, as_path
from navrl.errors import CheckpointError, ConfigError
from navrl.io.checkpoint.checkpoint_file import load_checkpoint, verify_checkpoint
from navrl.io.checkpoint.listing import (
    CHECKPOINT_NAME,
    NOT_WHOLE,
    Entry,
    checkpoint_files,
    list_entries,
    newest_first,
)
from navrl.io.checkpoint.pruning import (
    as_item,
    prune_entries,
    remove_orphaned_rollouts,
    remove_unused_parts,
)
from navrl.io.checkpoint.saver import AsyncCheckpointSaver
from navrl.io.container.atomic_files import make_folder, point_alias, remove_stale_files
from navrl.io.container.background import OnDone
from navrl.io.container.codecs import DEFAULT_CODEC
from navrl.io.container.container_writer import Written
from navrl.io.container.sequence import SequenceNumbers
from navrl.io.container.step_names import format_checkpoint_name
from navrl.io.retention import Retention, rank

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["CheckpointDirectory"]

_ALIAS = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
LATEST = "latest"


class CheckpointDirectory:
    """The checkpoints of one run: saved by step in the background, found, loaded and pruned.

    Args:
        folder: where they are; created. Temporary files of writers that died are removed.
        keep_last_n, keep_best, metric, mode, keep_every: see `Retention`.
        with_rollouts: a batch in the folder, `rollout_STEP.navrl` of a `RolloutStorage` without
            rules of its own, belongs to the checkpoint of its step and is removed with it.
        optimizers, max_queue_size, codec, level, delta_chain, lossy_moments, on_error,
            on_done: see `AsyncCheckpointSaver`.

    >>> import navrl
    >>> with navrl.CheckpointDirectory("checkpoints", keep_last_n=2) as checkpoints:
    ...     for step in (100, 200, 300):
    ...         path = checkpoints.save(step, {"step": step}, metrics={"success": 0.5})
    >>> [entry.step for entry in checkpoints.entries()]
    [200, 300]
    >>> checkpoints.load()
    {'step': 300}
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        keep_last_n: int | None = None,
        keep_best: int = 0,
        metric: str | None = None,
        mode: Literal["max", "min"] = "max",
        keep_every: int = 0,
        with_rollouts: bool = False,
        optimizers: Iterable[torch.optim.Optimizer] = (),
        max_queue_size: int = 3,
        codec: str = DEFAULT_CODEC,
        level: int | None = None,
        delta_chain: int = 0,
        lossy_moments: bool = False,
        on_error: Literal["raise", "warn"] = "raise",
        on_done: OnDone | None = None,
    ) -> None:
        self.folder = as_path("folder", folder).absolute()
        # held while an alias is set, and while what has none is removed
        self._alias_lock = threading.Lock()
        self.with_rollouts = with_rollouts
        self.retention = Retention(keep_last_n, keep_best, metric, mode, keep_every)
        make_folder(self.folder)
        remove_stale_files(self.folder)
        entries = self.entries()
        unreadable = len(entries) < len(checkpoint_files(self.folder))
        self._numbers = SequenceNumbers(self.folder, _sequences(entries), unreadable=unreadable)
        self.saver = AsyncCheckpointSaver(
            max_queue_size,
            optimizers=optimizers,
            codec=codec,
            level=level,
            delta_chain=delta_chain,
            lossy_moments=lossy_moments,
            on_error=on_error,
            on_done=on_done,
        )

    def save(
        self,
        step: int,
        state: Any,
        *,
        metrics: Mapping[str, float] | None = None,
        config: Any = None,
        compress: bool = True,
        sequence: int | None = None,
        await_parts: Callable[[], Mapping[str, Any]] | None = None,
    ) -> Path:
        """Save a state under its step in the background; return the path that it will have.

        When the file is on the disk, the alias `latest` moves to it, and the checkpoints that the
        rules do not keep are removed. `metrics` and `config` are stored in the index: listing a
        folder reads no array.

        Args:
            step: names the file.
            state: what to save.
            metrics: numbers by name.
            config: JSON values.
            compress: store compressed.
            sequence: from `next_sequence`, if other ranks write parts of this save; see
                `navrl.io.checkpoint.parts`.
            await_parts: called in the background before the file is written; returns when the
                parts are on the disk, with what the index says about them.
        """
        path = self.folder / format_checkpoint_name(step)
        known = as_mapping("metrics", metrics)
        finite = {
            name: float(value) if math.isfinite(value) else None for name, value in known.items()
        }
        metadata = {"step": int(step), "metrics": finite, "config": config}
        number = self.next_sequence() if sequence is None else sequence
        self.saver.save_async(
            state, path, compress, metadata, sequence=number, before=await_parts, after=self._saved
        )
        return path

    def next_sequence(self) -> int:
        """Return a number above those of all saves before; it is used up."""
        return self._numbers.take()

    def _saved(self, written: Written) -> None:
        with self._alias_lock:
            point_alias(self.folder / LATEST, written.path.name)
        self.prune()

    def entries(self) -> list[Entry]:
        """Return the checkpoints with a readable index, by step."""
        return list_entries(self.folder)

    def latest(self) -> Entry | None:
        """Return the checkpoint that was saved last, by its sequence number, or None."""
        return max(self.entries(), key=lambda entry: entry.age, default=None)

    def best(
        self, metric: str | None = None, mode: Literal["max", "min"] | None = None
    ) -> Entry | None:
        """Return the best checkpoint by a metric (default: that of the rules), or None."""
        metric = metric or self.retention.metric
        if metric is None:
            raise ConfigError(
                "best() needs a metric, and the CheckpointDirectory has none; name one, such as "
                "best('success')"
            )
        ranked = rank(map(as_item, self.entries()), metric, mode or self.retention.mode)
        return ranked[0].stored if ranked else None

    def load(
        self, step: int | None = None, *, device: str | torch.device = "cpu", into: Any = None
    ) -> Any:
        """Return the state of a step; by default of the last saved checkpoint that is whole.

        A warning names later checkpoints that are not whole. With `into`, live tensors are filled
        in place, once no save is still copying them.

        Raises:
            CheckpointError: there is none.
            ContainerError: the checkpoint of the step asked for is damaged.
        """
        if into is not None:
            self.saver.barrier()
        if step is not None:
            return load_checkpoint(self.folder / format_checkpoint_name(step), device, into=into)
        damaged = []
        entries = self.entries()
        for path in newest_first(self.folder, entries):
            try:
                if into is not None:
                    # a damaged file must not be loaded into live tensors by half
                    verify_checkpoint(path)
                state = load_checkpoint(path, device, into=into)
            except NOT_WHOLE as error:
                damaged.append(str(error))
                continue
            _warn_of_choice(path, damaged, entries)
            return state
        raise CheckpointError(
            f"{self.folder}: no whole checkpoint" + "".join(f"; {line}" for line in damaged)
        )

    def alias(self, name: str, step: int) -> Path:
        """Point an alias, such as `best` or `v1.0`, at a step, which pruning then keeps.

        Raises:
            ConfigError: no alias can have that name.
            CheckpointError: there is no such checkpoint, or a file or folder has the name.
        """
        if not _ALIAS.fullmatch(name) or CHECKPOINT_NAME.fullmatch(name):
            raise ConfigError(
                f"alias {name!r}: expected letters, digits, '.', '_' and '-', and not the name of "
                "a checkpoint"
            )
        target = format_checkpoint_name(step)
        alias = self.folder / name
        if alias.exists() and not alias.is_symlink():
            raise CheckpointError(
                f"{alias}: found a file or folder, which the alias would replace; use another name"
            )
        with self._alias_lock:
            if (self.folder / target).is_file():
                point_alias(alias, target)
            # again, because another process may have pruned it meanwhile
            if not (self.folder / target).is_file():
                if alias.is_symlink() and os.readlink(alias) == target:
                    alias.unlink()
                raise CheckpointError(
                    f"{self.folder / target}: no such checkpoint for the alias {name!r}"
                )
        return alias

    def prune(self) -> list[Entry]:
        """Remove the checkpoints that no rule, alias or kept difference needs; return them."""
        with self._alias_lock:
            entries = self.entries()
            self._numbers.observe(_sequences(entries))
            pruned = prune_entries(
                self.folder, self.retention, entries, with_rollouts=self.with_rollouts
            )
            left = [entry for entry in entries if entry not in pruned]
            remove_unused_parts(self.folder, left)
            if self.with_rollouts:
                remove_orphaned_rollouts(self.folder, entries)
            return pruned

    def flush(self, timeout: float | None = None) -> None:
        """Return when everything saved so far is on the disk."""
        self.saver.flush(timeout)

    def close(self, timeout: float | None = None) -> None:
        """Write what is pending, stop the saver, and raise what failed."""
        self.saver.shutdown(timeout)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.saver.__exit__(kind, error, trace)


def _warn_of_choice(path: Path, damaged: Sequence[str], entries: Sequence[Entry]) -> None:
    """Warn whoever called `load` if the checkpoint that it loaded may not be the last one."""
    if damaged:
        warnings.warn(
            f"{path.name} was loaded, because later checkpoints are not whole: "
            f"{'; '.join(damaged)}",
            RuntimeWarning,
            stacklevel=3,
        )
    elif entries and path not in {entry.path for entry in entries}:
        warnings.warn(
            f"{path.name} was loaded because of its step: it is not a navrl container, "
            "so nothing says whether it was saved before or after the others",
            RuntimeWarning,
            stacklevel=3,
        )


def _sequences(entries: Iterable[Entry]) -> list[int]:
    return [entry.sequence for entry in entries if entry.sequence is not None]
