"""What can be typed next on the command line of `navrl`, for the completion of a shell."""

from __future__ import annotations

import argparse
import contextlib
import os
import shlex
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

__all__ = ["candidates", "command_parsers"]

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]

Candidates = dict[str, str]  # what may be typed, and a word about it
VALUES = {  # of settings that are text but take few values
    "resume": ("auto",),
    "tracker": ("wandb", "trackio", "mlflow", "tensorboard"),
    "wandb.mode": ("disabled", "offline", "online"),
    "on_save_failure": ("stop", "continue"),
    "registry.best_model_mode": ("max", "min"),
}


def command_parsers(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """Return the parsers of a parser's commands by name; none if it has no commands."""
    commands = _commands(parser)
    return dict(commands.choices) if commands else {}


def candidates(line: str, commands: Commands) -> Candidates:
    """Return the words that may stand where a line ends.

    Args:
        line: what has been typed up to the cursor, `navrl` included.
        commands: what `add_subparsers` of the parser of all commands returned.
    """
    *before, current = _words(line)
    found = _next_words(before[1:], current, commands)
    return {word: about for word, about in found.items() if word.startswith(current)}


def _commands(parser: argparse.ArgumentParser) -> Commands | None:
    actions = parser._actions
    return next((one for one in actions if isinstance(one, argparse._SubParsersAction)), None)


def _words(line: str) -> list[str]:
    """Return the words of a line; the last is the one at the cursor, which may be empty."""
    try:
        words = shlex.split(line)
    except ValueError:  # within quotes
        words = line.split()
    return words if words and not line[-1:].isspace() else [*words, ""]


def _next_words(before: list[str], current: str, commands: Commands) -> Candidates:
    if not before:
        return {choice.dest: choice.help or "" for choice in commands._choices_actions}
    name, *rest = before
    if name not in commands.choices:
        return {}
    parser = commands.choices[name]
    if inner := _commands(parser):  # `navrl models ls`
        return _next_words(rest, current, inner)
    option = _open_option(parser, rest[-1] if rest else "")
    if option is not None:
        return _values_of(option)
    if current.startswith("-"):
        return _options(parser)
    places = [action for action in parser._actions if not action.option_strings]
    command = parser.prog.split()[1]
    return {word: "" for place in places for word in _positional(place, command, current)}


def _options(parser: argparse.ArgumentParser) -> Candidates:
    return {
        max(action.option_strings, key=len): (action.help or "").replace("%", "")
        for action in parser._actions
        if action.option_strings and action.help != argparse.SUPPRESS
    }


def _open_option(parser: argparse.ArgumentParser, word: str) -> argparse.Action | None:
    """Return the option that waits for its value, if the last word is one."""
    for action in parser._actions:
        if word in action.option_strings and action.nargs != 0:
            return action
    return None


def _values_of(option: argparse.Action) -> Candidates:
    if option.choices is not None:
        return {str(choice): "" for choice in option.choices}
    if "--scenario" in option.option_strings:
        from navrl.evaluation.names import SCENARIOS

        return {name: scenario.about for name, scenario in SCENARIOS.items()}
    return {"job": ""} if "--cfg" in option.option_strings else {}


def _positional(place: argparse.Action, command: str, current: str) -> Iterable[str]:
    """Yield the words for an argument, by what its parser calls it."""
    if place.choices is not None:
        yield from map(str, place.choices)
    called = f"{place.metavar or place.dest}"
    for piece, words in _KINDS.items():
        if piece in called:
            yield from words()
    if "key=value" in called:
        yield from _settings(current)
    yield from _OF_COMMANDS.get((command, place.dest), lambda: ())()


def _settings(current: str) -> Iterable[str]:
    """Yield settings as `key=`, groups as `env.`, and the values of a setting as `key=value`."""
    from navrl.conf.setting_names import config_groups, setting_types

    types, groups = setting_types(), config_groups()
    key, assigned, _ = current.partition("=")
    if assigned:
        values = groups.get(key) or VALUES.get(key) or ()
        if types.get(key) == "bool":
            values = ("true", "false")
        if key == "resume_checkpoint":
            values = (*_models(), *_runs())
        yield from (f"{key}={value}" for value in values)
        return
    yield from (f"{group}=" for group in groups)
    typed = current[: current.rfind(".") + 1]  # the groups before the last piece
    for name, kind in types.items():
        if name.startswith(typed):
            piece, dot, _ = name[len(typed) :].partition(".")
            yield f"{typed}{piece}{'.' if dot or kind.startswith('dict') else '='}"


def _policies() -> Iterable[str]:
    from navrl.evaluation.names import POLICIES

    return dict.fromkeys((*POLICIES, *_learned()))


def _learned() -> Iterable[str]:
    return ("pretrained", *_models(), *_runs())


def _models() -> list[str]:
    """Return the models of the registry with their aliases; none where there is no registry."""
    from navrl.errors import NavrlError
    from navrl.registry import Registry, default_root

    if not default_root().is_dir():
        return []
    with contextlib.suppress(NavrlError, OSError), Registry(deadline=0.5) as registry:
        models = registry.models()
        return [f"{model.name}:{alias}" for model in models for alias in model.aliases]
    return []


def _model_names() -> Iterable[str]:
    return dict.fromkeys(model.partition(":")[0] for model in _models())


def _runs() -> list[str]:
    """Return the runs below `runs/`, the newest first."""
    with contextlib.suppress(OSError):
        folders = [entry for entry in os.scandir("runs") if entry.is_dir()]
        folders.sort(key=lambda entry: entry.stat().st_mtime, reverse=True)
        return [entry.path for entry in folders if Path(entry.path, "config.yaml").is_file()]
    return []


def _robots() -> Iterable[str]:
    from navrl.conf.setting_names import config_groups

    return ("new", *config_groups()["robot"])


def _setting_groups() -> Iterable[str]:
    from navrl.conf.setting_names import setting_types

    return dict.fromkeys(key.partition(".")[0] for key in setting_types() if "." in key)


def _benchmarks() -> Iterable[str]:
    return sorted(file.stem for file in Path("benchmarks").glob("[!_]*.py"))


_KINDS: dict[str, Callable[[], Iterable[str]]] = {  # by a piece of what an argument is called
    "REF": _policies,
    "RUN": _runs,
    "folder": _runs,
    "reference": _models,
    "NAME:": _models,
}
_OF_COMMANDS: dict[tuple[str, str], Callable[[], Iterable[str]]] = {
    ("export", "policy"): _learned,
    ("inspect", "path"): _learned,
    ("convert", "source"): _learned,
    ("average", "references"): _learned,
    ("models", "name"): _model_names,
    ("robot", "words"): _robots,
    ("settings", "words"): _setting_groups,
    ("bench", "name"): _benchmarks,
}
