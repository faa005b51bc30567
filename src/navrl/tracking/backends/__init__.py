"""Backends: one interface to W&B, trackio, MLflow, TensorBoard, the Hugging Face hub and the local
registry.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from navrl.errors import ConfigError, missing_extra, nearest_name, shown
from navrl.tracking.backends.interface import Backend, RunInfo

__all__ = ["Backend", "RunInfo", "open_backend"]

_CLASSES = {
    "hf": "HfBackend",
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
        ConfigError: there is no such tracker, or it has no such option.
        MissingExtraError: its package is not installed.

    >>> from pathlib import Path
    >>> from navrl.tracking.backends import open_backend
    >>> written = Path("model.pt").write_bytes(b"any file")
    >>> backend = open_backend("wandb", mode="offline", folder="runs/mine")
    >>> backend.upload(Path("model.pt"), "model", aliases=["best"])
    'v0'
    """
    if kind not in _CLASSES:
        known = [name for name in _CLASSES if name != "queued"]  # which users know as wandb
        raise ConfigError(
            f"no tracker {kind!r}; there are {', '.join(known)}.{nearest_name(kind, known)}"
        )
    called = kind
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
    make = getattr(module, _CLASSES[kind])
    _check_options(called, make, options)
    backend: Backend = make(**options)
    return backend


def _check_options(kind: str, make: Callable[..., Backend], options: Mapping[str, Any]) -> None:
    parameters = inspect.signature(make).parameters
    takes_any = any(one.kind is one.VAR_KEYWORD for one in parameters.values())
    known = [*parameters, *(["mode"] if kind == "wandb" else [])]
    for name in options:
        if name not in known and not takes_any:
            raise ConfigError(
                f"{kind} has no option {shown(name)}; there are {', '.join(known)}."
                f"{nearest_name(name, known)}"
            )
