"""Aliases: every move is recorded, and only one version is in production."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Collection, Sequence

from navrl.registry.schema import PRODUCTION_ALIAS, AliasMove, instant
from navrl.registry.transaction import Transaction


def current(connection: sqlite3.Connection, name: str) -> dict[str, int]:
    """Return the version behind each alias of a model."""
    rows = connection.execute(
        "SELECT alias, version FROM aliases WHERE name = ? ORDER BY alias", (name,)
    )
    return {row["alias"]: row["version"] for row in rows}


def move(transaction: Transaction, name: str, alias: str, version: int | None, reason: str) -> bool:
    """Point an alias at a version, or remove it; return whether anything changed.

    The alias `prod` moves the stage too: the version that loses it is archived, the one that gets
    it is in production.
    """
    old = current(transaction.connection, name).get(alias)
    if old == version:
        return False
    if version is None:
        transaction.drop("aliases", name=name, alias=alias)
    else:
        transaction.put("aliases", name=name, alias=alias, version=version)
    _note_move(transaction, name, alias, old, version, reason)
    if alias == PRODUCTION_ALIAS:
        set_stage(transaction, name, old, "archived")
        set_stage(transaction, name, version, "production")
    return True


def _note_move(
    transaction: Transaction, name: str, alias: str, old: int | None, new: int | None, reason: str
) -> None:
    """Add a move to the history of the aliases."""
    (number,) = transaction.connection.execute(
        "SELECT coalesce(max(number), 0) + 1 FROM moves"
    ).fetchone()
    transaction.put(
        "moves",
        number=number,
        name=name,
        alias=alias,
        old=old,
        new=new,
        moved=time.time(),
        reason=reason,
    )


def set_stage(transaction: Transaction, name: str, version: int | None, stage: str) -> None:
    """Put a version into a stage."""
    if version is not None:
        transaction.set("versions", {"name": name, "version": version}, stage=stage)


def history(connection: sqlite3.Connection, name: str, alias: str) -> list[AliasMove]:
    """Return every move of an alias, oldest first."""
    rows = connection.execute(
        "SELECT * FROM moves WHERE name = ? AND alias = ? ORDER BY number", (name, alias)
    )
    return [
        AliasMove(row["alias"], row["old"], row["new"], instant(row["moved"]), row["reason"])
        for row in rows
    ]


def before(moves: Sequence[AliasMove], existing: Collection[int]) -> int | None:
    """Return the version that an alias pointed at before, among those that still exist, or None.

    A rollback pops the stack of versions, so that the next one goes a step further back. Moves may
    be missing if lines of the journal were damaged: a rollback to a version that is not on the
    stack starts a new one.
    """
    stack: list[int | None] = []
    for made in moves:
        if made.reason == "rollback" and made.new in stack[:-1]:
            stack.pop()
            while stack[-1] != made.new:
                stack.pop()
        elif made.reason == "rollback":
            stack = [made.new]
        else:
            stack.append(made.new)
    current_version = stack.pop() if stack else None
    earlier = (version for version in reversed(stack) if version in existing)
    return next((version for version in earlier if version != current_version), None)
