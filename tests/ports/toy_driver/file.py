"""Transactions on the file, away from the event loop."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from graphweft_contracts import BusUnavailable, InvalidSettings, Layout, wire

POLL_S: Final = 0.01
"""How often a reader looks for something new."""
SCHEMA: Final = """
BEGIN;
CREATE TABLE IF NOT EXISTS partitions (one INTEGER PRIMARY KEY CHECK (one = 1), count INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS orders (app TEXT PRIMARY KEY, kind TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS rules (digest TEXT PRIMARY KEY, body BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS activations (number INTEGER PRIMARY KEY, body BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS purges (
  number INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL UNIQUE, body BLOB NOT NULL
);
CREATE TABLE IF NOT EXISTS usage (
  number INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL UNIQUE, body BLOB NOT NULL
);
CREATE TABLE IF NOT EXISTS series (
  number INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL UNIQUE, body BLOB NOT NULL
);
CREATE TABLE IF NOT EXISTS ends (partition INTEGER PRIMARY KEY, last INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS events (
  partition INTEGER, number INTEGER, fields TEXT NOT NULL, at REAL NOT NULL, PRIMARY KEY (partition, number)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS positions (
  readers TEXT, partition INTEGER, number INTEGER NOT NULL, count INTEGER NOT NULL, note TEXT NOT NULL,
  PRIMARY KEY (readers, partition)
);
CREATE TABLE IF NOT EXISTS workers (readers TEXT, name TEXT, until REAL NOT NULL, PRIMARY KEY (readers, name));
CREATE TABLE IF NOT EXISTS leases (
  readers TEXT, partition INTEGER, owner TEXT NOT NULL, until REAL NOT NULL, PRIMARY KEY (readers, partition)
);
CREATE TABLE IF NOT EXISTS letters (id TEXT PRIMARY KEY, time REAL NOT NULL, body TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS requests (
  token INTEGER PRIMARY KEY AUTOINCREMENT, body BLOB NOT NULL, at REAL NOT NULL, holder TEXT, lost INTEGER NOT NULL
);
CREATE TABLE IF NOT EXISTS replicas (name TEXT PRIMARY KEY, until REAL NOT NULL);
CREATE TABLE IF NOT EXISTS clients (channel TEXT PRIMARY KEY, until REAL NOT NULL);
CREATE TABLE IF NOT EXISTS replies (
  number INTEGER PRIMARY KEY AUTOINCREMENT, channel TEXT NOT NULL, body BLOB NOT NULL
);
COMMIT;
"""


def path_of(url: str) -> Path:
    """Return the file of a URL. Raises ``InvalidSettings``, which does not quote it."""
    parts = urlsplit(url)
    if parts.scheme != "sqlite" or parts.netloc or len(parts.path) < 2 or parts.query or parts.fragment:
        raise InvalidSettings("invalid SQLite URL: expected sqlite:///path/of/the/file")
    return Path(unquote(parts.path))


class SqliteFile:
    """One connection with a thread of its own; it opens at the first use, and again when the file was replaced.

    ``durable``: whether a transaction is on disk when it returns, and so outlives the machine, not only the process.
    """

    def __init__(self, url: str, *, durable: bool) -> None:
        self._path = path_of(url)
        self._durable = durable
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="sqlite-bus")
        self._open: tuple[sqlite3.Connection, int] | None = None
        self._closed = False

    async def read[T](self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Return what ``work`` finds in one snapshot. Raises ``BusUnavailable``."""
        return await self._run("BEGIN", work)

    async def write[T](self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Do ``work`` in one transaction, all of it or nothing. Raises ``BusUnavailable``.

        A caller that is cancelled does not know whether it was done.
        """
        return await self._run("BEGIN IMMEDIATE", work)

    async def aclose(self) -> None:
        """Close the connection behind the work in hand; a second call does nothing."""
        if not self._closed:
            self._closed = True
            await asyncio.get_running_loop().run_in_executor(self._thread, self._close)
            self._thread.shutdown()

    async def _run[T](self, begin: str, work: Callable[[sqlite3.Connection], T]) -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, self._transaction, begin, work)
        except (sqlite3.Error, OSError) as error:
            raise BusUnavailable(f"the file of the bus cannot be used: {error}") from error

    def _transaction[T](self, begin: str, work: Callable[[sqlite3.Connection], T]) -> T:
        connection = self._connection()
        connection.execute(begin)
        try:
            result = work(connection)
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
        return result

    def _connection(self) -> sqlite3.Connection:
        if self._open is not None:
            connection, inode = self._open
            if self._path.stat().st_ino == inode:
                return connection
            self._close()
        connection = sqlite3.connect(self._path, timeout=5, isolation_level=None)
        try:
            self._use_write_ahead_log(connection)
            connection.execute(f"PRAGMA synchronous={'FULL' if self._durable else 'OFF'}")
            connection.executescript(SCHEMA)
        except BaseException:
            connection.close()
            raise
        self._open = connection, self._path.stat().st_ino
        return connection

    def _use_write_ahead_log(self, connection: sqlite3.Connection) -> None:
        # The file keeps this mode. While another process sets it, SQLite fails at once instead of waiting.
        until = time.monotonic() + 5
        while connection.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
            try:
                connection.execute("PRAGMA journal_mode=WAL")
            except sqlite3.OperationalError:
                if time.monotonic() > until:
                    raise
                time.sleep(0.01)

    def _close(self) -> None:
        if self._open is not None:
            self._open[0].close()
            self._open = None


def layout_of(db: sqlite3.Connection, wanted: Layout) -> Layout:
    """Return the layout of the bus; a new bus gets ``wanted``."""
    row = db.execute("SELECT count FROM partitions").fetchone()
    if row is None:
        db.execute("INSERT INTO partitions VALUES (1, ?)", (wanted.partitions,))
        db.execute("INSERT INTO orders VALUES ('*', ?)", (wanted.order,))
        return wanted
    return Layout.of_stored(int(row[0]), dict(db.execute("SELECT app, kind FROM orders").fetchall()))


def append(db: sqlite3.Connection, partition: int, entries: Iterable[Mapping[bytes, bytes]], at: float) -> list[str]:
    """Append entries to a partition; return their offsets. Their numbers count from 1 without gaps."""
    row = db.execute("SELECT last FROM ends WHERE partition = ?", (partition,)).fetchone()
    first = int(row[0]) + 1 if row else 1
    rows = [
        (partition, number, json.dumps(wire.pack(fields)), at) for number, fields in enumerate(entries, start=first)
    ]
    db.executemany("INSERT INTO events VALUES (?, ?, ?, ?)", rows)
    db.execute("INSERT OR REPLACE INTO ends VALUES (?, ?)", (partition, first + len(rows) - 1))
    return [str(number - 1) for _, number, _, _ in rows]
