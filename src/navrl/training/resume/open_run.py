"""Opens a run: its folder, its settings, and the state or weights that it starts from."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from navrl.conf.collect_settings import RAY
from navrl.config import NAVIGATION, Config, as_yaml
from navrl.environments.table import NOTHING_GIVEN, Given
from navrl.errors import ConfigError
from navrl.io.checkpoint.checkpoint_file import load_checkpoint
from navrl.machine import usable_cores
from navrl.training.distributed.launched import Place
from navrl.training.progress import total_iterations
from navrl.training.resume.continued_run import (
    continued_config,
    find_run,
    goes_on_in_place,
    load_state,
    refuse_code,
    saved_settings,
    typed_keys,
)
from navrl.training.resume.source import Source, find_source, run_of
from navrl.training.resume.starting_weights import (
    Weights,
    checked_weights,
    fitted_config,
    read_weights,
)
from navrl.training.resume.training_state import is_training_state, upgraded_state
from navrl.training.run_folder import RunFolder, default_name, write_text

__all__ = ["Opened", "as_launched", "open_run", "planned_processes"]

SHOWN_CHANGES = 5


@dataclass
class Opened:
    """A run to train: its folder, its settings, and what it starts from."""

    folder: RunFolder | None  # locked; None if there is nothing left to train
    path: Path  # of the run
    config: Config
    state: dict[str, Any] | None = None  # a saved training state to resume
    weights: dict[str, Tensor] | None = None  # the weights of a policy
    note: str = ""  # a sentence for the user


def open_run(config: Config, typed: list[str], given: Given = NOTHING_GIVEN) -> Opened:
    """Create the folder of a new run, or open that of the run to resume.

    Args:
        config: results from the overrides `typed` on top of the default preset.
        typed: overrides.
        given: environment and network that the caller made.

    Raises:
        ConfigError: there is no such run, checkpoint or model, or the settings do not fit it.
    """
    command = ["navrl", "train", *typed]
    if goes_on_in_place(config):
        path = find_run(config)
        folder = RunFolder.open(path, lock=True) if (path / "run.json").exists() else None
        try:
            return _resume(config, typed, path, folder, command, given)
        except BaseException:
            if folder is not None:
                folder.close()
            raise
    if config.resume_checkpoint:
        return _start_from(config, typed, command, given)
    settle_processes(config)
    folder = RunFolder.create(config.run_folder or default_name(), as_yaml(config), command)
    return Opened(folder, folder.path, config)


def as_launched(config: Config, place: Place) -> Config:
    """Return the settings of a process that torchrun or `processes=N` started.

    Processes that are started again go on with the run in their folder. Those of torchrun cannot
    tell whether they are, so they go on with any run that the folder holds.

    Raises:
        ConfigError: `processes` is not the number of processes, or nothing names the folder.
    """
    if config.processes not in (0, place.size):
        raise ConfigError(
            f"processes is {config.processes}, but {place.size} were started; leave it out: "
            "torchrun's --nnodes and --nproc-per-node decide"
        )
    config = dataclasses.replace(config, processes=place.size)
    if not config.run_folder and place.restarts and goes_on_in_place(config):
        config.run_folder = str(find_run(config))
    if not config.run_folder:
        if place.by_torchrun and not goes_on_in_place(config):
            raise ConfigError(
                "run_folder is not set; type run_folder=PATH, a folder that all machines share: "
                "processes that torchrun starts again find their run there"
            )
        return config
    if place.by_torchrun or place.restarts:
        held = RunFolder(config.run_folder).holds_run()
        config.resume = "auto" if held else ""
        config.resume_checkpoint = "" if held else config.resume_checkpoint
    return config


def planned_processes(config: Config, typed: list[str]) -> int:
    """Return how many processes a training takes: as typed, as before, or as many as fit.

    Raises:
        ConfigError: there is no such run or checkpoint, or the number does not divide the work.
    """
    if "processes" not in typed_keys(typed) and config.collect.name != RAY:
        if goes_on_in_place(config):
            path = find_run(config)
            saved = saved_settings(path) if (path / "config.yaml").is_file() else None
            return _processes_of(saved or (load_state(config, path) or {})["config"])
        if config.resume_checkpoint:
            state, _ = _contents(find_source(config.resume_checkpoint, config.tracker_deadline))
            if state is not None:
                return _processes_of(state["config"])
    config = dataclasses.replace(config)
    settle_processes(config)
    return config.processes


def _processes_of(saved: Mapping[str, Any]) -> int:
    number = saved.get("processes")
    return number if type(number) is int and number > 0 else 1


def _resume(
    config: Config,
    typed: list[str],
    path: Path,
    folder: RunFolder | None,
    command: list[str],
    given: Given,
) -> Opened:
    """Resume a run in its folder; a run without any checkpoint starts over."""
    state, weights, source = load_state(config, path), None, None
    saved = saved_settings(path) if state is None else state["config"]
    if state is None and saved.get("resume_checkpoint"):
        source = find_source(saved["resume_checkpoint"], config.tracker_deadline)
        state, weights = _contents(source)
    config = _continued(saved, typed, config)
    iteration = 0 if state is None else state["iteration"]
    if iteration >= total_iterations(config) and (folder is None or folder.is_finished()):
        if folder is not None:
            folder.close()
        return _finished(path, str(path), config, iteration)
    text = as_yaml(_naming(config, source))
    if folder is None:
        folder = RunFolder.create(path, text, command, source.as_record() if source else None)
    elif state is None or config.processes != saved.get("processes"):
        write_text(folder.config_path, text)
    folder.record_resume(command, iteration)
    if weights is not None:
        weights = checked_weights(config, weights, str(source), given)
    note = f"resumed after iteration {iteration}"
    if state is None:
        note = (
            f"{path} was stopped before its first checkpoint: it starts over with the same "
            "settings and seed" + (f", from the weights of {source}" if source else "")
        )
    parameters = weights.parameters if weights else None
    return Opened(folder, path, config, state, parameters, note)


def _start_from(config: Config, typed: list[str], command: list[str], given: Given) -> Opened:
    """Start a run in a new folder from a checkpoint or from the weights of a model."""
    path = Path(config.run_folder) if config.run_folder else default_name()
    if (path / "run.json").exists():
        raise ConfigError(
            f"run_folder {path} holds another run than {config.resume_checkpoint}; name a new "
            "folder, or leave out run_folder"
        )
    source = find_source(config.resume_checkpoint, config.tracker_deadline)
    state, weights = _contents(source)
    if weights is None:
        return _resume_elsewhere(path, source, state or {}, config, typed, command)
    config, fitted, changes = fitted_config(config, typed_keys(typed), weights, str(source), given)
    config.resume_checkpoint = ""
    settle_processes(config)
    folder = _create(path, config, source, command)
    note = _note_on_weights(source, changes, config)
    if fitted is not weights:
        note += f"; the network gets relative motion, which {source} knows nothing of yet"
    return Opened(folder, path, config, weights=fitted.parameters, note=note)


def _resume_elsewhere(
    path: Path,
    source: Source,
    state: dict[str, Any],
    config: Config,
    typed: list[str],
    command: list[str],
) -> Opened:
    """Resume the checkpoint of another run in a new folder; the other run is not changed."""
    refuse_code(state["config"], typed, str(source))
    config, iteration = _continued(state["config"], typed, config), state["iteration"]
    if iteration >= total_iterations(config):
        return _finished(run_of(str(source.file)) or path, str(source), config, iteration)
    folder = _create(path, config, source, command)
    folder.record_resume(command, iteration)
    note = f"resumed {source} after iteration {iteration}, in {path}"
    return Opened(folder, path, config, state, note=note)


def _continued(saved: Mapping[str, Any], typed: list[str], asked: Config) -> Config:
    """Return the settings of a resumed run, for as many processes as were asked for."""
    config = continued_config(saved, typed)
    config.processes = asked.processes or config.processes
    settle_processes(config)
    return config


def _contents(source: Source) -> tuple[dict[str, Any] | None, Weights | None]:
    """Return the training state in a file, or the weights of a policy; the other is None."""
    found = load_checkpoint(source.file)
    if is_training_state(found):
        return upgraded_state(found), None
    return None, read_weights(source.file, found, str(source))


def _create(path: Path, config: Config, source: Source, command: list[str]) -> RunFolder:
    return RunFolder.create(path, as_yaml(_naming(config, source)), command, source.as_record())


def _naming(config: Config, source: Source | None) -> Config:
    """Return the settings for `config.yaml`: with the source, in case the run starts over."""
    return dataclasses.replace(config, resume_checkpoint=source.lasting) if source else config


def _note_on_weights(source: Source, changes: list[str], config: Config) -> str:
    new = "critics, replay" if config.algorithm == "sac" else "value normaliser"
    note = (
        f"a new training from the weights of {source}; optimiser, {new}, counters and random "
        "numbers start new"
    )
    if changes:
        more = ", ..." if len(changes) > SHOWN_CHANGES else ""
        note += f"; settings of the model: {', '.join(changes[:SHOWN_CHANGES])}{more}"
    return note


def _finished(path: Path, subject: str, config: Config, iteration: int) -> Opened:
    note = (
        f"{subject} is finished: iteration {iteration} of {total_iterations(config)}; "
        f"to train longer, resume with max_frame_num above {config.max_frame_num}"
    )
    return Opened(None, path, config, note=note)


def settle_processes(config: Config) -> None:
    """Choose the number of processes if none was typed; refuse one that does not divide evenly."""
    config.processes = config.processes or _fitting_processes(config)
    for key, value in _divided(config).items():
        if value % config.processes:
            raise ConfigError(
                f"{key} is {value}; expected a multiple of the {config.processes} processes "
                "(processes=N)"
            )


def _fitting_processes(config: Config) -> int:
    """Return the most processes, up to one a core, that divide the work.

    One for SAC, a GPU, and where remote workers collect.
    """
    alone = config.algorithm == "sac" or config.collect.name == RAY
    if config.device != "cpu" or config.env.same_map or alone:
        return 1
    counts = _divided(config).values()
    return max(n for n in range(1, usable_cores() + 1) if not any(count % n for count in counts))


def _divided(config: Config) -> dict[str, int]:
    """Return the settings that the number of processes must divide."""
    divided = {"env.num_envs": config.env.num_envs}
    if config.env.name == NAVIGATION:
        divided["flight.interim_episodes"] = config.flight.interim_episodes
    return divided
