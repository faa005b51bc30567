"""Download models from Weights & Biases in one call; each version is fetched once and verified.

What is returned can be read by `torch.load(path)` as it is.
"""

from __future__ import annotations

import io
import json
import os
import re
import threading
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from navrl.errors import TrackingError
from navrl.io.checkpoint.checkpoint_file import load_checkpoint
from navrl.io.container.atomic_files import AtomicFile
from navrl.io.container.checksums import sha256_of
from navrl.io.container.index import MAGIC
from navrl.registry.model_names import Reference, check_name, parse_reference
from navrl.tracking.backends import open_backend
from navrl.tracking.queue import RecordQueue
from navrl.tracking.tracker import current_tracking
from navrl.tracking.wandb_uploads import models_folder, wandb_mode

__all__ = ["download_model_from_wandb", "fetch_model_from_wandb"]

PLAIN = "state_dict.pt"  # suffix of the weights of a model file, as torch.save writes them


def download_model_from_wandb(
    reference: str, download_dir: str | os.PathLike[str] = "models", *, timeout: float = 60.0
) -> Path:
    """Return a file that `torch.load(path)` reads: the weights of `user/project/model:best`.

    Each version is fetched once, and verified on every call. The weights of a model file, which
    holds more than that, are written to a file beside it. If W&B cannot be reached, this returns
    the version that the alias pointed at last time, with a warning, or a model that is still queued
    by this script for that user and project.

    Raises:
        RegistryError: the reference is malformed.
        TrackingError: there is no such model, or W&B cannot be reached and there is no copy.

    >>> import torch, navrl
    >>> path = navrl.download_model_from_wandb("me/NavRL/model:best")  # doctest: +SKIP
    >>> state = torch.load(path)  # doctest: +SKIP
    """
    return _readable_by_torch(fetch_model_from_wandb(reference, download_dir, timeout=timeout))


def fetch_model_from_wandb(
    reference: str, download_dir: str | os.PathLike[str] = "models", *, timeout: float = 60.0
) -> Path:
    """Return the file of `user/project/model:best` as it was uploaded.

    Otherwise like `download_model_from_wandb`.

    Raises:
        RegistryError: the reference is malformed.
        TrackingError: there is no such model, or W&B cannot be reached and there is no copy.
    """
    parsed, cache = parse_reference(reference), Path(download_dir)
    place = cache.joinpath(*(part for part in (parsed.entity, parsed.project) if part), parsed.name)
    if parsed.version is not None and (kept := _kept(place, f"v{parsed.version}")):
        return kept
    if wandb_mode() != "online":
        return _without_network(parsed, place, cache, "wandb is offline")
    try:
        return _within(timeout, lambda: _fetch(parsed, place, cache))
    except TrackingError:
        raise
    except Exception as error:  # W&B's client may raise anything
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
        _write(place / version / ".digest.json", {"file": file.name, "sha256": sha256_of(file)})
    aliases = _read(place / ".aliases.json")
    _write(place / ".aliases.json", aliases | {parsed.label or "latest": version})
    return file


def _kept(place: Path, version: str) -> Path | None:
    """Return the file of a version that was fetched before, if it is undamaged."""
    known = _read(place / version / ".digest.json")
    if not known:
        return None
    file = place / version / check_name(str(known["file"]), "file")
    return file if file.is_file() and sha256_of(file) == known["sha256"] else None


def _without_network(parsed: Reference, place: Path, cache: Path, reason: str) -> Path:
    version = _read(place / ".aliases.json").get(parsed.label or "latest", parsed.label or "")
    kept = _kept(place, str(version)) if version else None
    if kept is not None:
        message = f"{parsed}: {reason}; using {version}, which it pointed at last time"
        warnings.warn(message, RuntimeWarning, stacklevel=3)
        return kept
    tracking = current_tracking()
    folder = tracking.folder if tracking is not None else models_folder()
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
    """Return what a call returns or raise what it raises, within `seconds`.

    W&B's client may block for ever.
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


def _readable_by_torch(file: Path) -> Path:
    """Return a file that `torch.load` reads: this one, or the weights of a model file."""
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
