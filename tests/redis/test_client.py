"""The client under fire: a bus that is away, killed or full, odd events and answers, cancellation, threads, exits."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import redis.asyncio as redis
from pydantic import BaseModel, field_serializer
from tests.services.rules import load_rules
from tests.services.waiting import turns, until

from graphweft import Client, ContextReply, Event, SyncClient
from graphweft.timing import CLIENT_TIMING
from graphweft.transport import BUS_STEP, MAX_CONTEXT_BYTES, MAX_EVENT_BYTES, Outgoing
from graphweft.transports.embedded import embedded_url
from graphweft.transports.redis.timing import RedisTiming
from graphweft.transports.redis.transport import RedisTransport
from graphweft_contracts import ContextRequest, InvalidSettings, MemoryScope, channels, wire
from graphweft_workers.drivers.embedded.server import EmbeddedServer
from graphweft_workers.drivers.falkordb.store import FalkorDBStore
from graphweft_workers.drivers.redis.requests import RedisRequestQueue
from graphweft_workers.injection.pipeline import ContextPipeline
from graphweft_workers.injection.responder import InjectionResponder

pytestmark = pytest.mark.integration
APP = "shop"
FOR_EVER_S = 3600.0
"""Longer than a test may take: a call that returns before that did not wait for its limit."""
RULES = """
version: "1.0"
injection_rules:
  - name: echo
    agents: ["*"]
    queries:
      - id: echo
        cypher: "RETURN $who AS who"
        params: {who: $context.who}
        inject_as: echo
        format: single
"""


@pytest_asyncio.fixture
async def own(tmp_path: Path) -> AsyncIterator[EmbeddedServer]:
    """A server that the test may kill; it is not started yet."""
    server = EmbeddedServer(tmp_path / "own")
    yield server
    await server.stop()


@pytest_asyncio.fixture
async def raw(url: str) -> AsyncIterator[Any]:
    connection = redis.Redis.from_url(url)
    yield connection
    await connection.aclose()


async def kill(server: EmbeddedServer) -> None:
    assert server.process is not None
    server.process.kill()
    await server.process.wait()


def address(server: EmbeddedServer) -> str:
    return f"unix://{server.socket}"


def note(number: int, chat: str = "c1", **data: Any) -> Event:
    return Event.create("note.made", app_id=APP, chat_id=chat, data={"n": number, **data}, id=f"{chat}-{number}")


async def connected(raw: Any, kind: str | None = None) -> set[str]:
    """The ids of connections to the server, which other tests share; no id is used again."""
    return {each["id"] for each in await raw.client_list(_type=kind)}


async def closed_all_but(raw: Any, others: set[str]) -> None:
    """Wait until the server knows of no other connection: it hears of an end a moment later."""
    while not await connected(raw) <= others:
        await turns()


async def paused(raw: Any) -> list[Any]:
    """Return the connections whose commands the server holds back."""
    return [each for each in await raw.client_list() if "b" in each["flags"]]


async def on_the_bus(url: str) -> dict[str, list[Any]]:
    """Per chat the numbers in the order in which they take effect: of equal identities only the first counts."""
    seen: dict[tuple[str, str], None] = {}
    chats: dict[str, list[Any]] = {}
    async with redis.Redis.from_url(url) as connection:
        for stream in sorted(await connection.keys(f"{channels.EVENTS}:*")):
            for _, fields in await connection.xrange(stream):
                event = wire.decode(fields)
                if event.identity not in seen:
                    seen[event.identity] = None
                    chats.setdefault(event.chatid, []).append(event.data["n"])
    return chats


async def away(client: Client) -> None:
    async def tried() -> bool:
        return client.stats.retries > 0

    await until(tried)


@asynccontextmanager
async def responding(url: str, folder: Path) -> AsyncIterator[InjectionResponder]:
    rules = folder / "rules" / "Shop"
    rules.mkdir(parents=True)
    (rules / "graph_injection.yaml").write_text(RULES)
    queue, graph = RedisRequestQueue(url, consumer="r"), FalkorDBStore(url)
    pipeline = ContextPipeline(load_rules(rules.parent), graph)
    responder = InjectionResponder(queue, pipeline.answer)
    async with redis.Redis.from_url(url) as connection:
        # There is nothing to read for an app without a graph.
        await connection.execute_command("GRAPH.QUERY", channels.graph_name(APP), "CREATE (:Shop)")
    task = asyncio.create_task(responder.run())
    try:
        yield responder
    finally:
        responder.stop()
        await task
        await queue.aclose()
        await pipeline.aclose()
        await graph.aclose()


def ask(client: Client, who: Any = "me", budget_ms: int = 30_000, **more: Any) -> Awaitable[ContextReply]:
    arguments: dict[str, Any] = {"app_id": APP, "workflow": "Shop", "agent": "A", "chat_id": "c1"}
    return client.context(**(arguments | more), context={"who": who}, budget_ms=budget_ms)


def echoed(reply: ContextReply) -> Any:
    assert reply.reason is None, reply
    return reply.injected["echo"]["who"]


# --- emit ---------------------------------------------------------------------------------------------------------


async def test_emit_returns_the_place_of_the_event(url: str, raw: Any) -> None:
    async with Client(url) as client:
        position = await client.emit(note(1), wait_s=120)
    assert position is not None
    partition, _, offset = position.partition(":")
    [(_, fields)] = await raw.xrange(channels.events_stream(int(partition)), offset, offset)
    assert wire.decode(fields).id == "c1-1"
    assert (client.stats.sent, client.stats.buffered, client.stats.dropped, client.stats.rejected) == (1, 0, 0, 0)


async def test_events_of_one_call_keep_their_order_and_get_their_places(url: str, raw: Any) -> None:
    events = [note(n, f"c{n % 3}") for n in range(1200)]
    async with Client(url) as client:
        positions = await client.emit_all([*events[:700], note(0, "odd", bad=object()), *events[700:]], wait_s=120)
        assert await client.emit_all([]) == []
    assert positions.pop(700) is None
    assert (client.stats.sent, client.stats.rejected) == (1200, 1)
    for event, position in zip(events, positions, strict=True):
        partition, _, offset = str(position).partition(":")
        [(_, fields)] = await raw.xrange(channels.events_stream(int(partition)), offset, offset)
        assert wire.decode(fields).id == event.id
    assert await on_the_bus(url) == {f"c{c}": list(range(c, 1200, 3)) for c in range(3)}


@pytest.mark.parametrize("bound", [{"buffer": 3}, {"buffer_bytes": 900}])
async def test_a_buffer_takes_all_events_of_a_call_or_none(own: EmbeddedServer, bound: dict[str, int]) -> None:
    async with Client(address(own), **bound) as client:
        assert await client.emit_all([note(1), note(2)], wait_s=0.01) == [None, None]
        await away(client)
        assert await client.emit_all([note(3), note(4)]) == [None, None]
        assert (client.stats.buffered, client.stats.dropped) == (2, 2)
        assert await client.emit(note(5)) is None
        assert (client.stats.buffered, client.stats.dropped) == (3, 2)
        await own.start()
        assert await client.flush(20)
        assert await client.emit_all([note(6), note(7)]) != [None, None], "there is room again"
    assert await on_the_bus(address(own)) == {"c1": [1, 2, 5, 6, 7]}


async def test_concurrent_emits_keep_the_order_of_their_calls(url: str) -> None:
    async with Client(url) as client:
        positions = await asyncio.gather(*(client.emit(note(n, f"c{n % 3}"), wait_s=120) for n in range(1200)))
    assert None not in positions
    assert len(set(positions)) == 1200
    assert await on_the_bus(url) == {f"c{chat}": list(range(chat, 1200, 3)) for chat in range(3)}


def _holds_itself() -> dict[str, Any]:
    value: dict[str, Any] = {}
    value["self"] = value
    return value


class Refuses:
    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError("hands off")


@pytest.mark.parametrize(
    "value",
    [object(), b"\xff", "\ud800", _holds_itself(), Refuses],
    ids=["object", "bytes", "half", "loop", "hostile"],
)
async def test_what_json_cannot_say_is_rejected_and_harms_nothing(url: str, value: Any) -> None:
    value = Refuses() if value is Refuses else value  # pytest would look at an instance
    async with Client(url) as client:
        assert await client.emit(note(1, value=value)) is None
        assert await client.emit(note(2), wait_s=120)
        assert client.stats.rejected == 1
    assert await on_the_bus(url) == {"c1": [2]}


@pytest.mark.parametrize(
    ("time", "message"),
    [
        ("9999-12-31T23:59:59.999999Z", "time: it is more than a day ahead of the clock here"),
        ("9999-12-31T23:59:59.999999-14:00", "time: it is more than a day ahead of the clock here"),
        ("1969-12-31T23:59:59Z", "time: it is before 1970-01-01"),
        ("0001-01-01T00:00:00+14:00", "time: it is before 1970-01-01"),
    ],
)
async def test_impossible_times_are_refused_and_the_log_says_why(
    url: str, caplog: pytest.LogCaptureFixture, time: str, message: str
) -> None:
    odd = Event.model_validate(note(1).model_dump() | {"time": time})
    old = Event.model_validate(note(2).model_dump() | {"time": "1970-01-01T00:00:00Z"})  # a recorded run
    ahead = Event.model_validate(note(3).model_dump() | {"time": datetime.now(UTC) + timedelta(hours=23)})
    async with Client(url) as client:
        positions = await client.emit_all([odd, old, ahead], wait_s=120)
        assert (positions[0], client.stats.rejected, client.stats.sent) == (None, 1, 2)
        assert all(positions[1:])
    assert f"event {odd.id} is not sent: {message}" in caplog.text
    assert await on_the_bus(url) == {"c1": [2, 3]}


async def test_something_that_is_no_event_is_rejected(url: str) -> None:
    wrong: Any = {"type": "note.made"}
    async with Client(url) as client:
        assert await client.emit(wrong) is None
    assert await client.emit(wrong) is None
    assert client.stats.rejected == 2


async def test_a_changed_payload_does_not_change_the_buffered_event(own: EmbeddedServer) -> None:
    event = note(1)
    async with Client(address(own)) as client:
        await client.emit(event, wait_s=0)
        event.data["n"] = 2
        await own.start()
        assert await client.flush(20)
    assert await on_the_bus(address(own)) == {"c1": [1]}


async def test_a_full_buffer_drops_new_events_and_counts_them(own: EmbeddedServer) -> None:
    async with Client(address(own), buffer=3) as client:
        for number in range(5):
            assert await client.emit(note(number), wait_s=0) is None
        assert (client.stats.buffered, client.stats.dropped) == (3, 2)
        await own.start()
        assert await client.flush(20)
        assert await client.emit(note(5), wait_s=120)
        assert (client.stats.sent, client.stats.buffered, client.stats.dropped) == (4, 0, 2)
    assert await on_the_bus(address(own)) == {"c1": [0, 1, 2, 5]}


async def test_emit_returns_at_once_while_the_bus_is_known_to_be_away(own: EmbeddedServer) -> None:
    async with Client(address(own)) as client:
        await client.emit(note(0), wait_s=0)
        await away(client)
        for number in range(1, 20):
            assert await client.emit(note(number), wait_s=FOR_EVER_S) is None
        await own.start()
        assert await client.flush(20)
        assert await client.emit(note(20), wait_s=FOR_EVER_S)
    assert await on_the_bus(address(own)) == {"c1": list(range(21))}


async def test_a_killed_bus_costs_no_event_and_no_order(own: EmbeddedServer) -> None:
    await own.start()
    confirmed: list[str] = []
    async with Client(address(own)) as client:

        async def talk() -> None:
            for number in range(600):
                if await client.emit(note(number, f"c{number % 3}"), wait_s=0.2):
                    confirmed.append(f"c{number % 3}-{number}")
                await turns()

        talking = asyncio.create_task(talk())
        for limit in (100, 200):

            async def so_far(limit: int = limit) -> bool:
                return len(confirmed) >= limit or talking.done()

            await until(so_far)
            await kill(own)
            # Not before the client has seen it, or the outage would pass unnoticed.
            before = client.stats.retries
            await client.emit(note(1000 + limit, "probe"), wait_s=0)

            async def noticed(before: int = before) -> bool:
                return client.stats.retries > before

            await until(noticed)
            await own.start()
        await talking
        assert await client.flush(20)
        assert client.stats.sent == 602
    assert len(confirmed) >= 100
    assert await on_the_bus(address(own)) == {
        **{f"c{chat}": list(range(chat, 600, 3)) for chat in range(3)},
        "probe": [1100, 1200],
    }


async def test_an_event_that_the_bus_refuses_does_not_let_later_ones_pass(own: EmbeddedServer) -> None:
    await own.start()
    async with redis.Redis.from_url(address(own)) as server, Client(address(own)) as client:
        assert await client.emit(note(0), wait_s=120)
        used = (await server.info("memory"))["used_memory"]
        await server.config_set("maxmemory", used + 500_000)
        # One batch: the second event alone does not fit, the third would.
        numbers = (1, 2, 3)
        await asyncio.gather(*(client.emit(note(n, text="x" * (900_000 * (n == 2))), wait_s=0) for n in numbers))
        await away(client)
        await server.config_set("maxmemory", 0)
        assert await client.flush(20)
    assert await on_the_bus(address(own)) == {"c1": [0, 1, 2, 3]}


async def test_a_cancelled_emit_leaves_its_event_and_the_client(url: str) -> None:
    async with Client(url) as client:
        for number in range(150):
            emitting = asyncio.create_task(client.emit(note(number)))
            await turns(1 + number % 12)
            emitting.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await emitting
        assert await client.emit(note(150), wait_s=120)
    assert await on_the_bus(url) == {"c1": list(range(151))}


async def test_close_ends_waiting_calls_and_counts_what_was_lost(own: EmbeddedServer) -> None:
    async with Client(address(own)) as client:
        waiting = [asyncio.create_task(client.emit(note(n), wait_s=FOR_EVER_S)) for n in range(3)]
        await away(client)
        await client.aclose(drain_s=0)
        assert await asyncio.gather(*waiting) == [None, None, None]
    assert (client.stats.sent, client.stats.buffered, client.stats.dropped) == (0, 0, 3)


async def test_a_closed_client_answers_and_opens_nothing(url: str, raw: Any) -> None:
    others = await connected(raw)
    async with Client(url) as client:
        assert await client.emit(note(1), wait_s=120)
        await ask(client, budget_ms=50)
        await client.aclose()
        await client.aclose()
        await closed_all_but(raw, others)
        assert await client.emit(note(2)) is None
        assert client.stats.rejected == 1
        reply = await ask(client)
        assert (reply.reason, reply.text, reply.partial) == ("bus_unavailable", "", True)
        assert reply.detail == "the client is closed: make a new one"
        assert await client.flush()
        await closed_all_but(raw, others)
        assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_a_cancelled_close_leaves_nothing_behind(own: EmbeddedServer) -> None:
    async with Client(address(own)) as client:
        await client.emit(note(1), wait_s=0)
        await away(client)
        closing = asyncio.create_task(client.aclose(drain_s=FOR_EVER_S))
        await turns()
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        assert asyncio.all_tasks() == {asyncio.current_task()}
        assert (client.stats.buffered, client.stats.dropped) == (0, 1)


# --- context ------------------------------------------------------------------------------------------------------


async def test_hundreds_of_calls_get_their_own_answers(url: str, tmp_path: Path) -> None:
    async with responding(url, tmp_path) as responder, Client(url) as client:
        replies = await asyncio.gather(*(ask(client, number) for number in range(400)))
        assert [echoed(reply) for reply in replies] == list(range(400))

        async def counted() -> bool:  # which comes after the reply
            return responder.answered >= 400

        await until(counted)
        assert responder.answered == 400


async def test_defaults_of_the_client_apply(url: str, tmp_path: Path) -> None:
    async with responding(url, tmp_path), Client(url, app_id=APP, workflow="Shop", budget_ms=120_000) as client:
        assert echoed(await client.context(agent="A", chat_id="c", context={"who": "x"})) == "x"
        reply = await client.context(agent="A", chat_id="c", workflow="Other")
        assert (reply.reason, reply.injected, reply.text) == ("no_rules", {}, "")


async def test_without_a_responder_the_budget_is_the_end(url: str) -> None:
    async with Client(url) as client:
        reply = await ask(client, budget_ms=50)
        assert (reply.reason, reply.blocks, reply.text, reply.partial) == ("timeout", (), "", True)
        assert "50 ms" in reply.detail
        for budget in (0, -5):
            assert (await ask(client, budget_ms=budget)).reason == "timeout"


async def test_a_bus_that_is_away_is_named_at_once(own: EmbeddedServer) -> None:
    async with Client(address(own)) as client:
        for _ in range(3):
            reply = await ask(client, budget_ms=int(FOR_EVER_S * 1000))
            assert (reply.reason, reply.text, reply.partial) == ("bus_unavailable", "", True)
            assert reply.detail.endswith(f"; {BUS_STEP}")


async def test_a_bus_that_dies_ends_the_calls_in_flight(own: EmbeddedServer, tmp_path: Path) -> None:
    await own.start()
    async with Client(address(own)) as client:
        calls = [asyncio.ensure_future(ask(client, n, budget_ms=int(FOR_EVER_S * 1000))) for n in range(5)]
        async with redis.Redis.from_url(address(own)) as server:

            async def asked() -> bool:
                return bool(await server.xlen(channels.CONTEXT_REQUESTS) == 5)

            await until(asked)
        await kill(own)
        assert {reply.reason for reply in await asyncio.gather(*calls)} == {"bus_unavailable"}
        await own.start()
        async with responding(address(own), tmp_path):

            async def answered() -> bool:
                return (await ask(client, budget_ms=2000)).reason is None

            await until(answered)
            assert echoed(await ask(client, "again")) == "again"


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"app_id": ""}, "app_id"),
        ({"app_id": "a b"}, "app_id"),
        ({"app_id": "x" * 65}, "app_id"),
        ({"agent": ""}, "agent"),
        ({"agent": None}, "agent"),
        ({"chat_id": ""}, "chat_id"),
        ({"workflow": ""}, "workflow"),
        ({"user_id": ""}, "user_id"),
        ({"budget_ms": float("nan")}, "budget_ms"),
        ({"budget_ms": Decimal(50)}, "budget_ms"),
        ({"budget_ms": "50"}, "budget_ms"),
        ({"budget_ms": [50]}, "budget_ms"),
    ],
    ids=repr,
)
async def test_arguments_that_break_the_contract_are_named(url: str, change: dict[str, Any], field: str) -> None:
    async with Client(url) as client:
        reply = await ask(client, **change)
        assert (reply.reason, reply.text, reply.partial) == ("invalid_request", "", True)
        assert field in reply.detail


@pytest.mark.parametrize(
    "value",
    [object(), b"\xff", "\ud800", _holds_itself(), float("nan"), [{"deep": -float("inf")}]],
    ids=["object", "bytes", "half", "loop", "NaN", "infinity"],
)
async def test_a_variable_that_json_cannot_represent_costs_only_itself(
    url: str, raw: Any, caplog: pytest.LogCaptureFixture, value: Any
) -> None:
    answers = Answers(raw)
    async with Client(url) as client:
        for _ in range(2):
            calling = asyncio.ensure_future(ask(client, value, budget_ms=120_000))
            request = await answers.request()
            await answers.publish(request, ContextReply(id=request.id, text="fine").model_dump_json().encode())
            assert (await calling).text == "fine"
    assert json.dumps(request.context["who"], allow_nan=False).isascii()
    [warning] = [record.getMessage() for record in caplog.records]
    assert "are not JSON" in warning
    assert "who;" in warning


@pytest.mark.parametrize("budget", [0, -(10**400), -float("inf"), 0.5, False])
async def test_a_budget_of_nothing_is_over_at_once(
    url: str, raw: Any, caplog: pytest.LogCaptureFixture, budget: Any
) -> None:
    async with Client(url) as client:
        assert (await ask(client, budget_ms=budget)).reason == "timeout"
    assert await raw.exists(channels.CONTEXT_REQUESTS) == 0
    assert not caplog.records


@pytest.mark.parametrize("budget", [600_001, 10**400, float("inf"), 1e300])
async def test_a_budget_without_end_is_the_longest_one(url: str, raw: Any, budget: Any) -> None:
    async with Client(url) as client:
        answers = Answers(raw)
        calling = asyncio.ensure_future(ask(client, budget_ms=budget))
        request = await answers.request()
        assert request.deadline_ms <= time.time() * 1000 + 600_000
        await answers.publish(request, ContextReply(id=request.id, text="fine").model_dump_json().encode())
        assert (await calling).text == "fine"


class Silent:
    """A bus that takes a request and never answers."""

    def __init__(self) -> None:
        self.requests: list[ContextRequest] = []

    async def append(self, events: Sequence[Outgoing]) -> list[str]:
        return ["0:0" for _ in events]

    async def request(self, request: ContextRequest) -> ContextReply:
        self.requests.append(request)
        return await asyncio.get_running_loop().create_future()  # type: ignore[no-any-return]

    async def aclose(self) -> None:
        pass


async def test_a_call_gives_up_before_its_budget_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = asyncio.get_running_loop()
    call_at, waits = loop.call_at, list[float]()

    def noted(when: float, *arguments: Any, **options: Any) -> asyncio.TimerHandle:
        waits.append(when - loop.time())
        return call_at(when, *arguments, **options)

    silent = Silent()
    async with Client(transport=silent) as client:
        monkeypatch.setattr(loop, "call_at", noted)
        before_ms = int(time.time() * 1000)
        assert (await ask(client, budget_ms=200)).reason == "timeout"
        monkeypatch.undo()
    [wait_s] = waits
    assert wait_s <= 0.196, "four milliseconds are left to come back"
    assert silent.requests[0].deadline_ms >= before_ms + 200, "the responder has all of it"


@pytest.mark.parametrize(("budget", "reserve"), [(0, 0), (1, 0.5), (50, 2), (150, 3), (250, 5), (600_000, 5)])
def test_what_is_kept_of_a_budget(budget: int, reserve: float) -> None:
    assert CLIENT_TIMING.reserve_ms(budget) == reserve


def numbers() -> Iterator[int]:
    yield from range(3)


@pytest.mark.parametrize("wrap", [lambda it: it, lambda it: [1, {"a": (it,)}], lambda it: (_holds_itself(), it)])
@pytest.mark.parametrize("make", [numbers, lambda: map(int, "012"), lambda: iter([0, 1, 2]), itertools.count])
async def test_an_iterator_is_not_read_and_its_variable_named(
    url: str, raw: Any, caplog: pytest.LogCaptureFixture, make: Callable[[], Iterator[int]], wrap: Callable[[Any], Any]
) -> None:
    iterator = make()
    async with Client(url) as client:
        calling = asyncio.ensure_future(ask(client, wrap(iterator), budget_ms=120_000))
        request = await Answers(raw).request()
        await client.aclose()
        await calling
    assert f"<{type(iterator).__name__}>" in str(request.context["who"])
    assert list(itertools.islice(iterator, 3)) == [0, 1, 2]
    assert "not JSON" in caplog.text


class Seen(BaseModel):
    """Counts how often it is written, which takes a while."""

    times: list[int] = []
    takes_s: float = 0

    @field_serializer("times")
    def _count(self, times: list[int]) -> int:
        times.append(1)
        ends_s = time.monotonic() + self.takes_s
        while time.monotonic() < ends_s:
            pass
        return len(times)


async def test_context_is_written_once(url: str, raw: Any) -> None:
    seen = Seen()
    async with Client(url) as client:
        calling = asyncio.ensure_future(ask(client, seen, budget_ms=120_000))
        request = await Answers(raw).request()
        await client.aclose()
        await calling
    assert request.context["who"]["times"] == len(seen.times) == 1


@pytest.mark.parametrize("large", ["x" * MAX_CONTEXT_BYTES, [0] * MAX_CONTEXT_BYTES], ids=["text", "list"])
async def test_what_is_too_large_is_not_written_to_see_it(url: str, raw: Any, large: Any) -> None:
    async with Client(url) as client:
        seen = Seen()
        reply = await ask(client, [seen, [{"messages": large}]])
    assert (reply.reason, "bytes" in reply.detail) == ("invalid_request", True)
    assert seen.times == []
    assert await raw.exists(channels.CONTEXT_REQUESTS) == 0


async def test_context_that_has_taken_its_budget_to_write_is_not_sent(url: str, raw: Any) -> None:
    async with Client(url) as client:
        reply = await ask(client, Seen(takes_s=0.2), budget_ms=100)
    assert (reply.reason, "before the request was encoded" in reply.detail) == ("timeout", True)
    assert await raw.exists(channels.CONTEXT_REQUESTS) == 0


def _levels(count: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(count):
        value = [value]
    return value


@pytest.mark.parametrize("value", [_levels(205), 10**4300, [{"n": -(10**6000)}]], ids=["deep", "long", "longer"])
async def test_what_no_responder_could_read_is_replaced(url: str, raw: Any, value: Any) -> None:
    async with Client(url) as client:
        calling = asyncio.ensure_future(ask(client, value, budget_ms=120_000))
        request = await Answers(raw).request()
        await client.aclose()
        await calling
    assert "<" in str(request.context["who"])


async def test_context_raises_nothing_for_wrong_types(url: str, caplog: pytest.LogCaptureFixture) -> None:
    async with Client(url) as client:
        assert (await ask(client, chat_id=Refuses())).reason in {"invalid_request", "internal_error"}
        caplog.clear()
        wrong: Any
        for name, wrong in (("context", 5), ("context", [1]), ("context", [("a", 1)]), ("budget_ms", "soon")):
            call: dict[str, Any] = {"app_id": APP, "workflow": "Shop", "agent": "A", "chat_id": "c", name: wrong}
            reply = await client.context(**call)
            assert (reply.reason, reply.detail.partition(":")[0]) == ("invalid_request", name)
        assert not caplog.records
        assert (await ask(client, "NaN, and Infinity", budget_ms=50)).reason == "timeout"
    assert asyncio.all_tasks() == {asyncio.current_task()}


class Answers:
    """A responder by hand: answers every request with what the test says."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._last = b"0"

    async def request(self) -> ContextRequest:
        [(_, [(self._last, fields)])] = await self._connection.xread(
            {channels.CONTEXT_REQUESTS: self._last}, count=1, block=20_000
        )
        return ContextRequest.model_validate_json(fields[b"data"])

    async def publish(self, request: ContextRequest, body: bytes, request_id: str | None = None) -> None:
        head = (request.id if request_id is None else request_id).encode()
        await self._connection.publish(request.reply_to, head + b"\n" + body)


@pytest.mark.parametrize(
    "body",
    [b"", b"\xff\xfe", b"[]", b"{", b'{"id": 5}', b'{"id": "x", "confidence": 0.5}', b'{"id": "x", "reason": "moon"}'],
    ids=["nothing", "bytes", "list", "half", "type", "new field", "new reason"],
)
async def test_an_answer_that_breaks_the_contract_says_so(url: str, raw: Any, body: bytes) -> None:
    async with Client(url) as client:
        answers = Answers(raw)
        calling = asyncio.ensure_future(ask(client))
        await answers.publish(await answers.request(), body)
        reply = await calling
        assert (reply.reason, reply.text, reply.partial) == ("bus_unavailable", "", True)
        assert "one version" in reply.detail
        # The channel goes on.
        calling = asyncio.ensure_future(ask(client))
        request = await answers.request()
        await answers.publish(request, ContextReply(id=request.id, text="fine").model_dump_json().encode())
        assert (await calling).text == "fine"


async def test_messages_for_nobody_are_passed_over(url: str, raw: Any) -> None:
    async with Client(url) as client:
        answers = Answers(raw)
        first, second = asyncio.ensure_future(ask(client)), asyncio.ensure_future(ask(client))
        requests = [await answers.request(), await answers.request()]
        for noise in ("", "unknown", "\u00e4\n\n"):
            await answers.publish(requests[0], b"{}", noise)
        await raw.publish(requests[0].reply_to, b"\xff\xff no line end")
        for request in reversed(requests):
            body = ContextReply(id=request.id, text=request.id).model_dump_json()
            async with raw.pipeline() as together:  # the second answer to one request is one too many
                for text in (body, "late"):
                    together.publish(request.reply_to, f"{request.id}\n{text}")
                await together.execute()
        assert {(await first).text, (await second).text} == {request.id for request in requests}
        assert (await first).text == (await first).id
        calling = asyncio.ensure_future(ask(client))
        request = await answers.request()
        await answers.publish(request, ContextReply(id=request.id, text="fine").model_dump_json().encode())
        assert (await calling).text == "fine"


async def test_a_cancelled_call_leaves_the_client_usable(url: str, tmp_path: Path) -> None:
    async with responding(url, tmp_path), Client(url) as client:
        for number in range(150):
            calling = asyncio.ensure_future(ask(client, number))
            await turns(number % 30)
            calling.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await calling
            if number % 10 == 0:
                assert echoed(await ask(client, f"after {number}")) == f"after {number}"
        replies = await asyncio.gather(*(ask(client, number) for number in range(30)))
        assert [echoed(reply) for reply in replies] == list(range(30))


async def test_a_broken_reply_channel_comes_back(url: str, raw: Any, tmp_path: Path) -> None:
    others = await connected(raw, "pubsub")
    async with responding(url, tmp_path), Client(url) as client:
        for number in range(3):
            assert echoed(await ask(client, number)) == number
            [listening] = await connected(raw, "pubsub") - others
            await raw.execute_command("CLIENT", "KILL", "ID", listening)

            async def back(old: str = listening) -> bool:
                return bool(await connected(raw, "pubsub") - others - {old})

            await until(back)

            async def answered() -> bool:
                return (await ask(client, budget_ms=1000)).reason is None

            await until(answered)


async def test_one_broken_reply_channel_is_not_a_bus_that_is_away(url: str, raw: Any, tmp_path: Path) -> None:
    async with responding(url, tmp_path), Client(url) as client:
        assert echoed(await ask(client)) == "me"
        await raw.execute_command("CLIENT", "KILL", "TYPE", "pubsub")
        replies = await asyncio.gather(*(ask(client, number, budget_ms=1000) for number in range(20)))
        # An answer that was sent into the gap is lost, and then the budget ends the call.
        assert {reply.reason for reply in replies} <= {None, "timeout"}


async def test_a_reply_channel_that_swallows_every_packet_comes_back(url: str, tmp_path: Path) -> None:
    """No reset and no end of stream, as when a firewall forgets a connection: only new connections get through."""
    dead: list[asyncio.Event] = []

    async def pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter, lost: asyncio.Event) -> None:
        while data := await source.read(65_536):
            if not lost.is_set():
                sink.write(data)
                await sink.drain()
        sink.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        lost = asyncio.Event()
        dead.append(lost)
        upstream_reader, upstream_writer = await asyncio.open_unix_connection(url.removeprefix("unix://"))
        await asyncio.gather(pump(reader, upstream_writer, lost), pump(upstream_reader, writer, lost))

    proxy = await asyncio.start_unix_server(serve, tmp_path / "p.sock")
    transport = RedisTransport(f"unix://{tmp_path / 'p.sock'}", timing=RedisTiming(silence_s=0.2))
    try:
        async with responding(url, tmp_path), Client(transport=transport) as client:
            assert echoed(await ask(client, "first")) == "first"
            for connection in dead:
                connection.set()

            async def answered() -> bool:
                return (await ask(client, "again", budget_ms=300)).reason is None

            await until(answered)
    finally:
        proxy.close()


async def test_closing_ends_calls_in_flight(url: str, raw: Any) -> None:
    async with Client(url) as client:
        calling = asyncio.ensure_future(ask(client, budget_ms=int(FOR_EVER_S * 1000)))
        await Answers(raw).request()
        await client.aclose()
        assert (await calling).reason == "bus_unavailable"


async def test_closing_ends_calls_that_the_server_has_not_taken(url: str, raw: Any) -> None:
    async with Client(url) as client:
        await ask(client, budget_ms=50)
        await raw.execute_command("CLIENT", "PAUSE", 60_000, "WRITE")
        try:
            calling = [asyncio.ensure_future(ask(client, budget_ms=int(FOR_EVER_S * 1000))) for _ in range(3)]
            await until(lambda: paused(raw), lambda found: len(found) > 0, why="the server holds the requests back")
            await client.aclose()
            assert {reply.reason for reply in await asyncio.gather(*calling)} == {"bus_unavailable"}
        finally:
            await raw.execute_command("CLIENT", "UNPAUSE")


# --- where a client is made, and what it leaves behind ------------------------------------------------------------


def test_a_client_made_outside_a_loop_works_inside(url: str) -> None:
    client = Client(url)

    async def use() -> tuple[str | None, str | None]:
        async with client:
            return await client.emit(note(1), wait_s=120), (await ask(client, budget_ms=50)).reason

    position, reason = asyncio.run(use())
    assert position is not None
    assert reason == "timeout"


async def test_without_an_address_the_environment_decides(
    url: str, monkeypatch: pytest.MonkeyPatch, own: EmbeddedServer
) -> None:
    monkeypatch.setenv("GRAPHWEFT_BUS_URL", url)
    async with Client() as client:
        assert await client.emit(note(1), wait_s=120)
    monkeypatch.delenv("GRAPHWEFT_BUS_URL")
    monkeypatch.setenv("GRAPHWEFT_DATA", str(own.data))
    await own.start()
    assert embedded_url(own.data) == address(own)
    async with Client() as client:
        assert await client.emit(note(2), wait_s=120)
    assert await on_the_bus(address(own)) == {"c1": [2]}


async def test_redis_takes_no_larger_events_than_kafka(url: str) -> None:
    async with Client(url) as client:
        large = "x" * MAX_EVENT_BYTES
        positions = await asyncio.gather(
            client.emit(note(1), wait_s=120),
            client.emit(note(2, text=large), wait_s=120),
            client.emit(note(3), wait_s=120),
        )
        assert [position is None for position in positions] == [False, True, False]
        assert (client.stats.sent, client.stats.rejected, client.stats.retries) == (2, 1, 0)
    assert await on_the_bus(url) == {"c1": [1, 3]}


async def test_the_transport_closes_twice(url: str) -> None:
    transport = RedisTransport(url)
    await transport.aclose()
    await transport.aclose()


def python(code: str, *arguments: str) -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-c", code, *arguments], capture_output=True, text=True, timeout=120, check=False
    )
    # In development mode asyncio reports each step that takes more than 100 ms, which any may on a busy machine.
    errors = [line for line in done.stderr.splitlines(keepends=True) if not line.startswith("Executing <")]
    return done.returncode, done.stdout, "".join(errors)


CLOSED = """
import asyncio, gc, sys
from graphweft import Client, Event, SyncClient
def note(): return Event.create("note.made", app_id="shop", chat_id="c", data={"n": 1})
def ask(client): return client.context(app_id="shop", workflow="W", agent="A", chat_id="c", budget_ms=50)
async def main():
    async with Client(sys.argv[1]) as client:
        await client.emit(note(), wait_s=0.2)
        print((await ask(client)).reason)
        calling = asyncio.create_task(ask(client))
        await asyncio.wait([calling], timeout=0)
        calling.cancel()
asyncio.run(main())
with SyncClient(sys.argv[1]) as client:
    client.emit(note(), wait_s=0.2)
    print(ask(client).reason)
    client.close(drain_s=0)
gc.collect()
"""


async def test_a_closed_client_leaves_no_warning(url: str, tmp_path: Path) -> None:
    assert await asyncio.to_thread(python, CLOSED, url) == (0, "timeout\ntimeout\n", "")
    code, out, errors = await asyncio.to_thread(python, CLOSED, f"unix://{tmp_path}/nobody.sock")
    # A busy machine may need the budget for less than the refused connection.
    assert (code, {*out.split()} - {"bus_unavailable", "timeout"}) == (0, set())
    assert "ResourceWarning" not in errors
    assert "Traceback" not in errors


LEFT_OPEN = """
import sys
from graphweft import Event, SyncClient
client = SyncClient(sys.argv[1])
position = client.emit(Event.create("note.made", app_id="shop", chat_id="c", data={"n": 1}), wait_s=float(sys.argv[2]))
print(position is not None, client.context(app_id="shop", workflow="W", agent="A", chat_id="c", budget_ms=50).reason)
"""


async def test_an_interpreter_that_ends_without_close_does_not_hang(url: str, tmp_path: Path) -> None:
    assert await asyncio.to_thread(python, LEFT_OPEN, url, "20") == (0, "True timeout\n", "")
    # Not confirmed before the end, and on the bus all the same.
    assert await asyncio.to_thread(python, LEFT_OPEN, url, "0") == (0, "False timeout\n", "")
    assert await on_the_bus(url) == {"c": [1, 1]}
    code, out, errors = await asyncio.to_thread(python, LEFT_OPEN, f"unix://{tmp_path}/nobody.sock", "0.1")
    # A busy machine may need the budget for less than the refused connection.
    assert (code, out) in {(0, "False bus_unavailable\n"), (0, "False timeout\n")}, errors
    assert "Traceback" not in errors
    assert "closed with 1 event not sent" in errors


FORKED = """
import os, sys, warnings
from graphweft import Event, SyncClient
warnings.simplefilter("ignore", DeprecationWarning)  # forking with threads is what is tried here
client = SyncClient(sys.argv[1])
def use():
    position = client.emit(Event.create("note.made", app_id="shop", chat_id="c", data={"n": 1}), wait_s=120)
    reply = client.context(app_id="shop", workflow="W", agent="A", chat_id="c", budget_ms=50)
    print(position is not None, reply.reason, flush=True)
child = os.fork()
if child:
    assert os.waitpid(child, 0)[1] == 0
use()
"""


async def test_a_forked_process_has_a_thread_and_connections_of_its_own(url: str) -> None:
    code, out, errors = await asyncio.to_thread(python, FORKED, url)
    assert (code, out) == (0, "True timeout\nTrue timeout\n"), errors
    # The same of a client that the parent has used before.
    used = FORKED.replace("child = os.fork()", "use()\nchild = os.fork()")
    code, out, errors = await asyncio.to_thread(python, used, url)
    assert (code, out) == (0, "True timeout\n" * 3), errors
    assert "Traceback" not in errors


TWO_LOOPS = """
import asyncio, sys
from graphweft import Client, Event
client = Client(sys.argv[1], app_id="shop", workflow="Shop", budget_ms=60_000)
async def turn(number, wait_s=60):
    position = await client.emit(
        Event.create("note.made", app_id="shop", chat_id="c", data={"n": number}, id=f"c-{number}"), wait_s=wait_s
    )
    reply = await client.context(agent="A", chat_id="c", context={"who": f"turn {number}"})
    return position is not None, reply.reason, f"turn {number}" in reply.text
"""
ONE_AFTER_THE_OTHER = f"""{TWO_LOOPS}
print([asyncio.run(turn(number)) for number in range(3)])
asyncio.run(client.aclose())
print(client.stats.sent, client.stats.buffered, client.stats.retries)
"""
AT_ONCE = f"""{TWO_LOOPS}
from concurrent.futures import ThreadPoolExecutor
with ThreadPoolExecutor(4) as pool:
    print(list(pool.map(lambda number: asyncio.run(turn(number)), range(4))))
asyncio.run(client.aclose())
print(client.stats.sent, client.stats.buffered, client.stats.retries)
"""
LEFT_BEHIND = f"""{TWO_LOOPS}
async def leave():
    for number in range(3):
        await client.emit(
            Event.create("note.made", app_id="shop", chat_id="c", data={{"n": number}}, id=f"c-{{number}}"), wait_s=0
        )
asyncio.run(leave())
asyncio.run(turn(3))
asyncio.run(client.aclose())
print(client.stats.buffered, client.stats.dropped)
"""
FORKED_LOOP = f"""{TWO_LOOPS}
import os, warnings
warnings.simplefilter("ignore", DeprecationWarning)
print(asyncio.run(turn(1)), flush=True)
child = os.fork()
if child:
    assert os.waitpid(child, 0)[1] == 0
    print(asyncio.run(turn(3)), flush=True)
else:
    print(asyncio.run(turn(2)), client.stats.sent, flush=True)
"""


@pytest.mark.parametrize(
    ("program", "printed"),
    [
        (ONE_AFTER_THE_OTHER, f"{[(True, None, True)] * 3}\n3 0 0\n"),
        (AT_ONCE, f"{[(True, None, True)] * 4}\n4 0 0\n"),
        (LEFT_BEHIND, "0 0\n"),
        (FORKED_LOOP, "(True, None, True)\n(True, None, True) 1\n(True, None, True)\n"),
    ],
    ids=["one after the other", "at once", "left behind", "forked"],
)
async def test_a_client_serves_every_event_loop(url: str, tmp_path: Path, program: str, printed: str) -> None:
    async with responding(url, tmp_path):
        code, out, errors = await asyncio.to_thread(python, program, url)
    assert (code, out) == (0, printed), errors
    assert errors == ""
    numbers = (await on_the_bus(url))["c"]
    assert sorted(numbers) == numbers if program != AT_ONCE else len(numbers) == 4


async def test_a_given_transport_in_another_loop_says_so(url: str, caplog: Any) -> None:
    transport = RedisTransport(url)
    async with contextlib.AsyncExitStack() as stack:
        client = Client(transport=transport, app_id=APP, workflow="Shop")
        stack.push_async_callback(client.aclose)
        assert await client.emit(note(1), wait_s=60) is not None  # so it has connected
        asking = asyncio.ensure_future(ask(client, budget_ms=20_000))  # nobody answers: it has the only connection
        found = await asyncio.to_thread(lambda: asyncio.run(ask(client, budget_ms=20_000)))
        lost = await asyncio.to_thread(lambda: asyncio.run(client.emit(note(2), wait_s=20)))
        asking.cancel()
    assert (found.reason, lost) == ("internal_error", None)
    assert "belongs to another event loop" in found.detail
    assert "belongs to another event loop" in caplog.text
    assert client.stats.rejected == 1


@pytest.mark.parametrize("app", ["", " "])
async def test_an_empty_app_is_not_the_default_one(url: str, raw: Any, app: str) -> None:
    async with Client(url, app_id=APP, workflow="Shop") as client:
        replies = [
            await client.context(agent="A", chat_id="c", app_id=app),
            await client.search("x", memory=MemoryScope(user_id="u"), app_id=app),
        ]
        async with client.turn(agent="A", chat="c", app=app, message="hi") as turn:
            replies.append(turn.context)
    assert [reply.reason for reply in replies] == ["invalid_request"] * 3
    assert await raw.exists(channels.CONTEXT_REQUESTS) == 0
    assert await on_the_bus(url) == {}


# --- SyncClient ---------------------------------------------------------------------------------------------------


async def test_threads_share_one_client(url: str, tmp_path: Path) -> None:
    def work(client: SyncClient, number: int) -> list[Any]:
        answers: list[Any] = []
        for turn in range(25):
            assert client.emit(note(turn, f"t{number}"), wait_s=120)
            if turn % 5 == 0:
                who = f"{number}/{turn}"
                answers.append(echoed(client.context(agent="A", chat_id="c", context={"who": who})) == who)
        return answers

    with SyncClient(url, app_id=APP, workflow="Shop", budget_ms=120_000) as client:
        async with responding(url, tmp_path):
            results = await asyncio.gather(*(asyncio.to_thread(work, client, number) for number in range(6)))
            assert await asyncio.to_thread(client.flush)
            await asyncio.to_thread(client.close)
    assert results == [[True] * 5] * 6
    assert client.stats.sent == 150
    assert await on_the_bus(url) == {f"t{number}": list(range(25)) for number in range(6)}


async def test_the_sync_client_works_where_another_loop_runs(url: str) -> None:
    with SyncClient(url) as client:
        assert client.emit(note(1), wait_s=120)
        assert client.context(app_id=APP, workflow="Shop", agent="A", chat_id="c", budget_ms=20).reason == "timeout"
    assert await on_the_bus(url) == {"c1": [1]}


def test_a_closed_sync_client_answers_and_raises_nothing(url: str) -> None:
    client = SyncClient(url, app_id=APP, workflow="Shop")
    client.close()
    client.close()
    assert client.emit(note(1)) is None
    assert client.stats.rejected == 1
    reply = client.context(agent="A", chat_id="c")
    assert (reply.reason, reply.partial) == ("bus_unavailable", True)
    assert client.flush() is False
    assert not [thread for thread in threading.enumerate() if thread.name == "graphweft-client"]


async def test_close_frees_the_threads_that_still_wait(own: EmbeddedServer, url: str, raw: Any) -> None:
    unanswered = SyncClient(url, app_id=APP, workflow="Shop", budget_ms=int(FOR_EVER_S * 1000))
    # The pool is left last: what waits in it for ever ends when its client closes.
    with ThreadPoolExecutor(4) as pool, SyncClient(address(own)) as lost, unanswered:
        loop = asyncio.get_running_loop()
        calls = [
            loop.run_in_executor(pool, lambda: lost.emit(note(1), wait_s=FOR_EVER_S)),
            loop.run_in_executor(pool, lambda: lost.flush(FOR_EVER_S)),
        ]

        async def tried() -> bool:
            return lost.stats.retries > 0

        await until(tried)
        asking = loop.run_in_executor(pool, lambda: unanswered.context(agent="A", chat_id="c"))
        await Answers(raw).request()
        for client in (lost, unanswered):
            await asyncio.to_thread(client.close, 0)
        async with asyncio.timeout(120):
            assert await asyncio.gather(*calls) == [None, False]
            assert (await asking).reason == "bus_unavailable"


async def test_closing_from_many_threads_under_load_is_harmless(url: str) -> None:
    client = SyncClient(url)
    started = threading.Event()

    def talk(chat: str) -> int:
        number = 0
        while client.emit(note(number, chat), wait_s=120):
            number += 1
            started.set()
        return number

    with client:
        talking = [asyncio.create_task(asyncio.to_thread(talk, f"t{number}")) for number in range(3)]
        await asyncio.to_thread(started.wait)
        await asyncio.gather(*(asyncio.to_thread(client.close) for _ in range(3)))
        async with asyncio.timeout(120):
            confirmed = await asyncio.gather(*talking)
    for number, count in enumerate(confirmed):
        assert (await on_the_bus(url)).get(f"t{number}", [])[:count] == list(range(count))


def test_a_broken_address_leaves_no_thread_behind() -> None:
    with pytest.raises(InvalidSettings, match="scheme"):
        SyncClient("nonsense")
    assert not [thread for thread in threading.enumerate() if thread.name == "graphweft-client"]


@pytest.mark.parametrize("named", [{}, {"app_id": "mine"}, {"app_id": ["theirs"]}], ids=["none", "another", "wrong"])
async def test_a_request_that_cannot_be_read_is_not_refused_on_a_channel_of_another_app(
    url: str, raw: Any, tmp_path: Path, named: dict[str, Any]
) -> None:
    asked = {"deadline_ms": int(time.time() * 1000) + 120_000}
    async with raw.pubsub() as heard, responding(url, tmp_path) as responder:
        await heard.subscribe(
            channels.context_replies("c", "theirs"),
            channels.context_replies("c", "mine"),
            channels.context_replies("c"),
        )
        for id, request in (
            ("stray", named | {"reply_to": channels.context_replies("c", "theirs")}),
            ("own", {"app_id": "theirs", "reply_to": channels.context_replies("c", "theirs")}),
            ("shared", named | {"reply_to": channels.context_replies("c")}),
        ):
            await raw.xadd(channels.CONTEXT_REQUESTS, {"data": json.dumps(request | asked | {"id": id})})
        found: dict[str, str] = {}
        async with asyncio.timeout(120):
            async for message in heard.listen():
                if message["type"] == "message":
                    found[message["data"].split(b"\n")[0].decode()] = message["channel"].decode()
                    if "shared" in found:
                        break
        assert found == {"own": channels.context_replies("c", "theirs"), "shared": channels.context_replies("c")}
        assert responder.refused == 1


# --- what a question may say --------------------------------------------------------------------------------------


async def test_a_question_carries_what_it_was_given(url: str, raw: Any) -> None:
    async with Client(url) as client:
        given = {"max_tokens": 7, "after": "1:5-0", "explain": True}
        assert (await ask(client, budget_ms=3_000, **given)).reason == "timeout"
        assert (await ask(client, budget_ms=3_000)).reason == "timeout"
        for broken in ({"max_tokens": 0}, {"after": "here"}):
            assert (await ask(client, **broken)).reason == "invalid_request"
    sent = [
        ContextRequest.model_validate_json(fields[b"data"]) for _, fields in await raw.xrange(channels.CONTEXT_REQUESTS)
    ]
    assert [(request.max_tokens, request.after, request.explain) for request in sent] == [
        (7, "1:5-0", True),
        (None, None, False),
    ]


def test_the_synchronous_client_asks_the_same(url: str) -> None:
    with SyncClient(url, app_id=APP, workflow="Shop") as client:
        reply = client.context(agent="A", chat_id="c", max_tokens=0, after="1:5-0", explain=True)
        assert reply.reason == "invalid_request"
        assert "max_tokens" in reply.detail
        assert None not in client.emit_all([note(1), note(2)])
    assert client.emit_all([note(3), note(4)]) == [None, None]
    assert client.stats.rejected == 2


@pytest.mark.parametrize("switch", ["off", "OFF"])
async def test_context_switched_off_asks_nobody(
    url: str, raw: Any, monkeypatch: pytest.MonkeyPatch, switch: str
) -> None:
    monkeypatch.setenv("GRAPHWEFT_CONTEXT", switch)
    async with Client(url) as client:
        reply = await ask(client, budget_ms=3_600_000)
        assert (reply.reason, reply.partial, reply.text, reply.blocks) == ("disabled", True, "", ())
        assert await client.emit(note(1), wait_s=120), "events go on"
    assert await raw.exists(channels.CONTEXT_REQUESTS) == 0


@pytest.mark.parametrize("switch", ["", "on", "On"])
async def test_context_is_on_by_itself(url: str, monkeypatch: pytest.MonkeyPatch, switch: str) -> None:
    monkeypatch.setenv("GRAPHWEFT_CONTEXT", switch)
    async with Client(url) as client:
        assert (await ask(client, budget_ms=30)).reason == "timeout"


def test_a_switch_that_is_misspelt_is_no_switch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRAPHWEFT_CONTEXT", "of")
    with pytest.raises(InvalidSettings, match="invalid GRAPHWEFT_CONTEXT 'of': expected on or off"):
        Client("redis://127.0.0.1:1")
