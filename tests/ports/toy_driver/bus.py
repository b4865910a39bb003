"""``Bus`` on the file: a class for each port."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final

from graphweft_contracts import BusUnavailable, DeadLetter, InvalidSettings, Layout, Order, wire
from graphweft_contracts.rules_log import Activation, StoredRules
from graphweft_workers.ports.bus import Bus
from graphweft_workers.ports.dead_letters import LettersOfApp, first_letters
from graphweft_workers.ports.event_log import Batch, CommittedPosition, Entry
from graphweft_workers.ports.offsets import OffsetForm
from graphweft_workers.ports.pages import last_page
from graphweft_workers.ports.partitions import PartitionStatus
from graphweft_workers.ports.records import Records

from .file import POLL_S, SqliteFile, append, layout_of

_READ_CHARACTERS: Final = 16 * 1024**2
_COLUMNS: Final = "SELECT number, fields, at FROM events WHERE partition = ?"


def sqlite_bus(url: str, *, new: Layout, group: str) -> Bus:
    """Return the bus for one group of readers.

    Entries of a partition are numbered from 1; the offset of one is the number of those before it.
    """
    file = SqliteFile(url, durable=True)
    return Bus(
        log=SqliteLog(file),
        partitions=SqlitePartitions(file, new, group),
        leases=SqliteLeases(file, new, group),
        dead_letters=SqliteLetters(file),
        rules=SqliteRules(file, new),
        purges=SqliteRecords(file, "purges"),
        usage=SqliteRecords(file, "usage"),
        offsets=OffsetForm.NUMBER,
        close=file.aclose,
        series=SqliteRecords(file, "series"),
    )


class SqliteLog:
    """``EventLog``."""

    def __init__(self, file: SqliteFile) -> None:
        self._file = file

    async def read(self, partition: int, after: CommittedPosition, *, limit: int, wait_s: float | None = None) -> Batch:
        until = time.monotonic() + (wait_s or 0.0)
        while True:
            batch = await self._look(partition, after, limit)
            if batch.entries or batch.lost or time.monotonic() >= until:
                return batch
            await asyncio.sleep(POLL_S)

    async def _look(self, partition: int, after: CommittedPosition, limit: int) -> Batch:
        number = _number(after.offset)

        def read(db: sqlite3.Connection) -> Batch:
            last = _last(db, partition)
            if last < number:
                raise BusUnavailable(f"the file was recreated: partition {partition} ends at {last}, before {number}")
            rows = db.execute(f"{_COLUMNS} AND number > ? ORDER BY number LIMIT ?", (partition, number, limit))
            entries: list[Entry] = []
            size = 0
            for row in rows:
                size += len(row[1])
                if entries and size > _READ_CHARACTERS:
                    break
                entries.append(_entry(row))
            first = _number(entries[0].offset) if entries else last + 1
            return Batch(entries=entries, lost=max(0, first - 1 - after.count))

        return await self._file.read(read)

    async def entries(self, partition: int, offsets: Sequence[str]) -> Sequence[Entry]:
        wanted = json.dumps([_number(offset) for offset in offsets])
        among = "AND number IN (SELECT value FROM json_each(?)) ORDER BY number"
        return await self._entries(among, partition, wanted)

    async def after(self, partition: int, offset: str, *, limit: int) -> Sequence[Entry]:
        return await self._entries("AND number > ? ORDER BY number LIMIT ?", partition, _number(offset), limit)

    async def before(self, partition: int, offset: str, *, limit: int) -> Sequence[Entry]:
        found = await self._entries("AND number <= ? ORDER BY number DESC LIMIT ?", partition, _number(offset), limit)
        return last_page(found[::-1])

    async def _entries(self, condition: str, *values: Any) -> list[Entry]:
        found = await self._file.read(lambda db: db.execute(f"{_COLUMNS} {condition}", values).fetchall())
        return [_entry(row) for row in found]


class SqlitePartitions:
    """``Partitions``."""

    def __init__(self, file: SqliteFile, new: Layout, group: str) -> None:
        self._file = file
        self._new = new
        self._group = group
        self._count: int | None = None

    async def count(self, *, fresh: bool = False) -> int:
        """It never grows."""
        if self._count is None or fresh:
            self._count = (await self.layout()).partitions
        return self._count

    async def layout(self) -> Layout:
        return await self._file.write(lambda db: layout_of(db, self._new))

    async def give_partition(self, app_id: str, *, least: int = 0) -> Layout:
        raise InvalidSettings("this bus gives no app a partition of its own")

    async def store_order(self, app_id: str, order: Order) -> None:
        await self._file.write(lambda db: db.execute("INSERT OR REPLACE INTO orders VALUES (?, ?)", (app_id, order)))

    async def committed(self, partition: int) -> CommittedPosition:
        row = await self._file.read(lambda db: _position(db, self._group, partition))
        return CommittedPosition(offset=_offset(row[0]), count=row[1], note=row[2])

    async def commit(self, partition: int, committed: CommittedPosition) -> None:
        row = (self._group, partition, _number(committed.offset), committed.count, committed.note)

        def write(db: sqlite3.Connection) -> None:
            if _position(db, self._group, partition)[1] <= committed.count:
                db.execute("INSERT OR REPLACE INTO positions VALUES (?, ?, ?, ?, ?)", row)

        await self._file.write(write)

    async def status(self, *, group: str = "") -> Sequence[PartitionStatus]:
        readers = group or self._group

        def read(db: sqlite3.Connection) -> list[PartitionStatus]:
            owners = _owners(db, readers)
            found: list[PartitionStatus] = []
            for partition in range(layout_of(db, self._new).partitions):
                number, count, note = _position(db, readers, partition)
                last = _last(db, partition)
                position, end = _offset(number), _offset(last)
                (first,) = db.execute("SELECT min(number) FROM events WHERE partition = ?", (partition,)).fetchone()
                found.append(
                    PartitionStatus(
                        id=partition, position=position, end=end, lag=last - count, owner=owners.get(partition),
                        note=note, written=last, trimmed=first - 1 if first else last,
                    )
                )  # fmt: skip
            return found

        return await self._file.write(read)

    async def positions(self, partition: int) -> Mapping[str, CommittedPosition]:
        groups = "SELECT readers FROM positions WHERE partition = ? AND (number > 0 OR note <> '')"

        def read(db: sqlite3.Connection) -> dict[str, CommittedPosition]:
            found: dict[str, CommittedPosition] = {}
            for (group,) in db.execute(groups, (partition,)).fetchall():
                number, count, note = _position(db, group, partition)
                found[group] = CommittedPosition(offset=_offset(number), count=count, note=note)
            return found

        return await self._file.read(read)

    async def trim(self, partition: int, offset: str) -> None:
        older = "DELETE FROM events WHERE partition = ? AND number <= ?"
        await self._file.write(lambda db: db.execute(older, (partition, _number(offset))))


class SqliteLeases:
    """``PartitionLeases``."""

    def __init__(self, file: SqliteFile, new: Layout, group: str) -> None:
        self._file = file
        self._new = new
        self._group = group
        self._held: dict[int, str] = {}
        """Who has claimed a partition through this bus."""
        self._shares: dict[str, int] = {}
        """By owner: how many partitions it is to hold, as of its last claim."""

    async def claim(self, partition: int, owner: str, ttl_s: float) -> bool:
        """The owner counts as alive for as long as the lease, from each call on, held or not.

        Shares differ by one at most; the larger ones go to those that hold the most, so that little has to move.
        """

        def write(db: sqlite3.Connection) -> tuple[bool, int]:
            now = time.time()
            db.execute("INSERT OR REPLACE INTO workers VALUES (?, ?, ?)", (self._group, owner, now + ttl_s))
            db.execute("DELETE FROM workers WHERE until < ?", (now,))
            owners = _owners(db, self._group)
            held = Counter(owners.values())
            names = [name for (name,) in db.execute("SELECT name FROM workers WHERE readers = ?", (self._group,))]
            names.sort(key=lambda name: (-held[name], name))
            share, larger = divmod(layout_of(db, self._new).partitions, len(names))
            share += names.index(owner) < larger
            holder = owners.get(partition)
            taken = holder == owner or (holder is None and held[owner] < share)
            if taken:
                row = (self._group, partition, owner, now + ttl_s)
                db.execute("INSERT OR REPLACE INTO leases VALUES (?, ?, ?, ?)", row)
            return taken, share

        taken, self._shares[owner] = await self._file.write(write)
        if taken:
            self._held[partition] = owner
        elif self._held.get(partition) == owner:
            del self._held[partition]
        return taken

    def is_revoked(self, partition: int) -> bool:
        """What the owner holds above its share, the highest numbers first."""
        owner = self._held.get(partition)
        if owner is None:
            return False
        held = sorted(number for number, holder in self._held.items() if holder == owner)
        return partition in held[self._shares[owner] :]

    async def release(self, partition: int, owner: str) -> None:
        """An owner without a lease does not count as alive until it claims again."""
        if self._held.get(partition) == owner:
            del self._held[partition]

        def write(db: sqlite3.Connection) -> None:
            lease = "DELETE FROM leases WHERE readers = ? AND partition = ? AND owner = ?"
            db.execute(lease, (self._group, partition, owner))
            if owner not in _owners(db, self._group).values():
                db.execute("DELETE FROM workers WHERE readers = ? AND name = ?", (self._group, owner))

        await self._file.write(write)


class SqliteLetters:
    """``DeadLetters``."""

    def __init__(self, file: SqliteFile) -> None:
        self._file = file

    async def put(self, letters: Sequence[DeadLetter]) -> None:
        await self._file.write(lambda db: _put(db, letters))

    async def extend(self, letter: DeadLetter | None, longer: DeadLetter) -> bool:

        def write(db: sqlite3.Connection) -> bool:
            same = _letter(db, longer.id) == letter
            if same:
                _put(db, [longer])
            return same

        return await self._file.write(write)

    async def by_app(self) -> Mapping[str, LettersOfApp]:
        query = (
            "SELECT coalesce(json_extract(body, '$.app_id'), '') AS app, count(*), sum(length(body)) "
            "FROM letters GROUP BY app"
        )
        rows = await self._file.read(lambda db: db.execute(query).fetchall())
        return {app: LettersOfApp(count=count, size=size) for app, count, size in rows}

    async def read(
        self, *, limit: int, app_id: str | None = None, size: int | None = None, whole: bool = True,
        ids: Collection[str] | None = None,
    ) -> Sequence[DeadLetter]:  # fmt: skip
        oldest = "SELECT body FROM letters ORDER BY time, id"
        found = await self._file.read(lambda db: db.execute(oldest).fetchall())
        letters = [DeadLetter.model_validate_json(body) for (body,) in found]
        return first_letters(letters, limit, app_id, size, whole=whole, ids=ids)

    async def requeue(
        self, letter: DeadLetter, entries: Sequence[Mapping[bytes, bytes]], rest: DeadLetter | None = None
    ) -> bool:

        def write(db: sqlite3.Connection) -> bool:
            if _letter(db, letter.id) != letter:
                return False
            append(db, letter.partition, entries, time.time())
            db.execute("DELETE FROM letters WHERE id = ?", (letter.id,))
            _put(db, [rest] if rest else [])
            return True

        return await self._file.write(write)


class SqliteRules:
    """``RulesLog``."""

    def __init__(self, file: SqliteFile, new: Layout) -> None:
        self._file = file
        self._new = new

    async def store(self, digest: str, rules: StoredRules) -> None:
        stored = await self.stored(digest)
        kept = rules if stored is None else stored.updated_by(rules) or stored
        row = (digest, kept.encode())
        await self._file.write(lambda db: db.execute("INSERT OR REPLACE INTO rules VALUES (?, ?)", row))

    async def stored(self, digest: str) -> StoredRules | None:
        query = "SELECT body FROM rules WHERE digest = ?"
        row = await self._file.read(lambda db: db.execute(query, (digest,)).fetchone())
        return StoredRules.decode(row[0]) if row else None

    async def activate(self, scope: str, digest: str) -> Activation:

        def write(db: sqlite3.Connection) -> Activation:
            (count,) = db.execute("SELECT count(*) FROM activations").fetchone()
            plain = Activation(number=count + 1, scope=scope, digest=digest, time=datetime.now(UTC))
            partitions = layout_of(db, self._new).partitions_of(scope)
            offsets = {p: append(db, p, [plain.entry()], time.time())[0] for p in partitions}
            placed = replace(plain, positions=offsets)
            db.execute("INSERT INTO activations VALUES (?, ?)", (placed.number, placed.encode()))
            return placed

        return await self._file.write(write)

    async def activations(self, *, after: int = 0) -> Sequence[Activation]:
        query = "SELECT body FROM activations WHERE number > ? ORDER BY number"
        rows = await self._file.read(lambda db: db.execute(query, (after,)).fetchall())
        return [Activation.decode(body) for (body,) in rows]


class SqliteRecords:
    """``RecordLog`` on a table."""

    def __init__(self, file: SqliteFile, table: str) -> None:
        self._file = file
        self._table = table

    async def put(self, key: str, record: bytes | None) -> None:
        query, values = f"DELETE FROM {self._table} WHERE name = ?", [key]
        if record is not None:
            query, values = f"INSERT OR REPLACE INTO {self._table} (name, body) VALUES (?, ?)", [key, record]
        await self._file.write(lambda db: db.execute(query, values))

    async def after(self, mark: int | None) -> Records:
        query = f"SELECT name, body FROM {self._table} WHERE number > ? ORDER BY number"
        rows = await self._file.read(lambda db: db.execute(query, (mark or 0,)).fetchall())
        last = await self._file.read(lambda db: db.execute(f"SELECT max(number) FROM {self._table}").fetchone())
        end = last[0] or 0
        return Records(found=dict(rows), mark=end, complete=(mark or 0) <= end)


def _position(db: sqlite3.Connection, group: str, partition: int) -> tuple[int, int, str]:
    position = "SELECT number, count, note FROM positions WHERE readers = ? AND partition = ?"
    return db.execute(position, (group, partition)).fetchone() or (0, 0, "")


def _owners(db: sqlite3.Connection, group: str) -> dict[int, str]:
    leases = "SELECT partition, owner FROM leases WHERE readers = ? AND until >= ?"
    return dict(db.execute(leases, (group, time.time())).fetchall())


def _put(db: sqlite3.Connection, letters: Iterable[DeadLetter]) -> None:
    rows = [(letter.id, letter.time.timestamp(), letter.model_dump_json(exclude_none=True)) for letter in letters]
    db.executemany("INSERT OR REPLACE INTO letters VALUES (?, ?, ?)", rows)


def _letter(db: sqlite3.Connection, letter_id: str) -> DeadLetter | None:
    row = db.execute("SELECT body FROM letters WHERE id = ?", (letter_id,)).fetchone()
    return DeadLetter.model_validate_json(row[0]) if row else None


def _last(db: sqlite3.Connection, partition: int) -> int:
    row = db.execute("SELECT last FROM ends WHERE partition = ?", (partition,)).fetchone()
    return int(row[0]) if row else 0


def _entry(row: tuple[int, str, float]) -> Entry:
    number, fields, at = row
    return Entry(
        offset=_offset(number), fields=wire.unpack(json.loads(fields)), received=datetime.fromtimestamp(at, UTC)
    )


def _offset(number: int) -> str:
    return str(number - 1) if number else ""


def _number(offset: str) -> int:
    return int(offset) + 1 if offset else 0
