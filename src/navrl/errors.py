"""What goes wrong, by name: every mistake a user can make raises one of these.

A message says what it is about, what was found, what was expected and what to do next.
Each class also inherits the built-in that fits, so callers need not know this module.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class NavrlError(Exception):
    """Base of all errors that navrl raises on purpose."""


class ConfigError(NavrlError, ValueError):
    """A setting is unknown, of the wrong type, or out of its range."""


class WorldError(NavrlError, ValueError):
    """A world cannot be built: its file is damaged, of the wrong shape, or describes nothing possible."""


class ActionError(NavrlError, ValueError):
    """Actions of the wrong shape or type, or not finite; the environment has not moved."""


class StateError(NavrlError, ValueError):
    """A saved state does not fit what it is loaded into; nothing has been changed."""


class ContainerError(NavrlError, ValueError):
    """A file is not a container, was cut short, is damaged, or claims what it cannot hold; nothing was loaded."""


class CheckpointError(NavrlError, RuntimeError):
    """A checkpoint could not be saved, found, or loaded; earlier checkpoints are untouched."""


class RolloutError(NavrlError, LookupError):
    """A rollout could not be saved or found, or holds no such key, environment or step; files are untouched."""


class UnsupportedStateError(CheckpointError, TypeError):
    """A state holds an object that no checkpoint can hold; the message names its place and what to do."""


class ReplayError(NavrlError, ValueError):
    """Frames or episodes do not fit a replay store, or it holds none; nothing was stored."""


class ReplayIndexError(ReplayError, IndexError):
    """A frame was asked for that a replay store does not hold."""


class RegistryError(NavrlError, ValueError):
    """A model, version or alias has an illegal name, does not exist, or is still needed; the registry is unchanged."""


class TrackingError(NavrlError, RuntimeError):
    """Something could not be handed to a tracker, or fetched from one; what is queued stays queued."""


class MissingExtraError(NavrlError, ImportError):
    """A part needs an optional package that is not installed; the message has the command that installs it."""


class CollectorError(NavrlError, RuntimeError):
    """Collecting data has failed in the background, or was asked of a collector that is shut down."""


class BenchmarkError(NavrlError, RuntimeError):
    """A benchmark cannot be found or run."""


def nearest_name(name: str, known: Iterable[str]) -> str:
    """Return ` Did you mean 'x'?` for the known name most like `name`, or an empty string."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f" Did you mean {close[0]!r}?" if close else ""
