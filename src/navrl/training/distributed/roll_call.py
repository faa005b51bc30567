"""A fresh name for each start of a team, agreed on through a store that earlier starts used too.

After a restart, torchrun's ranks find the store of the previous start, with the addresses of
processes that are gone. Counting restarts does not tell the starts apart: each machine counts its
own.
"""

from __future__ import annotations

import json
import time
import uuid
from datetime import timedelta
from typing import Any

__all__ = ["agree_on_name"]

_WAIT = 0.01  # s between two looks at the store
_ROLL = "navrl/roll"


def agree_on_name(store: Any, rank: int, size: int, timeout: timedelta) -> str:
    """Return a name that all ranks of this start get, and no earlier start had.

    Each rank writes a random word. Rank 0 publishes a name with the words that it read; a rank
    whose own word is among them confirms the name. When all have, rank 0 confirms too.

    Raises:
        TimeoutError: not all ranks are there in time.
    """
    word, deadline = uuid.uuid4().hex, time.monotonic() + timeout.total_seconds()
    store.set(_word_key(rank), word)
    name = ""
    while time.monotonic() < deadline:
        if rank == 0:
            name = _publish(store, size, name)
        else:
            name = _confirm(store, rank, word)
        confirmed = range(1, size) if rank == 0 else [0]
        if name and _all_there(store, [_seen_key(name, other) for other in confirmed]):
            store.set(_seen_key(name, rank), "")
            return name
        time.sleep(_WAIT)
    raise TimeoutError(f"not all {size} training processes were there after {timeout}")


def _publish(store: Any, size: int, name: str) -> str:
    """Publish the words of all ranks, under a new name if one changed; "" until all are there."""
    keys = [_word_key(rank) for rank in range(size)]
    if not _all_there(store, keys):
        return ""
    words = [store.get(key).decode() for key in keys]
    if name and json.loads(store.get(_ROLL)) == [name, words]:
        return name
    name = uuid.uuid4().hex
    store.set(_ROLL, json.dumps([name, words]))
    return name


def _confirm(store: Any, rank: int, word: str) -> str:
    """Confirm the published name if it counts this process; otherwise return ""."""
    if not _all_there(store, [_ROLL]):
        return ""
    name, words = json.loads(store.get(_ROLL))
    if len(words) <= rank or words[rank] != word:
        return ""
    store.set(_seen_key(name, rank), "")
    return str(name)


def _word_key(rank: int) -> str:
    return f"navrl/word/{rank}"


def _seen_key(name: str, rank: int) -> str:
    return f"navrl/seen/{name}/{rank}"


def _all_there(store: Any, keys: list[str]) -> bool:
    return not keys or bool(store.check(keys))
