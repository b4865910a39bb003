"""FastStream's handlers as agents and tools, on real servers: turns, tools, contexts, failures, effects."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from faststream.exceptions import AckMessage
from faststream.middlewares import AckPolicy
from faststream.redis import RedisBroker, RedisRouter, StreamSub, TestRedisBroker
from faststream.redis.prometheus import RedisPrometheusMiddleware
from prometheus_client import CollectorRegistry
from tests.adapters.runner import SOURCES
from tests.services.environment import clean_environment
from tests.services.layouts import events_on_bus, spread
from tests.services.rules import load_rules
from tests.services.waiting import until
from tests.services.workers import working

from graphweft_contracts import InvalidSettings
from graphweft_runtimes.faststream import EFFECTS_STREAM, AgentContext, FastStreamAdapter
from graphweft_runtimes.versions import require
from graphweft_workers.drivers.falkordb.store import FalkorDBStore
from graphweft_workers.drivers.redis.bus import redis_bus
from graphweft_workers.drivers.redis.requests import RedisRequestQueue
from graphweft_workers.injection.pipeline import ContextPipeline
from graphweft_workers.injection.responder import InjectionResponder

pytestmark = pytest.mark.integration
ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "examples/faststream"
HEADERS = {"app_id": "acme", "chat_id": "c1", "user_id": "ada", "workflow_name": "Support"}


@asynccontextmanager
async def deployed(url: str) -> AsyncGenerator[None]:
    """Run a worker that writes effects, and a responder, with the rules of the example."""
    rules = load_rules(EXAMPLE / "workflows")
    bus, graph, queue = redis_bus(url, new=spread(1)), FalkorDBStore(url), RedisRequestQueue(url, consumer="r")
    await bus.partitions.count()
    pipeline = ContextPipeline(rules, graph, bus=bus)
    responder = InjectionResponder(queue, pipeline.answer)
    answering = asyncio.create_task(responder.run())
    try:
        async with working(bus, graph, rules, effects_keep=1_000):
            yield
    finally:
        responder.stop()
        await answering
        for each in (queue, pipeline, graph, bus):
            await each.aclose()


@pytest.fixture
async def adapter(url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[FastStreamAdapter]:
    monkeypatch.setenv("GRAPHWEFT_BUS_URL", url)
    async with FastStreamAdapter(budget_ms=100) as adapter:
        yield adapter


async def told(adapter: FastStreamAdapter, url: str) -> list[dict[str, Any]]:
    """Return the events on the bus, once the adapter has sent all."""
    await adapter.aclose(20)
    return await events_on_bus(url)


def short(events: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    fields = ("agent_name", "tool_name", "outcome", "success")
    return [(each["type"], *(each["data"][name] for name in fields if name in each["data"])) for each in events]


async def test_the_example_prints_what_its_page_says(url: str) -> None:
    page = (EXAMPLE / "README.md").read_text("utf-8")
    said = page.partition("It prints:\n\n```\n")[2].partition("```")[0]
    assert said
    async with deployed(url):
        done = await asyncio.to_thread(
            subprocess.run, [sys.executable, EXAMPLE / "app.py"], capture_output=True, text=True, check=False,
            timeout=240, env=clean_environment(GRAPHWEFT_BUS_URL=url, **SOURCES),
        )  # fmt: skip
    assert (done.stdout, done.returncode) == (said, 0), done.stderr
    lines = (EXAMPLE / "app.py").read_text("utf-8").splitlines()
    assert len(lines) <= 50


async def test_a_message_is_a_turn_and_its_failure_fails_the_turn(adapter: FastStreamAdapter, url: str) -> None:
    broker = RedisBroker(url, middlewares=[RedisPrometheusMiddleware(registry=CollectorRegistry())])
    agents = RedisRouter(middlewares=[adapter.agent("Ann")])
    contexts: list[str | None] = []

    @agents.subscriber("questions")
    async def answer(question: str, context: AgentContext) -> str:
        contexts.append(context.reason)
        if question == "fail":
            raise ValueError("no answer")
        if question == "done":
            raise AckMessage
        return f"to {question}"

    broker.include_router(agents)
    async with broker:
        await broker.start()
        reply = await broker.request("hello", "questions", headers=HEADERS, timeout=60)
        assert await reply.decode() == "to hello"
        for word in ("fail", "done"):
            await broker.publish(word, "questions", headers=HEADERS)
        await until(lambda: len(contexts), lambda count: count == 3, why="the handler has seen all messages")
    assert contexts == ["timeout"] * 3  # nobody answers: the turn goes on without
    events = await told(adapter, url)
    assert short(events) == [
        ("agent.turn_start", "Ann"),
        ("agent.turn_complete", "Ann", "completed", True),
        ("agent.turn_start", "Ann"),
        ("agent.turn_complete", "Ann", "failed", False),
        ("workflow.error", "Ann"),
        ("agent.turn_start", "Ann"),
        ("agent.turn_complete", "Ann", "completed", True),
    ]
    assert {(each["appid"], each["chatid"], each["userid"], each["workflow"]) for each in events} == {
        ("acme", "c1", "ada", "Support")
    }
    assert events[1]["data"]["response"] == "to hello"
    assert events[3]["data"]["error_type"] == "ValueError"


async def test_a_message_of_a_tool_is_a_call(adapter: FastStreamAdapter, url: str) -> None:
    broker = RedisBroker(url)
    tools = RedisRouter(middlewares=[adapter.tool("lookup")])
    failed = asyncio.Event()

    @tools.subscriber("lookup")
    async def lookup(order: str) -> dict[str, str]:
        if order == "Z9":
            failed.set()
            raise LookupError("no such order")
        return {"found": order}

    broker.include_router(tools)
    async with broker:
        await broker.start()
        assert await (await broker.request("A1", "lookup", headers=HEADERS, timeout=60)).decode() == {"found": "A1"}
        await broker.publish("Z9", "lookup", headers=HEADERS)
        await asyncio.wait_for(failed.wait(), 60)
    events = await told(adapter, url)
    assert short(events) == [
        ("tool.call_start", "lookup"),
        ("tool.call_complete", "lookup", True),
        ("tool.call_start", "lookup"),
        ("tool.call_complete", "lookup", False),
    ]
    assert [each["data"].get("arguments") for each in events[::2]] == ["A1", "Z9"]
    assert events[1]["data"]["result"] == {"found": "A1"}
    assert events[3]["data"]["error"] == "LookupError: no such order"


async def test_messages_without_ids_and_batches_reach_their_handlers(adapter: FastStreamAdapter, url: str) -> None:
    broker = RedisBroker(url)
    agents = RedisRouter(middlewares=[adapter.agent("Ann")])
    handled: list[Any] = []
    both = asyncio.Event()

    def take(message: Any) -> None:
        handled.append(message)
        if len(handled) == 2:
            both.set()

    @agents.subscriber("questions")
    async def answer(question: str, context: AgentContext) -> None:
        take((question, context.reason))

    @agents.subscriber(stream=StreamSub("many", batch=True, last_id="0"), ack_policy=AckPolicy.ACK)
    async def answer_many(questions: list[str], context: AgentContext) -> None:
        take((tuple(questions), context.reason))

    broker.include_router(agents)
    async with broker:
        await broker.publish("b1", stream="many", headers=HEADERS)
        await broker.start()
        await broker.publish("who", "questions")
        await asyncio.wait_for(both.wait(), 60)
    assert set(handled) == {(("b1",), "invalid_request"), ("who", "invalid_request")}
    assert adapter.core.stats.left_out == {"a batch of messages": 1}
    assert await told(adapter, url) == []


async def test_variables_that_cannot_be_read_reach_no_handler(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRAPHWEFT_BUS_URL", url)

    def broken(message: Any) -> dict[str, Any]:
        raise KeyError("tenant")

    broker = RedisBroker(url)
    async with FastStreamAdapter(variables=broken, budget_ms=100) as adapter:
        agents = RedisRouter(middlewares=[adapter.agent("Ann")])

        @agents.subscriber("questions")
        async def answer(question: str) -> str:
            return question

        broker.include_router(agents)
        async with broker:
            await broker.start()
            assert await (await broker.request("hi", "questions", timeout=60)).decode() == "hi"
        assert adapter.core.stats.errors == 1


async def test_a_context_outside_of_an_agent_says_what_to_do(adapter: FastStreamAdapter) -> None:
    broker = RedisBroker()
    tools = RedisRouter(middlewares=[adapter.tool("lookup")])

    async def answer(question: str, context: AgentContext) -> None:
        raise AssertionError(question)

    broker.subscriber("questions")(answer)
    tools.subscriber("lookups")(answer)
    broker.include_router(tools)
    async with TestRedisBroker(broker):
        for channel in ("questions", "lookups"):
            with pytest.raises(InvalidSettings, match=r"this handler is not below agent\(\.\.\.\): put it on a router"):
                await broker.publish("hi", channel, headers=HEADERS)


@pytest.mark.parametrize("name", ["", " ", None])
async def test_a_name_that_is_no_text_is_refused_when_it_is_given(adapter: FastStreamAdapter, name: Any) -> None:
    for make in (adapter.agent, adapter.tool):
        with pytest.raises(InvalidSettings, match="invalid name of the"):
            make(name)


def test_another_version_of_faststream_is_named() -> None:
    with pytest.raises(InvalidSettings, match=r"unsupported faststream .*: expected at least 99 and below 100"):
        require("faststream", extra="faststream", lowest="99", below="100")


def test_the_stream_is_not_one_of_events() -> None:
    assert not EFFECTS_STREAM.startswith("graphweft:events")
