"""The quickest consumer that one would write for these events alone: decode what is needed, one ``UNWIND``, commit.

``python -m benchmarks.hand_written TOPIC`` reads a Kafka topic in a group of that name. It knows no rules, no order of
apps and no failing rows. It is exactly once: the graph holds the last offset of each partition, and rows up to it have
no effect.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec
from aiokafka import AIOKafkaConsumer, ConsumerRecord

from benchmarks.workload import APP
from graphweft_contracts import channels
from graphweft_workers.settings.settings import Settings

type Row = tuple[int, str, str, bool, str]
"""Offset, call, tool, success, chat."""

_AT_ONCE: Final = 4_000
_SESSION_MS: Final = 120_000
"""It is stopped while a backlog is published, and stays a member of its group."""
_NEW: Final = (
    "MERGE (o:Offset {partition: $partition}) WITH o, coalesce(o.at, -1) AS at SET o.at = $last "
    "WITH at UNWIND $rows AS row WITH at, row WHERE row[0] > at "
)
ONE: Final = (
    "MERGE (c:Call {id: {id}}) SET c.tool = {tool}, c.success = {success} "
    "MERGE (j:Journey {id: {chat}}) MERGE (j)-[:MADE]->(c) SET j.calls = coalesce(j.calls, 0) + 1"
)
"""The one statement for an event, with the places of its values."""
_NEO4J: Final = f"{_NEW} CALL (row) {{ {ONE} }}"
# FalkorDB takes these three, of which two may be repeated; one statement would count a chat once for a batch.
_FALKORDB: Final = (
    "UNWIND $rows AS row MERGE (c:Call {id: row[1]}) SET c.tool = row[2], c.success = row[3]",
    "UNWIND $rows AS row MATCH (c:Call {id: row[1]}) MERGE (j:Journey {id: row[4]}) MERGE (j)-[:MADE]->(c)",
    f"{_NEW} WITH row[4] AS chat, count(*) AS calls MATCH (j:Journey {{id: chat}}) "
    "SET j.calls = coalesce(j.calls, 0) + calls",
)


def with_values(statement: str, **places: str) -> str:
    """Return a statement with the places of its values filled in."""
    for name, place in places.items():
        statement = statement.replace(f"{{{name}}}", place)
    return statement


class _Call(msgspec.Struct, gc=False):
    call_id: str
    tool_name: str
    success: bool


class _Event(msgspec.Struct, gc=False):
    chatid: str
    data: _Call


_decode = msgspec.json.Decoder(_Event).decode


class _Neo4j:
    def __init__(self, url: str) -> None:
        import neo4j

        self._driver = neo4j.AsyncGraphDatabase.driver(url, notifications_min_severity="OFF")
        self._query = with_values(_NEO4J, id="row[1]", tool="row[2]", success="row[3]", chat="row[4]")

    async def apply(self, partition: int, rows: Sequence[Row]) -> None:
        await self._driver.execute_query(
            self._query, {"partition": partition, "last": rows[-1][0], "rows": [list(row) for row in rows]}
        )


class _FalkorDB:
    def __init__(self, url: str) -> None:
        import redis.asyncio as redis

        self._redis: Any = redis.Redis.from_url(url, protocol=2)

    async def apply(self, partition: int, rows: Sequence[Row]) -> None:
        header = f"CYPHER partition={partition} last={rows[-1][0]} rows={msgspec.json.encode(rows).decode()} "
        pipeline = self._redis.pipeline(transaction=False)
        for statement in _FALKORDB:
            pipeline.execute_command("GRAPH.QUERY", channels.graph_name(APP), header + statement)
        await pipeline.execute()


async def main(topic: str) -> None:
    settings = Settings.load()
    falkordb = urlsplit(settings.graph).scheme in ("redis", "rediss", "unix")
    graph = _FalkorDB(settings.graph) if falkordb else _Neo4j(settings.graph)
    consumer = AIOKafkaConsumer(
        topic, group_id=topic, bootstrap_servers=settings.bus.removeprefix("kafka://"), auto_offset_reset="earliest",
        enable_auto_commit=False, session_timeout_ms=_SESSION_MS,
    )  # fmt: skip
    async with consumer:
        while True:
            found = await consumer.getmany(timeout_ms=1_000, max_records=_AT_ONCE)
            for where, records in found.items():
                await graph.apply(where.partition, [_row(record) for record in records])
            if found:
                await consumer.commit()


def _row(record: ConsumerRecord[Any, Any]) -> Row:
    event = _decode(record.value)
    call = event.data
    return record.offset, call.call_id, call.tool_name, call.success, event.chatid


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
