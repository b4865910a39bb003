"""Rules in the log on Kafka: a topic of rule sets and activations, read as a whole."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any, Final

from aiokafka import TopicPartition

from graphweft.transports.kafka.connection import Servers, record_of, retrieve
from graphweft_contracts import channels
from graphweft_contracts.clock import SYSTEM_CLOCK, Clock
from graphweft_contracts.rules_log import Activation, StoredRules
from graphweft_workers.drivers.kafka.producer import (
    LARGEST,
    RecordWriter,
    begun_transaction,
    fencing_producer,
    until_visible,
)
from graphweft_workers.drivers.kafka.reader import RangeReader

_RECORDS: Final[Any] = TopicPartition(channels.RULE_SETS_TOPIC, 0)
_ACTIVATION: Final = b"activation"
_FENCED: Final = "the rules were not activated: another process activates rules at this moment"
_PAGE: Final = 100


class KafkaRulesLog:
    """``RulesLog`` on a Kafka cluster."""

    def __init__(
        self,
        servers: Servers,
        ready: Callable[[], Awaitable[object]],
        concerned_by: Callable[[str], Awaitable[Sequence[int]]],
        *,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """``ready`` makes the topics; ``concerned_by`` returns the partitions that may hold events of a scope."""
        self._ready = ready
        self._concerned_by = concerned_by
        self._servers = servers
        self._clock = clock
        self._reader = RangeReader(servers, LARGEST)
        self._reading = asyncio.Lock()
        self._next = 0
        self._sets: dict[str, StoredRules] = {}
        self._activations: list[Activation] = []

    async def store(self, digest: str, rules: StoredRules) -> None:
        """See ``RulesLog.store``."""
        await self._catch_up()
        stored = self._sets.get(digest)
        if stored is not None:
            updated = stored.updated_by(rules)
            if updated is None:
                return
            rules = updated
        async with aclosing(RecordWriter(self._servers, _RECORDS.topic, "the rules were not stored")) as writer:
            await writer.write([(digest.encode(), rules.encode(), ())])

    async def stored(self, digest: str) -> StoredRules | None:
        """See ``RulesLog.stored``."""
        await self._catch_up()
        return self._sets.get(digest)

    async def activate(self, scope: str, digest: str) -> Activation:
        """See ``RulesLog.activate``. Its transaction blocks readers for at most 10 s.

        Of two processes that do this at the same time, one fails.
        """
        partitions = await self._concerned_by(scope)
        async with fencing_producer(
            self._servers, channels.RULES_TRANSACTION, fenced=_FENCED, failure="the rules were not activated"
        ) as producer:
            await self._catch_up()
            activation = Activation(
                number=len(self._activations) + 1, scope=scope, digest=digest, time=self._clock.now()
            )
            async with begun_transaction(producer):
                activation, place = await self._write(producer, activation, partitions)
            await producer.commit_transaction()
            await until_visible(self._reader, _RECORDS, place)
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
            sent.add_done_callback(retrieve)  # another one may fail first
            sending.append(sent)
        offsets = [str(record.offset) for record in await asyncio.gather(*sending)]
        placed = replace(activation, positions=dict(zip(partitions, offsets, strict=True)))
        record = await producer.send_and_wait(_RECORDS.topic, placed.encode(), key=_ACTIVATION, partition=0)
        return placed, int(record.offset)

    async def _catch_up(self) -> None:
        await self._ready()
        async with self._reading:
            first, end = await self._reader.bounds_of(_RECORDS)
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
            digest, rules = key.decode(), StoredRules.decode(value)
            stored = self._sets.get(digest)
            self._sets[digest] = rules if stored is None else stored.updated_by(rules) or stored
