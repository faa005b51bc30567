"""Going on with a run: which checkpoint, and which settings may differ from those it was begun with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from navrl.config import GROUPS, Config, as_dict, from_dict, load_config
from navrl.errors import CheckpointError, ConfigError
from navrl.io.checkpoint import load_checkpoint
from navrl.io.directory import CheckpointDirectory

# Where a run goes and how it is watched may change on the way. What the policy learns from may not: another run would do.
CHANGEABLE = (
    "max_frame_num", "eval_interval", "save_interval", "keep_last_n", "compress_checkpoint", "save_compression_level",
    "async_checkpoint_queue_size", "headless", "run_folder", "resume", "resume_checkpoint", "flight.", "wandb.",
    "sim.num_threads",
)  # fmt: skip


def newest_run(parent: Path = Path("runs")) -> Path:
    """Return the folder of the run that was begun last.

    Raises:
        ConfigError: there is none.
    """
    runs = [path.parent for path in parent.glob("*/run.json")]
    if not runs:
        raise ConfigError(f"resume=auto found no run in {parent}/; name one with run_folder=PATH, or train without resume")
    return max(runs, key=lambda run: ((run / "run.json").stat().st_mtime, run.name))


def find_state(config: Config) -> tuple[Path, dict[str, Any]]:
    """Return the folder of the run to go on with, and its newest whole state.

    Raises:
        ConfigError: there is no such run, or its checkpoint is none of a training.
        CheckpointError: it has no whole checkpoint.
    """
    if config.resume_checkpoint:
        path = Path(config.resume_checkpoint)
        if path.is_dir():
            return _newest_state(path)
        folder = path.resolve().parent.parent
        if not (folder / "run.json").exists() and not config.run_folder:
            raise ConfigError(f"{path} is in no run's folder; say with run_folder=PATH where the run goes on")
        return Path(config.run_folder or folder), _checked(path, load_checkpoint(path))
    return _newest_state(Path(config.run_folder) if config.run_folder else newest_run())


def _newest_state(folder: Path) -> tuple[Path, dict[str, Any]]:
    if not (folder / "checkpoints").is_dir():
        raise ConfigError(f"{folder} holds no run to go on with; expected a folder that `navrl train` made")
    with CheckpointDirectory(folder / "checkpoints") as checkpoints:
        try:
            return folder, _checked(folder, checkpoints.load())
        except CheckpointError as error:
            raise CheckpointError(f"{error}; the run was ended before its first one: train anew in another folder") from error


def _checked(path: Path, state: Any) -> dict[str, Any]:
    if not isinstance(state, dict) or "config" not in state or "ranks" not in state:
        raise ConfigError(f"{path} holds no training state; expected a checkpoint that `navrl train` wrote")
    return state


def continued_config(saved: Mapping[str, Any], overrides: Sequence[str]) -> Config:
    """Return a run's settings with what the user typed on top.

    Raises:
        ConfigError: something was typed that would make it another run; all such keys are named.
    """
    typed = load_config(overrides)  # checks them
    before, now = _flat(saved), _flat(as_dict(typed))
    chosen = {override.split("=", 1)[0] for override in overrides}
    if chosen & set(GROUPS):
        keys = [key for key in now if now[key] != before.get(key)]
    else:
        keys = [key for key in now if key in chosen and now[key] != before.get(key)]
    refused = [key for key in keys if not key.startswith(CHANGEABLE)]
    if refused:
        told = ", ".join(f"{key} (was {before.get(key)!r}, now {now[key]!r})" for key in refused[:5])
        raise ConfigError(f"a resumed run cannot change {told}; it may change {', '.join(CHANGEABLE)}. Train anew for the rest")
    merged = before | {key: now[key] for key in keys}
    for key in ("resume", "resume_checkpoint"):
        merged[key] = ""
    return from_dict(_nested(merged))


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in values.items():
        flat |= _flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
    return flat


def _nested(values: Mapping[str, Any]) -> dict[str, Any]:
    nested: dict[str, Any] = {}
    for key, value in values.items():
        *groups, name = key.split(".")
        place = nested
        for group in groups:
            place = place.setdefault(group, {})
        place[name] = value
    return nested
