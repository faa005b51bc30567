"""Upload models to Weights & Biases in one call, from any script that has torch and wandb.

A model is uploaded as a plain `torch.save` file, through the durable queue of the open `Tracking`,
or of one that is opened beside the script's own W&B run. A call copies the tensors and returns;
what W&B cannot take now is delivered later by `navrl sync`.
"""

from __future__ import annotations

import atexit
import os
import pickle
import sys
import warnings
from collections.abc import Iterator, Mapping, MutableMapping
from pathlib import Path
from typing import Any, SupportsFloat

import torch

from navrl.arguments import as_mapping, whole_number
from navrl.errors import ConfigError, StateError, nearest_name, shown
from navrl.tracking.tracker import Tracking, current_tracking
from navrl.tracking.tracker_settings import MODES, TrackingSettings, WandbSettings

__all__ = [
    "models_folder",
    "save_and_upload_best_model",
    "upload_model_file_to_wandb",
    "upload_model_to_wandb",
    "wandb_mode",
]

BEST, BEST_STEP = "best_value", "best_step"  # keys of a `best_value_tracker`
_best: dict[str, dict[str, float]] = {}  # by metric, if the caller keeps none


def upload_model_to_wandb(
    model_state_dict: Mapping[str, Any],
    step: int,
    eval_metrics: Mapping[str, Any] | None = None,
    model_alias: str = "latest",
    model_type: str = "checkpoint",
    *,
    name: str = "model",
) -> str:
    """Queue a model for W&B and return the reference that it will have.

    The tensors are copied, so training may change them at once. The file is a `torch.save` of the
    state on the CPU, which `torch.load(path, weights_only=True)` reads.

    Raises:
        ConfigError: the model is no state dict.
        RegistryError: the alias or the name is illegal.

    >>> import torch, navrl
    >>> state = torch.nn.Linear(4, 2).state_dict()
    >>> navrl.upload_model_to_wandb(state, step=100, model_alias="latest")  # doctest: +SKIP
    'model:latest'
    """
    if not isinstance(model_state_dict, Mapping):
        raise ConfigError(
            f"model_state_dict is a {type(model_state_dict).__name__}; expected what "
            "model.state_dict() returns"
        )
    tracking = _tracking()
    copy = _copied(model_state_dict)
    tensors = [*_tensors(copy)]
    parameters = sum(tensor.numel() for tensor in tensors)
    metadata = _metadata(step, model_type, eval_metrics, parameters)
    tracking.written_artifact(
        lambda path: _save(copy, path), f"{name}.pt", name, [model_alias], metadata
    )
    size = sum(tensor.nbytes for tensor in tensors)
    tracking.log(step, {"model/total_parameters": parameters, "model/file_size_mb": size / 1e6})
    return f"{name}:{model_alias}"


def upload_model_file_to_wandb(
    file: str | os.PathLike[str],
    step: int,
    eval_metrics: Mapping[str, Any] | None = None,
    model_alias: str = "latest",
    model_type: str = "checkpoint",
    *,
    parameters: int = 0,
    name: str = "model",
) -> str:
    """Queue a model file as it is and return the reference that it will have.

    The file may be removed as soon as this returns.

    Raises:
        RegistryError: the alias or the name is illegal.
    """
    tracking, size = _tracking(), Path(file).stat().st_size
    metadata = _metadata(step, model_type, eval_metrics, parameters) | {"kind": "model"}
    tracking.artifact(file, name, [model_alias], metadata)
    tracking.log(step, {"model/total_parameters": parameters, "model/file_size_mb": size / 1e6})
    return f"{name}:{model_alias}"


def save_and_upload_best_model(
    model_state_dict: Mapping[str, Any],
    step: int,
    eval_metrics: Mapping[str, Any],
    threshold_metric: str = "mean_reward",
    best_value_tracker: MutableMapping[str, float] | None = None,
    *,
    name: str = "model",
) -> bool:
    """Upload a model as `best` if its metric is the highest so far; return whether it is.

    `best_value_tracker["best_value"]` is the highest so far, `["best_step"]` its step; both are
    updated. Without a tracker they are kept for the process.

    Raises:
        ConfigError: `eval_metrics` lacks the metric; the message names the nearest one.

    >>> import torch, navrl
    >>> state, best = torch.nn.Linear(4, 2).state_dict(), {"best_value": 9.0}
    >>> navrl.save_and_upload_best_model(state, 100, {"mean_reward": 1.5}, best_value_tracker=best)
    False
    """
    eval_metrics = as_mapping("eval_metrics", eval_metrics)
    value = _measured(eval_metrics, threshold_metric)
    tracker = (
        _best.setdefault(threshold_metric, {}) if best_value_tracker is None else best_value_tracker
    )
    if not value > tracker.get(BEST, float("-inf")):
        return False
    upload_model_to_wandb(model_state_dict, step, eval_metrics, "best", "best_model", name=name)
    tracker[BEST], tracker[BEST_STEP] = value, int(step)
    tracking = current_tracking()
    if tracking is not None:
        tracking.log(step, {f"best_model/{threshold_metric}": value, "best_model/step": step})
    return True


def _measured(metrics: Mapping[str, Any], name: str) -> float:
    """Return the metric of a name.

    Raises:
        ConfigError: there is none, or it is no number.
    """
    if name not in metrics:
        near = nearest_name(name, metrics)
        raise ConfigError(
            f"eval_metrics has no {name!r}; there are {', '.join(metrics) or 'none'}.{near}"
        )
    measured = metrics[name]
    if not isinstance(measured, SupportsFloat):
        raise ConfigError(f"eval_metrics[{name!r}] is {shown(measured)}; expected a number")
    return float(measured)


def wandb_mode() -> str:
    """Return the mode of the script's W&B run, else of the tracking, else of `WANDB_MODE`."""
    run = getattr(sys.modules.get("wandb"), "run", None)
    own = next((mode for mode in ("disabled", "offline") if getattr(run, mode, False)), None)
    tracking = current_tracking()
    mode = (
        own
        or (tracking.wandb_mode if tracking is not None else "")
        or os.environ.get("WANDB_MODE", "online")
    )
    return mode if mode in MODES else "online"


def models_folder() -> Path:
    """Return the folder of the queue that is used beside a script's own W&B run."""
    return Path(os.environ.get("WANDB_DIR", ".")) / "wandb" / "navrl-models"


def _tracking() -> Tracking:
    """Return the open tracking, or open one; warn if none of its trackers keeps models."""
    tracking = current_tracking() or _beside_the_script()
    if not tracking.keeps_models:
        message = (
            "the model is not uploaded: no tracker of this run keeps models; set "
            "wandb.mode=online or offline"
        )
        warnings.warn(message, RuntimeWarning, stacklevel=3)
    return tracking


def _metadata(
    step: int, model_type: str, metrics: Mapping[str, Any] | None, parameters: int
) -> dict[str, Any]:
    known, step = as_mapping("eval_metrics", metrics), whole_number("step", step, 0)
    rows = [("step", step), ("parameters", parameters), *known.items()]
    card = "\n".join(["| | |", "|---|---|", *(f"| {key} | {value} |" for key, value in rows)])
    return {
        "step": step,
        "model_type": model_type,
        "metrics": known,
        "total_parameters": parameters,
        "description": f"{model_type} of step {step}\n\n{card}",
    }


def _save(state: Any, path: Path) -> None:
    """Write a state with `torch.save`.

    Raises:
        StateError: `torch.load(weights_only=True)` would refuse it.
    """
    torch.save(state, path)
    try:
        torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        path.unlink()
        raise StateError(
            "the model holds more than tensors, numbers, texts, lists and dicts; pass its "
            "state_dict"
        ) from error


def _copied(value: Any) -> Any:
    """Return a deep copy of a state as plain values, tensors on the CPU."""
    if isinstance(value, torch.Tensor):
        return value.detach().to("cpu", copy=True)
    if type(value).__module__ == "numpy" and value.dtype.kind in "biufc":
        return torch.tensor(value) if value.shape else value.item()
    if isinstance(value, Mapping):
        return {key: _copied(inner) for key, inner in value.items()}
    return type(value)(map(_copied, value)) if type(value) in (list, tuple) else value


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict | list | tuple):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _tensors(inner)


def _beside_the_script() -> Tracking:
    """Open a tracking in the project of the script's own W&B run, closed when the script ends."""
    run = getattr(sys.modules.get("wandb"), "run", None)
    project = (
        getattr(run, "project", None)
        or os.environ.get("WANDB_PROJECT", "")
        or WandbSettings.project
    )
    entity = getattr(run, "entity", None) or os.environ.get("WANDB_ENTITY", "")
    name = f"models of {run.name or run.id}" if run is not None else "models"
    settings = TrackingSettings(wandb=WandbSettings(wandb_mode(), project, name, entity))
    folder = models_folder().absolute()  # the script may change its current folder
    tracking = Tracking(settings, {"run": getattr(run, "id", None)}, folder)
    if settings.wandb.mode != "disabled":
        atexit.register(tracking.close)
    return tracking
