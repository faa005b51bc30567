"""Mirrors a run's metrics to Weights & Biases from a thread of its own: the tracker may be slow or die, training does not."""

from __future__ import annotations

import queue
import threading
import warnings
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from navrl.config import WandbSettings
from navrl.errors import MissingExtraError

PATIENCE = 10.0  # s that the end of a run waits for the tracker


class Tracker:
    """Takes metrics and returns at once; a thread hands them on. What goes wrong there is a warning, never more.

    Raises:
        MissingExtraError: the mode asks for wandb, which is not installed.
    """

    def __init__(self, settings: WandbSettings, config: dict[str, Any], folder: Path) -> None:
        self._queue: queue.SimpleQueue[tuple[int, dict[str, Any]] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        if settings.mode == "disabled":
            return
        try:
            import wandb
        except ImportError as error:
            raise MissingExtraError(
                f"wandb.mode={settings.mode} needs wandb: pip install 'navrl[wandb]', or wandb.mode=disabled"
            ) from error
        options: dict[str, Any] = {
            "mode": settings.mode, "project": settings.project, "name": settings.name or folder.name,
            "entity": settings.entity or None, "id": settings.run_id or None, "config": config, "dir": str(folder),
            "resume": "allow" if settings.run_id else None,
        }  # fmt: skip
        self._thread = threading.Thread(target=self._mirror, args=(wandb.init, options), name="navrl-tracker", daemon=True)
        self._thread.start()

    def log(self, step: int, values: dict[str, Any]) -> None:
        """Take the metrics of a step."""
        if self._thread is not None:
            self._queue.put((step, values))

    def close(self) -> None:
        """Hand on what is left, and wait for it, but not for long."""
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join(PATIENCE)
            if self._thread.is_alive():
                told = "the tracker did not end in time; the run's metrics.jsonl has everything"
                warnings.warn(told, RuntimeWarning, stacklevel=2)
            self._thread = None

    def _mirror(self, begin: Any, options: dict[str, Any]) -> None:
        try:
            run = begin(**options)
            while (item := self._queue.get()) is not None:
                run.log(item[1], step=item[0])
            run.finish()
        except Exception as error:  # anything that a tracker can think of: none of it is worth a training
            warnings.warn(f"the tracker has failed: {error}; training goes on without it", RuntimeWarning, stacklevel=2)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
