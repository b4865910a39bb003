"""A producer that ends leaves no error that the event loop reports, whatever is not confirmed yet."""

from __future__ import annotations

import asyncio
import gc
from types import SimpleNamespace
from typing import Any, cast

from aiokafka import TopicPartition
from aiokafka.cluster import ClusterMetadata
from aiokafka.errors import KafkaError
from aiokafka.producer.message_accumulator import MessageAccumulator

from graphweft.transports.kafka.context import end_producer


async def nothing() -> None: ...


async def test_batches_that_are_not_confirmed_are_no_unhandled_errors() -> None:
    reported: list[dict[str, Any]] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: reported.append(context))
    cluster: Any = ClusterMetadata()
    accumulator: Any = MessageAccumulator(cluster, 1_000, 0, 60.0)
    places = [TopicPartition("t", number) for number in range(3)]
    confirmed = []
    for place in places:
        builder = accumulator.create_builder()
        builder.append(key=None, value=b"v", timestamp=None)
        confirmed.append(await accumulator.add_batch(builder, place, 1.0))
    accumulator._pop_batch(places[0])  # on its way
    accumulator.reenqueue(accumulator._pop_batch(places[1]))  # to be sent again; the third was never sent
    confirmed[2].cancel()  # its caller has given up
    producer = SimpleNamespace(
        stop=nothing, _sender=SimpleNamespace(close=nothing), _message_accumulator=accumulator,
        client=SimpleNamespace(close=nothing),
    )  # fmt: skip
    await end_producer(cast(Any, producer))
    await asyncio.sleep(0)
    assert [type(each.exception()) for each in confirmed[:2]] == [KafkaError, KafkaError]
    del accumulator, producer, confirmed, builder
    await asyncio.sleep(0)
    gc.collect()
    await asyncio.sleep(0)
    assert reported == []
