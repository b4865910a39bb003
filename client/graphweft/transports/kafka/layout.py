"""The layout of a bus on Kafka: the topic ``graphweft.partitions``, written by the first process, read by all.

A topic can get more partitions at any time. A producer that used their current number would move apps and chats to
other partitions, ahead of events that are not read yet. So the first process writes the number that it finds. The first
number in the topic applies to all processes, and so does the order next to it. Later records change the order of apps.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import Any, Final

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaError

from graphweft.time_limit import time_limit
from graphweft.transports.kafka.connection import Servers, present_partitions, start_client
from graphweft.transports.kafka.timing import KAFKA_TIMING
from graphweft_contracts import Layout, Order, channels
from graphweft_contracts.layout import ALL_APPS

logger = logging.getLogger("graphweft.client")

_RECORD: Final[Any] = TopicPartition(channels.PARTITIONS_TOPIC, 0)
_TIMING: Final = KAFKA_TIMING


async def agreed_layout(servers: Servers, admin: AIOKafkaAdminClient, present: int, order: Order) -> Layout:
    """Return the layout of the bus; a new one gets ``present`` partitions and ``order``.

    The topics must exist. Concurrent processes agree on the layout of one of them. Raises ``KafkaError``, also if the
    events have fewer partitions than that.
    """
    async with time_limit(4 * _TIMING.request_ms / 1000):
        layout = await stored_layout(servers)
        if layout is None:
            await _write(servers, {"partitions": present, "order": order})
            layout = await stored_layout(servers)
    if layout is None:
        raise KafkaError(f"the topic {channels.PARTITIONS_TOPIC} lost its record: set its retention to unlimited")
    number = layout.partitions
    if number > present and number > (present := await present_partitions(admin)):  # the topic may have grown
        raise KafkaError(
            f"the topic {channels.EVENTS_TOPIC} has {present} partitions, but {_RECORD.topic} says {number}: "
            f"the topic was recreated with fewer; delete {_RECORD.topic} too, and restart all processes"
        )
    return layout


async def store_order(servers: Servers, app_id: str, order: Order) -> None:
    """Store the order of an app, or with ``*`` of all others. Raises ``KafkaError``."""
    async with time_limit(_TIMING.request_ms / 1000):
        await _write(servers, {"app": app_id, "order": order})


async def stored_layout(servers: Servers) -> Layout | None:
    """Return the layout that the topic holds, or None. The topic must exist. Raises ``KafkaError``."""
    number: int | None = None
    orders: dict[str, str] = {}
    consumer: Any = AIOKafkaConsumer(
        **servers.options,
        auto_offset_reset="none",
        enable_auto_commit=False,
        request_timeout_ms=_TIMING.request_ms,
        retry_backoff_ms=_TIMING.lookup_ms,
    )
    try:
        await start_client(consumer)
        position = (await consumer.beginning_offsets([_RECORD]))[_RECORD]
        end = (await consumer.end_offsets([_RECORD]))[_RECORD]
        consumer.assign([_RECORD])
        consumer.seek(_RECORD, position)
        while position < end:
            try:
                found = await consumer.getmany(_RECORD, timeout_ms=_TIMING.record_ms)
            except UnicodeDecodeError as error:
                raise KafkaError(
                    f"cannot read a foreign record of {_RECORD.topic}: remove it with kafka-delete-records.sh"
                ) from error
            for record in found.get(_RECORD, ()):
                found_number, found_orders = _read(record.value)
                if found_number is None and not found_orders:
                    logger.warning("ignored a foreign record of %s at offset %d", _RECORD.topic, record.offset)
                if found_number is None:
                    orders |= found_orders
                elif number is None:  # the first one counts
                    number = found_number
                    orders |= found_orders
            position = await consumer.position(_RECORD)
        return None if number is None else Layout.of_stored(number, orders)
    finally:
        await consumer.stop()


async def _write(servers: Servers, record: Mapping[str, Any]) -> None:
    producer: Any = AIOKafkaProducer(**servers.options, enable_idempotence=True, request_timeout_ms=_TIMING.request_ms)
    try:
        await start_client(producer)
        value = json.dumps(record).encode()
        await producer.send_and_wait(_RECORD.topic, value, key=channels.EVENTS_TOPIC.encode(), partition=0)
    finally:
        await producer.stop()


def _read(value: bytes | None) -> tuple[int | None, Mapping[str, str]]:
    """Return the number of partitions in a record and the orders of apps in it; None and nothing of a foreign one."""
    try:
        record: Any = json.loads(value or b"")
        number, app_id, order = record.get("partitions"), record.get("app", ALL_APPS), record.get("order")
    except (ValueError, RecursionError, AttributeError):
        return None, {}
    orders = {app_id: order} if isinstance(app_id, str) and order in {"app", "chat"} else {}
    return number if type(number) is int and number > 0 else None, orders
