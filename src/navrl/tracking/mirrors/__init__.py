"""Mirrors: one small interface to Weights & Biases, trackio, MLflow, TensorBoard and the local
registry.
"""

from __future__ import annotations

import importlib
from typing import Any

from navrl.errors import ConfigError, missing_extra, nearest_name
from navrl.tracking.mirrors.interface import Mirror, RunInfo

__all__ = ["Mirror", "RunInfo", "open_mirror"]

_CLASSES = {
    "local": "LocalMirror",
    "mlflow": "MlflowMirror",
    "spooled": "SpooledMirror",
    "tensorboard": "TensorboardMirror",
    "trackio": "TrackioMirror",
    "wandb": "WandbMirror",
}


def open_mirror(kind: str, **options: Any) -> Mirror:
    """Return a mirror by its name, such as `open_mirror("mlflow", uri="http://localhost:5000")`.

    `wandb` with `mode="offline"` is a queue in `folder`, from which `navrl sync` delivers.

    Raises:
        ConfigError: there is no such mirror.
        MissingExtraError: its package is not installed.
    """
    if kind not in _CLASSES:
        raise ConfigError(
            f"no mirror {kind!r}; there are {', '.join(_CLASSES)}.{nearest_name(kind, _CLASSES)}"
        )
    if kind == "wandb":
        mode = options.pop("mode", "online")
        if mode == "disabled":
            raise ConfigError(
                "wandb.mode is disabled: there is nothing to open; use online or offline"
            )
        kind = "spooled" if mode == "offline" else kind
    try:
        module = importlib.import_module(f"navrl.tracking.mirrors.{kind}")
    except ModuleNotFoundError as error:
        raise missing_extra(f"the tracker {kind} needs {error.name}", kind) from error
    mirror: Mirror = getattr(module, _CLASSES[kind])(**options)
    return mirror
