"""The registry's SQLite database: short transactions of many processes, safe from kill -9.

The write-ahead log is flushed at every commit: what a call has returned is on the disk. A write
transaction takes the write lock when it begins (`BEGIN IMMEDIATE`), so no update is based on a
value that another process has changed meanwhile. Its changes are in the journal before it commits:
a database that is missing, empty or an older copy is brought up to date from there. A second lock,
on the journal's folder, also holds when the database file is replaced during a write.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from navrl.errors import RegistryError
from navrl.registry.journal import Journal
from navrl.registry.journal_sync import catch_up, is_level, record, store_of
from navrl.registry.schema import LAYOUTS, SCHEMA_VERSION
from navrl.registry.transaction import Transaction

PATIENCE = 60.0  # s that a transaction waits for its turn
_SHORTEST_POLL, _LONGEST_POLL = 0.0005, 0.02  # s between two attempts to take a file lock

# Connections that a forked process inherited: SQLite forbids using and even closing them there.
_inherited: list[sqlite3.Connection] = []

BROKEN = (11, 26)  # SQLite's codes for a damaged database, and for a file that is not one
BROKEN_WORDS = ("malformed", "not a database", "no such table")


class Database:
    """One database file; the connection is opened on first use, and again in a forked process.

    A transaction waits `PATIENCE` for other processes. With a deadline in seconds, all of them
    together wait that long.
    """

    def __init__(self, path: Path, journal: Journal, *, deadline: float | None = None) -> None:
        self.path, self.journal = path, journal
        self._ends = None if deadline is None else time.monotonic() + deadline
        self._connection: sqlite3.Connection | None = None
        # device and inode that the connection was opened on
        self._file: tuple[int, int] | None = None
        self._level = False  # the connection is known to hold everything in the journal
        self._process = os.getpid()
        self._lock = threading.RLock()
        self._alone = False  # this object holds the lock of the journal's folder

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Hold the lock of the journal's folder: no other process writes during the block.

        SQLite's lock belongs to one file. A process that waits for it while the file is replaced
        gets the lock of a file that no other process sees. The lock of the folder stays.
        """
        self._notice_fork()
        with self._lock, explained(self.path):
            if self._alone:
                yield
                return
            self.journal.path.parent.mkdir(parents=True, exist_ok=True)
            with locked(self.journal.path.parent, self._patience()):
                self._alone = True
                try:
                    yield
                finally:
                    self._alone = False

    @contextmanager
    def writing(self) -> Iterator[Transaction]:
        """Give a transaction that is committed if the block succeeds, and else rolled back."""
        with self.alone():
            connection = self._begun()
            size = None
            try:
                state = catch_up(connection, self.journal)
                transaction = Transaction(connection)
                yield transaction
                if transaction.changes:
                    size = state.bytes
                    record(connection, self.journal, state, transaction.changes)
                connection.execute("COMMIT")
                self._level = True
            except BaseException:
                if size is not None and connection.in_transaction:
                    with suppress(OSError):
                        self.journal.truncate(size)
                with suppress(sqlite3.Error):
                    connection.execute("ROLLBACK")
                raise

    @contextmanager
    def reading(self) -> Iterator[Transaction]:
        """Give a transaction that sees one moment of the registry.

        A registry that does not exist yet is empty, and is not created.
        """
        self._notice_fork()
        with self._lock, explained(self.path):
            known = self.path.exists() or self.journal.size()
            connection = self._opened() if known else empty_database()
            if known and not (self._level or is_level(connection, self.journal)):
                connection = self._caught_up()
            connection.execute("BEGIN")
            try:
                yield Transaction(connection)
            finally:
                with suppress(sqlite3.Error):
                    connection.execute("ROLLBACK")

    def open(self) -> None:
        """Open the database, and create it if it is missing."""
        self._notice_fork()
        with self._lock, explained(self.path):
            self._opened()

    def is_damaged(self) -> bool:
        """Return whether the database is damaged or belongs to another registry than the journal.

        Reads the whole file.

        Raises:
            RegistryError: another process holds it, or a newer navrl wrote it.
        """
        self._notice_fork()
        with self._lock, explained(self.path):
            try:
                connection = self._opened()
                checked = [row[0] for row in connection.execute("PRAGMA integrity_check")]
                dangling = connection.execute("PRAGMA foreign_key_check").fetchall()
                store, header = store_of(connection), self.journal.header()
            except sqlite3.DatabaseError as error:
                if _is_broken(error):
                    return True
                raise
        foreign = store is not None and header is not None and store != header.store
        return checked != ["ok"] or bool(dangling) or foreign

    def close(self) -> None:
        """Close the connection; it is opened again on next use."""
        self._notice_fork()
        with self._lock:
            if self._connection is not None:
                self._connection.close()
            self._connection = None

    def _caught_up(self) -> sqlite3.Connection:
        """Bring an older database up to date if this process may write; return its connection."""
        with ExitStack() as stack:
            try:
                stack.enter_context(self.alone())
                connection = self._begun()
            except (RegistryError, sqlite3.OperationalError):
                # another process is writing, and will do it, or the disk is read-only
                return self._opened()
            try:
                catch_up(connection, self.journal)
                connection.execute("COMMIT")
                self._level = True
            except BaseException:
                with suppress(sqlite3.Error):
                    connection.execute("ROLLBACK")
                raise
            return connection

    def _notice_fork(self) -> None:
        """Start over in a forked process: its locks and its connection are the parent's."""
        if self._process != os.getpid():
            if self._connection is not None:
                _inherited.append(self._connection)
            self._connection, self._process, self._lock = None, os.getpid(), threading.RLock()
            self._alone = False

    def _begun(self) -> sqlite3.Connection:
        """Begin a write transaction in the file now at the path; return its connection."""
        while True:
            connection = self._opened()
            connection.execute("BEGIN IMMEDIATE")
            if _identity(self.path) == self._file:
                return connection
            connection.execute("ROLLBACK")  # the file was replaced while this waited

    def _opened(self) -> sqlite3.Connection:
        while self._connection is None or _identity(self.path) != self._file:
            if self._connection is not None:
                self._connection.close()  # the file was removed or replaced
                self._connection = None
            # read before opening, so that a replacement in between is noticed
            self._file = _identity(self.path)
            self._connection, self._level = self._connect(), False
        if self._ends is not None:
            self._connection.execute(f"PRAGMA busy_timeout = {int(1000 * self._patience())}")
        return self._connection

    def _patience(self) -> float:
        """Return how many seconds are left to wait."""
        return PATIENCE if self._ends is None else max(0.0, self._ends - time.monotonic())

    def _connect(self) -> sqlite3.Connection:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        connection = sqlite3.connect(self.path, timeout=self._patience(), check_same_thread=False)
        try:
            _prepare(connection)
            if _layout(connection, self.path) != SCHEMA_VERSION:
                # SQLite does not wait when two processes switch to the write-ahead log at once.
                with locked(self.path.with_name("setup.lock"), self._patience()):
                    if (found := _layout(connection, self.path)) != SCHEMA_VERSION:
                        connection.execute("PRAGMA journal_mode = WAL")
                        _create(connection, found)
        except BaseException:
            connection.close()
            raise
        return connection


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _prepare(connection: sqlite3.Connection) -> None:
    connection.isolation_level = None  # this module begins and ends transactions itself
    connection.row_factory = sqlite3.Row
    connection.execute("PRAGMA foreign_keys = ON")
    connection.execute("PRAGMA synchronous = FULL")


def empty_database() -> sqlite3.Connection:
    """Return a database in memory with empty tables."""
    connection = sqlite3.connect(":memory:")
    _prepare(connection)
    _create(connection, 0)
    return connection


def _create(connection: sqlite3.Connection, found: int) -> None:
    """Create the tables that a database of an older layout lacks."""
    script = "".join(LAYOUTS[found:])
    connection.executescript(
        f"BEGIN IMMEDIATE; {script} PRAGMA user_version = {SCHEMA_VERSION}; COMMIT;"
    )


def _layout(connection: sqlite3.Connection, path: Path) -> int:
    """Return the number of the layout that a database has; 0 if it is empty."""
    found: int = connection.execute("PRAGMA user_version").fetchone()[0]
    if found > SCHEMA_VERSION:
        raise RegistryError(
            f"{path} was written by a newer navrl (layout {found}; this navrl supports up to "
            f"{SCHEMA_VERSION}): upgrade navrl"
        )
    return found


@contextmanager
def locked(path: Path, patience: float) -> Iterator[None]:
    """Hold an exclusive lock on a file or folder; wait `patience` seconds for it at most.

    Raises:
        sqlite3.OperationalError: another process held the lock for longer.
    """
    flags = os.O_RDONLY if path.is_dir() else os.O_RDWR | os.O_CREAT
    descriptor = os.open(path, flags | os.O_CLOEXEC, 0o666)
    try:
        _wait_for_lock(descriptor, time.monotonic() + patience)
        yield
    finally:
        with suppress(OSError):
            fcntl.flock(
                descriptor, fcntl.LOCK_UN
            )  # closing does not unlock it if another thread has forked
        os.close(descriptor)


def _wait_for_lock(descriptor: int, ends: float) -> None:
    pause = _SHORTEST_POLL
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() >= ends:
                raise sqlite3.OperationalError("database is locked") from None
            time.sleep(min(pause, max(0.0, ends - time.monotonic())))
            pause = min(2 * pause, _LONGEST_POLL)
        except OSError:  # a file system without locks
            return


def is_locked(error: BaseException) -> bool:
    """Return whether an error says that another process held the registry for too long."""
    cause = error if isinstance(error, sqlite3.Error) else error.__cause__
    return isinstance(cause, sqlite3.Error) and "locked" in str(cause)


def _is_broken(error: sqlite3.Error) -> bool:
    """Return whether SQLite reports a damaged database, or a file that is not one."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # Python 3.10 has only the message
    return code in BROKEN or any(words in str(error) for words in BROKEN_WORDS)


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turn an error of SQLite or the system into one that names the file and what to do."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        advice = "check the disk and its permissions"
        if is_locked(error):
            advice = "another process holds it; try again later"
        elif _is_broken(error):
            advice = "`navrl models repair` renames it and rebuilds it; no model file was touched"
        raise RegistryError(f"{path}: the registry cannot be used: {error}; {advice}") from error
    except OSError as error:
        raise RegistryError(
            f"{str(error.filename or path)!r}: {error.strerror or error}; check the disk and its "
            "permissions, or set NAVRL_REGISTRY to another folder"
        ) from error
