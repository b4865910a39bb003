"""Graphs full of memories; see ``graphweft_workers.testing.suites.memory_model``."""

from __future__ import annotations

from collections.abc import Sequence

import neo4j
import redis.asyncio as redis

from graphweft_contracts import channels
from graphweft_workers.drivers.falkordb.literals import header
from graphweft_workers.features.memory.mutations import MemoryMutations
from graphweft_workers.ports.graph_store import GraphStore
from graphweft_workers.testing.suites.memory_model import DIMENSIONS, NASTY, WORDS, batches
from graphweft_workers.testing.suites.memory_model import MemoryBatch as Batch
from graphweft_workers.testing.suites.memory_model import MemoryModel as Model
from graphweft_workers.testing.suites.search_kit import apply_all

__all__ = ("DIMENSIONS", "NASTY", "WORDS", "Batch", "Model", "batches", "empty_neo4j", "fill", "fill_neo4j")


async def fill(store: GraphStore, url: str, app_id: str, made: Sequence[Batch]) -> None:
    """Write memories into an app's graph on FalkorDB."""
    pack = MemoryMutations()
    await store.prepare(app_id, pack.keys, pack.indexes)
    client = redis.Redis.from_url(url)
    pipeline = client.pipeline(transaction=False)
    name = channels.graph_name(app_id)
    for batch in made:
        for statement, params in batch.written:
            pipeline.execute_command("GRAPH.QUERY", name, header(params) + statement)
    await pipeline.execute()
    await client.aclose()


async def fill_neo4j(store: GraphStore, app_id: str, made: Sequence[Batch]) -> None:
    """Write memories into the graph of the only app on Neo4j, by statements of a worker: the server has their plans."""
    pack = MemoryMutations()
    await store.prepare(app_id, pack.keys, pack.indexes)
    await apply_all(store, app_id, (each for batch in made for each in batch.written))


def empty_neo4j(url: str) -> None:
    """Delete all nodes; indexes stay."""
    with neo4j.GraphDatabase.driver(url) as driver:
        driver.execute_query("MATCH (n) DETACH DELETE n")
