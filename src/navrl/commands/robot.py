"""`navrl robot`: the robots there are, one of them as a table, and a template for your own."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from navrl.sim.robots import Robot

EPILOG = """examples:
  navrl robot                                 the robots that come with the package
  navrl robot ground                          one of them: every key, its value and meaning
  navrl robot my_robot.yaml                   a file of your own, checked
  navrl robot runs/mine                       the robot that a policy was trained for
  navrl robot new my_robot.yaml               write a file with every key, to be edited
  navrl robot new my_robot.yaml --like ground the same, with the values of another robot
  navrl train robot=my_robot.yaml             train a policy for it
"""


def register(subparsers: Any) -> None:
    """Add the command to the parser."""
    parser = subparsers.add_parser(
        "robot",
        help="show a robot, list the shipped ones, or write a file for your own",
        description="Show a robot: its size, limits, response, LiDAR and detector.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "words", nargs="*", metavar="NAME | FILE | new FILE", help="a robot; none: list all"
    )
    parser.add_argument(
        "--like", metavar="NAME", default="hummingbird", help="whose values `new` writes"
    )
    parser.add_argument("--yaml", action="store_true", help="print the robot as a file")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """List robots, show one, or write a template."""
    from navrl.errors import ConfigError

    words = arguments.words
    if not words:
        return _list()
    if words[0] == "new" and len(words) == 2:
        return _write(Path(words[1]), arguments.like)
    if len(words) > 1 or words[0] == "new":
        raise ConfigError(
            f"navrl robot {' '.join(words)}: expected one robot, or `navrl robot new FILE`"
        )
    return _show(_find(words[0]), as_yaml=arguments.yaml)


def _list() -> int:
    from navrl.sim.robots import load_robot, robot_names

    for name in robot_names():
        robot = load_robot(name)
        print(f"{name:<16} {_summary(robot)}")
    print("\nnavrl robot NAME shows one; navrl robot new my_robot.yaml writes a file for your own")
    return 0


def _summary(robot: Robot) -> str:
    kind = "2-D, " if robot.planar else ""
    lidar = f"LiDAR {robot.lidar.rays} x {robot.lidar.beams}, {robot.lidar.range:g} m"
    return f"{kind}{robot.speed:g} m/s, radius {robot.radius:g} m, {robot.response.model}, {lidar}"


def _find(reference: str) -> Robot:
    """Return a robot by its name or file, or that of a policy."""
    from navrl.errors import ConfigError
    from navrl.sim.robots import load_robot, robot_names

    if reference in robot_names() or reference.lower().endswith((".yaml", ".yml")):
        return load_robot(reference)
    from navrl.evaluation import load_policy

    try:
        robot = load_policy(reference).robot
    except ConfigError:
        return load_robot(reference)  # whose message names the robots
    if robot is None:
        raise ConfigError(f"{reference} was not trained for a robot; expected a trained policy")
    return robot


def _show(robot: Robot, *, as_yaml: bool) -> int:
    from rich.console import Console
    from rich.table import Table

    from navrl.sim.robots import robot_text
    from navrl.sim.robots.robot_keys import keys_of
    from navrl.sim.settings import AIRFRAME

    if as_yaml:
        print(robot_text(robot, f"{robot.name}.yaml"), end="")
        return 0
    table = Table(title=f"robot {robot.name}", title_justify="left")
    for heading in ("key", "value", "meaning"):
        table.add_column(heading, no_wrap=heading == "key")
    unread = () if robot.response.model == "quadrotor" else AIRFRAME
    hidden = {"name", *(f"response.{name}" for name in unread)}
    for key in keys_of():
        if key.name not in hidden:
            table.add_row(key.name, key.told(key.of(robot)), key.about)
    Console().print(table)
    return 0


def _write(path: Path, like: str) -> int:
    import dataclasses

    from navrl.errors import ConfigError
    from navrl.sim.robots import robot_text
    from navrl.sim.robots.robot_file import ENDINGS
    from navrl.sim.robots.robot_keys import NAME

    if path.suffix.lower() not in ENDINGS or not NAME.fullmatch(path.stem):
        raise ConfigError(f"{path}: expected a name of letters, digits, - and _ that ends in .yaml")
    robot = dataclasses.replace(_find(like), name=path.stem)
    try:
        with path.open("x") as file:
            file.write(robot_text(robot, path.name))
    except FileExistsError as error:
        raise ConfigError(f"{path} exists; expected a new file: choose another name") from error
    except OSError as error:
        raise ConfigError(f"{path} was not written: {error.strerror or error}") from error
    print(f"edit {path}, check it with `navrl robot {path}`, then: navrl train robot={path}")
    return 0
