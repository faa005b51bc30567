"""The registry's SQLite database: short transactions that many processes take in turn, and that survive kill -9.

Write-ahead log, flushed at every commit: what a call has returned is on the disk. A transaction takes the write lock when it
begins (`BEGIN IMMEDIATE`), so nobody reads a value, waits, and writes back something that is no longer true.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from navrl.errors import RegistryError
from navrl.registry.schema import SCHEMA, SCHEMA_VERSION

PATIENCE = 60.0  # s that a transaction waits for its turn

# A connection that a forked process inherited. SQLite forbids to use it there, and even to close it.
_inherited: list[sqlite3.Connection] = []


class Database:
    """One database file; the connection is opened when it is first needed, again in every forked process."""

    def __init__(self, path: Path, *, patience: float = PATIENCE) -> None:
        self.path = path
        self._patience = patience
        self._connection: sqlite3.Connection | None = None
        self._process = os.getpid()
        self._lock = threading.RLock()

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """Give a connection inside a transaction that is kept if the block ends well, and undone if not."""
        with self._turn("BEGIN IMMEDIATE", self._opened) as connection:
            yield connection

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """Give a connection that sees one moment of the registry; where there is none yet, an empty one, and none is made."""
        with self._turn("BEGIN", self._opened if self.path.exists() else _empty) as connection:
            yield connection

    def open(self) -> None:
        """Open the database, and make it if it is not there."""
        self._notice_fork()
        with self._lock, explained(self.path):
            self._opened()

    def close(self) -> None:
        """Close the connection; the next use opens it again."""
        self._notice_fork()
        with self._lock:
            if self._connection is not None:
                self._connection.close()
            self._connection = None

    @contextmanager
    def _turn(self, begin: str, connect: Callable[[], sqlite3.Connection]) -> Iterator[sqlite3.Connection]:
        self._notice_fork()
        with self._lock, explained(self.path):
            connection = connect()
            connection.execute(begin)
            try:
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                with suppress(sqlite3.Error):
                    connection.execute("ROLLBACK")
                raise

    def _notice_fork(self) -> None:
        """Begin anew in a forked process: whoever held the lock is not here, and the connection is not ours."""
        if self._process != os.getpid():
            if self._connection is not None:
                _inherited.append(self._connection)
            self._connection, self._process, self._lock = None, os.getpid(), threading.RLock()

    def _opened(self) -> sqlite3.Connection:
        if self._connection is None:
            self._connection = self._connect()
        return self._connection

    def _connect(self) -> sqlite3.Connection:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        connection = _prepared(sqlite3.connect(self.path, timeout=self._patience, check_same_thread=False))
        try:
            if not _is_current(connection, self.path):
                with _only_one(self.path.with_name("setup.lock")):
                    if not _is_current(connection, self.path):
                        connection.execute("PRAGMA journal_mode = WAL")
                        _create(connection)
        except BaseException:
            connection.close()
            raise
        return connection


def _prepared(connection: sqlite3.Connection) -> sqlite3.Connection:
    connection.isolation_level = None  # transactions begin and end where this module says so
    connection.row_factory = sqlite3.Row
    connection.execute("PRAGMA foreign_keys = ON")
    connection.execute("PRAGMA synchronous = FULL")
    return connection


def _empty() -> sqlite3.Connection:
    connection = _prepared(sqlite3.connect(":memory:"))
    _create(connection)
    return connection


def _create(connection: sqlite3.Connection) -> None:
    connection.executescript(f"BEGIN IMMEDIATE; {SCHEMA} PRAGMA user_version = {SCHEMA_VERSION}; COMMIT;")


def _is_current(connection: sqlite3.Connection, path: Path) -> bool:
    """Return whether the tables are there."""
    (found,) = connection.execute("PRAGMA user_version").fetchone()
    if found > SCHEMA_VERSION:
        raise RegistryError(
            f"{path} was written by a newer navrl (layout {found}, this one knows {SCHEMA_VERSION}): upgrade navrl"
        )
    return found == SCHEMA_VERSION


@contextmanager
def _only_one(path: Path) -> Iterator[None]:
    """Let one process at a time into the block: SQLite does not wait where two switch to the write-ahead log at once."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        with suppress(OSError):  # a file system without locks
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turn what SQLite or the system say into an error that names the file and what to do."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        busy = "locked" in str(error)
        advice = (
            "another process holds it: try again when that has ended"
            if busy
            else "check the disk and who may write there, or restore the file from a copy; the files in objects/ are untouched"
        )
        raise RegistryError(f"{path}: the registry cannot be used: {error}; {advice}") from error
    except OSError as error:
        raise RegistryError(
            f"{str(error.filename or path)!r}: {error.strerror or error}; check the disk and who may write there, "
            "or name another registry with NAVRL_REGISTRY"
        ) from error
