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
    """Base of all errors that navrl raises on purpose.

    >>> import navrl
    >>> try:
    ...     navrl.load_checkpoint("nothing.pt")
    ... except navrl.errors.NavrlError as error:
    ...     print(isinstance(error, RuntimeError))
    True
    """


class ConfigError(NavrlError, ValueError):
    """A setting is unknown, of the wrong type, or out of its range.

    >>> import navrl
    >>> navrl.NavigationSettings.of(env__num_env=4)
    Traceback (most recent call last):
    navrl.errors.ConfigError: unknown setting 'env.num_env'. Did you mean 'env.num_envs'?
    """


class WorldError(NavrlError, ValueError):
    """A world cannot be built: its file is damaged, of the wrong shape, or describes nothing
    possible.

    >>> from pathlib import Path
    >>> from navrl.sim.worlds.world_file import load_world
    >>> written = Path("gate.yaml").write_text("boxes: 3")
    >>> load_world("gate.yaml")
    Traceback (most recent call last):
    navrl.errors.WorldError: gate.yaml: ...
    """


class ActionError(NavrlError, ValueError):
    """Actions of the wrong shape or type, or not finite; the environment has not moved.

    >>> import torch, navrl
    >>> env = navrl.NavigationEnv(navrl.NavigationSettings.of(env__num_envs=4, env__num_worlds=1))
    >>> env.step(torch.zeros(3, 3))
    Traceback (most recent call last):
    navrl.errors.ActionError: actions have shape (3, 3); expected (4, 3), one velocity per drone
    """


class StateError(NavrlError, ValueError):
    """A saved state does not fit what it is loaded into; nothing has been changed.

    >>> import navrl
    >>> env = navrl.NavigationEnv(navrl.NavigationSettings.of(env__num_envs=4, env__num_worlds=1))
    >>> env.load_state_dict({})
    Traceback (most recent call last):
    navrl.errors.StateError: ...
    """


class ContainerError(NavrlError, ValueError):
    """A file is not a container, was cut short, is damaged, or claims what it cannot hold; nothing
    was loaded.

    >>> from pathlib import Path
    >>> from navrl.io import read_index
    >>> written = Path("a.pt").write_bytes(b"no checkpoint")
    >>> read_index("a.pt")
    Traceback (most recent call last):
    navrl.errors.ContainerError: a.pt: ...
    """


class CheckpointError(NavrlError, RuntimeError):
    """A checkpoint could not be saved, found, or loaded; earlier checkpoints are untouched.

    >>> import navrl
    >>> with navrl.CheckpointDirectory("checkpoints") as checkpoints:
    ...     checkpoints.load(7)
    Traceback (most recent call last):
    navrl.io.checkpoint.checkpoint_file.NoCheckpointError: ...
    """


class RolloutError(NavrlError, LookupError):
    """A rollout could not be saved or found, or holds no such key, environment or step; files are
    untouched.

    >>> import navrl
    >>> navrl.RolloutStorage("rollouts").load(7)
    Traceback (most recent call last):
    navrl.errors.RolloutError: ...
    """


class UnsupportedStateError(CheckpointError, TypeError):
    """A state holds an object that no checkpoint can hold; the message names its place and what to
    do.

    >>> import navrl
    >>> navrl.save_checkpoint({"lock": object()}, "a.pt")
    Traceback (most recent call last):
    navrl.errors.UnsupportedStateError: ...lock...
    """


class ReplayError(NavrlError, ValueError):
    """Frames or episodes do not fit a replay store, or it holds none; nothing was stored.

    >>> import torch, navrl
    >>> store = navrl.FrameStore(100)
    >>> store.extend({"lidar": torch.zeros(4, 36), "reward": torch.zeros(5)})
    Traceback (most recent call last):
    navrl.errors.ReplayError: ...
    """


class ReplayIndexError(ReplayError, IndexError):
    """A frame was asked for that a replay store does not hold.

    >>> import torch, navrl
    >>> store = navrl.FrameStore(100)
    >>> written = store.extend({"reward": torch.zeros(4)})
    >>> store.get([9])
    Traceback (most recent call last):
    navrl.errors.ReplayIndexError: ...
    """


class RegistryError(NavrlError, ValueError):
    """A model, version or alias has an illegal name, does not exist, or is still needed; the
    registry is unchanged.

    >>> from navrl.registry import check_name
    >>> check_name("../policy")
    Traceback (most recent call last):
    navrl.errors.RegistryError: model name '../policy' holds the character '/'; legal are ...
    """


class TrackingError(NavrlError, RuntimeError):
    """Something could not be handed to a tracker, or fetched from one; what is queued stays
    queued.

    >>> from pathlib import Path
    >>> from navrl.tracking.backends import open_backend
    >>> backend = open_backend("wandb", mode="offline", folder="runs/mine")
    >>> backend.download("policy:best", Path("models"))
    Traceback (most recent call last):
    navrl.errors.TrackingError: ...
    """


class MissingExtraError(NavrlError, ImportError):
    """A part needs an optional package that is not installed; the message has the command that
    installs it.

    >>> from navrl.errors import missing_extra
    >>> raise missing_extra("pictures need matplotlib", "view")
    Traceback (most recent call last):
    navrl.errors.MissingExtraError: pictures need matplotlib: pip install 'navrl[view]' ...
    """


class CollectorError(NavrlError, RuntimeError):
    """Collecting data has failed in the background, or was asked of a collector that is shut
    down.
    """


class MessageError(NavrlError, ValueError):
    """A message of a robot cannot be read or used; it has no effect.

    >>> from navrl.deploy.transports.rmw_zenoh import Attachment
    >>> Attachment.decode(b"")
    Traceback (most recent call last):
    navrl.errors.MessageError: an attachment has 0 bytes; expected ...
    """


class TransportError(NavrlError, OSError):
    """A node or a robot cannot be reached, or has ended.

    >>> from navrl.deploy.transports.udp import UdpTransport
    >>> UdpTransport("203.0.113.1:0")  # an address of another machine
    Traceback (most recent call last):
    navrl.errors.TransportError: cannot receive at 203.0.113.1:0: ...
    """


class SweepError(NavrlError, RuntimeError):
    """A sweep cannot continue: its trainings fail, or its study belongs to another sweep."""


class BenchmarkError(NavrlError, RuntimeError):
    """A benchmark cannot be found or run.

    >>> from pathlib import Path
    >>> from navrl.benchmark.compare import compare_files
    >>> compare_files(Path("before.json"), Path("after.json"))
    Traceback (most recent call last):
    navrl.errors.BenchmarkError: before.json cannot be read: No such file or directory
    """


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

    A slip is a typing mistake, or a dotted name without the right group: `num_envs` or `num_env`
    for `env.num_envs`.
    """
    names, name = list(known), str(name)[:_LONGEST_NAME]
    same = [one for one in names if one.rpartition(".")[2] == name.rpartition(".")[2]]
    close = same or difflib.get_close_matches(name, names, n=1, cutoff=_LIKENESS)
    if not close and "." not in name:
        last = {one.rpartition(".")[2]: one for one in reversed(names)}
        close = [last[one] for one in difflib.get_close_matches(name, last, 1, _LIKENESS)]
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
