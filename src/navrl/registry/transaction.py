"""Transactions that record their changes, so that the journal can replay them."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from typing import Any

from navrl.errors import RegistryError

__all__ = ["Change", "Transaction", "all_rows", "apply", "clear"]

Change = list[Any]  # ["put", table, row], ["set", table, key, values] or ["drop", table, key]

_KEYS = {
    "models": ("name",),
    "versions": ("name", "version"),
    "aliases": ("name", "alias"),
    "moves": ("number",),
    "removals": ("digest",),
}
_COLUMNS = {
    "models": ("name", "created", "last_version"),
    "versions": (
        *("name", "version", "digest", "size", "kind", "created"),
        *("stage", "notes", "metrics", "tags", "lineage"),
    ),
    "aliases": ("name", "alias", "version"),
    "moves": ("number", "name", "alias", "old", "new", "moved", "reason"),
    "removals": ("digest",),
}


class Transaction:
    """A connection inside a transaction, and the changes made through it."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection
        self.changes: list[Change] = []

    def put(self, table: str, **row: Any) -> None:
        """Insert a row, or replace the one with the same key."""
        self._change(["put", table, row])

    def set(self, table: str, key: dict[str, Any], **values: Any) -> None:
        """Change some columns of the row with this key, if there is one."""
        self._change(["set", table, key, values])

    def drop(self, table: str, **key: Any) -> None:
        """Delete the row with this key, if there is one."""
        self._change(["drop", table, key])

    def _change(self, change: Change) -> None:
        apply(self.connection, change)
        self.changes.append(change)


def apply(connection: sqlite3.Connection, change: Change) -> None:
    """Apply one change.

    Raises:
        RegistryError: it names a table or a column that does not exist.
    """
    kind, table, *values = change
    columns = _COLUMNS.get(table, ())
    if not columns or any(column not in columns for part in values for column in part):
        raise RegistryError(f"unknown table or column in a change of {str(table)[:40]!r}")
    if kind == "put":
        _put(connection, table, values[0])
    elif kind == "set":
        key, new = values
        assigned = ", ".join(f"{column} = ?" for column in new)
        sql = f"UPDATE {table} SET {assigned} WHERE {_where(key)}"
        connection.execute(sql, (*new.values(), *key.values()))
    elif kind == "drop":
        (key,) = values
        connection.execute(f"DELETE FROM {table} WHERE {_where(key)}", tuple(key.values()))


def _put(connection: sqlite3.Connection, table: str, row: dict[str, Any]) -> None:
    names = ", ".join(row)
    marks = ", ".join("?" * len(row))
    others = [column for column in row if column not in _KEYS[table]]
    update = ", ".join(f"{column} = excluded.{column}" for column in others)
    keys = ", ".join(_KEYS[table])
    on_conflict = f"ON CONFLICT ({keys}) " + (f"DO UPDATE SET {update}" if others else "DO NOTHING")
    sql = f"INSERT INTO {table} ({names}) VALUES ({marks}) {on_conflict}"
    connection.execute(sql, tuple(row.values()))


def _where(key: Iterable[str]) -> str:
    return " AND ".join(f"{column} = ?" for column in key)


def all_rows(connection: sqlite3.Connection) -> Iterator[Change]:
    """Yield the changes that recreate these tables from empty ones."""
    for table, columns in _COLUMNS.items():
        order = ", ".join(_KEYS[table])
        for row in connection.execute(f"SELECT {', '.join(columns)} FROM {table} ORDER BY {order}"):
            yield ["put", table, dict(row)]


def clear(connection: sqlite3.Connection) -> None:
    """Delete every row of every table."""
    for table in reversed(_COLUMNS):
        connection.execute(f"DELETE FROM {table}")
