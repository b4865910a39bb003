"""The consumer that one would write from FastStream's documentation: acknowledge after success, one query a mutation.

``python -m benchmarks.naive NAME [--batch]`` reads the stream or topic NAME in a group of that name. Servers and rules
stand in the environment as for the engine, so it runs the same queries with the same parameters. ``--batch`` takes many
events at a time, which spares trips to the bus.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

from faststream import AckPolicy, FastStream
from tests.services.rules import load_rules

from benchmarks.workload import APP
from graphweft_contracts import Event, channels
from graphweft_workers.settings.settings import Settings

type Query = Callable[[str, dict[str, Any]], Awaitable[object]]


async def main(name: str, batch: bool) -> None:
    settings = Settings.load()
    rules = load_rules(settings.rules)
    async with connected(settings.graph) as query:

        async def apply(event: Event) -> None:
            for bound in rules.match_event(event).mutations:
                await query(bound.mutation.cypher.statement, bound.params)

        async def on_event(event: Event) -> None:
            await apply(event)

        async def on_events(events: list[Event]) -> None:
            for event in events:
                await apply(event)

        broker, subscriber = subscribe(settings, name, batch)
        subscriber(on_events if batch else on_event)
        await FastStream(broker).run()


def subscribe(settings: Settings, name: str, batch: bool) -> tuple[Any, Any]:
    if settings.bus.startswith("kafka://"):
        from faststream.kafka import KafkaBroker

        kafka = KafkaBroker(settings.bus.removeprefix("kafka://"))
        return kafka, kafka.subscriber(
            name,
            group_id=name,
            auto_offset_reset="earliest",
            batch=batch,
            max_records=settings.batch_events if batch else None,
            ack_policy=AckPolicy.NACK_ON_ERROR,
        )
    from faststream.redis import RedisBroker, StreamSub

    redis = RedisBroker(settings.bus)
    stream = StreamSub(
        name, group=name, consumer="one", batch=batch, max_records=settings.batch_events if batch else None
    )
    return redis, redis.subscriber(stream=stream, ack_policy=AckPolicy.REJECT_ON_ERROR)


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[Query]:
    """Yield what runs a query by the graph server's own driver."""
    if urlsplit(url).scheme in ("redis", "rediss", "unix"):
        import redis.asyncio as redis
        from falkordb.asyncio.graph import AsyncGraph

        client: Any = redis.Redis.from_url(url, decode_responses=True, protocol=2)
        graph: Any = AsyncGraph(client, channels.graph_name(APP))
        try:
            yield graph.query
        finally:
            await client.aclose()
        return
    import neo4j

    async with neo4j.AsyncGraphDatabase.driver(url, notifications_min_severity="OFF") as driver:

        async def query(statement: str, params: dict[str, Any]) -> object:
            return await driver.execute_query(statement, params)

        yield query


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], "--batch" in sys.argv[2:]))
