"""Resuming a run: which run and checkpoint, and which settings may change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from navrl.conf.overrides import GROUPS
from navrl.config import EARLIER, Config, as_dict, from_dict, load_config, our_overrides
from navrl.errors import ConfigError, NavrlError
from navrl.io.checkpoint.checkpoint_file import load_checkpoint, verify_checkpoint
from navrl.io.checkpoint.directory import CheckpointDirectory
from navrl.io.checkpoint.listing import list_entries
from navrl.io.checkpoint.parts import PART_NAME
from navrl.registry.version_comparison import flat
from navrl.training.resume.source import run_of
from navrl.training.resume.starting_weights import names_code
from navrl.training.resume.training_state import is_training_state, upgraded_state
from navrl.training.run_folder import is_finished, read_record, sequence_of

# A resumed run may change its length (and the schedules with it), its folder and how it is watched,
# but nothing that the policy learns from.
CHANGEABLE = (
    "max_frame_num",
    "processes",
    "eval_interval",
    "save_interval",
    "keep_last_n",
    "compress_checkpoint",
    "save_compression_level",
    "checkpoint_delta_chain",
    "checkpoint_lossy_moments",
    "async_checkpoint_queue_size",
    "on_save_failure",
    "rollout_save_interval",
    "rollout_keep_last_n",
    "compress_lidar",
    "collect.",
    "headless",
    "run_folder",
    "resume",
    "resume_checkpoint",
    "flight.",
    "wandb.",
    "mlflow.",
    "tracker",
    "registry.",
    "sim.num_threads",
)


def newest_run(parent: Path = Path("runs")) -> Path:
    """Return the folder of the newest run that can be resumed.

    Unfinished runs with a whole checkpoint come first, then runs that were killed before their
    first checkpoint, which start over, then finished runs. Among equals the newest is the run that
    was started or resumed last, by the sequence number in its `run.json`: clocks may be set back.
    Runs of older versions have no number and count as older, by their start time.

    Raises:
        ConfigError: no run can be resumed.
    """
    runs = [path.parent for path in parent.glob("*/run.json")]
    found = [(run, _record(run)) for run in runs]
    found.sort(key=lambda pair: _age(*pair), reverse=True)
    open_runs = [run for run, record in found if not is_finished(run, record)]
    for wanted in (_has_whole_checkpoint, _can_start_over):
        for run in open_runs:
            if wanted(run):
                return run
    for run, record in found:
        if is_finished(run, record):
            return run
    reason = f"resume=auto found no run in {parent}/"
    if runs:
        reason += f" that can be resumed: {len(runs)} without a whole checkpoint"
    raise ConfigError(f"{reason}; name one with run_folder=PATH, or train without resume")


def _record(run: Path) -> dict[str, Any]:
    """Return the contents of a run's `run.json`; empty if it is damaged."""
    try:
        return read_record(run / "run.json")
    except (OSError, ValueError):
        return {}


def _age(run: Path, record: Mapping[str, Any]) -> tuple[int, str, str]:
    started = record.get("started")
    return sequence_of(record), started if isinstance(started, str) else "", run.name


def _has_whole_checkpoint(run: Path) -> bool:
    try:
        entries = list_entries(run / "checkpoints")
    except OSError:
        return False
    return any(_is_whole(entry.path) for entry in reversed(entries))


def _is_whole(path: Path) -> bool:
    try:
        verify_checkpoint(path)
    except (NavrlError, OSError):
        return False
    return True


def _can_start_over(run: Path) -> bool:
    """Return whether a run has its settings and no checkpoint, not even a damaged one."""
    return (run / "config.yaml").is_file() and not _has_checkpoint_files(run)


def _has_checkpoint_files(run: Path) -> bool:
    """Return whether any file is named like a checkpoint: a damaged one must be reported.

    Parts of a save that was interrupted are no checkpoint.
    """
    found = (run / "checkpoints").glob("checkpoint_*")
    return any(not PART_NAME.fullmatch(path.name) for path in found)


def find_run(config: Config) -> Path:
    """Return the folder of the run to resume in place; no file is opened.

    Raises:
        ConfigError: there is no such run.
    """
    if config.resume_checkpoint:
        run = run_of(config.resume_checkpoint)
        if run is None:
            raise ConfigError(
                f"{config.resume_checkpoint} belongs to no run; expected RUN/checkpoints/latest"
            )
    else:
        run = Path(config.run_folder) if config.run_folder else newest_run()
    if not (run / "checkpoints").is_dir() and not (run / "config.yaml").is_file():
        raise ConfigError(
            f"{run} holds no run to resume; expected a folder that `navrl train` made. "
            f"Without resume=auto, `navrl train run_folder={run}` starts one there"
        )
    return run


def goes_on_in_place(config: Config) -> bool:
    """Return whether a run is resumed in its own folder, rather than in a new one."""
    if not config.resume_checkpoint:
        return bool(config.resume)
    run = run_of(config.resume_checkpoint)
    return run is not None and (
        not config.run_folder or Path(config.run_folder).resolve() == run.resolve()
    )


def load_state(config: Config, folder: Path) -> dict[str, Any] | None:
    """Return the newest whole state of a run, or the requested one; None if the run starts over.

    Raises:
        ConfigError: the checkpoint holds no training state.
        CheckpointError: the run has no whole checkpoint.
    """
    path = Path(config.resume_checkpoint)
    if config.resume_checkpoint and not path.is_dir():
        return _checked(path, load_checkpoint(path))
    if not config.resume_checkpoint and _can_start_over(folder):
        return None
    try:
        with CheckpointDirectory(folder / "checkpoints") as checkpoints:
            return _checked(folder, checkpoints.load())
    except OSError as error:
        raise ConfigError(
            f"{folder / 'checkpoints'} cannot be read: {error.strerror or error}; expected the "
            "checkpoints of a run"
        ) from error


def _checked(path: Path, state: Any) -> dict[str, Any]:
    if not is_training_state(state):
        raise ConfigError(
            f"{path} holds no training state; expected a checkpoint that `navrl train` wrote"
        )
    return upgraded_state(state)


def saved_settings(folder: Path) -> dict[str, Any]:
    """Return the settings that a run was started with, from its `config.yaml`.

    Raises:
        ConfigError: the file cannot be read, or holds no settings.
    """
    path = folder / "config.yaml"
    try:
        found = yaml.safe_load(path.read_bytes())
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        raise ConfigError(
            f"{path} cannot be read: {str(error)[:200]}; start a new run in another folder"
        ) from error
    if not isinstance(found, dict):
        raise ConfigError(f"{path} holds no settings; start a new run in another folder")
    return found


def continued_config(saved: Mapping[str, Any], overrides: Sequence[str]) -> Config:
    """Return a run's settings with the typed overrides on top.

    Raises:
        ConfigError: an override would make it another run; all such keys are named.
    """
    overrides = our_overrides(overrides)
    typed = load_config(overrides)  # checks them
    before, now = EARLIER | flat(saved), flat(as_dict(typed))
    said = typed_keys(overrides)
    # a setting that the run's version did not know yet has its default
    had = flat(as_dict(Config())) | before
    keys = [key for key in now if key in said and now[key] != had.get(key)]
    refused = [key for key in keys if not key.startswith(CHANGEABLE)]
    if refused:
        changes = ", ".join(
            f"{key} (was {had.get(key)!r}, now {now[key]!r})" for key in refused[:5]
        )
        raise ConfigError(
            f"a resumed run cannot change {changes}; it may change {', '.join(CHANGEABLE)}. "
            "Start a new run for the rest"
        )
    merged = before | {key: now[key] for key in keys}
    for key in ("resume", "resume_checkpoint"):
        merged[key] = ""
    return from_dict(_nested(merged))


def refuse_code(saved: Mapping[str, Any], overrides: Sequence[str], subject: str) -> None:
    """Raise a ConfigError if a file's settings name Python code that the user has not typed too."""
    typed = set(our_overrides(overrides))
    for key, value in flat(saved).items():
        if names_code(key, value) and f"{key}={value}" not in typed:
            raise ConfigError(
                f"{subject} was trained with {key}={value}, and code that a file names is not run; "
                f"if you trust it, type {key}={value} too"
            )


def typed_keys(overrides: Sequence[str]) -> set[str]:
    """Return the dotted keys that overrides set, directly or by a group such as `preset=best`."""
    plain = flat(as_dict(load_config([])))
    words = [override.split("=", 1)[0] for override in overrides]
    groups = [override for override in overrides if override.split("=", 1)[0] in GROUPS]
    chosen = flat(as_dict(load_config(groups)))
    single = [word for word in words if word not in GROUPS]
    said = {
        key for key in plain if any(key == word or key.startswith(f"{word}.") for word in single)
    }
    return said | {key for key in plain if chosen[key] != plain[key]}


def _nested(values: Mapping[str, Any]) -> dict[str, Any]:
    nested: dict[str, Any] = {}
    for key, value in values.items():
        *groups, name = key.split(".")
        place = nested
        for group in groups:
            place = place.setdefault(group, {})
        place[name] = value
    return nested
