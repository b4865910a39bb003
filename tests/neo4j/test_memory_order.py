"""What remains of memories does not depend on the order in which events of different chats come.

Random events of several chats, in interleavings that keep the order within each chat: every one of them must leave the
same graph, by one query per mutation, and by the engine in batches of its own choice. ``GRAPHWEFT_EXAMPLES`` is the
number of random examples; without it they are few, and the same in every run.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any, override

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs
from tests.chaos.memory_bus import memory_bus
from tests.chaos.serial import Content, FalkorDBReference, Neo4jReference, Query, Reference, query_of
from tests.services.neo4j import Neo4jServer
from tests.services.rules import rule_set

from graphweft import Event
from graphweft_contracts import wire
from graphweft_contracts.memory import memory_id
from graphweft_rules.matching.pack import LogTime
from graphweft_workers.drivers.embedded.server import EmbeddedServer
from graphweft_workers.drivers.falkordb.dialect import FALKORDB
from graphweft_workers.drivers.falkordb.store import FalkorDBStore
from graphweft_workers.drivers.neo4j.dialect import NEO4J
from graphweft_workers.engine.worker import MutationWorker
from graphweft_workers.ports.dead_letters import letter_count
from graphweft_workers.ports.dialect import GraphDialect
from graphweft_workers.ports.event_log import Entry
from graphweft_workers.ports.graph_store import PositionMove

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(3_600)]

_EXAMPLES = os.environ.get("GRAPHWEFT_EXAMPLES")
_T0 = datetime(2026, 1, 1, tzinfo=UTC)
_CHATS = 3
_EVENTS = 5
"""Of one chat, at most."""
_TIMES = 6
"""Few, so that what is erased lies between what is not, and times are equal."""

_checked = settings(
    deadline=None,
    print_blob=True,
    derandomize=_EXAMPLES is None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example],
)
_times = st.integers(0, _TIMES - 1)
_scopes = st.sampled_from(
    [{"user_id": "u1"}, {"user_id": "u1", "thread_id": "t"}, {"user_id": "u2"}, {"agent_id": "g"}]
)


def _at(seconds: int) -> str:
    return (_T0 + timedelta(seconds=seconds)).isoformat()


@st.composite
def _memory_ids(draw: st.DrawFn, chat: int, least: int) -> list[str]:
    """Ids of memories, most of them of the same chat."""
    of = st.tuples(st.sampled_from([chat, chat, chat, *range(_CHATS)]), st.integers(0, 2), st.integers(0, 1))
    places = draw(st.lists(of, min_size=least, max_size=3))
    return [memory_id("/test", f"c{c}-{n}", at) for c, n, at in places]


@st.composite
def _payload(draw: st.DrawFn, chat: int, type: str) -> dict[str, Any]:
    match type:
        case "memory.add":
            return {"messages": [{"role": "user", "text": "x"}] * draw(st.integers(1, 2)), **draw(_scopes)}
        case "memory.embedded":
            [memory] = draw(_memory_ids(chat, 1).filter(lambda ids: len(ids) == 1))
            return {"memory_id": memory, "model": "m", "embedding": [draw(st.integers(1, 2)), 1]}  # of the first text
        case "memory.update":
            [memory] = draw(_memory_ids(chat, 1).filter(lambda ids: len(ids) == 1))
            text = draw(st.sampled_from([{}, {"text": "y"}, {"text": "z", "time": _at(draw(_times))}]))
            return {"memory_id": memory, "pinned": draw(st.booleans()), **text}
        case "memory.forget":
            return {"memory_ids": draw(_memory_ids(chat, 1))}
        case "memory.erase":
            return {"user_id": draw(st.sampled_from(["u1", "u2"])), "before": draw(st.none() | _times.map(_at))}
        case _:
            fact = st.fixed_dictionaries(
                {
                    "subject": st.sampled_from(["Ann", "ann"]),
                    "predicate": st.just("lives in"),
                    "object": st.sampled_from(["Oslo", "Rome"]),
                    "valid_from": st.sampled_from([_at(0), _at(1)]),
                    "memory_ids": _memory_ids(chat, 0),
                }
            )
            preference = st.fixed_dictionaries(
                {"text": st.just("prefers tea"), "stated_at": _times.map(_at), "memory_ids": _memory_ids(chat, 0)}
            )
            return {
                "summary": draw(st.sampled_from(["one", "two"])),
                "memory_ids": draw(_memory_ids(chat, 1)),
                "model": "m",
                "facts": draw(st.lists(fact, max_size=2)),
                "preferences": draw(st.lists(preference, max_size=1)),
                **draw(_scopes),
            }


@st.composite
def chats(draw: st.DrawFn) -> list[list[Event]]:
    """Events of several chats. In each the first ones are added memories; some come again, with another content."""
    found: list[list[Event]] = []
    types = st.sampled_from(
        [
            "memory.add",
            "memory.summarized",
            "memory.summarized",
            "memory.erase",
            "memory.forget",
            "memory.embedded",
            "memory.update",
        ]
    )
    for chat in range(_CHATS):
        events: list[Event] = []
        for number in range(draw(st.integers(0, _EVENTS))):
            type = "memory.add" if number == 0 else draw(types)
            # What is not added has an id of its own, which may come twice.
            id = f"c{chat}-{number}" if type == "memory.add" else f"c{chat}-{type}-{draw(st.integers(0, 1))}"
            events.append(
                Event.create(
                    type, app_id="a", chat_id=f"c{chat}", id=id, source="/test",
                    time=_T0 + timedelta(seconds=draw(_times)), data=draw(_payload(chat, type)),
                )
            )  # fmt: skip
        found.append(events)
    return found


def merged(chats: Sequence[Sequence[Event]], turns: Sequence[int]) -> list[Event]:
    """Return the events in an order in which each of ``turns`` says whose turn it is; the rest chat by chat."""
    left = [list(chat) for chat in chats]
    order = [left[turn].pop(0) for turn in turns if left[turn]]
    return order + [event for chat in left for event in chat]


def story(events: Sequence[Event]) -> str:
    return "\n".join(f"{event.chatid} {event.type} {event.id} at {event.time:%S} {event.data}" for event in events)


def logged(event: Event) -> LogTime:
    """Each chat has a partition of its own. The time of the log goes back within it: brokers' clocks differ."""
    return LogTime(event.time, int(event.chatid[1:]))


class _Quick(FalkorDBStore):
    """Whether an example is on disk does not matter here."""

    @override
    async def durable(self, run: str, move: PositionMove | None = None) -> None:
        pass

    async def positions(self) -> None:
        return None


class Server:
    """A graph server; one event loop for all examples."""

    def __init__(self, runner: asyncio.Runner, reference: Reference, dialect: GraphDialect) -> None:
        self.runner = runner
        self.reference = reference
        self.dialect = dialect
        self.rules = rule_set()

    async def serial(self, events: Sequence[Event], logged: Callable[[Event], LogTime] = logged) -> Content:
        """Return what is left by one query per mutation. Nothing is dropped as a copy: copies may be far apart."""
        queries: list[Query] = [
            query_of(bound, self.dialect)
            for event in events
            for bound in self.rules.match_event(event, logged(event)).mutations
        ]
        content, refused = await self.reference.run(queries)
        assert not refused
        return content


class FalkorDB(Server):
    """With the engine."""

    def __init__(self, runner: asyncio.Runner, url: str) -> None:
        self.graphs = FalkorDBReference(url)
        super().__init__(runner, self.graphs, FALKORDB)
        self.store = _Quick(url)
        self.numbers = count()

    async def engine(self, events: Sequence[Event]) -> Content:
        """Return what the engine leaves in one batch."""
        app = f"e{next(self.numbers)}"
        entries = [
            Entry(offset=str(number), fields=wire.encode(event.model_copy(update={"appid": app})), received=event.time)
            for number, event in enumerate(events, 1)
        ]
        bus = memory_bus([entries], lambda: worker.stop())  # noqa: PLW0108 - it is made below
        worker = MutationWorker(bus, self.store, self.rules, name="w")
        try:
            with capture_logs():
                async with asyncio.timeout(120):
                    await worker.run()
            assert not await letter_count(bus.dead_letters)
            return await Content.of(self.store, app)
        finally:
            await self.graphs.drop([f"mozaiks_{app}"])


@pytest.fixture(scope="module")
def falkordb() -> Iterator[FalkorDB]:
    with tempfile.TemporaryDirectory(prefix="graphweft-order-") as folder, asyncio.Runner() as runner:
        embedded = EmbeddedServer(Path(folder), fsync="everysec")
        runner.run(embedded.start())

        async def connect() -> FalkorDB:
            return FalkorDB(runner, f"unix://{embedded.socket}")

        server = runner.run(connect())
        yield server
        runner.run(server.store.aclose())
        runner.run(server.reference.aclose())
        runner.run(embedded.stop())


@pytest.fixture(scope="module", params=["falkordb", "neo4j"])
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    if request.param == "falkordb":
        yield request.getfixturevalue("falkordb")
        return
    running: Neo4jServer = request.getfixturevalue("neo4j_server")
    with asyncio.Runner() as runner:

        async def connect() -> Neo4jReference:
            return Neo4jReference(running.uri)

        reference = runner.run(connect())
        runner.run(reference.clear())
        yield Server(runner, reference, NEO4J)
        runner.run(reference.aclose())


def merges(chats: Sequence[Sequence[Event]]) -> Iterator[list[Event]]:
    """Give every order of the events that keeps the order within each chat."""
    if not any(chats):
        yield []
    for number, chat in enumerate(chats):
        if chat:
            rest = [*chats[:number], chat[1:], *chats[number + 1 :]]
            yield from ([chat[0], *order] for order in merges(rest))


def _event(type: str, chat: int, id: str, at: int, data: dict[str, Any]) -> Event:
    time = _T0 + timedelta(seconds=at)
    return Event.create(type, app_id="a", chat_id=f"c{chat}", id=id, source="/test", time=time, data=data)


def _add(chat: int, id: str, at: int = 0, user: str = "u1") -> Event:
    return _event("memory.add", chat, id, at, {"messages": [{"role": "user", "text": "x"}], "user_id": user})


def _sum(chat: int, id: str, *of: str, user: str = "u1", **more: Any) -> Event:
    ids = [memory_id("/test", added, 0) for added in of]
    data = {"summary": id, "memory_ids": ids, "model": "m", "user_id": user, **more}
    return _event("memory.summarized", chat, id, 9, data)


def _fact(subject: str = "Ann", *of: str) -> dict[str, Any]:
    ids = [memory_id("/test", added, 0) for added in of]
    return {"subject": subject, "predicate": "lives in", "object": "Oslo", "valid_from": _at(0), "memory_ids": ids}


def _tea(*of: str) -> dict[str, Any]:
    return {"text": "prefers tea", "stated_at": _at(0), "memory_ids": [memory_id("/test", added, 0) for added in of]}


_A = memory_id("/test", "a", 0)
_ERASED = _event("memory.erase", 7, "erase", 3, {"user_id": "u1"})
_CASES: dict[str, list[list[Event]]] = {
    "a summary of one user's holds a memory of another": [[_add(0, "a"), _sum(0, "s", "a", user="u2")], [_ERASED]],
    "a second summary names a memory of one that is erased": [
        [_add(0, "a"), _add(0, "b", 5), _sum(0, "s", "a", "b"), _sum(0, "t", "b")], [_ERASED],
    ],
    "a fact is spelt otherwise": [
        [_add(0, "a"), _sum(0, "s", "a", facts=[_fact("Ann")])],
        [_add(1, "b"), _sum(1, "t", "b", facts=[_fact("ann")])],
    ],
    "a summary that is refused has a fact of another one": [
        [_add(0, "a"), _sum(0, "s", "a", facts=[_fact()])],
        [_add(1, "b"), _sum(1, "t", "b"), _sum(1, "u", "b", facts=[_fact("Ann", "b")])],
    ],
    "a fact was taken from a memory of another chat": [
        [_add(0, "a"), _sum(0, "s", "a", facts=[_fact("Ann", "b")])], [_add(1, "b")],
    ],
    "a preference was taken from what outlives its summary": [
        [_add(0, "a"), _add(0, "b", 5), _sum(0, "s", "a", "b", preferences=[_tea("b")])],
        [_add(1, "c", 5), _sum(1, "t", "c", preferences=[_tea()])],
        [_ERASED],
    ],
    "a vector comes in another chat": [
        [_add(0, "a")],
        [_event("memory.embedded", 1, "v", 9, {"memory_id": _A, "model": "m", "embedding": [1]})],
    ],
    "a memory is forgotten from another chat": [
        [_add(0, "a")], [_event("memory.forget", 1, "f", 9, {"memory_ids": [_A]})],
    ],
    "a summary lost a memory before the user was erased": [
        [_add(0, "a"), _add(0, "b", 5), _sum(0, "s", "a", "b"),
         _event("memory.forget", 0, "f", 9, {"memory_ids": [_A]})], [_ERASED],
    ],
}  # fmt: skip


@pytest.mark.long("a preference was taken")
@pytest.mark.soak("neo4j")
@pytest.mark.parametrize("case", _CASES)
def test_every_order_of_chats_leaves_the_same(server: Server, case: str) -> None:
    async def run() -> None:
        first, *others = merges(_CASES[case])
        expected = await server.serial(first)
        for order in others:
            found = await server.serial(order)
            assert found.digest == expected.digest, (
                f"{found.against(expected)}\n# this\n{story(order)}\n# and this\n{story(first)}"
            )

    server.runner.run(run())


def test_an_event_that_comes_again_adds_nothing_to_its_first_content(server: Server) -> None:
    """A model was asked twice, and the engine did not see that it is a copy."""
    again = _sum(0, "s", "a", facts=[_fact()], preferences=[_tea()])

    async def run() -> None:
        once = await server.serial([_add(0, "a"), _sum(0, "s", "a")])
        twice = await server.serial([_add(0, "a"), _sum(0, "s", "a"), again])
        assert twice.digest == once.digest, twice.against(once)

    server.runner.run(run())


_turns = st.lists(st.integers(0, _CHATS - 1), max_size=_CHATS * _EVENTS)


@settings(_checked, max_examples=int(_EXAMPLES or 10))
@given(chats=chats(), orders=st.lists(_turns, min_size=1, max_size=3))
def test_the_order_of_chats_leaves_no_trace(
    falkordb: FalkorDB, chats: list[list[Event]], orders: list[list[int]]
) -> None:
    async def run() -> None:
        first = merged(chats, [])
        expected = await falkordb.serial(first)
        for turns in orders:
            events = merged(chats, turns)
            found = await falkordb.serial(events)
            assert found.digest == expected.digest, (
                f"{found.against(expected)}\n# chat by chat\n{story(first)}\n# in turns\n{story(events)}"
            )

    falkordb.runner.run(run())


@pytest.mark.long
@settings(_checked, max_examples=max(1, int(_EXAMPLES or 50) // 5))
@given(chats=chats(), turns=_turns)
def test_batches_leave_what_single_queries_leave(
    falkordb: FalkorDB, chats: list[list[Event]], turns: list[int]
) -> None:
    if not any(chats):
        return  # a log without an event has no end that is reached

    async def run() -> None:
        # The engine drops copies; what copies that are far apart do is the other test's.
        events = list({event.identity: event for event in reversed(merged(chats, turns))}.values())[::-1]
        expected = await falkordb.serial(events, lambda event: LogTime(event.time, 0))
        found = await falkordb.engine(events)
        assert found.digest == expected.digest, f"{found.against(expected)}\n{story(events)}"

    falkordb.runner.run(run())
