"""Searching and remembering from a runtime's side: what is refused at once, what goes to the bus, what comes back."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum
from types import SimpleNamespace
from typing import Any

import pytest
import redis.asyncio as redis
from tests.declared_fields import check_declared
from tests.services.layouts import spread
from tests.services.rules import rule_set

from graphweft import Client, ContextReply, Event, MemoryClient, MemoryScope, SyncClient, SyncMemoryClient
from graphweft.memory import add_event, chat_of, update_event
from graphweft.transport import Outgoing, encoded
from graphweft_contracts import (
    BusUnavailable,
    ContextRequest,
    MemoryAdd,
    MemoryMessage,
    SearchQuery,
    Transient,
    channels,
    wire,
)
from graphweft_contracts.memory import memory_id
from graphweft_contracts.prompt_text import inside
from graphweft_workers.drivers.falkordb.store import FalkorDBStore
from graphweft_workers.drivers.redis.bus import redis_bus
from graphweft_workers.drivers.redis.requests import RedisRequestQueue
from graphweft_workers.embedding.hashing import HashingEmbedder
from graphweft_workers.embedding.protocol import Embedder
from graphweft_workers.engine.worker import MutationWorker
from graphweft_workers.injection.pipeline import ContextPipeline
from graphweft_workers.injection.responder import InjectionResponder

pytestmark = pytest.mark.integration
APP = "shop"
BUDGET_MS = 120_000
CONFIRMED_S = 120.0
"""What is read after a write is read after its position, which a busy bus may confirm late."""
T0 = datetime(2026, 2, 1, 10, tzinfo=UTC)


class Bus:
    """Takes everything, and answers every question with nothing."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.requests: list[ContextRequest] = []

    async def append(self, events: Any) -> list[str]:
        sent = [wire.decode(event.fields) for event in events]
        check_declared(sent)
        self.events += sent
        return [f"0:{len(self.events)}-0"] * len(events)

    async def request(self, request: ContextRequest) -> ContextReply:
        self.requests.append(request)
        return ContextReply(id=request.id)

    async def aclose(self) -> None:
        pass


@pytest.fixture
async def bus_seen() -> Bus:
    return Bus()


@pytest.fixture
async def client(bus_seen: Bus) -> AsyncIterator[Client]:
    async with Client(app_id=APP, transport=bus_seen, budget_ms=BUDGET_MS) as client:
        yield client


def said(text: str, role: str = "user", **more: Any) -> dict[str, Any]:
    return {"role": role, "text": text, **more}


# --- what can never work is refused at once -------------------------------------------------------------------------

USER = MemoryScope(user_id="u1")
NEVER: list[tuple[dict[str, Any], str]] = [
    ({}, "index_name is required: name the index, or pass a scope as memory"),
    ({"index_name": "chunks", "index_type": "hybrid"}, "fulltext_index_name is required when index_type='hybrid'"),
    ({"memory": USER, "index_name": "chunks"}, "memories have indexes of their own"),
    ({"memory": USER, "top_k": 0}, "top_k must be at least 1"),
    ({"memory": USER, "top_k": 1_001}, "top_k must be at least 1, and at most 1000"),
    ({"memory": USER, "message_history_count": 0}, "message_history_count must be at least 1"),
    ({"memory": USER, "index_type": "graph"}, "index_type: Input should be 'vector', 'fulltext' or 'hybrid'"),
    ({"index_name": ""}, "index_name: String should have at least 1 character"),
]


@pytest.mark.parametrize(("arguments", "said"), NEVER)
async def test_a_search_that_can_never_work_is_refused_at_once(
    client: Client, bus_seen: Bus, arguments: dict[str, Any], said: str
) -> None:
    with pytest.raises(ValueError, match="^" + said.replace("(", r"\(")) as refused:
        await client.search("a secret", **arguments)
    assert "secret" not in str(refused.value)
    assert bus_seen.requests == []


def test_the_synchronous_client_refuses_it_too() -> None:
    with SyncClient("redis://127.0.0.1:1", app_id=APP) as client:
        for arguments, message in NEVER:
            with pytest.raises(ValueError, match="^" + message):
                client.search("x", **arguments)
        with pytest.raises(ValueError, match="a memory needs a scope"):
            SyncMemoryClient(client)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({}, "a memory needs a scope: give at least one of application_id, agent_id, user_id, thread_id"),
        ({"user_id": ""}, "user_id: String should have at least 1 character"),
        ({"user_id": "u" * 257}, "user_id: String should have at most 256 characters"),
        ({"user_id": 5}, "user_id: Input should be a valid string"),
        ({"scope_to_per_operation_thread_id": True, "user_id": ""}, "user_id: "),
        ({"user_id": "u1", "memory_roles": ()}, "memory_roles must be one or more of user, assistant, system"),
        ({"user_id": "u1", "memory_roles": "user"}, "memory_roles must be one or more of"),
        ({"user_id": "u1", "memory_roles": ("user", "tool")}, "memory_roles must be one or more of"),
        ({"user_id": "u1", "message_history_count": 0}, "message_history_count must be at least 1"),
        ({"user_id": "u1", "app_id": "a/b"}, "appid: "),
        ({"user_id": "u1", "source": ""}, "source: "),
    ],
)
async def test_memories_that_can_never_work_are_refused_at_once(
    client: Client, arguments: dict[str, Any], said: str
) -> None:
    with pytest.raises(ValueError, match="^" + said):
        MemoryClient(client, **arguments)


async def test_memories_need_an_app(bus_seen: Bus) -> None:
    async with Client(transport=bus_seen) as client:
        with pytest.raises(ValueError, match="app_id is required"):
            MemoryClient(client, user_id="u1")
        assert MemoryClient(client, app_id=APP, user_id="u1").scope == USER


# --- what happens at run time never raises --------------------------------------------------------------------------


class Hostile:
    @property
    def role(self) -> str:
        raise RuntimeError("mine")


@pytest.mark.parametrize(
    ("query", "params", "said"),
    [
        (None, None, "query: expected a text or a list of messages"),
        (5, None, "query: expected a text or a list of messages"),
        ({"role": "user", "text": "x"}, None, "query: expected a text or a list of messages"),
        ([Hostile()], None, "reading it failed with RuntimeError"),
        ("half \ud800", None, "search.text: Value error, it holds half a character (a lone surrogate)"),
        ("x", 5, "search.params: Input should be a valid dictionary"),
        ("x", {1: 2}, "search.params.1.[key]: Input should be a valid string"),
    ],
)
async def test_what_a_conversation_brings_raises_nothing(
    client: Client, bus_seen: Bus, query: Any, params: Any, said: str
) -> None:
    for reply in (
        await client.search(query, memory=USER, params=params),
        await MemoryClient(client, user_id="u1").recall(query, params=params),
    ):
        assert (reply.reason, reply.blocks, reply.results, reply.text) == ("invalid_request", (), [], "")
        assert said in reply.detail
    assert bus_seen.requests == []


async def test_params_that_no_json_can_say_are_answered(url: str) -> None:
    async with Client(url, app_id=APP, budget_ms=BUDGET_MS) as client:
        for value, said in (
            (float("nan"), "context or params is not JSON: it has a number that is NaN"),
            (iter([1]), "params.a: reading would consume the iterator"),
            (object(), "context or params is not JSON: "),
        ):
            reply = await client.search("x", memory=USER, params={"a": value})
            assert reply.reason == "invalid_request"
            assert said in reply.detail


async def test_without_a_bus_or_a_responder_the_answer_is_empty(url: str) -> None:
    async with Client("redis://127.0.0.1:1", app_id=APP, budget_ms=200) as client:
        memories = MemoryClient(client, user_id="u1")
        assert (await memories.recall("x")).reason == "bus_unavailable"
        assert await memories.remember([said("x")], wait_s=0.01) is None
        assert client.stats.buffered == 1
    async with Client(url, app_id=APP, budget_ms=100) as client:
        reply = await client.search("x", memory=USER)
        assert (reply.reason, reply.partial) == ("timeout", True)
    assert (await client.search("x", memory=USER)).reason == "bus_unavailable"


async def test_a_process_may_switch_searching_off(bus_seen: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRAPHWEFT_CONTEXT", "off")
    async with Client(app_id=APP, transport=bus_seen) as client:
        assert (await client.search("x", memory=USER)).reason == "disabled"
        assert await MemoryClient(client, user_id="u1").remember([said("x")]) is not None
    assert bus_seen.requests == []


# --- the request ----------------------------------------------------------------------------------------------------


async def test_a_search_is_one_request_without_rules(client: Client, bus_seen: Bus) -> None:
    messages = [said("first"), said("x", "system"), said("", "assistant"), said("last", "assistant")]
    await client.search(
        messages, index_name="chunks", fulltext_index_name="words", index_type="hybrid", top_k=7, app_id="other",
        retrieval_query="RETURN node.text AS text, score", params={"a": 1}, filter_stop_words=False, max_tokens=9,
        after="0:1-0", explain=True,
    )  # fmt: skip
    await client.search(messages, memory=USER, message_history_count=1)
    first, second = bus_seen.requests
    assert first.search == SearchQuery(
        text="first\nlast", index_name="chunks", fulltext_index_name="words", index_type="hybrid", top_k=7,
        retrieval_query="RETURN node.text AS text, score", params={"a": 1}, filter_stop_words=False,
    )  # fmt: skip
    assert (first.app_id, first.max_tokens, first.after, first.explain) == ("other", 9, "0:1-0", True)
    assert (first.workflow, first.agent, first.chat_id) == ("search", "search", "search")
    assert second.search == SearchQuery(text="last", memory=USER)
    assert second.app_id == APP


async def test_a_request_without_a_search_is_written_as_ever(client: Client, bus_seen: Bus) -> None:
    """A responder of before, which knows no searches, refuses a request with a member that it does not know."""
    await client.context(agent="A", chat_id="c", workflow="W")
    await client.search("dogs", memory=USER)
    plain, searching = (encoded(request, "me") for request in bus_seen.requests)
    assert isinstance(plain, bytes)
    assert isinstance(searching, bytes)
    assert b"search" not in plain
    assert ContextRequest.model_validate_json(plain).search is None
    assert ContextRequest.model_validate_json(searching).search == SearchQuery(text="dogs", memory=USER)


# --- remembering ----------------------------------------------------------------------------------------------------


class Speaker(Enum):
    USER = "user"
    TOOL = "tool"


@dataclass
class Message:
    role: Any
    text: Any = None
    content: Any = None
    message_id: Any = None
    author_name: Any = None


async def test_one_event_has_what_is_to_be_remembered(client: Client, bus_seen: Bus) -> None:
    memories = MemoryClient(client, application_id="a", agent_id="g", user_id="u1", thread_id="t", source="/mine")
    position = await memories.remember(
        [
            said("Hello", author_name="Ann", time=T0, message_id="m1"),
            said("Be brief", "system"),
            {"role": "assistant", "content": "Hi"},
            said("   "),
            said(""),
            {"role": "user", "content": [{"type": "image"}]},
            {"role": "tool", "text": "42"},
            {"role": ["user"], "text": "odd"},
            {"text": "nobody"},
            Message(Speaker.USER, "Bye", author_name="Ann"),
            Message(Speaker.TOOL, "result"),
        ],
        time=T0 + timedelta(minutes=1),
    )
    assert position == "0:1-0"
    [event] = bus_seen.events
    assert (event.type, event.appid, event.chatid, event.userid, event.source) == (
        "memory.add",
        APP,
        "t",
        "u1",
        "/mine",
    )
    assert event.time > datetime.now(UTC) - timedelta(minutes=5)  # when it was recorded, not when it was said
    assert event.data == {
        "application_id": "a", "agent_id": "g", "user_id": "u1", "thread_id": "t",
        "messages": [
            {"role": "user", "text": "Hello", "author_name": "Ann", "message_id": "m1", "time": "2026-02-01T10:00:00Z"},
            {"role": "assistant", "text": "Hi", "time": "2026-02-01T10:01:00Z"},
            {"role": "user", "text": "Bye", "time": "2026-02-01T10:01:00Z", "author_name": "Ann"},
        ],
    }  # fmt: skip


async def test_only_the_chosen_roles_are_remembered(client: Client, bus_seen: Bus) -> None:
    memories = MemoryClient(client, user_id="u1", memory_roles=("system",))
    assert await memories.remember([said("a"), said("b", "assistant")]) is None
    assert await memories.remember([]) is None
    assert bus_seen.events == []
    assert await memories.remember([said("a"), said("c", "system")]) is not None
    assert [message["text"] for message in bus_seen.events[0].data["messages"]] == ["c"]


@pytest.mark.parametrize(
    ("scopes", "chat"),
    [
        ({"application_id": "a", "agent_id": "g", "user_id": "u", "thread_id": "t"}, "t"),
        ({"application_id": "a", "agent_id": "g", "user_id": "u"}, "u"),
        ({"application_id": "a", "agent_id": "g"}, "g"),
        ({"application_id": "a"}, "a"),
    ],
)
def test_the_narrowest_scope_is_the_chat(scopes: dict[str, str], chat: str) -> None:
    assert chat_of(MemoryScope(**scopes)) == chat


async def test_the_same_messages_make_the_same_event_and_others_do_not(client: Client, bus_seen: Bus) -> None:
    turn = [said("a", message_id="1"), said("b", "assistant", message_id="2")]
    memories = MemoryClient(client, user_id="u1")
    await memories.remember(turn)
    await memories.remember(turn)  # a retry
    for other in (
        MemoryClient(client, user_id="u2"),
        MemoryClient(client, thread_id="u1"),
        MemoryClient(client, user_id="u1", thread_id="t"),
    ):
        await other.remember(turn)
    await memories.remember(turn[:1])
    await memories.remember([said("other", message_id="1"), turn[1]])  # ids of another conversation
    await memories.remember([turn[0], said("b", "user", message_id="2")])
    first, again, *others = [event.id for event in bus_seen.events]
    assert again == first
    assert len({first, *others}) == 1 + len(others) == 7


async def test_without_ids_of_all_messages_nothing_is_the_same(client: Client, bus_seen: Bus) -> None:
    memories = MemoryClient(client, user_id="u1")
    for turn in ([said("a")], [said("a", message_id="1"), said("b")]):
        bus_seen.events.clear()
        await memories.remember(turn)
        await memories.remember(turn)
        assert len({event.id for event in bus_seen.events}) == 2


async def test_of_an_odd_message_what_can_be_is_remembered(
    client: Client, bus_seen: Bus, caplog: pytest.LogCaptureFixture
) -> None:
    memories = MemoryClient(client, user_id="u1")
    with caplog.at_level(logging.WARNING, "graphweft.memory"):
        await memories.remember(
            [
                said("naive secret", time=datetime(2026, 1, 1)),
                said("numbered secret", message_id=5),
                said("endless secret" * 100_000),
                said("half secret \ud800"),
                said("plain"),
            ]
        )
    [event] = bus_seen.events
    assert event.data["messages"] == [said("naive secret"), said("numbered secret"), said("plain")]
    assert len(caplog.records) == 4
    assert "time: Input should have timezone info" in caplog.text
    assert "secret" not in caplog.text
    assert "u1" not in caplog.text


async def test_only_a_bad_field_of_a_message_goes(
    client: Client, bus_seen: Bus, caplog: pytest.LogCaptureFixture
) -> None:
    given = said("tea", time="2026-03-01", tags=["home"], metadata={"a": {"b": 1}}, author_name="Ann")
    await MemoryClient(client, user_id="u1").remember([given])
    [event] = bus_seen.events
    assert event.data["messages"] == [said("tea", time="2026-03-01T00:00:00Z", tags=["home"], author_name="Ann")]
    assert caplog.messages == [
        "a message is remembered without metadata: metadata.a: expected a text of at most 1,024 characters, a number, "
        "true or false"
    ]


async def test_a_field_of_a_message_that_would_be_lost_is_refused_and_named(client: Client, bus_seen: Bus) -> None:
    kept = "unknown field '{}': a message has role, text, time, message_id, author_name, tags, metadata, "
    kept += "expires_at, content"
    for user, field in (("u1", "mood"), ("u2", "name")):
        memories = MemoryClient(client, user_id=user)
        with pytest.raises(ValueError, match=kept.format(field)) as refused:
            await memories.remember([said("a secret"), said("another secret", **{field: {"of": "secret"}})])
        assert "secret" not in str(refused.value)
    with (
        SyncClient("redis://127.0.0.1:1", app_id=APP) as one,
        pytest.raises(ValueError, match=kept.format("mood")),
    ):
        SyncMemoryClient(one, user_id="u1").remember([said("x", mood={"a": 1})])
    with pytest.raises(ValueError, match="an unknown field: a message has role") as refused:
        await MemoryClient(client, user_id="u1").remember([said("x", **{"secret words": 1})])
    assert "secret" not in str(refused.value)
    assert bus_seen.events == []
    for name in ("txt", "message", "conten"):
        with pytest.raises(ValueError, match=f"unknown field '{name}'.*did you mean"):
            await memories.remember([{"role": "user", name: "a secret"}])
    assert bus_seen.events == []
    # What is null is not lost, nor is what was not to be remembered; objects of a runtime have attributes of their own.
    memories = MemoryClient(client, user_id="u1")
    tool = {"role": "tool", "text": "x", "tool_call_id": "1"}
    assert await memories.remember(
        [said("kept", name=None), tool, SimpleNamespace(**said("an object", metadata={"a": 1}))]
    )
    [event] = bus_seen.events
    assert [message["text"] for message in event.data["messages"]] == ["kept", "an object"]
    assert "metadata" not in event.data["messages"][1]


async def test_a_message_without_a_role_is_warned_of_once(
    client: Client, bus_seen: Bus, caplog: pytest.LogCaptureFixture
) -> None:
    memories = MemoryClient(client, user_id="u1")
    for _ in range(2):
        assert await memories.remember([{"text": "a secret"}, {"role": "tool", "text": "x"}]) is None
    assert bus_seen.events == []
    [warning] = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert "without a role is not remembered" in warning


def test_who_says_a_text_is_of_the_text() -> None:
    kept = update_event(APP, "m1", chat_id="t", user_id="u1", author_name="Ann", changes={"pinned": True})
    assert kept.data == {"memory_id": "m1", "pinned": True}


async def test_messages_that_cannot_be_remembered_disturb_nobody(
    client: Client, bus_seen: Bus, caplog: pytest.LogCaptureFixture
) -> None:
    memories = MemoryClient(client, user_id="u1")
    assert await memories.remember([Hostile()]) is None
    assert await memories.remember([said("a secret")] * 1_001) is None
    assert bus_seen.events == []
    assert "messages cannot be read" in caplog.text
    assert "messages: Tuple should have at most 1000 items" in caplog.text
    assert "secret" not in caplog.text
    for wrong in ("a text", {"role": "user", "text": "x"}):
        with pytest.raises(ValueError, match="must be a list of messages"):
            await memories.remember(wrong)


# --- threads --------------------------------------------------------------------------------------------------------


async def test_the_thread_of_the_operation_is_captured_once(client: Client, bus_seen: Bus) -> None:
    memories = MemoryClient(client, user_id="u1", thread_id="fixed", scope_to_per_operation_thread_id=True)
    for early in (memories.remember([said("x")]), memories.recall("x")):
        with pytest.raises(ValueError, match="scope_to_per_operation_thread_id requires a thread id: call"):
            await early
    memories.thread_created(None)
    with pytest.raises(ValueError, match="requires a thread id"):
        await memories.recall("x")
    with pytest.raises(ValueError, match="thread_id: String should have at least 1 character"):
        memories.thread_created("")
    memories.thread_created("t1")
    memories.thread_created("t1")
    memories.thread_created(None)
    with pytest.raises(ValueError, match="belong to one thread; ") as refused:
        memories.thread_created("t2")
    assert "t2" not in str(refused.value)
    assert memories.scope == MemoryScope(user_id="u1", thread_id="t1")
    await memories.remember([said("x")])
    await memories.recall("x")
    assert bus_seen.events[0].data["thread_id"] == "t1"
    assert bus_seen.requests[0].search is not None
    assert bus_seen.requests[0].search.memory == memories.scope


async def test_the_thread_of_the_operation_is_a_scope_by_itself(client: Client) -> None:
    memories = MemoryClient(client, scope_to_per_operation_thread_id=True)
    memories.thread_created("t1")
    assert memories.scope == MemoryScope(thread_id="t1")


async def test_a_fixed_thread_stays_whatever_is_created(client: Client) -> None:
    memories = MemoryClient(client, thread_id="fixed")
    for thread_id in ("a", "b", None):
        memories.thread_created(thread_id)
    assert memories.scope == MemoryScope(thread_id="fixed")


class Slow(str):
    """A name that lets other threads on while it is looked at."""

    __slots__ = ()

    def __hash__(self) -> int:
        os.sched_yield()
        return super().__hash__()


def test_of_many_threads_at_once_one_is_captured() -> None:
    with SyncClient("redis://127.0.0.1:1", app_id=APP) as client:
        memories = SyncMemoryClient(client, scope_to_per_operation_thread_id=True)
        taken: list[str] = []
        start = threading.Barrier(8)

        def create(name: str) -> None:
            start.wait()
            try:
                memories.thread_created(Slow(name))
            except ValueError:
                return
            taken.append(name)

        callers = [threading.Thread(target=create, args=(str(number),)) for number in range(8)]
        for caller in callers:
            caller.start()
        for caller in callers:
            caller.join()
        assert taken == [memories.scope.thread_id]


# --- erasing, and one's own writes ----------------------------------------------------------------------------------


async def test_erasing_names_a_user_and_a_time(client: Client, bus_seen: Bus) -> None:
    memories = MemoryClient(client, user_id="u1", thread_id="t")
    assert await memories.erase_user() == "0:1-0"
    await memories.erase_user("u2", before=T0)
    own, other = bus_seen.events
    assert (own.type, own.chatid, own.data) == ("memory.erase", "u1", {"user_id": "u1"})
    assert (other.chatid, other.data) == ("u2", {"user_id": "u2", "before": "2026-02-01T10:00:00Z"})
    assert own.id != other.id
    with pytest.raises(ValueError, match="before: Input should have timezone info"):
        await memories.erase_user("u2", before=datetime(2026, 1, 1))
    with pytest.raises(ValueError, match="name the user whose memories to erase"):
        await MemoryClient(client, thread_id="t").erase_user()


async def test_recall_waits_for_what_was_written_here_where_that_is_wanted(client: Client, bus_seen: Bus) -> None:
    for wanted in (True, False):
        memories = MemoryClient(client, user_id="u1", **({} if wanted else {"read_own_writes": False}))
        await memories.recall("x")
        position = await memories.remember([said("x")])
        await memories.recall("x")
        erased = await memories.erase_user()
        await memories.recall("x")
        expected = [None, position, erased] if wanted else [None] * 3
        assert [request.after for request in bus_seen.requests] == expected
        bus_seen.requests.clear()


# --- the whole way, on real servers ---------------------------------------------------------------------------------


@asynccontextmanager
async def deployed(url: str, embedder: Embedder | None = None) -> AsyncIterator[FalkorDBStore]:
    """A mutation worker and a responder."""
    bus, graph = redis_bus(url, new=spread(2)), FalkorDBStore(url, write_timeout_ms=5_000)
    await bus.partitions.count()  # else a client that comes first gives the bus more of them
    rules = rule_set()
    worker = MutationWorker(bus, graph, rules, name="w")
    pipeline = ContextPipeline(rules, graph, bus=bus, embedder=embedder)
    queue = RedisRequestQueue(url, consumer="r")
    responder = InjectionResponder(queue, pipeline.answer)
    running = [asyncio.create_task(each.run()) for each in (worker, responder)]
    try:
        yield graph
    finally:
        worker.stop()
        responder.stop()
        await asyncio.gather(*running)
        await queue.aclose()
        await pipeline.aclose()
        await graph.aclose()
        await bus.aclose()


def texts(reply: ContextReply) -> list[str]:
    assert reply.reason is None, reply
    assert reply.stale_by is None
    return [row["text"] for row in reply.results]


async def test_what_is_remembered_is_recalled_within_its_scope_only(url: str) -> None:
    async with deployed(url), Client(url, app_id=APP, budget_ms=BUDGET_MS) as client:
        ann, bob = (MemoryClient(client, user_id=user, read_own_writes=True) for user in ("ann", "bob"))
        thread = MemoryClient(client, user_id="ann", thread_id="t", read_own_writes=True)
        await ann.remember(
            [said("I like green tea", time=T0), said("My dog barks", time=T0 + timedelta(minutes=1))],
            wait_s=CONFIRMED_S,
        )
        await bob.remember([said("My dog sleeps")], wait_s=CONFIRMED_S)
        await thread.remember([said("The dog is old", "assistant", time=T0 + timedelta(minutes=2))], wait_s=CONFIRMED_S)
        await thread.recall()
        await ann.recall()  # both chats are waited for
        assert texts(await ann.recall("dog", index_type="fulltext")) == ["My dog barks", "The dog is old"]
        assert texts(await bob.recall("dog", index_type="fulltext")) == ["My dog sleeps"]
        assert texts(await thread.recall([said("Which dog?")], index_type="fulltext")) == ["The dog is old"]
        assert set(texts(await ann.recall("dog"))) == {"My dog barks", "The dog is old"}, "without an embedder"
        assert texts(await ann.recall("volcano")) == []
        assert texts(await ann.recall("volcano", fill="latest", top_k=1)) == ["The dog is old"]
        latest = await ann.recall(top_k=2)
        assert texts(latest) == ["The dog is old", "My dog barks"]
        assert [row["score"] for row in latest.results] == [None, None]
        assert "Score" not in latest.text
        for question in ("", "volcano"):
            asked = await ann.recall(question, top_k=2, index_type="vector", without_embedder="latest")
            assert texts(asked) == texts(latest)
        reply = await ann.recall("tea", index_type="fulltext")
        assert inside(reply.text).splitlines()[2:] == ["- user: I like green tea"]
        [row] = reply.results
        assert (row["role"], row["timestamp"], row["author_name"]) == ("user", "2026-02-01T10:00:00.000000Z", None)
        enriched = await ann.recall(
            "tea", index_type="fulltext", params={"mark": "!"},
            retrieval_query="RETURN node.text + $mark AS text, score, node.role AS who ORDER BY score DESC",
        )  # fmt: skip
        assert [(row["text"], row["who"]) for row in enriched.results] == [("I like green tea!", "user")]
        assert "] [who: user]\nI like green tea!" in enriched.text
        for index_type in ("vector", "hybrid"):
            refused = await ann.recall("tea", index_type=index_type)
            assert (refused.reason, refused.results) == ("invalid_request", [])
            assert f"embedder is required when index_type='{index_type}'" in refused.detail


async def test_a_memory_ends_when_its_writer_says(url: str) -> None:
    async with deployed(url), Client(url, app_id=APP, budget_ms=BUDGET_MS) as client:
        ann, past = MemoryClient(client, user_id="ann"), datetime(2026, 2, 1, 10, tzinfo=UTC)
        code, end = said("The gym code is 4471", time=past.isoformat()), past + timedelta(days=5)
        await ann.remember([code, said("The gym is closed", expires_at="2999-01-01")], tags=["gym"], expires_at=end)
        [row] = await ann.list(budget_ms=BUDGET_MS)
        assert (row["text"], row["expires_at"]) == ("The gym is closed", "2999-01-01T00:00:00.000000Z")
        assert texts(await ann.recall("Which code has the gym?", fill="latest")) == ["The gym is closed"]
        assert texts(await ann.recall("Which code?", as_of=past + timedelta(days=1))) == ["The gym code is 4471"]
        [ended] = [row for row in await ann.list(include_ended=True, budget_ms=BUDGET_MS) if row["invalid_at"]]
        found = await ann.get(ended["id"])
        assert found is not None
        assert ended.items() <= found.items()
        await ann.update(ended["id"], expires_at="never", wait_s=CONFIRMED_S)
        assert texts(await ann.recall("Which code?")) == ["The gym code is 4471"]
        await ann.update(ended["id"], expires_at=datetime(2999, 1, 1, tzinfo=UTC), wait_s=CONFIRMED_S)
        await ann.update(row["id"], time=past, expires_at=end, wait_s=CONFIRMED_S)
        assert [row["text"] for row in await ann.list(budget_ms=BUDGET_MS)] == ["The gym code is 4471"]
        assert {*await ann.forget(tags=["gym"], wait_s=CONFIRMED_S)} == {row["id"], ended["id"]}


@pytest.mark.parametrize("many", [False, True])
async def test_records_are_listed_changed_and_forgotten_within_the_scope_only(url: str, many: bool) -> None:
    async with deployed(url), Client(url, app_id=APP, budget_ms=BUDGET_MS) as client:
        scope = {"user_id": "ann", "thread_id": "t"} if many else {"user_id": "ann"}  # a chat of another name
        ann, bob = MemoryClient(client, user_id="ann"), MemoryClient(client, user_id="bob")
        await bob.remember([said("I live in Rome", tags=["home"])], wait_s=CONFIRMED_S)
        writer = MemoryClient(client, **scope)
        await writer.remember([said("I live in Oslo", metadata={"source": "crm"}), said("tea")], tags=["home"])
        await writer.list(budget_ms=BUDGET_MS)
        rows = await ann.list(tags=["home"], budget_ms=BUDGET_MS)
        assert [(row["text"], row["tags"], row["metadata"]) for row in rows] == [
            ("tea", ["home"], None), ("I live in Oslo", ["home"], {"source": "crm"}),
        ]  # fmt: skip
        id = rows[1]["id"]
        assert await bob.get(id) is None
        with pytest.raises(ValueError, match="the scope has no memory"):
            await bob.update(id, text="I live in Rome")
        assert await bob.forget(id, wait_s=CONFIRMED_S) == ()
        before = datetime.now(UTC)
        await ann.update(id, content="I live in Bergen", metadata={"source": "chat"}, wait_s=CONFIRMED_S)
        await ann.pin(id, wait_s=CONFIRMED_S)
        row = await ann.get(id, budget_ms=BUDGET_MS)
        assert row is not None
        assert (row["text"], row["pinned"], row["metadata"]) == ("I live in Bergen", True, {"source": "chat"})
        assert texts(await ann.recall("live", as_of=before)) == ["I live in Oslo"]
        assert texts(await ann.recall("live", metadata={"source": "crm"})) == []
        shown = await ann.recall("live", since=before, any_of=[MemoryScope(user_id="bob")])
        assert texts(shown) == ["I live in Bergen"]
        assert len(texts(await ann.recall("live", any_of=[bob.scope]))) == 2
        for none in ({}, {"tags": ["home"]}):
            assert await ann.forget([], wait_s=CONFIRMED_S, **none) == ()  # type: ignore[arg-type]
        assert await ann.list(ids=[], budget_ms=BUDGET_MS) == []
        assert await ann.forget(tags=["home"], wait_s=CONFIRMED_S) in {(id, rows[0]["id"]), (rows[0]["id"], id)}
        assert await ann.list(budget_ms=BUDGET_MS) == []
        assert texts(await ann.recall("live", as_of=before)) == [], "nor what it said before"
        assert len(await bob.list(budget_ms=BUDGET_MS)) == 1


async def test_what_forgets_nothing_or_everything_is_refused(client: Client, bus_seen: Bus) -> None:
    memories = MemoryClient(client, user_id="ann")
    for given, message in (
        ({}, "give memory_ids or a filter"),
        ({"tags": []}, "tags is empty"),
        ({"memory_ids": ["m"], "metadata": {}}, "metadata is empty"),
        ({"as_of": T0}, "as_of is no filter of what to forget"),
        ({"any_of": [MemoryScope(application_id="team")]}, "any_of is no filter of what to forget"),
        ({"since": None, "tags": None}, "give memory_ids or a filter"),
    ):
        with pytest.raises(ValueError, match=message):
            await memories.forget(**given)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="min_score is for `recall`"):
        await memories.list(min_score=0.5)
    with pytest.raises(TypeError, match="search\\(\\) has no argument 'tag'; did you mean 'tags'"):
        await memories.recall("x", tag=["a"])  # type: ignore[call-arg]
    with pytest.raises(ValueError, match="tags must be a list"):
        await memories.remember([said("x")], tags="work")
    with pytest.raises(Transient, match="the memories were not read"):
        await memories.get("m1")
    assert bus_seen.events == []


async def test_filters_that_are_not_given_are_not_sent(client: Client, bus_seen: Bus) -> None:
    """A responder of an earlier version refuses what it does not know."""
    await client.search("x", memory=USER, tags=["a"])
    [request] = bus_seen.requests
    sent = encoded(request.model_copy(update={"deadline_ms": 10**13}), "r")
    assert isinstance(sent, bytes)
    fields = json.loads(sent)["search"]
    assert fields["tags"] == ["a"]
    assert not {"ids", "metadata", "since", "until", "as_of", "min_score", "any_of"} & fields.keys()


async def test_a_retry_remembers_nothing_twice(url: str) -> None:
    turn = [said("I like tea", message_id="1"), said("So do I", "assistant", message_id="2")]
    async with deployed(url) as graph, Client(url, app_id=APP, budget_ms=BUDGET_MS) as client:
        memories = MemoryClient(client, user_id="ann", read_own_writes=True)
        assert await memories.remember(turn, wait_s=CONFIRMED_S) is not None
        await memories.remember(turn, wait_s=CONFIRMED_S)
        event = add_event(APP, memories.scope, [MemoryMessage(**each) for each in turn])
        assert event is not None
        assert sorted(texts(await memories.recall("", top_k=10))) == ["I like tea", "So do I"]
        table = await graph.read(APP, "MATCH (m:Memory) RETURN m.id ORDER BY m.role DESC", {}, timeout_s=120)
        assert [id for (id,) in table.rows] == [memory_id(event.source, event.id, number) for number in (0, 1)]
    async with redis.Redis.from_url(url) as raw:
        sent = sum([await raw.xlen(channels.events_stream(number)) for number in range(2)])
    assert sent == 2


async def test_an_erased_user_is_gone_and_may_begin_again(url: str) -> None:
    async with deployed(url), Client(url, app_id=APP, budget_ms=BUDGET_MS) as client:
        ann, bob = (MemoryClient(client, user_id=user, read_own_writes=True) for user in ("ann", "bob"))
        thread = MemoryClient(client, user_id="ann", thread_id="t", read_own_writes=True)
        for memories in (ann, bob, thread):
            await memories.remember([said("I like tea")], wait_s=CONFIRMED_S)
            assert len(texts(await memories.recall("tea"))) >= 1
        await ann.erase_user(wait_s=CONFIRMED_S)
        assert texts(await ann.recall()) == []
        assert texts(await thread.recall()) == []
        assert texts(await bob.recall()) == ["I like tea"]
        await ann.remember([said("I like coffee")], wait_s=CONFIRMED_S)
        assert texts(await ann.recall()) == ["I like coffee"]


async def test_an_embedder_that_stands_still_is_not_waited_for(url: str) -> None:
    class Still(HashingEmbedder):
        async def embed(self, texts: Any) -> Any:
            await asyncio.Event().wait()

    async with deployed(url, Still(64)), Client(url, app_id=APP, budget_ms=4_000) as client:
        memories = MemoryClient(client, user_id="ann", read_own_writes=True)
        await memories.remember([said("I like tea")], wait_s=CONFIRMED_S)
        reply = await memories.recall("tea")
        assert [row["text"] for row in reply.results] == ["I like tea"]  # by its words
        assert [item.reason for item in reply.missing] == ["embedder_unavailable"]
        assert reply.partial


def test_the_synchronous_clients_do_the_same(url: str) -> None:
    stop = threading.Event()
    ready = threading.Event()

    def run(serve: Callable[[], Any]) -> None:
        asyncio.run(serve())

    async def serve() -> None:
        async with deployed(url):
            ready.set()
            await asyncio.to_thread(stop.wait)

    serving = threading.Thread(target=run, args=(serve,))
    serving.start()
    try:
        ready.wait()
        with SyncClient(url, app_id=APP, budget_ms=BUDGET_MS) as client:
            memories = SyncMemoryClient(client, user_id="ann", read_own_writes=True)
            assert client.app_id == APP
            position = memories.remember([said("I like tea")], wait_s=CONFIRMED_S)
            assert texts(memories.recall("tea", index_type="fulltext")) == ["I like tea"]
            found = client.search([said("tea?")], memory=memories.scope, index_type="fulltext", after=position)
            assert texts(found) == ["I like tea"]
            memories.erase_user(wait_s=CONFIRMED_S)
            assert texts(memories.recall("tea")) == []
        assert client.search("x", memory=USER).reason == "bus_unavailable"
        with pytest.raises(BusUnavailable, match="the client is closed"):
            memories.remember([said("late")])
    finally:
        stop.set()
        serving.join()


def test_an_event_is_what_the_contract_says() -> None:
    messages = [MemoryMessage(role="user", text="x")]
    event = add_event(APP, USER, messages)
    assert event is not None
    assert MemoryAdd.model_validate(event.data).scope == USER
    assert Outgoing(key=event.key, fields=wire.encode(event)).key == "shop/u1"
    assert add_event(APP, USER, []) is None
    with pytest.raises(ValueError, match=r"^appid: "):
        add_event("a b", USER, messages)
