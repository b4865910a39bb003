"""Dead letters on Kafka: a compacted topic of one partition that maps a letter's id to JSON, or to null once deleted.

A process keeps an index of ids and offsets, which it extends by reading new records. It reads the letters themselves,
which may be many and large, on request.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any, Final, NamedTuple

from aiokafka import TopicPartition

from graphweft.transports.kafka.connection import Servers, bus_errors, record_of
from graphweft_contracts import DeadLetter, channels
from graphweft_contracts.clock import SYSTEM_CLOCK, Clock
from graphweft_workers.drivers.kafka.producer import (
    LARGEST,
    REQUEST_MS,
    RecordWriter,
    begun_transaction,
    fencing_producer,
    until_visible,
)
from graphweft_workers.drivers.kafka.reader import RangeReader
from graphweft_workers.drivers.kafka.timing import KAFKA_BUS_TIMING, KafkaBusTiming
from graphweft_workers.ports.dead_letters import LettersOfApp, first_letters, letter_with, without_fields

_LETTERS: Final[Any] = TopicPartition(channels.DEAD_LETTERS_TOPIC, 0)
_APP: Final = "app"
"""The header with the app of a letter, so that letters are counted without being parsed."""
_FENCED: Final = "the dead letter was not retried: another process retries it at the same time"
_PAGE: Final = 10_000


class _Place(NamedTuple):
    """Where a letter is, and what is counted of it."""

    offset: int
    size: int
    app_id: str | None
    """None if an older version wrote the letter."""


class KafkaLetters:
    """``DeadLetters`` on a Kafka cluster."""

    def __init__(
        self,
        servers: Servers,
        ready: Callable[[], Awaitable[object]],
        *,
        clock: Clock = SYSTEM_CLOCK,
        timing: KafkaBusTiming = KAFKA_BUS_TIMING,
    ) -> None:
        """``ready`` makes the topics."""
        self._ready = ready
        self._servers = servers
        self._clock = clock
        self._timing = timing
        self._reader = RangeReader(servers, LARGEST)
        self._writer = RecordWriter(servers, _LETTERS.topic, "a dead letter cannot be written")
        self._indexing = asyncio.Lock()
        self._index: dict[str, _Place] = {}
        self._next = 0
        self._current = 0.0

    async def put(self, letters: Sequence[DeadLetter]) -> None:
        """See ``DeadLetters.put``."""
        await self._ready()
        with bus_errors("a dead letter cannot be written"):
            async with asyncio.timeout(2 * REQUEST_MS / 1000):
                await self._writer.write((each.id.encode(), _body(each), _headers(each)) for each in letters)

    async def extend(self, letter: DeadLetter | None, longer: DeadLetter) -> bool:
        """See ``DeadLetters.extend``. Kafka has no conditional write, so a simultaneous retry is not noticed.

        Then the letter names events that were retried already. Retrying them again soon has no effect, because the new
        entries are copies of the first ones.
        """
        if await letter_with(self, longer.id) != letter:
            return False
        await self.put([longer])
        return True

    async def by_app(self) -> Mapping[str, LettersOfApp]:
        """See ``DeadLetters.by_app``."""
        await self._catch_up()
        counts: Counter[str] = Counter()
        sizes: Counter[str] = Counter()
        for place in self._index.values():
            if place.app_id is not None:
                counts[place.app_id] += 1
                sizes[place.app_id] += place.size
        return {app_id: LettersOfApp(count=count, size=sizes[app_id]) for app_id, count in counts.items()}

    async def read(
        self, *, limit: int, app_id: str | None = None, size: int | None = None, whole: bool = True,
        ids: Collection[str] | None = None,
    ) -> Sequence[DeadLetter]:  # fmt: skip
        """See ``DeadLetters.read``."""
        await self._catch_up()
        named = self._index.keys() if ids is None else {*ids} & self._index.keys()
        places = (
            (place.offset, each, place.size) for each in named if app_id in (None, (place := self._index[each]).app_id)
        )
        wanted: list[tuple[str, int]] = []
        total = 0
        for offset, letter_id, bytes_ in sorted(places)[:limit]:
            total += bytes_
            if wanted and size is not None and total > size:
                break
            wanted.append((letter_id, offset))
        if ids is not None:  # what lies between them may be gigabytes
            return first_letters([each for name, _ in wanted if (each := await self._at(name))], limit, whole=whole)
        found: list[DeadLetter] = []
        for start in range(0, len(wanted), 100):
            page = dict(wanted[start : start + 100])
            offsets = sorted(page.values())
            records = await self._reader.read(_LETTERS, offsets[0], offsets[-1] + 1)
            found += [
                DeadLetter.model_validate_json(record.value if whole else without_fields(record.value))
                for record in records
                if record.key is not None and page.get(record.key.decode()) == record.offset and record.value
            ]
        return found

    async def requeue(
        self, letter: DeadLetter, entries: Sequence[Mapping[bytes, bytes]], rest: DeadLetter | None = None
    ) -> bool:
        """See ``DeadLetters.requeue``. Its transaction blocks readers for at most 10 s.

        The producer has a fixed transactional id, so a new one fences the old one. If two processes retry a letter at
        the same time, one of them fails and writes nothing.
        """
        number, _, _ = letter.position.partition(":")
        partition = int(number)
        await self._ready()
        async with fencing_producer(
            self._servers, channels.REQUEUE_TRANSACTION, fenced=_FENCED, failure="the dead letter was not retried"
        ) as producer:
            await self._catch_up()
            if await self._at(letter.id) != letter:
                return False
            seen = self._index[letter.id]
            async with begun_transaction(producer):
                for entry in entries:
                    value, headers = record_of(entry)
                    await producer.send(
                        channels.EVENTS_TOPIC, value, key=letter.id.encode(), partition=partition, headers=headers
                    )
                gone = None if rest is not None and rest.id == letter.id else letter
                place = None
                if gone is not None:
                    place = await producer.send_and_wait(_LETTERS.topic, key=gone.id.encode(), value=None)
                if rest is not None:
                    last = await producer.send_and_wait(
                        _LETTERS.topic, key=rest.id.encode(), value=_body(rest), headers=_headers(rest)
                    )
                    place = place or last
                await producer.flush()
                # A worker may have replaced the letter since it was read.
                assert place is not None
                await self._catch_up(place.offset)
                unchanged = self._index.get(letter.id) == seen
            if unchanged:
                await producer.commit_transaction()
                await until_visible(self._reader, _LETTERS, place.offset)
            else:
                await producer.abort_transaction()
            return unchanged

    async def aclose(self) -> None:
        """Close the connections."""
        await self._writer.aclose()
        await self._reader.aclose()

    async def _catch_up(self, to: int | None = None) -> None:
        """Extend the index up to an offset, or up to the last committed record."""
        await self._ready()
        async with self._indexing:
            if self._clock.monotonic() - self._current > self._timing.index_s:
                self._index.clear()
                self._next = 0
            begun = self._clock.monotonic()
            first, end = await self._reader.bounds_of(_LETTERS)
            end = end if to is None else to
            if end < self._next:  # the topic was recreated
                self._index.clear()
                self._next = first
            while self._next < end:
                start = max(self._next, first)
                until = min(end, start + _PAGE)
                for record in await self._reader.read(_LETTERS, start, until):
                    if record.key is None:
                        continue
                    letter_id = record.key.decode()
                    self._index.pop(letter_id, None)
                    if record.value is not None:
                        app_id = next((value for name, value in record.headers if name == _APP), None)
                        self._index[letter_id] = _Place(
                            record.offset,
                            len(record.value),
                            None if app_id is None else app_id.decode(errors="replace"),
                        )
                self._next = until
            self._current = begun

    async def _at(self, letter_id: str) -> DeadLetter | None:
        place = self._index.get(letter_id)
        if place is None:
            return None
        offset = place.offset
        for record in await self._reader.read(_LETTERS, offset, offset + 1):
            if record.value is not None:
                return DeadLetter.model_validate_json(record.value)
        return None


def _body(letter: DeadLetter) -> bytes:
    return letter.model_dump_json(exclude_none=True).encode()


def _headers(letter: DeadLetter) -> list[tuple[str, bytes]]:
    return [(_APP, (letter.app_id or "").encode())]
