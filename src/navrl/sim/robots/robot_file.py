"""Robot files: read one, by path or by the name of one that comes with the package; write one."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from navrl.errors import ConfigError, nearest_name, shown
from navrl.sim.robots.robot_keys import (
    MEASURING,
    Detector,
    Lidar,
    Response,
    Robot,
    keys_of,
    robot_of,
)
from navrl.sim.settings import NavigationSettings

__all__ = ["as_built", "load_robot", "measuring_errors", "robot_names", "robot_text"]

ENDINGS = (".yaml", ".yml")
MAXIMUM_BYTES = 1 << 16
GROUPS = ("response", "lidar", "detector")
WIDTH = 34  # characters before the comments of a written file

HEAD = """\
# A robot for navrl: `navrl train robot={file}`. All keys, with their defaults, units and limits:
# docs/robots.md. A key that is left out has the Hummingbird's value.
"""


def robot_names() -> list[str]:
    """Return the names of the robots that come with the package."""
    found = (file.name for file in files(__package__).iterdir())
    return sorted(name.removesuffix(".yaml") for name in found if name.endswith(".yaml"))


def load_robot(reference: str | Path) -> Robot:
    """Return a robot by its name, if it comes with the package, or by the path of its file.

    Raises:
        ConfigError: there is no such robot, a key is unknown (the nearest one is named), or a value
            is out of its limits; the message names the file and the key.
    """
    name = str(reference)
    if name in robot_names():
        return _robot(files(__package__).joinpath(f"{name}.yaml").read_text(), name, name)
    path = Path(name)
    if path.suffix.lower() not in ENDINGS:
        raise ConfigError(
            f"robot is {shown(name)}; expected one of {', '.join(robot_names())}, or a YAML file "
            f"(`navrl robot new my_robot.yaml` writes one).{nearest_name(name, robot_names())}"
        )
    try:
        with path.open("rb") as file:
            content = file.read(MAXIMUM_BYTES + 1)
        text = content.decode()
    except OSError as error:
        raise ConfigError(f"robot file {path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"robot file {path} is not text: {error}") from error
    if len(content) > MAXIMUM_BYTES:
        raise ConfigError(f"robot file {path} has more than {MAXIMUM_BYTES} bytes; expected fewer")
    return _robot(text, str(path), path.stem)


def measuring_errors(task: NavigationSettings) -> dict[str, Any]:
    """Return the noise and misses that the robot of a task has by its file, by dotted key.

    A robot that comes with the package has those of its file, whatever the task adds. Of another
    one only the task is known, so it has those of the task.
    """
    name = task.drone.robot
    own = load_robot(name).settings() if name in robot_names() else None
    errors = {}
    for key in MEASURING.values():
        group, last = key.split(".")
        errors[key] = getattr(getattr(task, group), last) if own is None else own[key]
    return errors


def as_built(task: NavigationSettings) -> Robot:
    """Return the robot of a task with the measuring errors of its file, not those that a training
    added to them.
    """
    built = NavigationSettings.from_mapping(task.as_dict())
    for key, value in measuring_errors(task).items():
        built.set(key, value)
    return robot_of(built)


def robot_from(values: Mapping[str, Any]) -> Robot:
    """Return the robot that `Robot.as_dict` described, as a contract carries it.

    Raises:
        ConfigError: a key is unknown, or a value impossible.
    """
    return _made(dict(values), str(values.get("name", "robot")))


def _robot(text: str, subject: str, name: str) -> Robot:
    import yaml  # comes with Hydra; only these files need it

    try:
        content = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        told = " ".join(str(error).split())[:200]
        raise ConfigError(f"robot file {subject} is not valid YAML: {told}") from error
    try:
        if not content:
            raise ConfigError("it has no keys; expected some, such as radius: 0.3")
        return _made(content, name)
    except ConfigError as error:
        raise ConfigError(f"robot file {subject}: {error}") from error


def _made(content: Any, name: str) -> Robot:
    """Return the robot of a file's content."""
    values = _flat(content)
    known = {key.name: key for key in keys_of()}
    parts: dict[str, dict[str, Any]] = {"": {"name": name}, **{group: {} for group in GROUPS}}
    for key, value in values.items():
        if key not in known:
            raise ConfigError(f"unknown key {shown(key)}.{nearest_name(key, known)}")
        above, _, last = key.rpartition(".")
        default = known[key].default
        is_whole = isinstance(value, int) and not isinstance(value, bool)
        if isinstance(value, list):
            value = tuple(value)
        elif isinstance(default, float) and is_whole:
            value = float(value)
        known[key].check(value)
        parts[above][last] = value
    return Robot(
        response=Response(**parts["response"]),
        lidar=Lidar(**parts["lidar"]),
        detector=Detector(**parts["detector"]),
        **parts[""],
    )


def _flat(content: Any) -> dict[str, Any]:
    """Return the values of a file by dotted key."""
    if not isinstance(content, Mapping):
        raise ConfigError(f"it holds {shown(content)}; expected keys such as radius: 0.3")
    flat: dict[str, Any] = {}
    for key, value in content.items():
        if key not in GROUPS:
            flat[str(key)] = value
        elif isinstance(value, Mapping):
            flat |= {f"{key}.{name}": one for name, one in value.items()}
        elif value is not None:
            raise ConfigError(f"{key} is {shown(value)}; expected its keys, indented below it")
    return flat


def robot_text(robot: Robot, file: str = "my_robot.yaml") -> str:
    """Return a robot as the text of a file, with a comment behind every key."""
    lines, group = [HEAD.format(file=file)], ""
    for key in keys_of():
        above, _, name = key.name.rpartition(".")
        if above != group:
            lines.append(f"\n{above}:")
            group = above
        value = f"{'  ' if above else ''}{name}: {_written(key.of(robot))}"
        unit = f"{key.unit}, " if key.unit else ""
        limits = f" ({key.expected.removesuffix(f' {key.unit}')})" if key.limits else ""
        lines.append(f"{value:{WIDTH}}  # {unit}{key.about}{limits}")
    return "\n".join(lines) + "\n"


def _written(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return f"[{', '.join(map(repr, value))}]"
    if isinstance(value, str):
        import yaml

        return value if yaml.safe_load(value) == value else f'"{value}"'  # YAML: no is false
    return repr(value)
