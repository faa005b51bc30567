"""Every setting of `navrl train` with its type, default and meaning, read from the dataclasses.

The meaning of a setting is the comment beside or above its field, so it is written once.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import io
import re
import tokenize
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from navrl.errors import ConfigError, nearest_name

__all__ = ["RUN", "Group", "Setting", "find_settings", "setting_groups", "with_meanings"]

_KEY = re.compile(r"( *)(\w+):( |$)")  # of a line of YAML
_COMMENTS_FROM = 34  # column

SHORT_FOR = {"lr": "learning rate"}  # what people look for
RUN = "run"  # the group of settings that stand at the top, without a prefix


@dataclass(frozen=True)
class Setting:
    """One setting."""

    key: str  # as typed: `env.num_envs`
    type: str
    default: str  # as typed
    meaning: str


@dataclass(frozen=True)
class Group:
    """The settings under one prefix, such as `env`."""

    name: str
    about: str
    settings: tuple[Setting, ...]


def setting_groups(config: Any) -> list[Group]:
    """Return the settings of a configuration by group, those at the top first.

    Args:
        config: an instance of a dataclass of dataclasses; its values are the defaults.
    """
    parts = dataclasses.fields(config)
    nested = [part for part in parts if dataclasses.is_dataclass(getattr(config, part.name))]
    top = _settings(config, "", [part.name for part in parts if part not in nested])
    groups = [Group(RUN, "the run: length, checkpoints, evaluation, trackers", tuple(top))]
    for part in nested:
        values = getattr(config, part.name)
        groups.append(Group(part.name, _about(values), tuple(_all_settings(values, part.name))))
    return groups


def find_settings(groups: Sequence[Group], word: str) -> list[Group]:
    """Return the group of that name, or the settings whose key or meaning contains the word.

    Case does not count, and `learning rate` finds `learning_rate`.

    Raises:
        ConfigError: nothing matches; the nearest name is suggested.
    """
    named = [group for group in groups if group.name == word.rstrip(".")]
    if named:
        return named
    found, wanted = [], _plain(SHORT_FOR.get(word.lower(), word))
    for group in groups:
        hits = [s for s in group.settings if wanted in _plain(f"{s.key} {s.meaning}")]
        if hits:
            found.append(dataclasses.replace(group, settings=tuple(hits)))
    if not found:
        keys = [setting.key for group in groups for setting in group.settings]
        words = {part: None for key in keys for part in re.split(r"[._]", key)}
        near = nearest_name(word, [*keys, *(group.name for group in groups), *words])
        raise ConfigError(
            f"no setting or group contains {word!r}.{near} `navrl settings` lists all"
        )
    return found


def _plain(text: str) -> str:
    """Return text as a search compares it."""
    return text.lower().replace("_", " ")


def with_meanings(text: str, groups: Sequence[Group]) -> str:
    """Return settings in YAML with the meaning of each as a comment beside it.

    Args:
        text: nested keys, as OmegaConf writes them.
        groups: what `setting_groups` returns.
    """
    meanings = {setting.key: setting.meaning for group in groups for setting in group.settings}
    meanings |= {group.name: group.about for group in groups}
    lines, parents = text.splitlines(), [""]
    written = []
    for line, following in zip(lines, [*lines[1:], ""], strict=True):
        found = _KEY.match(line)
        if found:
            depth = len(found[1]) // 2
            parents[depth:] = [f"{parents[depth - 1]}.{found[2]}" if depth else found[2]]
        meaning = meanings.get(parents[-1], "") if found else ""
        folded = following.startswith("  ") and not re.match(r" *(- |\w+:)", following)
        if meaning and not folded:  # a comment would end a text that goes on in the next line
            line = f"{line:<{_COMMENTS_FROM}} # {meaning}"
        written.append(line)
    return "\n".join(written) + "\n"


def _about(values: Any) -> str:
    """Return what follows the colon in the first line of a class's docstring."""
    first = (inspect.getdoc(type(values)) or "").partition("\n")[0]
    return first.partition(": ")[2].rstrip(".")


def _all_settings(values: Any, prefix: str) -> Iterator[Setting]:
    """Yield the settings of a dataclass and of those inside it."""
    for part in dataclasses.fields(values):
        value = getattr(values, part.name)
        if dataclasses.is_dataclass(value):
            yield from _all_settings(value, f"{prefix}.{part.name}")
        else:
            yield from _settings(values, f"{prefix}.", [part.name])


def _settings(values: Any, prefix: str, names: Sequence[str]) -> Iterator[Setting]:
    meanings = _meanings(values.__class__)
    for part in dataclasses.fields(values):
        if part.name in names:
            meaning = meanings.get(part.name) or _weight_of(part.metadata)
            default = _typed(getattr(values, part.name))
            yield Setting(f"{prefix}{part.name}", str(part.type), default, meaning)


def _weight_of(details: Mapping[str, Any]) -> str:
    """Return what a weight multiplies, for the terms of the reward."""
    return f"weight of: {details['formula']}" if "formula" in details else ""


def _typed(value: Any) -> str:
    """Return a value as a user types it."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (list, tuple)):
        return f"[{','.join(_typed(item) for item in value)}]"
    return "''" if value == "" else str(value)


@functools.cache
def _meanings(kind: type) -> dict[str, str]:
    """Return the comments on the fields of a dataclass, those of its bases included."""
    meanings: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        if dataclasses.is_dataclass(base):
            meanings |= _comments(inspect.getsource(base))
    return meanings


def _comments(source: str) -> dict[str, str]:
    """Return the comment above and beside each annotated name in the body of a class."""
    comments: dict[str, str] = {}
    above: list[str] = []
    line: list[tokenize.TokenInfo] = []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT and not line:
            above.append(token.string.lstrip("# "))
            if above[-1].startswith("---"):  # a heading, not a meaning
                above.pop()
        elif token.type == tokenize.NEWLINE:
            is_field = len(line) > 1 and line[0].type == tokenize.NAME and line[1].string == ":"
            if is_field:
                beside = [t.string.lstrip("# ") for t in line if t.type == tokenize.COMMENT]
                comments[line[0].string] = " ".join(above + beside)
            above, line = [], []
        elif token.type not in (tokenize.NL, tokenize.INDENT, tokenize.DEDENT):
            line.append(token)
    return comments
