"""Models to and from Weights & Biases in one call each, for any script that has torch and wandb.

What is uploaded is a plain `torch.save` file; what is downloaded can be read by `torch.load(path)`
as it is.

Uploads go through the durable queue of the open `Tracking`, or of one that these functions open by
themselves beside the script's own W&B run: a call copies the tensors and returns, and what W&B
cannot take now is delivered later, by `navrl sync`.
"""

from __future__ import annotations

import atexit
import io
import json
import os
import pickle
import re
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from pathlib import Path
from typing import Any, SupportsFloat

import torch

from navrl.arguments import as_mapping, whole_number
from navrl.errors import ConfigError, StateError, TrackingError, nearest_name, shown
from navrl.io.checkpoint.checkpoint_file import load_checkpoint
from navrl.io.container.atomic_files import AtomicFile
from navrl.io.container.index import MAGIC
from navrl.registry.model_names import Reference, check_name, parse_reference
from navrl.tracking.backends import open_backend
from navrl.tracking.queue import RecordQueue, digest_of
from navrl.tracking.tracker import Tracking, current_tracking
from navrl.tracking.tracker_settings import MODES, TrackingSettings, WandbSettings

__all__ = [
    "download_model_from_wandb",
    "fetch_model_from_wandb",
    "save_and_upload_best_model",
    "upload_model_file_to_wandb",
    "upload_model_to_wandb",
]

# where a tracker of the best value keeps it, and its step
BEST, BEST_STEP = ("best_value", "best_step")
PLAIN = "state_dict.pt"  # of a model file of navrl, its weights as torch.save writes them
_best: dict[str, dict[str, float]] = {}  # by metric, where the caller keeps none


def upload_model_to_wandb(
    model_state_dict: Mapping[str, Any],
    step: int,
    eval_metrics: Mapping[str, Any] | None = None,
    model_alias: str = "latest",
    model_type: str = "checkpoint",
    *,
    name: str = "model",
) -> str:
    """Queue a model for W&B and return the reference that it will have; tensors are copied, so
    training may go on at once.

    The file is a `torch.save` of the state on the CPU, which `torch.load(path, weights_only=True)`
    reads.

    Raises:
        RegistryError: the alias or the name is illegal.
    """
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
    """Queue a model file of navrl as it is, and return the reference that it will have; the file
    may be removed at once.

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
    """Upload a model as `best` if its metric is higher than ever; return whether it is.

    `best_value_tracker["best_value"]` is the highest so far, `["best_step"]` its step; both are
    updated. Without a tracker they are kept for the process.

    Raises:
        ConfigError: `eval_metrics` lacks the metric; the nearest one is named.
    """
    eval_metrics = as_mapping("eval_metrics", eval_metrics)
    if threshold_metric not in eval_metrics:
        near = nearest_name(threshold_metric, eval_metrics)
        raise ConfigError(
            f"eval_metrics has no {threshold_metric!r}; there are "
            f"{', '.join(eval_metrics) or 'none'}.{near}"
        )
    measured = eval_metrics[threshold_metric]
    if not isinstance(measured, SupportsFloat):
        raise ConfigError(
            f"eval_metrics[{threshold_metric!r}] is {shown(measured)}; expected a number"
        )
    value = float(measured)
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


def download_model_from_wandb(
    reference: str, download_dir: str | os.PathLike[str] = "models", *, timeout: float = 60.0
) -> Path:
    """Return a file that `torch.load(path)` reads: the weights of `user/project/model:best`.

    It is fetched once for each version and verified each time. Of a model file of navrl, which
    holds more than weights, this is its state dict in a file beside it. Without W&B in reach, the
    version that the alias meant when it was last asked for is returned, with a warning; or one that
    waits in the queue of this script for that user and project.

    Raises:
        RegistryError: the reference is malformed.
        TrackingError: there is no such model, or nothing can be reached and nothing is kept.
    """
    return _readable_by_torch(fetch_model_from_wandb(reference, download_dir, timeout=timeout))


def fetch_model_from_wandb(
    reference: str, download_dir: str | os.PathLike[str] = "models", *, timeout: float = 60.0
) -> Path:
    """Return the file of `user/project/model:best` as it was uploaded; see
    `download_model_from_wandb`.

    Raises:
        RegistryError: the reference is malformed.
        TrackingError: there is no such model, or nothing can be reached and nothing is kept.
    """
    parsed, cache = parse_reference(reference), Path(download_dir)
    place = cache.joinpath(*(part for part in (parsed.entity, parsed.project) if part), parsed.name)
    if parsed.version is not None and (kept := _kept(place, f"v{parsed.version}")):
        return kept
    if _mode() != "online":
        return _without_network(parsed, place, cache, "wandb is offline")
    try:
        return _within(timeout, lambda: _fetch(parsed, place, cache))
    except TrackingError:
        raise
    except Exception as error:  # whatever W&B's client can think of
        return _without_network(
            parsed, place, cache, " ".join(str(error).split())[:200] or type(error).__name__
        )


def _fetch(parsed: Reference, place: Path, cache: Path) -> Path:
    options = {"entity": parsed.entity or "", "folder": cache} | (
        {"project": parsed.project} if parsed.project else {}
    )
    backend: Any = open_backend("wandb", **options)
    version = backend.version_of(str(parsed))
    file = _kept(place, version)
    if file is None:
        file = backend.download(str(parsed._replace(label=version)), place.parent)
        _write(place / version / ".digest.json", {"file": file.name, "sha256": digest_of(file)})
    aliases = _read(place / ".aliases.json")
    _write(place / ".aliases.json", aliases | {parsed.label or "latest": version})
    return file


def _kept(place: Path, version: str) -> Path | None:
    """Return the file of a version that was fetched before, if it is still what it was."""
    known = _read(place / version / ".digest.json")
    if not known:
        return None
    file = place / version / check_name(str(known["file"]), "file")
    return file if file.is_file() and digest_of(file) == known["sha256"] else None


def _without_network(parsed: Reference, place: Path, cache: Path, reason: str) -> Path:
    version = _read(place / ".aliases.json").get(parsed.label or "latest", parsed.label or "")
    kept = _kept(place, str(version)) if version else None
    if kept is not None:
        told = f"{parsed}: {reason}; using {version}, which it meant when it was last asked for"
        warnings.warn(told, RuntimeWarning, stacklevel=3)
        return kept
    tracking = current_tracking()
    folder = tracking.folder if tracking is not None else _folder()
    if tracking is not None:
        tracking.flush()
    if RecordQueue(folder).exists():
        try:
            return open_backend("queued", folder=folder).download(
                str(parsed), place.parent / "queued"
            )
        except TrackingError:
            reason += f", and the queue in {folder} has none"
    raise TrackingError(
        f"{parsed}: not fetched from W&B: {reason}; {cache} has no copy. {_advice(reason)}"
    )


def _advice(reason: str) -> str:
    """Return what to do about the reason that a model was not fetched."""
    if re.search(r"API.?key|log ?in|401|403|permission|unauthori", reason, re.IGNORECASE):
        return "Sign in with `wandb login`, or set WANDB_API_KEY to a key that may read it"
    if "wandb is offline" in reason:
        return "Set WANDB_MODE=online to fetch it"
    return "Try again when W&B can be reached"


def _within(seconds: float, call: Callable[[], Path]) -> Path:
    """Return what a call gives, or raise what it raises, within so many seconds: W&B's client may
    wait for ever.
    """
    found: list[Path] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            found.append(call())
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run, name="navrl-download", daemon=True)
    thread.start()
    thread.join(seconds)
    if failed:
        raise failed[0]
    if not found:
        raise TimeoutError(f"no answer in {seconds:g} s")
    return found[0]


def _tracking() -> Tracking:
    """Return the tracking that takes models, and warn if none of its trackers keeps any."""
    tracking = current_tracking() or _beside_the_script()
    if not tracking.keeps_models:
        told = (
            "the model is not uploaded: no tracker of this run keeps models; set "
            "wandb.mode=online or offline"
        )
        warnings.warn(told, RuntimeWarning, stacklevel=3)
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
    """Write a state as torch does.

    Raises:
        StateError: torch would not read it back without running code from the file.
    """
    torch.save(state, path)
    try:
        torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        path.unlink()
        raise StateError(
            "the model holds something else than tensors, numbers, texts, lists and dicts; pass "
            "a state_dict"
        ) from error


def _readable_by_torch(file: Path) -> Path:
    """Return a file that `torch.load` reads: this one, or beside a container of navrl the weights
    in it.
    """
    with open(file, "rb") as opened:
        if opened.read(len(MAGIC)) != MAGIC:
            return file
    plain = file.with_name(f"{file.stem}.{PLAIN}")
    state = load_checkpoint(file)
    if isinstance(state, dict) and isinstance(state.get("parameters"), dict):
        state = state["parameters"]
    with AtomicFile(plain) as copy:
        buffer = io.BytesIO()
        torch.save(state, buffer)
        copy.write([buffer.getbuffer()])
        copy.commit()
    return plain


def _copied(value: Any) -> Any:
    """Return a state that training cannot change any more, however deep its tensors lie, as plain
    values on the CPU.
    """
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
    """Open a tracking in the project of the script's own W&B run, and close it when the script
    ends.
    """
    run = getattr(sys.modules.get("wandb"), "run", None)
    project = (
        getattr(run, "project", None)
        or os.environ.get("WANDB_PROJECT", "")
        or WandbSettings.project
    )
    entity = getattr(run, "entity", None) or os.environ.get("WANDB_ENTITY", "")
    name = f"models of {run.name or run.id}" if run is not None else "models"
    settings = TrackingSettings(wandb=WandbSettings(_mode(), project, name, entity))
    folder = _folder().absolute()  # the script may change its current folder
    tracking = Tracking(settings, {"run": getattr(run, "id", None)}, folder)
    if settings.wandb.mode != "disabled":
        atexit.register(tracking.close)
    return tracking


def _mode() -> str:
    run = getattr(sys.modules.get("wandb"), "run", None)
    own = next((mode for mode in ("disabled", "offline") if getattr(run, mode, False)), None)
    tracking = current_tracking()
    mode = (
        own
        or (tracking.wandb_mode if tracking is not None else "")
        or os.environ.get("WANDB_MODE", "online")
    )
    return mode if mode in MODES else "online"


def _folder() -> Path:
    return Path(os.environ.get("WANDB_DIR", ".")) / "wandb" / "navrl-models"


def _read(path: Path) -> dict[str, Any]:
    try:
        values = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return values if isinstance(values, dict) else {}


def _write(path: Path, values: Mapping[str, Any]) -> None:
    with AtomicFile(path) as file:
        file.write([json.dumps(values).encode()])
        file.commit()
