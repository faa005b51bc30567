"""Backends: one interface to W&B, trackio, MLflow, TensorBoard and the local registry."""

from __future__ import annotations

import importlib
from typing import Any

from navrl.errors import ConfigError, missing_extra, nearest_name
from navrl.tracking.backends.interface import Backend, RunInfo

__all__ = ["Backend", "RunInfo", "open_backend"]

_CLASSES = {
    "local": "LocalBackend",
    "mlflow": "MlflowBackend",
    "queued": "QueuedBackend",
    "tensorboard": "TensorboardBackend",
    "trackio": "TrackioBackend",
    "wandb": "WandbBackend",
}


def open_backend(kind: str, **options: Any) -> Backend:
    """Return the backend of a tracker: `open_backend("mlflow", uri="http://localhost:5000")`.

    `wandb` with `mode="offline"` is a queue in `folder`, from which `navrl sync` delivers.

    Raises:
        ConfigError: there is no such tracker.
        MissingExtraError: its package is not installed.
    """
    if kind not in _CLASSES:
        raise ConfigError(
            f"no tracker {kind!r}; there are {', '.join(_CLASSES)}.{nearest_name(kind, _CLASSES)}"
        )
    if kind == "wandb":
        mode = options.pop("mode", "online")
        if mode == "disabled":
            raise ConfigError(
                "wandb.mode is disabled, so there is nothing to open; expected online or offline"
            )
        kind = "queued" if mode == "offline" else kind
    try:
        module = importlib.import_module(f"navrl.tracking.backends.{kind}")
    except ModuleNotFoundError as error:
        raise missing_extra(f"the tracker {kind} needs {error.name}", kind) from error
    backend: Backend = getattr(module, _CLASSES[kind])(**options)
    return backend
