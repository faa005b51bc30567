"""`navrl rollouts ls|show|export`: the batches of experience that a run has kept."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from navrl.wording import counted

if TYPE_CHECKING:
    from rich.table import Table

    from navrl.io.rollouts.rollout_layout import RolloutInfo

EPILOG = """examples:
  navrl train rollout_save_interval=50                     keep every fiftieth batch in RUN/rollouts
  navrl train compress_lidar=true                          keep the last batch beside each checkpoint, in RUN/checkpoints
  navrl rollouts ls runs/a                                 which ones there are
  navrl rollouts show runs/a --env 7 --png flight.png      what is in the newest, and what drone 7 did
  navrl rollouts export runs/a --minari datasets           episodes for minari.load_dataset
  navrl rollouts export runs/a --parquet steps.parquet     one row a step, for pandas, Polars, DuckDB
"""  # noqa: E501
ACTIONS = {
    "ls": "list the rollouts of a folder",
    "show": "describe a rollout, and draw the flight of one drone",
    "export": "write rollouts for other tools",
}


def register(subparsers: Any) -> None:
    """Add the command to the parser."""
    parser = subparsers.add_parser(
        "rollouts",
        help="list, show and export stored rollouts",
        description="The batches of experience that a training has kept.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    actions = parser.add_subparsers(dest="action", required=True, metavar="action")
    ls, show, export = (
        actions.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
        for name, text in ACTIONS.items()
    )
    for action, run in ((ls, _ls), (show, _show), (export, _export)):
        action.add_argument(
            "folder",
            type=Path,
            help="a run (its rollouts/ or else its checkpoints/), or a folder of rollouts",
        )
        action.set_defaults(run=run)
    _add_show(show)
    _add_export(export)


def _add_show(show: Any) -> None:
    show.add_argument("iteration", type=int, nargs="?", help="which one (default: the last saved)")
    show.add_argument(
        "--env", type=int, default=0, metavar="N", help="the drone to draw (default: %(default)s)"
    )
    show.add_argument(
        "--png", type=Path, metavar="FILE", help="draw its flight, reward and clearance"
    )


def _add_export(export: Any) -> None:
    target = export.add_mutually_exclusive_group(required=True)
    target.add_argument(
        "--minari", type=Path, metavar="ROOT", help="a folder for MINARI_DATASETS_PATH"
    )
    target.add_argument("--parquet", type=Path, metavar="FILE", help="a Parquet file")
    export.add_argument(
        "--dataset-id",
        default="navrl/rollouts-v0",
        help="name of the Minari dataset (default: %(default)s)",
    )
    export.add_argument(
        "--iterations", type=int, nargs="+", metavar="I", help="which ones (default: all)"
    )


def _storage(folder: Path) -> Any:
    """Return the rollouts of a run, or of a folder of them; those of a run are by themselves or
    beside its checkpoints.
    """
    from navrl.errors import RolloutError
    from navrl.io.container.atomic_files import check_is_folder
    from navrl.io.rollouts.storage import RolloutStorage

    if os.path.lexists(folder):
        check_is_folder(folder)
    storages = [
        RolloutStorage(place) for place in (folder / "rollouts", folder / "checkpoints", folder)
    ]
    storage = next((storage for storage in storages if storage.list()), None)
    if storage is None:
        raise RolloutError(
            f"{folder} holds no rollouts; `navrl train rollout_save_interval=50` keeps every "
            "fiftieth batch, and "
            "`compress_lidar=true` the last one beside each checkpoint, in RUN/checkpoints"
        )
    return storage


def _console() -> Any:
    from rich.console import Console

    return Console(width=None if Console().is_terminal else 150)


def _ls(arguments: argparse.Namespace) -> int:
    """List the rollouts; return 1 if the index of one is damaged."""
    from rich.table import Column, Table

    from navrl.errors import ContainerError, RolloutError

    storage = _storage(arguments.folder)
    numbers = ("iteration", "environments", "steps", "MB", "stored MB", "ratio")
    table = Table(*(Column(name, justify="right") for name in numbers), "created")
    damaged = []
    for iteration in storage.list():
        try:
            table.add_row(str(iteration), *_sizes(storage.info(iteration)))
        except (ContainerError, RolloutError) as error:
            damaged.append(str(error))
    console = _console()
    console.print(table)
    console.print(
        f"{storage.folder}: {counted(len(storage.list()), 'rollout')}, "
        f"{storage.size() / 1e6:.2f} MB",
        markup=False,
        soft_wrap=True,
    )
    for reason in damaged:
        console.print(f"damaged: {reason}", markup=False, soft_wrap=True)
    return 1 if damaged else 0


def _sizes(info: RolloutInfo) -> tuple[str, ...]:
    """Return the cells of a rollout in the list, after its iteration."""
    from navrl.commands.inspect import format_date

    return (
        str(info.envs),
        str(info.steps),
        f"{info.raw_bytes / 1e6:.2f}",
        f"{info.stored_bytes / 1e6:.2f}",
        f"{info.stored_bytes / max(1, info.raw_bytes):.3f}",
        format_date(info.created),
    )


def _show(arguments: argparse.Namespace) -> int:
    """Say what a rollout holds; draw the flight of one drone if asked."""
    from navrl.commands.inspect import shortened

    storage = _storage(arguments.folder)
    iteration = arguments.iteration
    if iteration is None:
        newest = storage.latest()
        iteration = storage.list()[-1] if newest is None else newest  # then it says why
    info = storage.info(iteration)
    console = _console()
    console.print(
        f"{info.path}: {info.envs} environments x {info.steps} steps", markup=False, soft_wrap=True
    )
    for name, value in info.metadata.items():
        if isinstance(value, dict):  # the settings of the task: too long to be read here
            continue
        console.print(f"  {name:.100}: {shortened(str(value))}", markup=False)
    console.print(_keys(info))
    if arguments.png:
        _draw(console, storage, iteration, arguments.env, arguments.png)
    return 0


def _keys(info: RolloutInfo) -> Table:
    """Return the arrays of a rollout as a table."""
    from rich.markup import escape
    from rich.table import Column, Table

    sizes = (Column(name, justify="right") for name in ("bytes", "stored", "ratio"))
    table = Table("key", "type", "shape", "codec", "error", *sizes)
    for name, key in info.keys.items():
        error = "exact" if key.error_bound is None else f"<= {key.error_bound:g}"
        ratio = f"{key.stored_bytes / key.raw_bytes:.3f}" if key.raw_bytes else ""
        shape = " x ".join(map(str, key.shape)) or "single"
        bytes_of = f"{key.raw_bytes:,}", f"{key.stored_bytes:,}"
        table.add_row(escape(name), key.element, shape, key.codec, error, *bytes_of, ratio)
    return table


def _draw(console: Any, storage: Any, iteration: int, env: int, png: Path) -> None:
    from navrl.errors import ConfigError
    from navrl.view.rollouts import save_flight

    try:
        flight = save_flight(storage, iteration, env, png)
    except OSError as error:
        raise ConfigError(f"--png {png} cannot be written: {error.strerror}") from error
    told = [f"environment {env}: {len(flight.parts)} episodes or parts of one"]
    told += [f"reward {flight.reward.sum():.2f} in all"] if flight.reward is not None else []
    told += (
        [f"least clearance {flight.clearance.min():.2f} m"] if flight.clearance is not None else []
    )
    if flight.saturated.any():
        steps = f"{flight.saturated.sum()} of {len(flight.saturated)} steps"
        told.append(f"nothing within the LiDAR's {flight.reach:g} m in {steps}")
    console.print(", ".join(told), soft_wrap=True)
    console.print(f"written: {png}", markup=False, soft_wrap=True)


def _export(arguments: argparse.Namespace) -> int:
    """Write the rollouts for another tool."""
    from navrl.io.rollouts.dataset_export import export_minari, export_parquet

    storage = _storage(arguments.folder)
    if arguments.parquet:
        path = export_parquet(storage, arguments.parquet, iterations=arguments.iterations)
        print(f"written: {path}")
        return 0
    path = export_minari(
        storage,
        arguments.minari,
        arguments.dataset_id,
        iterations=arguments.iterations,
        environment=_environment(storage, arguments.iterations),
    )
    print(f"written: {path}")
    root = arguments.minari.absolute()
    print(
        f"load it with MINARI_DATASETS_PATH={root} and "
        f"minari.load_dataset({arguments.dataset_id!r})"
    )
    return 0


def _environment(storage: Any, iterations: list[int] | None) -> Any:
    """Return the Gymnasium environment of the rollouts, or None if they do not say."""
    iteration = next(iter(iterations or storage.list()), None)
    task = None if iteration is None else storage.info(iteration).metadata.get("task")
    if task is None:
        return None
    try:
        from navrl.adapters.gymnasium import make_recorded
    except ImportError:
        return None  # Minari needs Gymnasium too, and its export says so
    return make_recorded(task)
