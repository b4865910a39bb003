"""A Neo4j server with room for one app: what the others are told of it."""

from __future__ import annotations

import asyncio
import contextlib
import time
from pathlib import Path

import pytest
from tests.services.buses import applied
from tests.services.fixtures import Logs
from tests.services.neo4j import Neo4jServer
from tests.services.rules import load_rules

from graphweft import Client, Event
from graphweft_contracts import ContextRequest
from graphweft_workers.drivers.neo4j.store import Neo4jStore
from graphweft_workers.engine.worker import MutationWorker
from graphweft_workers.injection.pipeline import ContextPipeline
from graphweft_workers.ports.bus import Bus

pytestmark = pytest.mark.integration
OWNED = """
version: "1.0"
injection_rules:
  - name: orders
    agents: ["*"]
    queries: [{id: orders, cypher: "MATCH (o:Order) RETURN o.id AS id", inject_as: orders}]
mutation_rules:
  - name: pay
    events: ["order.paid"]
    mutations: [{id: pay, cypher: "MERGE (:Order {id: $id})", params: {id: $event.id}}]
"""


async def test_a_refused_app_learns_the_name_of_no_other_app(
    neo4j_server: Neo4jServer, url: str, bus: Bus, tmp_path: Path, logs: Logs
) -> None:
    neo4j_server.empty()
    (tmp_path / "Support").mkdir()
    (tmp_path / "Support" / "graph_injection.yaml").write_text(OWNED)
    rules = load_rules(tmp_path)
    async with contextlib.aclosing(Neo4jStore(neo4j_server.uri)) as graph, Client(url) as client:
        await graph.progress("first-tenant", 0)
        for app in ("other", "third"):
            said = Event.create("order.paid", app_id=app, chat_id="c", workflow="Support", data={"id": "o1"})
            assert await client.emit(said, wait_s=120)
        worker = MutationWorker(bus, graph, rules, name="w")
        running = asyncio.create_task(worker.run())
        await applied(bus)
        worker.stop()
        await running
        every = await bus.dead_letters.read(limit=10)
        letters = {app: [letter for letter in every if letter.app_id == app] for app in ("other", "third")}
        pipeline = ContextPipeline(rules, graph, query_timeout_s=120)
        deadline_ms = int((time.time() + 120) * 1000)
        asked = {"id": "r", "workflow": "Support", "agent": "A", "chat_id": "c", "deadline_ms": deadline_ms}
        replies = [
            await pipeline.answer(ContextRequest.model_validate({**asked, "app_id": app, **more}))
            for app in letters
            for more in ({}, {"search": {"text": "x", "memory": {"user_id": "u"}}})
        ]
        await pipeline.aclose()
    assert [len(found) for found in letters.values()] == [1, 1]
    told = [letter.model_dump_json() for found in letters.values() for letter in found]
    told += [reply.model_dump_json() for reply in replies]
    for text in told:
        assert "holds the graph of another app" in text
        assert "first-tenant" not in text
    # The operator reads which one, once for each app that was refused.
    named = [entry["app_id"] for entry in logs if entry.get("owner") == "first-tenant"]
    assert sorted(named) == sorted(letters)
