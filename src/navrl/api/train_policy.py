"""`navrl.train`: train a policy, evaluate it, and return the run. `navrl train` calls it too."""

from __future__ import annotations

import dataclasses
import os
import shlex
import signal
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

from rich.console import Console
from rich.markup import escape

from navrl.api.call_settings import Settings, check_given, console_for, prepare
from navrl.api.flight_report import fly_and_report
from navrl.api.foreign_report import play_and_report
from navrl.api.training_run import Run
from navrl.config import NAVIGATION, Config, as_dict
from navrl.environments.foreign import ForeignTask
from navrl.environments.table import NOTHING_GIVEN, Given, find_task
from navrl.environments.task import Task
from navrl.errors import ConfigError, NavrlError
from navrl.evaluation import Policy, load_policy
from navrl.tracking.tracker import Tracking, check_trackers
from navrl.training.compile_kernels import compile_kernels
from navrl.training.display import Display, open_display
from navrl.training.distributed.launched import join, leave_as_asked, place_of_this_process
from navrl.training.distributed.launcher import launch
from navrl.training.distributed.team import Team
from navrl.training.loop import Ending, Start, follow, lead
from navrl.training.progress import total_iterations
from navrl.training.remote.ray_cluster import require_ray
from navrl.training.resume.continued_run import goes_on_in_place
from navrl.training.resume.open_run import Opened, as_launched, open_run, planned_processes
from navrl.training.run_folder import RunFolder, reserve_folder, resume_command
from navrl.training.saving.checkpoints import reason_of
from navrl.training.saving.publisher import Publisher
from navrl.training.signals import STOPS, CallerStop, Stopped, StopRequest
from navrl.training.terminal import surviving_output

__all__ = ["Outcome", "run_training", "train"]

STOPPING = "saving, then stopping (Ctrl+C again: at once)"


@dataclass(frozen=True)
class Outcome:
    """How a training ended."""

    path: Path  # of the run
    finished: bool  # False: stopped before its last iteration
    problems: Sequence[str] = ()  # what was not saved, and what to do about it


def train(
    config: Settings = (),
    *,
    env: Any = None,
    network: Any = None,
    folder: str | os.PathLike[str] | None = None,
    verbose: bool = False,
) -> Run:
    """Train a policy, evaluate it, and return the run; the same as `navrl train` does.

    It runs in this process unless `processes=N` asks for more. In the main thread, Ctrl+C and
    SIGTERM save a checkpoint and then go on to the handlers of the caller; in other threads signals
    are left alone. `["resume=auto"]` with the same arguments continues a run.

    Args:
        config: overrides as the command takes them, `["max_frame_num=1e5"]`; settings by name,
            `{"max_frame_num": 100_000, "algo": {"gamma": 0.98}}`; or a `navrl.config.Config`.
        env: an environment, or a function that makes one: ours (`navrl.rl.environment`), of
            Gymnasium, TorchRL or rsl_rl. None: the one that the settings name.
        network: a class or function that makes a `torch.nn.Module` from the observation, a module,
            or `"module:Class"`; see docs/environments.md. None: as the settings say.
        folder: of the run; None: `runs/DATE_TIME`.
        verbose: show progress: a panel on a terminal, a line every ten seconds in a notebook.

    Raises:
        ConfigError: a setting is wrong, or the folder holds another run.

    >>> import gymnasium, navrl
    >>> settings = {"max_frame_num": 512, "env.num_envs": 4, "flight.episodes": 2, "processes": 1}
    >>> make = lambda: gymnasium.make("CartPole-v1")
    >>> run = navrl.train(settings, env=make, folder="runs/cart")
    >>> run.finished, run.summary["environment"]["episodes"]
    (True, 2)
    """
    asked = prepare(config, env, network, folder)
    stop = CallerStop()
    try:
        with stop:
            outcome = run_training(
                asked.config, asked.typed, console_for(verbose), stop, asked.given
            )
    except Stopped:
        stop.deliver()
        raise
    for problem in outcome.problems:
        warnings.warn(problem, RuntimeWarning, stacklevel=2)
    stop.deliver()
    made = Given(env, asked.given.network)
    return Run(outcome.path, made, outcome.problems)


def run_training(
    config: Config,
    typed: list[str],
    console: Console,
    stop: StopRequest,
    given: Given = NOTHING_GIVEN,
) -> Outcome:
    """Open the run, train, evaluate the model, write the report.

    Args:
        config: results from the overrides `typed` on top of the default preset.
        typed: overrides.
        console: for progress and tables.
        stop: tells when to stop.
        given: environment and network that the caller made.

    Raises:
        Stopped: a signal came before the first iteration, or in the final evaluation.
    """
    check_trackers(config.tracking)
    require_ray(config.collect)
    place = place_of_this_process()
    if place is not None:
        with ExitStack() as stack:
            team = stack.enter_context(join(place))
            if team.leads:
                config = as_launched(config, place)
                leader = _Leader(team, stack.close, place.restarts)
                return _lead(leader, config, typed, console, stop, given)
            if follow(team):
                leave_as_asked(place)
            return Outcome(Path(config.run_folder), finished=True)
    config = dataclasses.replace(config, processes=planned_processes(config, typed))
    if config.processes > 1:
        check_given(config, given)
        return _run_in_processes(config, typed, console, stop)
    return _lead(_Leader(Team()), config, typed, console, stop, given)


def _run_in_processes(
    config: Config, typed: list[str], console: Console, stop: StopRequest
) -> Outcome:
    """Train in processes of their own; this one waits and passes signals on."""
    goes_on = goes_on_in_place(config) or config.resume_checkpoint
    if config.env.name != NAVIGATION and not goes_on:
        find_task(config)  # starting processes takes seconds: check it before
    reserved = None
    if not config.run_folder and not goes_on_in_place(config):
        reserved = reserve_folder()  # for restarts too
        config.run_folder = str(reserved)
    try:
        arguments = (config, typed, console.quiet)
        outcome, number = launch(config.processes, run_rank, arguments, stop)
        stop.signal = stop.signal or number
        return cast(Outcome, outcome)
    finally:
        if reserved is not None:
            with suppress(OSError):
                reserved.rmdir()  # if nothing was written


def run_rank(config: Config, typed: list[str], quiet: bool) -> tuple[Outcome, int | None]:
    """Train as one of the processes of `processes=N`; return the outcome and the signal, if any."""
    with surviving_output() as output, StopRequest(launched=True) as stop:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)
        terminal = False if config.headless else None
        console = Console(file=cast(IO[str], output), force_terminal=terminal, quiet=quiet)
        return run_training(config, typed, console, stop), stop.signal


@dataclass(frozen=True)
class _Leader:
    """Rank 0's membership of the team."""

    team: Team
    leave: Callable[[], None] = lambda: None
    restarts: int = 0  # of the processes on this machine


def _lead(
    leader: _Leader,
    config: Config,
    typed: list[str],
    console: Console,
    stop: StopRequest,
    given: Given,
) -> Outcome:
    """Open the run, train it as rank 0, evaluate the model, write the report."""
    fresh = not goes_on_in_place(config)
    opened = open_run(config, typed, given)
    if opened.folder is None:
        leader.team.broadcast(None)  # nothing to train
        console.print(opened.note, markup=False, highlight=False, soft_wrap=True)
        return Outcome(opened.path, finished=True)
    folder, config = opened.folder, opened.config
    with folder, _discarding_unused(folder) if fresh else nullcontext():
        check_given(config, given)
        task = find_task(config, given.env)
        with (
            Tracking(config.tracking, as_dict(config), folder.path) as tracking,
            Publisher(config.registry, tracking, folder.origin().get("version", "")) as publisher,
        ):
            ending = _train(leader, opened, task, given, folder, publisher, console, stop)
            leader.leave()  # the rest is done by this process, with all its threads
            problems = [ending.problem] if ending.problem else []
            if ending.finished:
                with _telling_how_to_resume(folder, console):
                    problems += _finish(config, task, given, folder, publisher, console)
    for problem in problems:
        console.print(
            f"navrl: {problem}", style="bold red", markup=False, highlight=False, soft_wrap=True
        )
    return Outcome(folder.path, ending.finished, problems)


def _train(
    leader: _Leader,
    opened: Opened,
    task: Task,
    given: Given,
    folder: RunFolder,
    publisher: Publisher,
    console: Console,
    stop: StopRequest,
) -> Ending:
    config = opened.config
    start = Start(config, opened.state, opened.weights)
    if given != NOTHING_GIVEN:
        start.task, start.network = task, given.network
    opened.state = opened.weights = None  # their memory is not needed twice
    with open_display(console, f"navrl train: {folder.path}") as display:
        _note_start(display, leader, opened, task)
        if task.compiles:
            compile_kernels(
                config, lambda done: display.preparing(f"compiling (1-2 minutes): {done} kernels")
            )
            display.preparing("starting")
        stop.on_stop = lambda: display.stopping(STOPPING)
        ending = lead(leader.team, start, folder, display, stop, publisher)
        if not ending.finished and stop.signal is not None:
            display.note(f"stopped by a signal; resume with `{resume_command(folder.path)}`")
        return ending


def _note_start(display: Display, leader: _Leader, opened: Opened, task: Task) -> None:
    if leader.restarts:
        display.note(f"a training process died; all are started again ({leader.restarts})")
    if opened.note:
        display.note(opened.note)
    config = opened.config
    plural = "es" if config.processes > 1 else ""
    display.note(f"{config.processes} process{plural}, {config.env.num_envs} {task.units}")


@contextmanager
def _discarding_unused(folder: RunFolder) -> Iterator[None]:
    """Leave no folder behind if a mistake shows before the first iteration, such as a wrong
    `env.target`: once it is corrected, the same command must work.
    """
    try:
        yield
    except ConfigError:
        folder.discard_unused()
        raise


@contextmanager
def _telling_how_to_resume(folder: RunFolder, console: Console) -> Iterator[None]:
    """Tell how the last evaluation is made, if a signal stops it."""
    try:
        yield
    except Stopped:
        told = f"the last evaluation is missing; `{resume_command(folder.path)}` makes it"
        console.print(told, markup=False, highlight=False, soft_wrap=True)
        raise


def _finish(
    config: Config,
    task: Task,
    given: Given,
    folder: RunFolder,
    publisher: Publisher,
    console: Console,
) -> list[str]:
    """Evaluate the model, tag it in the registry and the trackers; return what failed."""
    path, problems = folder.path, list[str]()
    if not folder.model_path.is_file():
        return [f"{folder.model_path} was not written; there is nothing to evaluate"]
    policy = load_policy(path, network=given.network or config.network.target or None)
    names, policies = [str(path)], [policy]
    if isinstance(task, ForeignTask):
        result = play_and_report(policies, names, [task], path, console, problems=problems)
    else:
        result = fly_and_report(policies, names, config, set(), path, console, problems=problems)
    label = _publish(result.conditions, policy, task, folder, publisher)
    problems += _write_run_report(path, console)
    again = escape(shlex.join(["navrl", "eval", str(path)]))
    console.print(
        f"the model: [bold]{escape(str(folder.model_path))}[/bold]   fly it: [bold]{again}[/bold]",
        soft_wrap=True,
    )
    if label:
        known = f"registered as [bold]{label}[/bold]   all models: [bold]navrl models ls[/bold]"
        console.print(known, soft_wrap=True)
    try:
        if not problems:
            folder.record_finish(total_iterations(config))
    except NavrlError as error:
        problems.append(f"{folder.record_path} was not updated: {reason_of(error)}")
    return problems


def _publish(
    rows: dict[str, Any], policy: Policy, task: Task, folder: RunFolder, publisher: Publisher
) -> str:
    """Tag the model with its results, show the trackers results and pictures; return its label."""
    headlines = {label: task.headline(row) for label, row in rows.items()}
    label = publisher.tag_final_evaluation(folder.model_path, rows)
    publisher.tracking.summary(
        {f"judged/{label}": value for label, (_, value) in headlines.items()}
    )
    for name, take in (
        ("flights.png", publisher.tracking.image),
        ("flights.gif", publisher.tracking.video),
    ):
        if (folder.path / name).is_file():
            take(policy.card["iteration"], name.replace(".", "_"), folder.path / name)
    return label


def _write_run_report(path: Path, console: Console) -> list[str]:
    """Write `report.html`, say where it and the replay are; return what failed."""
    from navrl.view.report import write_report

    report, replay = path / "report.html", path / "replay.html"
    try:
        write_report([path], report)
    except (OSError, NavrlError) as error:
        return [f"{report} was not written: {error}"]
    console.print(f"open in a browser: [bold]{report}[/bold]", soft_wrap=True, highlight=False)
    if replay.is_file():
        console.print(f"watch the flights: [bold]{replay}[/bold]", soft_wrap=True, highlight=False)
    return []
