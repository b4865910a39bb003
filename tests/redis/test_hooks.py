"""The hooks of the rule contract: their signatures, where ids come from, odd values, and a graph that is away."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from enum import StrEnum
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import pytest_asyncio
import redis.asyncio as redis
from tests.services.buses import applied
from tests.services.rules import load_rules

from graphweft import Client, Event, GraphInjectionHooks, create_graph_injection_hook, create_graph_mutation_hook
from graphweft_contracts import ContextRequest, channels, wire
from graphweft_rules import RuleSet
from graphweft_workers.drivers.falkordb.store import FalkorDBStore
from graphweft_workers.drivers.redis.requests import RedisRequestQueue
from graphweft_workers.engine.worker import MutationWorker
from graphweft_workers.injection.pipeline import ContextPipeline
from graphweft_workers.injection.responder import InjectionResponder
from graphweft_workers.ports.bus import Bus

pytestmark = pytest.mark.integration
IDS = {"app_id": "shop", "chat_id": "c1", "workflow_name": "Shop", "user_id": "u1"}
RULES = """
version: "1.0"
injection_rules:
  - name: notes
    agents: ["Planner"]
    queries:
      - id: notes
        cypher: "MATCH (n:Note {user: $user}) RETURN n.text AS text ORDER BY text"
        params: {user: $context.user_id}
        inject_as: notes
        format: list
      - id: newest
        cypher: "MATCH (n:Note {user: $user}) RETURN n.text AS text ORDER BY text DESC"
        params: {user: $context.user_id}
        inject_as: newest
        format: single
      - id: summary
        cypher: "MATCH (n:Note {user: $user}) RETURN n.text AS text ORDER BY text"
        params: {user: $context.user_id}
        inject_as: summary
        format: markdown
mutation_rules:
  - name: note
    events: ["agent.turn_complete"]
    agents: ["Planner"]
    mutations:
      - id: note
        cypher: "MERGE (n:Note {text: $text, user: $user, chat: $chat})"
        params: {text: $event.response, user: $context.user_id, chat: $workflow.chat_id}
"""


@pytest.fixture
def rules(tmp_path: Path) -> RuleSet:
    folder = tmp_path / "Shop"
    folder.mkdir()
    (folder / "graph_injection.yaml").write_text(RULES)
    return load_rules(tmp_path)


@pytest_asyncio.fixture
async def client(url: str) -> AsyncIterator[Client]:
    async with Client(url) as opened:
        yield opened


@asynccontextmanager
async def responding(url: str, graph: FalkorDBStore, rules: RuleSet) -> AsyncIterator[None]:
    queue = RedisRequestQueue(url, consumer="r")
    pipeline = ContextPipeline(rules, graph)
    responder = InjectionResponder(queue, pipeline.answer)
    task = asyncio.create_task(responder.run())
    try:
        yield
    finally:
        responder.stop()
        await task
        await queue.aclose()
        await pipeline.aclose()


async def apply_all(bus: Bus, graph: FalkorDBStore, rules: RuleSet) -> None:
    worker = MutationWorker(bus, graph, rules, name="w")
    task = asyncio.create_task(worker.run())
    try:
        await applied(bus)
    finally:
        worker.stop()
        await task


async def on_the_bus(url: str) -> list[Event]:
    async with redis.Redis.from_url(url) as connection:
        streams = sorted(await connection.keys(f"{channels.EVENTS}:*"))
        return [wire.decode(fields) for stream in streams for _, fields in await connection.xrange(stream)]


def test_signatures_are_the_contract_s() -> None:
    def parameters(function: Any) -> list[tuple[str, Any]]:
        return [(name, one.default) for name, one in inspect.signature(function).parameters.items()]

    required = inspect.Parameter.empty
    assert inspect.iscoroutinefunction(GraphInjectionHooks.before_agent_turn)
    assert inspect.iscoroutinefunction(GraphInjectionHooks.on_event)
    assert parameters(GraphInjectionHooks.before_agent_turn)[1:] == [("agent_name", required), ("context", required)]
    assert parameters(GraphInjectionHooks.on_event)[1:] == [
        ("event", required),
        ("context", required),
        ("event_data", required),
        ("agent_name", None),
    ]


async def test_what_an_event_hook_wrote_the_turn_hook_reads(
    url: str, client: Client, bus: Bus, graph: FalkorDBStore, rules: RuleSet
) -> None:
    write = create_graph_mutation_hook(client)
    read = create_graph_injection_hook(client, budget_ms=120_000)
    for text in ("first", "second"):
        await write("agent.turn_complete", dict(IDS), {"response": text, "success": True}, "Planner")
    await write("agent.turn_complete", dict(IDS), {"response": "of another agent"}, agent_name="Critic")
    await write("agent.turn_complete", IDS | {"user_id": "u2"}, {"response": "of another user"}, "Planner")
    await apply_all(bus, graph, rules)
    async with responding(url, graph, rules):
        assert await read("Planner", dict(IDS)) == {
            "notes": [{"text": "first"}, {"text": "second"}],
            "newest": {"text": "second"},
            "summary": "- first\n- second",
        }
        assert await read("Critic", dict(IDS)) == {}
        assert await read("Planner", IDS | {"workflow_name": "Unknown"}) == {}
        assert await read("Planner", IDS | {"app_id": "other"}) == {"notes": [], "newest": None, "summary": ""}


async def test_an_event_carries_ids_data_and_context(url: str, client: Client) -> None:
    context = IDS | {"phase": "planning", "app_id": 7}
    hooks = GraphInjectionHooks(client, source="/runtime")
    await hooks.on_event("tool.call_complete", context, {"tool_name": "search", "result": [1]}, agent_name="Planner")
    [event] = await on_the_bus(url)
    assert (event.type, event.source) == ("tool.call_complete", "/runtime")
    assert (event.appid, event.chatid, event.workflow, event.userid) == ("7", "c1", "Shop", "u1")
    assert event.data == {"tool_name": "search", "result": [1], "agent_name": "Planner", "context": context}
    assert (event.agent, event.context) == ("Planner", context)


async def test_without_an_agent_the_event_names_none(url: str, client: Client) -> None:
    await GraphInjectionHooks(client).on_event("workflow.complete", dict(IDS), {"status": "ok"})
    [event] = await on_the_bus(url)
    assert event.agent is None
    assert "agent_name" not in event.data


async def test_ids_given_once_win_over_the_context(url: str, client: Client) -> None:
    hooks = GraphInjectionHooks(client, app_id="app", chat_id="chat", workflow_name="Flow", user_id="user")
    await hooks.on_event("order.paid", dict(IDS), {})
    await hooks.on_event("order.paid", {}, {})
    for event in await on_the_bus(url):
        assert (event.appid, event.chatid, event.workflow, event.userid) == ("app", "chat", "Flow", "user")


async def test_the_arguments_are_not_changed(client: Client) -> None:
    context, data = dict(IDS), {"response": "x"}
    hooks = GraphInjectionHooks(client, budget_ms=20)
    await hooks.on_event("agent.turn_complete", context, data, "Planner")
    await hooks.before_agent_turn("Planner", context)
    assert (context, data) == (IDS, {"response": "x"})


@pytest.mark.parametrize("absent", [None, ""], ids=repr)
@pytest.mark.parametrize("name", ["app_id", "chat_id"])
async def test_a_missing_id_warns_and_does_nothing(
    url: str, client: Client, caplog: pytest.LogCaptureFixture, name: str, absent: str | None
) -> None:
    hooks = GraphInjectionHooks(client)
    for context in (IDS | {name: absent}, {key: value for key, value in IDS.items() if key != name}):
        caplog.clear()
        await hooks.on_event("order.paid", context, {})
        assert await hooks.before_agent_turn("Planner", context) == {}
        assert [(record.levelno, name in record.getMessage()) for record in caplog.records] == [
            (logging.WARNING, True)
        ] * 2
    assert await on_the_bus(url) == []


@pytest.mark.parametrize("absent", [None, ""], ids=repr)
async def test_without_a_workflow_there_is_no_context_but_an_event(
    url: str, client: Client, caplog: pytest.LogCaptureFixture, absent: str | None
) -> None:
    hooks, context = GraphInjectionHooks(client), IDS | {"workflow_name": absent, "user_id": absent}
    assert await hooks.before_agent_turn("Planner", context) == {}
    [record] = caplog.records
    assert record.levelno == logging.WARNING
    assert "workflow_name" in record.getMessage()
    await hooks.on_event("order.paid", context, {})
    [event] = await on_the_bus(url)
    assert (event.workflow, event.userid) == (None, None)


class Color(StrEnum):
    RED = "red"


@dataclass
class Order:
    number: int
    lines: tuple[str, ...]


class Opaque:
    pass


def _loop() -> dict[str, Any]:
    value: dict[str, Any] = {"a": 1}
    value["me"] = [value]
    return value


def _deep() -> list[Any]:
    value: list[Any] = []
    for _ in range(5000):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("value", "read"),
    [
        (Opaque(), "<Opaque>"),
        (b"text", "text"),
        (b"\xff", "<bytes>"),
        ("half \ud800", "half ?"),
        ("Zoë", "Zoë"),
        (float("nan"), None),
        (float("-inf"), None),
        (2**70, 2**70),
        (Color.RED, "red"),
        (Decimal("1.10"), "1.10"),
        (datetime(2026, 1, 2, tzinfo=UTC), "2026-01-02T00:00:00Z"),
        (UUID(int=5), "00000000-0000-0000-0000-000000000005"),
        (Order(1, ("a",)), {"number": 1, "lines": ["a"]}),
        ((1, {2}), [1, [2]]),
        ({1: "a", Opaque(): "b", b"\xff": "c"}, {"1": "a", "<Opaque>": "b", "<bytes>": "c"}),
        (_loop(), {"a": 1, "me": ["<dict>"]}),
        (ValueError("x"), "<ValueError>"),
        (print, "<builtin_function_or_method>"),
        (Opaque, "<type>"),
        (map(str, [1]), "<map>"),
        ([Opaque(), {"x": b"\xff", "y": 1}], ["<Opaque>", {"x": "<bytes>", "y": 1}]),
    ],
    ids=lambda value: type(value).__name__,
)
async def test_values_that_are_no_json_become_text(url: str, client: Client, value: Any, read: Any) -> None:
    hooks = GraphInjectionHooks(client, budget_ms=120_000)
    await hooks.on_event("order.paid", IDS | {"odd": value}, {"odd": value})
    turn = asyncio.ensure_future(hooks.before_agent_turn("Planner", IDS | {"odd": value}))
    async with redis.Redis.from_url(url) as connection:
        await connection.xread({channels.CONTEXT_REQUESTS: "0"}, count=1, block=30_000)
        assert await connection.xlen(channels.CONTEXT_REQUESTS) == 1  # the request could be written too
    await client.aclose()
    assert await turn == {}
    [event] = await on_the_bus(url)
    assert event.data == {"odd": read, "context": IDS | {"odd": read}}


async def test_nesting_without_an_end_is_cut(url: str, client: Client) -> None:
    await GraphInjectionHooks(client).on_event("order.paid", IDS | {"deep": _deep()}, {"kept": 1})
    [event] = await on_the_bus(url)
    assert event.data["kept"] == 1


async def test_a_generator_in_the_context_is_not_read(client: Client) -> None:
    def numbers() -> Iterator[int]:
        yield from range(3)

    stream = numbers()
    hooks = GraphInjectionHooks(client, budget_ms=20)
    await hooks.on_event("order.paid", IDS | {"stream": stream}, {"stream": stream})
    await hooks.before_agent_turn("Planner", IDS | {"stream": [stream]})
    assert list(stream) == [0, 1, 2]


class Broken(dict[str, Any]):
    def get(self, *_: Any) -> Any:
        raise RuntimeError("not now")


@pytest.mark.parametrize("context", [None, 5, Broken()], ids=repr)
async def test_a_context_that_cannot_be_read_is_logged(
    url: str, client: Client, caplog: pytest.LogCaptureFixture, context: Any
) -> None:
    hooks = GraphInjectionHooks(client)
    await hooks.on_event("order.paid", context, {})
    assert await hooks.before_agent_turn("Planner", context) == {}
    assert [record.levelno for record in caplog.records] == [logging.ERROR] * 2
    assert await on_the_bus(url) == []


@pytest.mark.parametrize(
    ("event", "context", "data", "agent"),
    [
        ("no dot", IDS, {}, None),
        ("", IDS, {}, None),
        (None, IDS, {}, None),
        ("agent.turn_complete", IDS, {}, None),
        ("agent.turn_complete", IDS, {}, ""),
        ("order.paid", IDS | {"app_id": "a/b"}, {}, None),
        ("order.paid", IDS | {"chat_id": "x" * 300}, {}, None),
        ("order.paid", IDS, None, None),
    ],
)
async def test_a_broken_event_is_logged_and_not_sent(
    url: str, client: Client, caplog: pytest.LogCaptureFixture, event: Any, context: Any, data: Any, agent: Any
) -> None:
    await GraphInjectionHooks(client).on_event(event, context, data, agent)
    [record] = caplog.records
    assert record.levelno == logging.ERROR
    assert await on_the_bus(url) == []


async def test_a_broken_app_id_gives_no_context(client: Client, caplog: pytest.LogCaptureFixture) -> None:
    assert await GraphInjectionHooks(client).before_agent_turn("Planner", IDS | {"app_id": "a b"}) == {}
    assert "invalid_request" in caplog.text


async def test_with_the_graph_down_a_turn_goes_on(
    url: str, client: Client, rules: RuleSet, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = FalkorDBStore(f"unix://{tmp_path}/nobody.sock")
    async with contextlib.aclosing(store) as graph, responding(url, graph, rules):
        hooks = GraphInjectionHooks(client, budget_ms=120_000)
        assert await hooks.before_agent_turn("Planner", dict(IDS)) == {}
        assert "graph_unavailable" in caplog.text


async def test_with_the_bus_down_a_turn_goes_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with Client(f"unix://{tmp_path}/nobody.sock") as client:
        hooks = GraphInjectionHooks(client, budget_ms=3_600_000)
        await hooks.on_event("order.paid", dict(IDS), {})
        assert await hooks.before_agent_turn("Planner", dict(IDS)) == {}
        assert "bus_unavailable" in caplog.text
        assert client.stats.buffered == 1
        await client.aclose(drain_s=0)
        # Closed: still no error.
        await hooks.on_event("order.paid", dict(IDS), {})
        assert await hooks.before_agent_turn("Planner", dict(IDS)) == {}
        await hooks.aclose()


async def test_nobody_answers_and_the_budget_ends_it(client: Client, caplog: pytest.LogCaptureFixture) -> None:
    hook = create_graph_injection_hook(client, budget_ms=30)
    assert await hook("Planner", dict(IDS)) == {}
    assert "timeout" in caplog.text


async def test_hooks_without_a_client_make_one(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRAPHWEFT_BUS_URL", url)
    async with contextlib.aclosing(GraphInjectionHooks(**IDS)) as hooks:
        await hooks.on_event("order.paid", {}, {})
    [event] = await on_the_bus(url)
    assert event.key == "shop/c1"


async def test_a_turn_says_which_context_it_was_given(
    url: str, client: Client, graph: FalkorDBStore, rules: RuleSet
) -> None:
    hooks = GraphInjectionHooks(client, budget_ms=120_000)
    async with responding(url, graph, rules):
        await hooks.before_agent_turn("Planner", dict(IDS))
        await hooks.on_event("agent.turn_complete", dict(IDS), {}, "Other")
        await hooks.on_event("order.paid", dict(IDS), {}, "Planner")
        for _ in range(2):
            await hooks.on_event("agent.turn_complete", dict(IDS), {}, "Planner")
        await hooks.before_agent_turn("Planner", dict(IDS))
        await hooks.on_event("agent.turn_complete", dict(IDS), {"context_id": "own"}, "Planner")
    given = [event.data.get("context_id") for event in await on_the_bus(url)]
    assert given == [None, None, given[2], None, "own"]
    assert given[2]


async def test_a_turn_waits_for_what_its_own_hooks_published(url: str, client: Client) -> None:
    """There is nobody to answer: what counts is what was asked."""
    asked: list[tuple[str | None, int | None]] = []
    for fresh in (False, True):
        hooks = GraphInjectionHooks(client, budget_ms=3_000, max_tokens=9, read_own_writes=fresh)
        await hooks.on_event("order.paid", dict(IDS), {})
        await hooks.on_event("order.paid", dict(IDS) | {"chat_id": "c2"}, {})
        await hooks.before_agent_turn("Planner", dict(IDS))
    async with redis.Redis.from_url(url) as connection:
        for _, fields in await connection.xrange(channels.CONTEXT_REQUESTS):
            request = ContextRequest.model_validate_json(fields[b"data"])
            asked.append((request.after, request.max_tokens))
        places = [
            f"{stream.decode().rpartition(':')[2]}:{offset.decode()}"
            for stream in await connection.keys(f"{channels.EVENTS}:*")
            for offset, fields in await connection.xrange(stream)
            if wire.decode(fields).chatid == "c1"
        ]
    assert asked == [(None, 9), (max(places), 9)]
