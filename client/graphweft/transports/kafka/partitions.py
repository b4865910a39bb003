"""The number of partitions that keys of events are mapped to, written once to the cluster.

A topic can get more partitions at any time. A producer that used their current number would move chats to other
partitions, ahead of events that are not read yet. So the first process writes the number that it finds to the topic
``graphweft.partitions``. The first record there applies to all processes.
"""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any, Final

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaError

from graphweft.transports.kafka.connection import present_partitions
from graphweft_contracts import channels

logger = logging.getLogger("graphweft.client")

_RECORD: Final[Any] = TopicPartition(channels.PARTITIONS_TOPIC, 0)
_REQUEST_MS: Final = 5_000
_WAIT_MS: Final = 200
_PAUSE_MS: Final = 10
"""How long aiokafka waits before it looks up a topic; its default of 100 ms would dominate the connection time."""


async def agreed_partitions(servers: str, admin: AIOKafkaAdminClient, present: int) -> int:
    """Return the number of partitions that keys are mapped to; if none is written yet, write ``present``.

    The topics must exist. Concurrent processes agree on the number of one of them. Raises ``KafkaError``, also if the
    events have fewer partitions than that.
    """
    async with asyncio.timeout(4 * _REQUEST_MS / 1000):
        number = await written_partitions(servers)
        if number is None:
            await _write(servers, present)
            number = await written_partitions(servers)
    if number is None:
        raise KafkaError(f"the topic {channels.PARTITIONS_TOPIC} lost its record: set its retention to unlimited")
    if number > present and number > (present := await present_partitions(admin)):  # the topic may have grown
        raise KafkaError(
            f"the topic {channels.EVENTS_TOPIC} has {present} partitions, but {_RECORD.topic} says {number}: "
            f"the topic was recreated with fewer; delete {_RECORD.topic} too, and restart all processes"
        )
    return number


async def written_partitions(servers: str) -> int | None:
    """Return the written number, or None. The topic must exist. Raises ``KafkaError``."""
    consumer: Any = AIOKafkaConsumer(
        bootstrap_servers=servers,
        auto_offset_reset="none",
        enable_auto_commit=False,
        request_timeout_ms=_REQUEST_MS,
        retry_backoff_ms=_PAUSE_MS,
    )
    try:
        await consumer.start()
        position = (await consumer.beginning_offsets([_RECORD]))[_RECORD]
        end = (await consumer.end_offsets([_RECORD]))[_RECORD]
        consumer.assign([_RECORD])
        consumer.seek(_RECORD, position)
        while position < end:
            try:
                found = await consumer.getmany(_RECORD, timeout_ms=_WAIT_MS)
            except UnicodeDecodeError as error:
                raise KafkaError(
                    f"cannot read a foreign record of {_RECORD.topic}: remove it with kafka-delete-records.sh"
                ) from error
            for record in found.get(_RECORD, ()):
                number = _number(record.value)
                if number is not None:
                    return number
                logger.warning("ignored a foreign record of %s at offset %d", _RECORD.topic, record.offset)
            position = await consumer.position(_RECORD)
        return None
    finally:
        await consumer.stop()


async def _write(servers: str, number: int) -> None:
    producer: Any = AIOKafkaProducer(bootstrap_servers=servers, enable_idempotence=True, request_timeout_ms=_REQUEST_MS)
    try:
        await producer.start()
        value = json.dumps({"partitions": number}).encode()
        await producer.send_and_wait(_RECORD.topic, value, key=channels.EVENTS_TOPIC.encode(), partition=0)
    finally:
        await producer.stop()


def _number(value: bytes | None) -> int | None:
    try:
        number: Any = json.loads(value or b"")["partitions"]
    except (ValueError, RecursionError, TypeError, LookupError):
        return None
    return number if type(number) is int and number > 0 else None
