"""Traces of real roles over real servers, sent by OTLP: from an agent's own span to the context of its next turn."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest
from tests.fuzz.events import Producer
from tests.services.buses import applied
from tests.services.memories import empty_neo4j
from tests.services.models import ModelServer
from tests.services.neo4j import Neo4jServer
from tests.services.roles import role
from tests.services.rules import TURNS, rules_folder
from tests.services.runtime_environments import ROOT
from tests.services.traces import CollectedSpan, TraceCollector
from tests.services.waiting import until

from graphweft import Client
from graphweft.transport import Outgoing
from graphweft.transports.redis.transport import RedisTransport
from graphweft_contracts import Layout, wire
from graphweft_workers.settings.settings import Settings
from graphweft_workers.wiring.connections import make_bus

pytestmark = pytest.mark.integration

RULES: Final = (
    TURNS
    + """\
injection_rules:
  - name: known
    agents: ["*"]
    queries:
      - {id: turns, cypher: "MATCH (a:Agent) RETURN a.name, a.turns", inject_as: turns}
"""
)
SECRET: Final = "sk-live-5f1d0c7ab39e4e28"
"""What nothing may say that leaves the deployment."""


async def run_agent(text: str, **settings: str) -> dict[str, Any]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.services.traced_agent", text),
        env={**os.environ, **settings}, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    said, _ = await process.communicate()
    assert process.returncode == 0
    found: dict[str, Any] = json.loads(said)
    return found


@asynccontextmanager
async def roles(folder: Path, url: str, *names: str, **settings: str) -> AsyncIterator[dict[str, Path]]:
    """Run roles; yield their logs."""
    rules_folder(folder, RULES, "Shop")
    async with AsyncExitStack() as stack:
        logs: dict[str, Path] = {}
        for name in names:
            running = await stack.enter_async_context(role(name, folder, url, GRAPHWEFT_PARTITIONS="2", **settings))
            logs[name] = running.log
        yield logs


async def leads_from_a_turn_to_the_next_context(
    folder: Path, url: str, collector: TraceCollector, *, bus: str, graph: str, **settings: str
) -> None:
    settings |= collector.environment
    async with roles(folder, url, "mutation", "injection", **settings) as logs:
        found = await run_agent("Ann likes tea", GRAPHWEFT_BUS_URL=url, **settings)
        assert (found["reason"], found["recalled"]) == (None, 1), found
        names = {"process graphweft.context.requests", "apply"}
        await until(lambda: {span.name for span in collector.spans}, names.issubset)
    shown = (ROOT / "docs/operations.md").read_text("utf-8").partition("```text\n")[2].partition("```")[0]
    # Where the graph server has just started, the context of the second turn is asked for again.
    assert list(dict.fromkeys(collector.lines(found["trace"]))) == list(dict.fromkeys(shown.splitlines()))
    services = {span.service for span in collector.spans}
    assert services == {"agent", "graphweft-mutation", "graphweft-injection"}
    one = [span for span in collector.spans if span.trace == found["trace"]]
    by_id = {span.id: span for span in one}

    def path(span: CollectedSpan) -> list[str]:
        return [*(path(by_id[span.parent]) if span.parent else []), span.name]

    paths = [path(span) for span in one]
    assert ["conversation", "turn 1", "send graphweft.events", "process graphweft.events", "apply"] in paths
    assert ["conversation", "turn 1", "send graphweft.events", "receive graphweft.events"] in paths
    assert ["conversation", "turn 2", "create_memory", "send graphweft.events", "process graphweft.events"] in paths
    answered = ["conversation", "turn 2", "get_context", "process graphweft.context.requests"]
    assert [*answered, "read known/turns"] in paths
    assert ["conversation", "turn 2", "search_memory", "process graphweft.context.requests"] in paths
    [applied, *_] = collector.named("apply")
    assert applied.values["db.system.name"] == graph
    assert applied.values["db.namespace"] == "mozaiks_acme"
    [sent, *_] = collector.named("send graphweft.events")
    assert (sent.kind, sent.values["messaging.system"]) == ("PRODUCER", bus)
    [processed, *_] = collector.named("process graphweft.events")
    assert (processed.kind, processed.values["messaging.system"]) == ("CONSUMER", bus)
    assert processed.links == [(processed.trace, processed.parent)]
    assert '"tracing_on"' in logs["mutation"].read_text()


async def test_a_trace_leads_from_a_turn_to_the_next_context(
    tmp_path: Path, url: str, collector: TraceCollector
) -> None:
    await leads_from_a_turn_to_the_next_context(
        tmp_path, url, collector, bus="redis", graph="falkordb", GRAPHWEFT_GRAPH_URL=url
    )


@pytest.mark.long
async def test_a_trace_leads_through_kafka_and_neo4j_too(
    tmp_path: Path, kafka_url: str, neo4j_server: Neo4jServer, collector: TraceCollector
) -> None:
    await asyncio.to_thread(empty_neo4j, neo4j_server.uri)
    await leads_from_a_turn_to_the_next_context(
        tmp_path, kafka_url, collector, bus="kafka", graph="neo4j", GRAPHWEFT_GRAPH_URL=neo4j_server.uri,
        GRAPHWEFT_MUTATION_TIMEOUT_MS="60000", GRAPHWEFT_QUERY_TIMEOUT_MS="60000",
    )  # fmt: skip


@pytest.mark.long
async def test_a_trace_leads_through_the_gateway_whether_it_makes_spans_or_not(
    tmp_path: Path, url: str, collector: TraceCollector
) -> None:
    on = {**collector.environment, "GRAPHWEFT_GRAPH_URL": url}
    async with roles(tmp_path, url, "mutation", "injection", **on):
        for number, settings in enumerate([on, {**on, "OTEL_TRACES_EXPORTER": "none"}]):
            folder = tmp_path / f"gateway-{number}"
            folder.mkdir()
            open_gateway = ("--port", "0", "--insecure-app", "acme")
            async with role("gateway", folder, url, arguments=open_gateway, **settings) as gateway:
                said = await until(gateway.log.read_text, lambda text: "answers on" in text)
                address = said.partition("answers on ")[2].split()[0]
                found = await run_agent("Ann likes tea", GRAPHWEFT_GATEWAY_URL=address, **collector.environment)
            assert found["reason"] is None, found
            # Spans come in the order of their ends, at latest when a role ends.
            names = await until(
                lambda trace=found["trace"]: {span.name for span in collector.spans if span.trace == trace},
                {"apply", "read known/turns"}.issubset,
            )
            assert ("POST /v1/context" in names) == (number == 0)
            # The name of the sender's span is in the event, so its batch is not part of the request's span.
            assert not any(
                line.strip().startswith("process graphweft.events") and below_post
                for line, below_post in _with_post_above(collector.lines(found["trace"]))
            )


def _with_post_above(lines: list[str]) -> list[tuple[str, bool]]:
    """Return each line of a tree, and whether a request to the gateway is above it."""
    found: list[tuple[str, bool]] = []
    depth: int | None = None
    for line in lines:
        indent = len(line) - len(line.lstrip())
        if depth is not None and indent <= depth:
            depth = None
        found.append((line, depth is not None))
        if line.strip().startswith("POST") and depth is None:
            depth = indent
    return found


def applied_in(collector: TraceCollector, trace: str) -> int:
    """Return how many events of a trace have been written to the graph."""
    written = {span.parent for span in collector.named("apply") if span.trace == trace}
    batches = [span for span in collector.named("process graphweft.events") if span.id in written]
    return sum(int(span.values["messaging.batch.message_count"]) for span in batches)


async def test_jobs_and_their_requests_to_models_are_part_of_the_trace_of_a_memory(
    tmp_path: Path, url: str, collector: TraceCollector, model_server: ModelServer
) -> None:
    settings = {
        **collector.environment, "GRAPHWEFT_GRAPH_URL": url, "GRAPHWEFT_EMBEDDER": "openai:m-1",
        "GRAPHWEFT_EMBEDDER_URL": model_server.url, "GRAPHWEFT_EMBEDDER_API_KEY": SECRET,
    }  # fmt: skip
    async with roles(tmp_path, url, "mutation", "injection", "memory", **settings) as logs:
        found = await run_agent(f"Ann likes {SECRET}", GRAPHWEFT_BUS_URL=url, **settings)
        assert found["reason"] is None, found
        await until(
            lambda: [span for span in collector.spans if span.service == "graphweft-memory"],
            lambda spans: {"embeddings m-1", "process graphweft.events"} <= {span.name for span in spans},
        )
        # The vector is an event, too, whose effect belongs to the trace; it may take effect together with its memory.
        await until(lambda: applied_in(collector, found["trace"]), (3).__le__)
    lines = collector.lines(found["trace"])
    job = lines.index(next(line for line in lines if "embeddings m-1 [graphweft-memory]" in line)) - 1
    assert lines[job].strip() == "process graphweft.events [graphweft-memory]"
    assert not any(SECRET.encode() in body for body in collector.bodies)
    assert not any(SECRET in log.read_text() for log in logs.values())


@pytest.mark.long
async def test_no_span_and_no_log_holds_what_random_events_say(
    tmp_path: Path, url: str, collector: TraceCollector
) -> None:
    producer = Producer(7)
    settings = {**collector.environment, "GRAPHWEFT_GRAPH_URL": url, "OTEL_EXPORTER_OTLP_COMPRESSION": "gzip"}
    sent = 0
    async with roles(tmp_path, url, "mutation", "injection", **settings) as logs:
        async with aclosing(RedisTransport(url, new=Layout(partitions=2, order="app"))) as transport:
            while sent < 400:
                entries = [Outgoing(key="acme/c", fields=marked(entry.fields)) for entry in producer.case().entries]
                await transport.append(entries)
                sent += len(entries)
        async with Client(url, app_id="acme", workflow="Shop", budget_ms=120_000) as client:
            for context in ({"said": SECRET}, {SECRET: {"k": [SECRET]}}):
                await client.context(agent="Clerk", chat_id="c", context=context)
            await client.search(SECRET, index_name="Agent.name", index_type="fulltext")
            await client.search(
                SECRET, index_name="Agent.name", retrieval_query="RETURN node.text AS text, score / $secret AS score",
                params={"secret": SECRET},
            )  # fmt: skip
        bus = make_bus(Settings.load(bus_url=url, graph_url=url))
        async with aclosing(bus):
            await applied(bus)
        await until(lambda: {span.name for span in collector.spans}, {"apply", "receive graphweft.events"}.issubset)
        await until(lambda: len(collector.named("process graphweft.context.requests")), (4).__eq__)
    assert sum(span.values["db.operation.batch.size"] for span in collector.named("apply")) > sent / 10
    for body in collector.bodies:
        assert SECRET.encode() not in body
    for log in logs.values():
        assert SECRET not in log.read_text()


def marked(fields: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
    """Return the fields of an entry with a secret in each text of its data, if it can be read."""
    try:
        whole = json.loads(fields[wire.DATA])
        inner = whole["data"] if fields.get(wire.CONTENT_TYPE) == wire.STRUCTURED else whole
        assert isinstance(inner, dict)
        inner.update({name: _marked(value) for name, value in inner.items()}, hidden=SECRET)
        return {**fields, wire.DATA: json.dumps(whole).encode()}
    except (KeyError, ValueError, TypeError, AssertionError):
        return dict(fields)


def _marked(value: Any) -> Any:
    if isinstance(value, str):
        return f"{value} {SECRET}"
    if isinstance(value, list):
        return [_marked(each) for each in value]
    if isinstance(value, dict):
        return {name: _marked(each) for name, each in value.items()}
    return value
