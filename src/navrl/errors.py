"""What goes wrong, by name: every mistake a user can make raises one of these.

A message says what it is about, what was found, what was expected and what to do next.
Each class also inherits the built-in that fits, so callers need not know this module.
"""

from __future__ import annotations

import difflib
import reprlib
import sys
from collections.abc import Iterable
from typing import Any


class NavrlError(Exception):
    """Base of all errors that navrl raises on purpose."""


class ConfigError(NavrlError, ValueError):
    """A setting is unknown, of the wrong type, or out of its range."""


class WorldError(NavrlError, ValueError):
    """A world cannot be built: its file is damaged, of the wrong shape, or describes nothing
    possible.
    """


class ActionError(NavrlError, ValueError):
    """Actions of the wrong shape or type, or not finite; the environment has not moved."""


class StateError(NavrlError, ValueError):
    """A saved state does not fit what it is loaded into; nothing has been changed."""


class ContainerError(NavrlError, ValueError):
    """A file is not a container, was cut short, is damaged, or claims what it cannot hold; nothing
    was loaded.
    """


class CheckpointError(NavrlError, RuntimeError):
    """A checkpoint could not be saved, found, or loaded; earlier checkpoints are untouched."""


class RolloutError(NavrlError, LookupError):
    """A rollout could not be saved or found, or holds no such key, environment or step; files are
    untouched.
    """


class UnsupportedStateError(CheckpointError, TypeError):
    """A state holds an object that no checkpoint can hold; the message names its place and what to
    do.
    """


class ReplayError(NavrlError, ValueError):
    """Frames or episodes do not fit a replay store, or it holds none; nothing was stored."""


class ReplayIndexError(ReplayError, IndexError):
    """A frame was asked for that a replay store does not hold."""


class RegistryError(NavrlError, ValueError):
    """A model, version or alias has an illegal name, does not exist, or is still needed; the
    registry is unchanged.
    """


class TrackingError(NavrlError, RuntimeError):
    """Something could not be handed to a tracker, or fetched from one; what is queued stays
    queued.
    """


class MissingExtraError(NavrlError, ImportError):
    """A part needs an optional package that is not installed; the message has the command that
    installs it.
    """


class CollectorError(NavrlError, RuntimeError):
    """Collecting data has failed in the background, or was asked of a collector that is shut
    down.
    """


class MessageError(NavrlError, ValueError):
    """A message of a robot cannot be read or used; it has no effect."""


class TransportError(NavrlError, OSError):
    """A node or a robot cannot be reached, or has ended."""


class SweepError(NavrlError, RuntimeError):
    """A sweep cannot go on: its trainings fail, or its study belongs to another sweep."""


class BenchmarkError(NavrlError, RuntimeError):
    """A benchmark cannot be found or run."""


def add_note(error: BaseException, note: str) -> None:
    """Add a note to an error, as `BaseException.add_note` of Python 3.11 does."""
    if sys.version_info >= (3, 11):
        error.add_note(note)
    else:  # Python 3.10 does not print notes, so it becomes part of the message
        error.args = (f"{error.args[0] if error.args else ''}; {note}", *error.args[1:])


def missing_extra(what: str, extra: str, *packages: str) -> MissingExtraError:
    """Return the error for a missing package, with the commands that install it.

    Args:
        what: what needs which package, such as `pictures need matplotlib`.
        extra: the extra of pyproject.toml that brings it.
        packages: further packages to name in the command.
    """
    more = "".join(f" {package}" for package in packages)
    in_clone = f"in a clone of the repository: pip install -e '.[{extra}]'{more}"
    return MissingExtraError(f"{what}: pip install 'navrl[{extra}]'{more} ({in_clone})")


def nearest_name(name: str, known: Iterable[str]) -> str:
    """Return ` Did you mean 'x'?` for a known name that `name` may be a slip of, or nothing.

    A slip is a typing mistake, or a dotted name without the right group: `num_envs` for
    `env.num_envs`.
    """
    names, name = list(known), str(name)[:_LONGEST_NAME]
    same = [one for one in names if one.rpartition(".")[2] == name.rpartition(".")[2]]
    close = same or difflib.get_close_matches(name, names, n=1, cutoff=_LIKENESS)
    return f" Did you mean {close[0]!r}?" if close else ""


def shown(value: Any) -> str:
    """Return a value for an error message, in at most about a hundred characters."""
    if isinstance(value, int) and value.bit_length() > _LONGEST_NUMBER:
        return f"a number of {value.bit_length()} bits"  # Python refuses to write very long ones
    return _short.repr(value)


class _Short(reprlib.Repr):
    """Writes the first few parts of a value, and those of its parts even shorter."""

    def repr_int(self, x: int, level: int) -> str:
        return repr(x) if x.bit_length() <= _LONGEST_NUMBER else "..."

    def repr_bool(self, x: bool, level: int) -> str:
        return repr(x)


_LONGEST_NAME = 200  # characters that names are compared by: the time grows with their square
_LIKENESS = 0.75
_LONGEST_NUMBER = 128  # bits
_short = _Short()
_short.maxstring = _short.maxother = 60
_short.maxlist = _short.maxtuple = _short.maxdict = _short.maxset = 4
_short.maxlevel = 2
