"""Rules in the log on Kafka: a topic of rule sets and activations, read as a whole."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Generator, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.errors import IllegalOperation, KafkaError

from graphweft.transports.kafka.connection import bus_errors, record_of
from graphweft_contracts import BusUnavailable, channels
from graphweft_contracts.rules_log import Activation, StoredRules
from graphweft_workers.drivers.kafka.reader import RangeReader, start_client

_RECORDS: Final[Any] = TopicPartition(channels.RULE_SETS_TOPIC, 0)
_ACTIVATION: Final = b"activation"
_REQUEST_MS: Final = 10_000
_TRANSACTION_MS: Final = 10_000
_LARGEST: Final = 8 * 1024**2
_STEP_S: Final = 0.02
_PAGE: Final = 100


class KafkaRulesLog:
    """``RulesLog`` on a Kafka cluster. The topics must exist."""

    def __init__(self, servers: str) -> None:
        self._servers = servers
        self._reader = RangeReader(servers, _LARGEST)
        self._reading = asyncio.Lock()
        self._next = 0
        self._sets: dict[str, StoredRules] = {}
        self._activations: list[Activation] = []

    async def store_rules(self, digest: str, rules: StoredRules) -> None:
        """See ``RulesLog.store_rules``."""
        await self._catch_up()
        if digest in self._sets:
            return
        with bus_errors("the rules were not stored"):
            producer = await self._producer(enable_idempotence=True)
            try:
                await producer.send_and_wait(_RECORDS.topic, rules.encode(), key=digest.encode(), partition=0)
            finally:
                await _end(producer)

    async def stored_rules(self, digest: str) -> StoredRules | None:
        """See ``RulesLog.stored_rules``."""
        if digest not in self._sets:
            await self._catch_up()
        return self._sets.get(digest)

    async def activate(self, scope: str, digest: str, partitions: Sequence[int]) -> Activation:
        """See ``RulesLog.activate``. Of two processes that do this at the same time, one fails."""
        with _fenced(), bus_errors("the rules were not activated"):
            producer = await self._producer(
                transactional_id=channels.RULES_TRANSACTION, transaction_timeout_ms=_TRANSACTION_MS
            )
            try:
                await self._catch_up()
                activation = Activation(
                    number=len(self._activations) + 1, scope=scope, digest=digest, time=datetime.now(UTC)
                )
                await producer.begin_transaction()
                try:
                    activation, place = await self._write(producer, activation, partitions)
                except BaseException:
                    with contextlib.suppress(KafkaError, OSError, AssertionError, IllegalOperation):
                        await producer.abort_transaction()
                    raise
                await producer.commit_transaction()
                await self._visible(place)
            finally:
                await _end(producer)
        return activation

    async def activations(self, *, after: int = 0) -> Sequence[Activation]:
        """See ``RulesLog.activations``."""
        await self._catch_up()
        return self._activations[after:]

    async def aclose(self) -> None:
        """Close the connection."""
        await self._reader.aclose()

    async def _write(self, producer: Any, activation: Activation, partitions: Sequence[int]) -> tuple[Activation, int]:
        value, headers = record_of(activation.entry())
        sending: list[asyncio.Future[Any]] = []
        for number in partitions:
            sent = await producer.send(channels.EVENTS_TOPIC, value, key=b"rules", partition=number, headers=headers)
            sent.add_done_callback(_retrieved)  # another one may fail first
            sending.append(sent)
        offsets = [str(record.offset) for record in await asyncio.gather(*sending)]
        placed = Activation(
            number=activation.number,
            scope=activation.scope,
            digest=activation.digest,
            time=activation.time,
            positions=dict(zip(partitions, offsets, strict=True)),
        )
        record = await producer.send_and_wait(_RECORDS.topic, placed.encode(), key=_ACTIVATION, partition=0)
        return placed, int(record.offset)

    async def _visible(self, offset: int) -> None:
        """Wait until a committed record can be read: Kafka acknowledges the commit before that."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_REQUEST_MS / 1000):
                while (await self._reader.bounds([_RECORDS]))[_RECORDS][1] <= offset:  # noqa: ASYNC110 - the broker's
                    await asyncio.sleep(_STEP_S)

    async def _catch_up(self) -> None:
        async with self._reading:
            first, end = (await self._reader.bounds([_RECORDS]))[_RECORDS]
            if end < self._next:  # the topic was recreated
                self._sets, self._activations, self._next = {}, [], 0
            self._next = max(self._next, first)
            while self._next < end:
                records = await self._reader.read(_RECORDS, self._next, min(end, self._next + _PAGE))
                for record in records:
                    with contextlib.suppress(ValueError):  # a record of somebody else
                        self._add(record.key or b"", record.value or b"")
                self._next = min(end, self._next + _PAGE)

    def _add(self, key: bytes, value: bytes) -> None:
        if key == _ACTIVATION:
            self._activations.append(Activation.decode(value))
        else:
            self._sets.setdefault(key.decode(), StoredRules.decode(value))

    async def _producer(self, **options: Any) -> Any:
        producer = AIOKafkaProducer(
            bootstrap_servers=self._servers,
            request_timeout_ms=_REQUEST_MS,
            max_batch_size=_LARGEST,
            max_request_size=_LARGEST,
            **options,
        )
        try:
            async with asyncio.timeout(2 * _REQUEST_MS / 1000):
                await start_client(producer)
        except BaseException:
            await _end(producer)
            raise
        return producer


@contextlib.contextmanager
def _fenced() -> Generator[None]:
    """A producer that is fenced between two calls has no transaction; aiokafka does not raise a ``KafkaError`` then."""
    try:
        yield
    except IllegalOperation as error:
        raise BusUnavailable("the rules were not activated: another process activates rules at this moment") from error


def _retrieved(sent: asyncio.Future[Any]) -> None:
    if not sent.cancelled():
        sent.exception()


async def _end(producer: Any) -> None:
    with contextlib.suppress(KafkaError, OSError):
        await producer.stop()
