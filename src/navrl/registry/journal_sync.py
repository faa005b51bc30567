"""Synchronises the database with the journal: whichever is behind is brought up to date."""

from __future__ import annotations

import sqlite3
import uuid
from typing import NamedTuple

from navrl.errors import RegistryError
from navrl.registry.journal import Entry, Journal, set_aside
from navrl.registry.transaction import Change, all_rows, apply, clear

__all__ = ["State", "catch_up", "is_level", "record", "rewrite_journal", "store_of"]


class State(NamedTuple):
    """How much of the journal a database holds, by sequence number and by bytes."""

    store: str
    generation: str
    sequence: int
    bytes: int


def is_level(connection: sqlite3.Connection, journal: Journal) -> bool:
    """Return whether the database holds everything in the journal."""
    state, header = _state(connection), journal.header()
    if state is None or header is None:
        return False
    return (state.store, state.generation, state.bytes) == (*header, journal.size())


def catch_up(connection: sqlite3.Connection, journal: Journal) -> State:
    """Bring whichever is behind up to date, inside a write transaction, and return the state.

    A new or older database replays the journal. A journal that is missing, has a damaged first line
    or is older is rewritten from the database.

    Raises:
        RegistryError: the database belongs to another registry than the journal.
    """
    state, header = _state(connection), journal.header()
    if header is None:
        if journal.size():
            if state is None:
                _replay(connection, journal.read().entries)
            set_aside(journal.path)
        return rewrite_journal(connection, journal, state)
    if state is None:
        return _rebuild(connection, journal, journal.read().entries)
    if state.store != header.store:
        raise RegistryError(
            f"the database belongs to another registry than {journal.path}; nothing was changed. "
            "Restore the right registry.db, or run `navrl models repair`, which renames this one "
            "and rebuilds it"
        )
    if state.generation == header.generation and state.bytes == journal.size():
        return state
    if state.generation == header.generation and state.bytes < journal.size():
        tail = journal.read(state.bytes)
        if all(entry.sequence > state.sequence for entry in tail.entries):
            return _follow(connection, journal, tail.entries, state.sequence)
    entries = journal.read().entries
    if max((entry.sequence for entry in entries), default=0) >= state.sequence:
        return _rebuild(connection, journal, entries)
    return rewrite_journal(connection, journal, state)


def record(
    connection: sqlite3.Connection, journal: Journal, state: State, changes: list[Change]
) -> None:
    """Write the changes of a transaction to the journal, and its new size to the database."""
    entry = Entry(state.sequence + 1, changes)
    size = journal.append(entry, at=state.bytes)
    _set_state(connection, state._replace(sequence=entry.sequence, bytes=size))


def rewrite_journal(
    connection: sqlite3.Connection, journal: Journal, state: State | None = None
) -> State:
    """Replace the journal by one that recreates this database; return the state."""
    state = state or _state(connection) or State(uuid.uuid4().hex, "", 0, 0)
    header, size = journal.rewrite(state.store, state.sequence, all_rows(connection))
    return _set_state(connection, State(*header, state.sequence, size))


def _rebuild(connection: sqlite3.Connection, journal: Journal, entries: list[Entry]) -> State:
    """Rebuild all rows from the journal."""
    clear(connection)
    return _follow(connection, journal, entries, 0)


def _follow(
    connection: sqlite3.Connection, journal: Journal, entries: list[Entry], sequence: int
) -> State:
    """Replay the entries after a sequence number, and return the state."""
    _replay(connection, entries)
    whole = journal.end_of_last_line()
    if whole < journal.size():
        journal.truncate(whole)  # a line that was cut short was never committed
    header = journal.header()
    if header is None:
        raise RegistryError(f"{journal.path} changed while it was read; run the command again")
    last = max((entry.sequence for entry in entries), default=sequence)
    return _set_state(connection, State(*header, last, whole))


def _replay(connection: sqlite3.Connection, entries: list[Entry]) -> None:
    """Apply the changes of entries, and drop what a damaged line leaves dangling."""
    connection.execute("PRAGMA defer_foreign_keys = ON")
    for entry in entries:
        for change in entry.changes:
            apply(connection, change)
    connection.execute(
        "INSERT INTO models SELECT name, min(created), max(version) FROM versions WHERE true "
        "GROUP BY name ON CONFLICT (name) DO UPDATE "
        "SET last_version = max(last_version, excluded.last_version)"
    )
    connection.execute(
        "DELETE FROM aliases WHERE NOT EXISTS "
        "(SELECT 1 FROM versions AS v WHERE v.name = aliases.name AND v.version = aliases.version)"
    )


def store_of(connection: sqlite3.Connection) -> str | None:
    """Return the id of the store that a database belongs to, or None if it is new."""
    state = _state(connection)
    return state.store if state else None


def _state(connection: sqlite3.Connection) -> State | None:
    row = connection.execute("SELECT store, generation, sequence, bytes FROM followed").fetchone()
    return State(*row) if row else None


def _set_state(connection: sqlite3.Connection, state: State) -> State:
    connection.execute("DELETE FROM followed")
    connection.execute("INSERT INTO followed VALUES (?, ?, ?, ?)", state)
    return state
