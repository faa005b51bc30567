"""Modes of TensorDict that a thread has for itself: the exploration type and others, which belong
to the whole process.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

__all__ = ["own_modes"]

# Where TensorDict keeps what `set_exploration_type`, `set_skip_existing` (of GAE) and
# `_set_dispatch_td_nn_modules` set.
_PLACES = (
    ("tensordict.nn.probabilistic", "_interaction_type"),
    ("tensordict.nn.utils", "_skip_existing"),
    ("tensordict.nn.utils", "_dispatch_tdnn_modules"),
)


@contextmanager
def own_modes() -> Iterator[None]:
    """Let this thread set TensorDict's modes for itself alone: it begins with those of the process,
    and changes none.

    One thread may then act at random while another evaluates deterministically. Does nothing where
    TensorDict is not loaded.
    """
    with ExitStack() as stack:
        for module, name in _PLACES:
            holder = getattr(sys.modules.get(module), name, None)
            if holder is not None:
                stack.enter_context(_own_mode(holder))
        yield


class _ModeByThread:
    """The `get_mode` and `set_mode` of one of TensorDict's holders of a mode, while some threads
    have one of their own.
    """

    def __init__(self, holder: Any) -> None:
        self.holder = holder
        self.own = threading.local()  # which torch.compile, unlike a thread's number, can look into
        self.threads = 0

    def get_mode(self) -> Any:
        return (
            self.own.mode if hasattr(self.own, "mode") else type(self.holder).get_mode(self.holder)
        )

    def set_mode(self, mode: Any) -> None:
        if hasattr(self.own, "mode"):
            self.own.mode = mode
        else:
            type(self.holder).set_mode(self.holder, mode)


_installing = threading.Lock()


@contextmanager
def _own_mode(holder: Any) -> Iterator[None]:
    with _installing:
        by_thread = getattr(holder.get_mode, "__self__", None)
        if not isinstance(by_thread, _ModeByThread):
            by_thread = _ModeByThread(holder)
            holder.get_mode, holder.set_mode = by_thread.get_mode, by_thread.set_mode
        by_thread.threads += 1
        by_thread.own.mode = by_thread.get_mode()
    try:
        yield
    finally:
        with _installing:
            del by_thread.own.mode
            by_thread.threads -= 1
            if not by_thread.threads:
                del holder.get_mode, holder.set_mode
