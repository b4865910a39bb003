"""An index stays right through changes of its scope, and what is added costs as much as it is.

``GRAPHWEFT_SEARCHES``, up to 600, is about the number of searches of the random changes, and ``GRAPHWEFT_SEED``
selects them.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from tests.neo4j.test_scope_indexes import T0, Both, Queries, Talk, Writer
from tests.services.memories import DIMENSIONS, WORDS
from tests.services.virtual_time import VirtualClock
from tests.services.waiting import turns

from graphweft_contracts import Event, channels
from graphweft_contracts.memory import memory_id
from graphweft_contracts.search import SearchQuery
from graphweft_rules.cypher.read_write_sets import summary_of
from graphweft_rules.matching.mutation import CompiledMutation
from graphweft_workers.drivers.falkordb.literals import literal
from graphweft_workers.drivers.falkordb.store import FalkorDBStore
from graphweft_workers.embedding.hashing import HashingEmbedder
from graphweft_workers.features.memory.mutations import MemoryMutations
from graphweft_workers.injection.background import Background
from graphweft_workers.injection.breaker import Breaker
from graphweft_workers.injection.cache import Cache
from graphweft_workers.injection.index_versions import IndexVersions
from graphweft_workers.injection.versions import GraphVersions
from graphweft_workers.ports.graph_store import Checkpoint, GraphStore, Table, Write
from graphweft_workers.text.terms import scope_term

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

SEARCHES = min(600, int(os.environ.get("GRAPHWEFT_SEARCHES", "150")))
SEED = int(os.environ.get("GRAPHWEFT_SEED", "4"))
APP = "shop"
SCOPES = ({"user_id": "u"}, {"user_id": "u", "thread_id": "t1"}, {"thread_id": "t1"}, {"user_id": "u", "agent_id": "a"})


@pytest.fixture
async def falkordb(url: str) -> AsyncIterator[FalkorDBStore]:
    async with contextlib.aclosing(FalkorDBStore(url, write_timeout_ms=10_000)) as store:
        yield store


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """A message that was added."""

    event: Event
    id: str
    user: str | None
    text: str


class Changes:
    """Changes a graph at random as a worker does: the rows that events have of one mutation share a query."""

    def __init__(self, store: GraphStore, rnd: random.Random) -> None:
        self._store, self._rnd = store, rnd
        self._pack, self._embedder = MemoryMutations(), HashingEmbedder(DIMENSIONS)
        self._shared = summary_of(each.cypher for each in self._pack.mutations).shared
        self._at = Checkpoint(offset="0-0")
        self._number = 0
        self.said: list[Said] = []
        self.without_vector: list[Said] = []

    async def begin(self) -> None:
        await self._store.prepare(APP, self._pack.keys, self._pack.indexes)
        self._at = (await self._store.progress(APP, 0)).checkpoint

    async def change(self) -> str:
        """Make one change, and return what it is."""
        rnd = self._rnd
        changes = {
            self.say: 12, self.embed: 6, self.say_again: 1, self.say_late: 0.5, self.forget: 0.5, self.update: 0.5,
            self.label: 2, self.erase: 0.3,
        }  # fmt: skip
        [change] = rnd.choices(list(changes), list(changes.values()))
        await change()
        return change.__name__

    async def say(self, late: timedelta = timedelta(0)) -> None:
        rnd, events = self._rnd, list[Event]()
        count = rnd.choice([1, 1, 1, 2, 4, 25])  # a mark names about 20
        for _ in range(count):
            scope = {"user_id": rnd.choice(["u", "u", "v", None]), "thread_id": rnd.choice(["t1", "t2", None])}
            scope |= {"agent_id": rnd.choice(["a", None])}
            given = {name: value for name, value in scope.items() if value} or {"user_id": "u"}
            texts = [self._text() for _ in range(rnd.choice([1, 1, 2, 25 if count == 1 else 1]))]
            event = self._event("memory.add", given | {"messages": [{"role": "user", "text": text} for text in texts]})
            if rnd.random() < 0.1:  # before or after the next searches
                end = event.time + timedelta(minutes=rnd.choice([1, 60]))
                messages = [{**each, "expires_at": end.isoformat()} for each in event.data["messages"]]
                event = event.model_copy(update={"data": {**event.data, "messages": messages}})
            events.append(event.model_copy(update={"time": event.time + late}))
            found = [
                Said(event=event, id=memory_id("/test", event.id, place), user=given.get("user_id"), text=text)
                for place, text in enumerate(texts)
            ]
            self.said += found
            self.without_vector += found
        await self.write(*events)

    async def say_late(self) -> None:
        await self.say(timedelta(days=-30))

    async def say_again(self) -> None:
        """Apply an event again, which a log drops mostly; with another text of the same length, or the same."""
        if self.said:
            event = self._rnd.choice(self.said).event
            if self._rnd.random() < 0.5:
                messages = [{**each, "text": f"{each['text']}s"} for each in event.data["messages"]]
                event = event.model_copy(update={"data": {**event.data, "messages": messages}})
            await self.write(event)

    async def embed(self) -> None:
        some = self._rnd.sample(self.without_vector, min(len(self.without_vector), self._rnd.choice([1, 5, 40])))
        self.without_vector = [each for each in self.without_vector if each not in some]
        vectors = await self._embedder.embed([each.text for each in some])
        await self.write(*(
            self._event("memory.embedded", {"memory_id": each.id, "model": self._embedder.model, "embedding": vector})
            for each, vector in zip(some, vectors, strict=True)
        ))  # fmt: skip

    async def forget(self) -> None:
        if self.said:
            await self.write(self._event("memory.forget", {"memory_ids": [self._rnd.choice(self.said).id]}))

    async def update(self) -> None:
        if self.said:
            await self.write(
                self._event("memory.update", {"memory_id": self._rnd.choice(self.said).id, "text": self._text()})
            )

    async def label(self) -> None:
        if self.said:
            which = {"memory_id": self._rnd.choice(self.said).id}
            await self.write(self._event("memory.update", which | {"pinned": True, "tags": ["x"]}))

    async def erase(self) -> None:
        await self.write(self._event("memory.erase", {"user_id": self._rnd.choice(["u", "v"])}))

    async def write(self, *events: Event) -> None:
        rows: dict[str, tuple[CompiledMutation, list[dict[str, Any]]]] = {}
        for event in events:
            for mutation, params in self._pack.match(event):
                rows.setdefault(mutation.id, (mutation, []))[1].append(params)
        for mutation, some in rows.values():
            form = mutation.cypher.batch_query(self._store.dialect, self._shared)
            for part in [some] if form.mode == "ordered" else [[row] for row in some]:
                after = Checkpoint(offset=f"{int(self._at.offset.partition('-')[0] or 0) + 1}-0")
                write = Write(query=mutation.cypher, batch_query=form, rows=part, before=self._at, after=after)
                applied = await self._store.apply(APP, 0, [write])
                assert (applied.count, applied.failure) == (1, None)
                self._at = after

    def _text(self) -> str:
        return " ".join(self._rnd.choices(WORDS, k=self._rnd.randint(1, 6)))

    @property
    def at(self) -> datetime:
        """The time of the last event."""
        return T0 - timedelta(days=30) + timedelta(minutes=self._number)

    def _event(self, type: str, data: dict[str, Any]) -> Event:
        self._number += 1
        id = f"e{self._number}"
        return Event.create(type, app_id=APP, chat_id="c", data=data, id=id, source="/test", time=self.at)


async def alike_through_changes(store: GraphStore, searches: int, seed: int) -> Both:
    """Change a graph at random, and compare searches by indexes with searches by the server, several at once."""
    rnd, background = random.Random(seed), Background()
    both = Both(store, versions=IndexVersions(GraphVersions(store, Breaker(), background), Cache(0)))
    changes = Changes(store, rnd)
    await changes.begin()
    done: list[str] = []

    async def same(scope: dict[str, str]) -> None:
        kind, text = rnd.choice(["hybrid", "fulltext", "vector"]), " ".join(rnd.choices(WORDS, k=2))
        asked = SearchQuery(
            text=text, memory=scope, index_type=kind, of="memories", top_k=rnd.choice([3, 200]),
            as_of=changes.at if rnd.random() < 0.5 else None,
        )  # fmt: skip
        found = await both.ours.search(APP, asked, timeout_s=120)
        assert found == await both.server.search(APP, asked, timeout_s=120), (seed, done[-20:], asked)

    try:
        scope = SCOPES[0]
        for _ in range(searches // 2):
            done.append(await changes.change())
            scope = rnd.choice(SCOPES) if rnd.random() < 0.1 else scope
            await asyncio.gather(*(same(scope) for _ in range(rnd.choice([1, 1, 3]))))
            if rnd.random() < 0.7:  # else the next change is made while indexes are built
                await both.indexes.built()
    finally:
        await both.indexes.aclose()
        await background.aclose()
    return both


@pytest.mark.timeout(900)
async def test_an_index_stays_right_through_random_changes(falkordb: FalkorDBStore) -> None:
    both = await alike_through_changes(falkordb, SEARCHES, SEED)
    assert both.indexes.hits > SEARCHES // 4
    assert both.indexes.added > SEARCHES // 4


async def test_what_a_user_says_is_read_by_its_key(falkordb: FalkorDBStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a count of the scope nor a look for what is later: both take as long as the scope is large."""
    talk = Talk(falkordb)
    await talk.begin()
    queries = Queries(talk, falkordb, monkeypatch)
    await talk.writer.say(APP, "u", "dog said now")
    assert sorted(await queries.of_search()) == ["ended", "marks", "nodes", "rows"]
    await talk.writer.say(APP, "u", "dog said then")
    await talk.writer.embed(APP, "dog said now")
    await talk.writer.say(APP, "u", "dog said last")
    assert sorted(await queries.of_search()) == ["ended", "marks", "nodes", "rows"]
    await talk.writer.embed(APP, "dog said last")
    assert sorted(await queries.of_search()) == ["ended", "marks", "nodes", "rows"]
    assert sorted(await queries.of_search()) == ["ended", "marks", "rows"]
    assert talk.both.indexes.added == 3
    assert {"dog said now", "dog said then", "dog said last"} <= set(await talk.ask("dog said"))
    await talk.background.aclose()


async def test_more_than_a_mark_names_is_counted(falkordb: FalkorDBStore, monkeypatch: pytest.MonkeyPatch) -> None:
    talk = Talk(falkordb)
    await talk.begin()
    queries = Queries(talk, falkordb, monkeypatch)
    for number in range(40):
        await talk.writer.say(APP, "u", f"dog said as number {number}")
    assert sorted(await queries.of_search()) == ["ended", "later", "marks", "nodes", "nodes", "rows", "size"]
    assert talk.both.indexes.added == 40
    assert len(set(await talk.ask("dog said as number"))) == 50
    await talk.background.aclose()


async def test_what_a_worker_of_an_earlier_version_marks_is_counted(
    falkordb: FalkorDBStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    talk = Talk(falkordb)
    await talk.begin()
    queries = Queries(talk, falkordb, monkeypatch)
    for text in ("dog said before", "dog said after"):
        await talk.writer.say(APP, "u", text)
        if text == "dog said before":  # as that worker leaves it
            id = literal(f"add {scope_term('user_id', 'u')}")
            plain = f"MATCH (c:__Scope {{id: {id}}}) SET c.at = 'earlier' RETURN c.at"
            reply = await falkordb._redis.execute_command("GRAPH.QUERY", channels.graph_name(APP), plain)
            assert reply[1] == [["earlier"]]
    assert sorted(await queries.of_search()) == ["ended", "later", "marks", "nodes", "rows", "size"]
    assert {"dog said before", "dog said after"} <= set(await talk.ask("dog said"))
    await talk.background.aclose()


async def test_a_memory_that_is_said_again_in_other_words_is_found_by_these(falkordb: FalkorDBStore) -> None:
    """As many words, so a count does not tell it."""
    talk = Talk(falkordb)
    await talk.begin()

    async def say(text: str) -> None:
        messages = {"user_id": "u", "messages": [{"role": "user", "text": text}]}
        await talk.writer._write(APP, 500, "memory.add", "again", messages)

    for text in ("dog asleep", "cat asleep", "cat asleep"):
        await say(text)
        assert text in await talk.ask(text)
    assert talk.both.indexes.added == 1
    await talk.background.aclose()


class Settling(FalkorDBStore):
    """Like a server of which readers may see a checkpoint before its effects."""

    settle_s = 1.0


class Steps(VirtualClock):
    """Whoever sleeps moves it."""

    async def sleep(self, seconds: float) -> None:
        self.advance(seconds)
        await turns()


async def test_an_index_waits_until_all_readers_see_what_was_added(url: str) -> None:
    async with contextlib.aclosing(Settling(url, write_timeout_ms=10_000)) as store:
        both, writer, clock = Both(store), Writer(store), Steps()
        both.indexes.clock = clock
        await writer.begin(APP)
        await writer.add(APP, "u", "first dog", "Oslo")

        async def hits() -> int:
            before = both.indexes.hits
            asked = SearchQuery(text="dog", memory={"user_id": "u"}, of="memories", index_type="hybrid", top_k=50)
            found = await both.ours.search(APP, asked, timeout_s=60)
            assert found == await both.server.search(APP, asked, timeout_s=60)
            await both.indexes.built()
            return both.indexes.hits - before

        while not await hits():
            clock.advance(1.0)
        await writer.say(APP, "u", "second dog")
        assert await hits() == 0
        clock.advance(0.9)
        await writer.say(APP, "u", "third dog")
        assert await hits() == 0
        clock.advance(0.2)
        assert await hits() == 0  # the second is in it, the third is not
        clock.advance(1.0)
        await writer.embed(APP, "third dog")
        assert await hits() == 1
        assert await hits() == 1
        assert (both.indexes.builds, both.indexes.added) == (1, 2)


class Late(Settling):
    """Of a vector, readers may see the mark first."""

    is_late = False

    async def read(self, app_id: str, statement: str, params: Mapping[str, Any], **how: Any) -> Table:
        table = await super().read(app_id, statement, params, **how)
        if self.is_late and table.columns[-1] == "__gw_vector":
            return replace(table, rows=tuple((*row[:-1], None) for row in table.rows))
        return table


async def test_a_vector_that_is_seen_after_its_mark_is_asked_for_again(url: str) -> None:
    async with contextlib.aclosing(Late(url, write_timeout_ms=10_000)) as store:
        both, writer, clock = Both(store), Writer(store), Steps()
        both.indexes.clock = clock
        asked = SearchQuery(text="dog", memory={"user_id": "u"}, of="memories", index_type="hybrid", top_k=50)

        async def found() -> tuple[Sequence[Sequence[Any]], int]:
            before = both.indexes.hits
            result = await both.ours.search(APP, asked, timeout_s=60)
            await both.indexes.built()
            return result.table.rows, both.indexes.hits - before

        await writer.begin(APP)
        await writer.add(APP, "u", "first dog", "Oslo")
        while not (await found())[1]:
            clock.advance(1.0)
        await writer.say(APP, "u", "a dog")
        for _ in range(2):
            await found()
            clock.advance(1.1)
        store.is_late = True
        await writer.embed(APP, "a dog")
        without, used = await found()
        expected = (await both.server.search(APP, asked, timeout_s=60)).table.rows
        assert used
        assert without != expected
        store.is_late = False
        clock.advance(1.1)
        assert await found() == (expected, 1)
