"""A configuration file of the user's own, as overrides: `--config-path DIR --config-name NAME`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from navrl.conf.overrides import GROUPS, options_of
from navrl.errors import ConfigError, nearest_name, shown

MAXIMUM_BYTES = 1 << 16
MAXIMUM_SETTINGS = 10_000  # aliases in a small file can stand for millions
# what a file may build on without any effect: it always does
_OURS = ("config", "schema", "_self_")
_NUMBER = re.compile(r"[+-]?\d[\d_]*(\.\d*)?([eE][+-]?\d+)?")


def file_overrides(folder: str | Path, name: str) -> list[str]:
    """Return the settings of a YAML file as overrides, those of files that its `defaults` name
    first.

    Raises:
        ConfigError: there is no such file, or it holds no settings; the message names it.
    """
    found: list[str] = []
    _read(Path(folder), name, found, ())
    return found


def _read(folder: Path, name: str, found: list[str], parents: tuple[str, ...]) -> None:
    path = folder / (name if name.endswith((".yaml", ".yml")) else f"{name}.yaml")
    if path.name in parents:
        raise ConfigError(
            f"{path}: its defaults lead back to itself: {' -> '.join((*parents, path.name))}"
        )
    content = _load(path)
    defaults = content.pop("defaults", [])
    if not isinstance(defaults, list):
        raise ConfigError(
            f"{path}: defaults is {shown(defaults)}; expected a list, such as [config, _self_]"
        )
    own = [*islice(_flat(content, "", path), MAXIMUM_SETTINGS + 1)]
    before = [entry for entry in defaults if entry not in _OURS]
    # A file is read at the place of _self_, or after everything it builds on.
    last = defaults.index("_self_") if "_self_" in defaults else len(defaults)
    for number, entry in enumerate(defaults):
        if number == last:
            found += own
        if entry in before:
            _build_on(entry, path, found, (*parents, path.name))
    if last == len(defaults):
        found += own
    if len(found) > MAXIMUM_SETTINGS:
        raise ConfigError(
            f"{path}: more than {MAXIMUM_SETTINGS} settings; expected those of one training"
        )


def _build_on(entry: Any, path: Path, found: list[str], parents: tuple[str, ...]) -> None:
    """Add what one entry of `defaults` stands for: a group of ours chosen whole, or a file beside
    this one.
    """
    if isinstance(entry, dict) and len(entry) == 1:
        group, option = next(iter(entry.items()))
        name = str(group).removeprefix("override ").strip("/")
        if name in GROUPS and option in options_of(name):
            found.insert(0, f"{name}={option}")
            return
    elif isinstance(entry, str) and re.fullmatch(r"[\w.-]+", entry):
        _read(path.parent, entry, found, parents)
        return
    raise ConfigError(
        f"{path}: defaults has {shown(entry)}; expected config, _self_, the name of a file "
        "beside it, "
        "or one of ours, such as preset: best"
    )


def _load(path: Path) -> dict[str, Any]:
    """Return the settings of a file by name; an empty file has none."""
    content = _parse(path)
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise ConfigError(
            f"{path} holds {type(content).__name__}; expected settings, such as seed: 7"
        )
    return content


def _parse(path: Path) -> Any:
    import yaml

    try:
        size = path.stat().st_size
        if size > MAXIMUM_BYTES:
            raise ConfigError(
                f"{path}: {size} bytes; expected settings, at most {MAXIMUM_BYTES} bytes"
            )
        return yaml.safe_load(path.read_text())
    except FileNotFoundError as error:
        there = sorted(file.stem for file in path.parent.glob("*.yaml"))
        names = (
            f"; there are {', '.join(there[:10])}.{nearest_name(path.stem, there)}" if there else ""
        )
        raise ConfigError(f"{path}: no such configuration file{names}") from error
    except (OSError, UnicodeDecodeError, yaml.YAMLError, RecursionError) as error:
        raise ConfigError(f"{path} cannot be read: {' '.join(str(error).split())[:200]}") from error


def _flat(values: Mapping[Any, Any], prefix: str, path: Path) -> Iterator[str]:
    for name, value in values.items():
        if not isinstance(name, str) or not re.fullmatch(r"\w+", name):
            raise ConfigError(f"{path}: {prefix}{shown(name)} is no name of a setting")
        if prefix.count(".") > 10:
            raise ConfigError(f"{path}: {prefix}... is nested too deeply")
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.", path)
        else:
            yield f"{prefix}{name}={typed_value(value)}"


def typed_value(value: Any) -> str:
    """Return a value as it would be typed on the command line."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, list | tuple):
        return f"[{','.join(typed_value(one) for one in value)}]"
    text = str(value)
    if _NUMBER.fullmatch(text):  # 12e8 is text to YAML
        return text
    return "'" + re.sub(r"(\\*)('|$)", lambda m: m[1] * 2 + ("\\'" if m[2] else ""), text) + "'"
