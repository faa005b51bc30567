"""Going on with a run: which checkpoint, and which settings may differ from those it was begun with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from navrl.conf.overrides import GROUPS
from navrl.config import Config, as_dict, from_dict, load_config
from navrl.errors import CheckpointError, ConfigError, RegistryError
from navrl.io.checkpoint import find_checkpoint, load_checkpoint
from navrl.io.directory import CheckpointDirectory
from navrl.model import KIND
from navrl.registry.find import find_model
from navrl.train.folder import default_name

# How long a run goes on (its schedules with it), where, and how it is watched may change. What it learns from may not.
CHANGEABLE = (
    "max_frame_num", "eval_interval", "save_interval", "keep_last_n", "compress_checkpoint", "save_compression_level",
    "async_checkpoint_queue_size", "rollout_save_interval", "rollout_keep_last_n", "compress_lidar", "headless",
    "run_folder", "resume", "resume_checkpoint", "flight.", "wandb.", "mlflow.", "tracker", "registry.", "sim.num_threads",
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


def find_run(config: Config) -> Path:
    """Return the folder of the run to go on with; nothing is read but names.

    Raises:
        ConfigError: there is no such run.
    """
    if not config.resume_checkpoint:
        return _run(Path(config.run_folder) if config.run_folder else newest_run())
    path = Path(config.resume_checkpoint)
    if path.is_dir():
        return _run(path)
    if _is_registered(config.resume_checkpoint):
        return _new_run(config)
    own = path.resolve().parent.parent
    if not config.run_folder:
        return _run(own)
    folder = Path(config.run_folder)
    if (folder / "run.json").exists() and folder.resolve() != own:
        raise ConfigError(f"run_folder {folder} holds another run than {path}; name a new folder, or leave run_folder out")
    return folder


def _new_run(config: Config) -> Path:
    """Return the folder of a run that begins with a checkpoint of the registry: a new one, not that of the old run."""
    folder = Path(config.run_folder) if config.run_folder else default_name()
    if (folder / "run.json").exists():
        raise ConfigError(
            f"run_folder {folder} holds a run; name a new folder for {config.resume_checkpoint}, or leave run_folder out"
        )
    return folder


def _run(folder: Path) -> Path:
    if not (folder / "checkpoints").is_dir():
        raise ConfigError(f"{folder} holds no run to go on with; expected a folder that `navrl train` made")
    return folder


def load_state(config: Config, folder: Path) -> dict[str, Any]:
    """Return the newest whole state of a run, or the one that was asked for.

    Raises:
        ConfigError: the checkpoint is none of a training.
        CheckpointError: the run has no whole checkpoint.
    """
    path = Path(config.resume_checkpoint)
    if config.resume_checkpoint and _is_registered(config.resume_checkpoint):
        return _checked(config.resume_checkpoint, load_checkpoint(find_model(config.resume_checkpoint)))
    if config.resume_checkpoint and not path.is_dir():
        return _checked(path, load_checkpoint(path))
    with CheckpointDirectory(folder / "checkpoints") as checkpoints:
        return _checked(folder, checkpoints.load())


def _is_registered(reference: str) -> bool:
    """Return whether this is a name in the registry: no file by that name, with or without a suffix of compression.

    Raises:
        RegistryError: it looks like one (it has a colon), but is none.
    """
    try:
        find_checkpoint(reference)
        return False
    except CheckpointError:
        pass
    try:
        find_model(reference)
        return True
    except RegistryError:
        if ":" in reference:
            raise
        return False


def _checked(path: Path | str, state: Any) -> dict[str, Any]:
    if isinstance(state, dict) and state.get("kind") == KIND:
        raise ConfigError(
            f"{path} is a model: weights, without the optimiser, the random generators and the drones that a training goes on "
            "from; expected a checkpoint, as in RUN/checkpoints (`navrl models register NAME RUN/checkpoints/latest` keeps one)"
        )
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
    plain = _flat(as_dict(load_config([])))
    words = [override.split("=", 1)[0] for override in overrides]
    groups = [override for override in overrides if override.split("=", 1)[0] in GROUPS]
    chosen = _flat(as_dict(load_config(groups)))
    said = {key for key in now if any(key == word or key.startswith(f"{word}.") for word in words if word not in GROUPS)}
    said |= {key for key in now if chosen[key] != plain[key]}
    keys = [key for key in now if key in said and now[key] != before.get(key)]
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
