"""A search finds the same by an index of its scope as by the server: ids, order and scores."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.neo4j.test_search_kinds import some, write
from tests.neo4j.test_search_scopes import mixed
from tests.services.memories import DIMENSIONS, WORDS, Model, batches, fill, fill_neo4j
from tests.services.neo4j import Neo4jServer
from tests.services.waiting import turns

from graphweft_contracts import Event, channels
from graphweft_contracts.clock import SYSTEM_CLOCK, PastClock
from graphweft_contracts.memory import memory_id
from graphweft_contracts.search import IndexType, SearchQuery
from graphweft_workers.drivers.falkordb.store import FalkorDBStore
from graphweft_workers.drivers.neo4j.store import Neo4jStore
from graphweft_workers.embedding.hashing import HashingEmbedder
from graphweft_workers.features.memory.mutations import MemoryMutations
from graphweft_workers.injection.background import Background
from graphweft_workers.injection.breaker import Breaker
from graphweft_workers.injection.cache import Cache
from graphweft_workers.injection.index_versions import IndexVersions
from graphweft_workers.injection.versions import GraphVersions
from graphweft_workers.ports.graph_store import Checkpoint, GraphStore, Table, Write
from graphweft_workers.retrieval import fulltext, scope_indexes
from graphweft_workers.retrieval.scope_index import ScopeIndex
from graphweft_workers.retrieval.scope_indexes import ScopeIndexes
from graphweft_workers.retrieval.scope_marks import Marks, TargetMarks
from graphweft_workers.retrieval.search import Searcher
from graphweft_workers.support.timing import RetrievalTiming

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

MB = 1024**2
T0 = datetime(2026, 2, 1, 10, tzinfo=UTC)


class ConditionValues:
    """A version that the test changes."""

    def __init__(self) -> None:
        self.version: object = object()
        self.settled = True

    async def current(self, app_id: str, timeout_s: float) -> object | None:
        return self.version

    def may_keep(self, app_id: str, version: object, at: float) -> bool:
        return self.settled


class Writer:
    """Applies memory events as an engine does, so that versions change."""

    def __init__(self, store: GraphStore) -> None:
        self._store, self._pack, self._embedder = store, MemoryMutations(), HashingEmbedder(DIMENSIONS)
        self._at: dict[str, Checkpoint] = {}
        self._locks: dict[str, asyncio.Lock] = {}
        self._number = 0
        self.late = timedelta(0)
        """By how much the time of the next events differs."""
        self.said: dict[str, str] = {}
        """Text -> the id of its memory."""
        self.there: dict[tuple[str, str], list[str]] = {}
        """By app and user: the memories that have been written, and not yet begun to be forgotten."""
        self.gone: set[str] = set()
        """Those that are being forgotten, or are."""
        self.forgotten: set[str] = set()

    async def begin(self, app: str) -> None:
        await self._store.prepare(app, self._pack.keys, self._pack.indexes)
        self._at[app] = (await self._store.progress(app, 0)).checkpoint
        self._locks[app] = asyncio.Lock()

    async def say(self, app: str, user: str, text: str, **more: Any) -> None:
        """Add a memory without a vector."""
        id = f"e{(number := self._next())}"
        self.said[text] = memory_id("/test", id, 0)
        messages = {"messages": [{"role": "user", "text": text, **more}]}
        await self._write(app, number, "memory.add", id, messages | {"user_id": user})

    async def end(self, app: str, text: str, at: datetime) -> None:
        """Give a memory another end."""
        data = {"memory_id": self.said[text], "expires_at": at.isoformat()}
        await self._write(app, number := self._next(), "memory.update", f"u{number}", data)

    async def embed(self, app: str, text: str) -> None:
        number = self._next()
        [vector] = await self._embedder.embed([text])
        embedded = {"memory_id": self.said[text], "model": self._embedder.model, "embedding": vector}
        await self._write(app, number, "memory.embedded", f"v{number}", embedded)

    async def add(self, app: str, user: str, text: str, home: str) -> None:
        id = f"e{(number := self._next())}"
        memory, scope = memory_id("/test", id, 0), {"user_id": user}
        [vector] = await self._embedder.embed([text])
        fact = {"subject": user, "predicate": "lives in", "object": home, "text": f"home {home}"}
        summary = {"summary": "s", "model": "x", "memory_ids": [memory], "facts": [fact]}
        await self._write(app, number, "memory.add", id, {"messages": [{"role": "user", "text": text}]} | scope)
        embedded = {"memory_id": memory, "model": self._embedder.model, "embedding": vector}
        await self._write(app, number, "memory.embedded", f"v{number}", embedded)
        await self._write(app, number, "memory.summarized", f"s{number}", summary | scope)
        self.there.setdefault((app, user), []).append(memory)

    async def forget(self, app: str, user: str) -> None:
        memory = self.there[app, user].pop(0)
        self.gone.add(memory)
        await self._write(app, self._next(), "memory.forget", f"f{memory}", {"memory_ids": [memory]})
        self.forgotten.add(memory)

    async def erase(self, app: str, user: str) -> None:
        self.gone.update(self.there.pop((app, user)))
        await self._write(app, self._next(), "memory.erase", f"x{user}", {"user_id": user})

    def _next(self) -> int:
        self._number += 1
        return self._number

    async def _write(self, app: str, number: int, type: str, id: str, data: dict[str, Any]) -> None:
        time = T0 - timedelta(days=30) + timedelta(minutes=number) + self.late
        event = Event.create(type, app_id=app, chat_id="c", data=data, id=id, source="/test", time=time)
        for mutation, params in self._pack.match(event):
            async with self._locks[app]:
                before = self._at[app]
                after = Checkpoint(offset=f"{int(before.offset.partition('-')[0] or 0) + 1}-0")
                write = Write(query=mutation.cypher, rows=[params], before=before, after=after)
                applied = await self._store.apply(app, 0, [write])
                assert (applied.count, applied.failure) == (1, None)
                self._at[app] = after


class Counted(HashingEmbedder):
    """Counts what it is asked for."""

    count = 0

    async def embed(self, texts: Sequence[str]) -> list[list[float]]:
        self.count += len(texts)
        return await super().embed(texts)


class Both:
    """Asks with and without indexes."""

    def __init__(self, store: GraphStore, *, limit: int = 100 * MB, versions: IndexVersions | None = None) -> None:
        self.versions, self.clock = ConditionValues(), PastClock(T0, SYSTEM_CLOCK)
        self.embedder = Counted(DIMENSIONS)
        timing = RetrievalTiming(pause=0.0, least_pause_s=0.0)
        self.indexes = ScopeIndexes(store, versions or self.versions, limit, self.embedder.model, timing=timing)
        self.ours = Searcher(store, self.embedder, scopes=self.indexes, clock=self.clock)
        self.server = Searcher(store, self.embedder, clock=self.clock)
        self.rows = 0

    @property
    def embedded(self) -> int:
        """How many texts were embedded."""
        return self.embedder.count

    async def ask(self, app: str, **asked: Any) -> Table:
        """Return the rows, and make sure that they are the same before and after the index is built."""
        query = SearchQuery(**asked)
        expected = await self.server.search(app, query, timeout_s=120)
        for _ in range(3):
            assert await self.ours.search(app, query, timeout_s=120) == expected, (app, asked)
            await self.indexes.built()
        self.rows += len(expected.table.rows)
        return expected.table


@pytest.fixture
async def falkordb(url: str) -> AsyncIterator[GraphStore]:
    store = FalkorDBStore(url, write_timeout_ms=10_000)
    yield store
    await store.aclose()


@pytest.fixture(autouse=True)
def few_candidates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fulltext, "MOST_TERMED", 25)
    monkeypatch.setattr(scope_indexes, "_PAGE", 40)


async def alike(both: Both, models: dict[str, Model], seed: int, count: int) -> None:
    rnd = random.Random(seed)
    for _ in range(count):
        app = rnd.choice(sorted(models))
        text = rnd.choice(["dog", "the of", " ".join(rnd.choices(WORDS, k=rnd.randint(1, 5)))])
        scope = {"user_id": "hog"} if rnd.random() < 0.2 else models[app].some_scope(rnd)
        kind = rnd.choice(["vector", "fulltext", "hybrid"])
        of = "all" if kind == "fulltext" else rnd.choice(["all", "memories"])
        await both.ask(app, text=text, memory=scope, index_type=kind, of=of, top_k=rnd.choice([1, 5, 20]))
    assert both.rows > count
    assert both.indexes.hits > count
    assert not both.indexes.failed


async def test_memories_are_found_alike_by_an_index_and_by_the_server(url: str, falkordb: GraphStore) -> None:
    models: dict[str, Model] = {}
    for seed, app in enumerate(("shop", "shop2")):
        made = await mixed(app, seed)
        await fill(falkordb, url, app, made)
        models[app] = Model(made)
    both = Both(falkordb)
    await alike(both, models, 1, 120)


@pytest.mark.long
async def test_memories_are_found_alike_on_neo4j(neo4j_server: Neo4jServer) -> None:
    neo4j_server.empty()
    store = Neo4jStore(neo4j_server.uri, write_timeout_ms=10_000)
    made = await mixed("shop", 1, count=20)
    await fill_neo4j(store, "shop", made)
    await alike(Both(store), {"shop": Model(made)}, 2, 25)
    await store.aclose()


async def test_the_nearest_of_many_are_found_alike(url: str, falkordb: GraphStore) -> None:
    """More vectors than a search takes, most of them different, so that the index leaves some out."""
    rnd = random.Random(3)
    words = [f"word{number}" for number in range(300)]
    texts = [" ".join(rnd.choices(words, k=rnd.randint(3, 12))) for _ in range(600)]
    made = await batches([({"user_id": "u"}, texts[n : n + 100]) for n in range(0, 600, 100)], seed=3)
    await fill(falkordb, url, "shop", made)
    both = Both(falkordb)
    for number in range(25):
        kind = ("vector", "hybrid")[number % 2]
        text = " ".join(rnd.choices(words, k=6))
        await both.ask("shop", text=text, memory={"user_id": "u"}, index_type=kind, of="memories", top_k=10)
    [kept] = both.indexes._kept.values()
    [vector] = await both.embedder.embed([" ".join(words[:40])])
    assert 100 <= len(kept.index.near(vector, 100) or ()) < 150


async def test_facts_preferences_and_summaries_are_found_alike_at_any_time(url: str, falkordb: GraphStore) -> None:
    held: dict[str, Sequence[Any]] = {}
    for seed, app in enumerate(("shop", "shop2")):
        events, held[app] = some(app, seed)
        await write(falkordb, app, events)
    both, rnd = Both(falkordb), random.Random(5)
    for _ in range(60):
        app = rnd.choice(sorted(held))
        scope = dict(rnd.choice(rnd.choice(held[app]).scopes))
        scope = {name: scope[name] for name in rnd.sample(sorted(scope), rnd.randint(1, len(scope)))}
        both.clock.time = T0 + timedelta(minutes=rnd.randrange(-5, 40))  # facts begin and end meanwhile
        of = rnd.choice(["all", "all", "facts", "preferences", "summaries", "entities"])
        text = " ".join(rnd.choices(["tea", "coffee", "river", "dog", "A3", app], k=2))
        await both.ask(app, text=text, memory=scope, of=of, index_type="fulltext", top_k=rnd.choice([1, 3, 50]))
    assert both.rows > 60
    assert both.indexes.hits > 60


async def test_a_fact_that_ends_is_not_found_by_an_index_from_before(url: str, falkordb: GraphStore) -> None:
    def said(number: int, object: str, day: int) -> list[Event]:
        time = T0 + timedelta(days=day)
        scope = {"user_id": "u"}
        data: dict[str, Any] = {
            "summary": "s", "model": "x", "memory_ids": [memory_id("/test", f"add{number}", 0)],
            "facts": [{"subject": "u", "predicate": "lives in", "object": object, "text": f"home {object}"}],
        }  # fmt: skip
        return [
            Event.create(type, app_id="shop", chat_id="c", data=more | scope, id=id, source="/test", time=time)
            for type, id, more in (
                ("memory.add", f"add{number}", {"messages": [{"role": "user", "text": object}]}),
                ("memory.summarized", f"sum{number}", data),
            )
        ]

    await write(falkordb, "shop", [*said(1, "Rome", 0), *said(2, "Oslo", 2)])
    both = Both(falkordb)
    asked = {"text": "home", "memory": {"user_id": "u"}, "of": "facts", "index_type": "fulltext"}
    for day, home in ((1, "home Rome"), (3, "home Oslo"), (1, "home Rome")):
        both.clock.time = T0 + timedelta(days=day)
        assert [row[0] for row in (await both.ask("shop", **asked)).rows] == [home]
    assert both.indexes.builds == 2  # of both targets of facts, once


@pytest.mark.parametrize("kind", ["vector", "hybrid", "fulltext"])
async def test_a_memory_that_ends_is_found_alike_while_time_passes(
    url: str, falkordb: GraphStore, kind: IndexType
) -> None:
    """A third of many memories ends, one each day; some get their end, or another one, by an update."""
    writer = Writer(falkordb)
    await writer.begin("shop")
    texts = [f"dog number{n} {WORDS[n % len(WORDS)]}" for n in range(120)]
    ends = {text: T0 + timedelta(days=n) for n, text in enumerate(texts[::3])}
    for text in texts:
        await writer.say("shop", "u", text, expires_at=ends[text].isoformat() if text in ends else None)
        await writer.embed("shop", text)
    both = Both(falkordb)
    asked: dict[str, Any] = {"memory": {"user_id": "u"}, "index_type": kind, "of": "memories", "top_k": 100}
    for day in (-1, 0, 3, 20, 50):
        both.clock.time = T0 + timedelta(days=day)
        table = await both.ask("shop", text="dog number33", **asked)
        there = {row[0] for row in table.rows}
        over = {text for text, end in ends.items() if end <= both.clock.time}
        assert not there & over
        assert len(there) == min(100, len(texts) - len(over)) or kind == "fulltext"  # has few candidates
    assert both.indexes.builds == 1, "it tells what has ended by the time of the question"
    await writer.end("shop", texts[1], T0 + timedelta(days=60))
    await writer.say("shop", "u", "dog of today", expires_at=(T0 + timedelta(days=70)).isoformat())
    await writer.embed("shop", "dog of today")
    for day, wanted in ((55, {texts[1], "dog of today"}), (65, {"dog of today"}), (75, set[str]())):
        both.clock.time = T0 + timedelta(days=day)
        there = {row[0] for row in (await both.ask("shop", text="dog number1 today", **asked)).rows}
        assert there & {texts[1], "dog of today"} == wanted


async def test_no_index_is_used_for_another_version_of_the_graph(url: str, falkordb: GraphStore) -> None:
    made = await batches([({"user_id": "u"}, ["a dog", "a cat"]), ({"user_id": "u"}, ["another dog"])])
    await fill(falkordb, url, "shop", made[:1])
    both = Both(falkordb)
    asked = {"text": "dog", "memory": {"user_id": "u"}, "of": "memories", "index_type": "hybrid"}
    assert [row[0] for row in (await both.ask("shop", **asked)).rows] == ["a dog", "a cat"]
    await fill(falkordb, url, "shop", made[1:])
    both.versions.version = object()
    assert {row[0] for row in (await both.ask("shop", **asked)).rows} == {"a dog", "a cat", "another dog"}
    hits = both.indexes.hits
    assert len((await both.ask("shop", **asked)).rows) == 3
    assert both.indexes.hits > hits


async def test_a_purge_during_a_search_makes_its_index_wrong(
    url: str, falkordb: GraphStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(falkordb, url, "shop", await batches([({"user_id": "u"}, ["a dog", "a cat"])]))
    both = Both(falkordb)
    asked = {"text": "dog", "memory": {"user_id": "u"}, "of": "memories", "index_type": "hybrid"}
    expected = await both.ask("shop", **asked)
    hits, asked_for = both.indexes.hits, both.embedded

    read = ScopeIndexes._read_marks

    async def purged(indexes: ScopeIndexes, app_id: str, of: Iterable[TargetMarks], timeout_s: float) -> Marks:
        indexes.purge_app(app_id)
        return await read(indexes, app_id, of, timeout_s)

    monkeypatch.setattr(ScopeIndexes, "_read_marks", purged)
    found = await both.ours.search("shop", SearchQuery(**asked), timeout_s=120)
    assert found.table == expected
    assert both.indexes.hits == hits
    assert both.embedded == asked_for + 1  # the question's vector is not asked for again


async def test_an_index_is_right_beside_a_writer(url: str, falkordb: GraphStore) -> None:
    """Memories are added, forgotten and erased, and facts superseded, of this user, another and one of another app."""
    places = (("shop", "u"), ("shop", "v"), ("bank", "u"))
    writer, rnd = Writer(falkordb), random.Random(7)
    background = Background()
    versions = IndexVersions(GraphVersions(falkordb, Breaker(), background), Cache(0))
    for app in ("shop", "bank"):
        await writer.begin(app)
    both = Both(falkordb, versions=versions)

    async def searched(app: str, user: str) -> None:
        """Search while the writer writes: what was there before and after is found, and what was gone is not."""
        before, gone = frozenset(writer.there[app, user]), frozenset(writer.forgotten)
        query = SearchQuery(text="dog", memory={"user_id": user}, of="memories", index_type="hybrid", top_k=500)
        table = (await both.ours.search(app, query, timeout_s=120)).table
        found = {row[table.columns.index("id")] for row in table.rows}
        assert before - writer.gone <= found
        assert not found & gone

    for number in range(6):
        for app, user in places:
            await writer.add(app, user, f"dog {app} {user} {number}", ["Rome", "Oslo", "Bern"][number % 3])
        for app, user in places:
            for of in ("memories", "facts"):
                kind = "hybrid" if of == "memories" else "fulltext"
                await both.ask(app, text="dog home", memory={"user_id": user}, of=of, index_type=kind, top_k=50)
        hits = both.indexes.hits
        for app, user in places:
            await both.ask(app, text="dog", memory={"user_id": user}, of="memories", index_type="hybrid", top_k=50)
        assert both.indexes.hits == hits + 9  # three of each: the graph has not changed since the indexes were built
        app, user = rnd.choice(places)
        await asyncio.gather(
            writer.add(app, user, f"dog late {number}", "Oslo"),
            writer.forget(*rnd.choice(places)),
            *(searched(*place) for place in places * 4),
        )
    await writer.erase("shop", "u")
    for app, user in places:
        table = await both.ask(app, text="dog", memory={"user_id": user}, of="memories", index_type="hybrid", top_k=50)
        assert bool(table.rows) == ((app, user) != ("shop", "u"))
    await background.aclose()


async def test_a_build_during_which_the_graph_changes_is_not_kept(url: str, falkordb: GraphStore) -> None:
    await fill(falkordb, url, "shop", await batches([({"user_id": "u"}, ["a dog", "a cat"])]))
    both = Both(falkordb)
    asked = {"text": "dog", "memory": {"user_id": "u"}, "of": "memories", "index_type": "hybrid"}
    both.versions.settled = False
    await both.ask("shop", **asked)
    assert (both.indexes.hits, both.indexes.bytes) == (0, 0)
    assert both.indexes.outdated == both.indexes.builds > 0


async def test_a_purge_drops_the_indexes_of_its_app_and_the_one_under_way(url: str, falkordb: GraphStore) -> None:
    for app in ("shop", "bank"):
        await fill(falkordb, url, app, await batches([({"user_id": "u"}, ["a dog", "a cat"])]))
    both = Both(falkordb)
    asked = {"text": "dog", "memory": {"user_id": "u"}, "of": "memories", "index_type": "hybrid"}
    for app in ("shop", "bank"):
        await both.ask(app, **asked)
    assert both.indexes.counts()["index_entries"] == 2
    both.indexes.purge_app("shop")
    assert {key[0] for key in both.indexes._kept} == {"bank"}
    query = SearchQuery(**asked)
    await both.ours.search("shop", query, timeout_s=120)
    both.indexes.purge_app("shop")  # while it is built
    await both.indexes.built()
    assert {key[0] for key in both.indexes._kept} == {"bank"}
    both.indexes.purge()
    assert (both.indexes.bytes, both.indexes.counts()["index_entries"]) == (0, 0)


async def test_a_purge_of_a_neighbour_leaves_the_build_under_way(url: str, falkordb: GraphStore) -> None:
    await fill(falkordb, url, "shop", await batches([({"user_id": "u"}, ["a dog", "a cat"])]))
    both = Both(falkordb)
    query = SearchQuery(text="dog", memory={"user_id": "u"}, of="memories", index_type="hybrid")
    while not both.indexes.builds:
        await both.ours.search("shop", query, timeout_s=120)
        await turns()
    both.indexes.purge_app("bank")  # while it is built
    await both.indexes.built()
    assert {key[0] for key in both.indexes._kept} == {"shop"}
    assert both.indexes.outdated == 0


async def test_the_largest_app_makes_room_for_others(url: str, falkordb: GraphStore) -> None:
    texts = [f"dog number {number}" for number in range(50)]
    for app, users in (("loud", 6), ("quiet", 1)):
        made = await batches([({"user_id": f"u{number}"}, texts) for number in range(users)])
        await fill(falkordb, url, app, made)
    probe = Both(falkordb)
    await probe.ask("quiet", text="dog", memory={"user_id": "u0"}, of="memories", index_type="hybrid")
    both = Both(falkordb, limit=int(probe.indexes.bytes * 3.5))
    for app, user in (("quiet", "u0"), *(("loud", f"u{number}") for number in range(6))):
        await both.ask(app, text="dog", memory={"user_id": user}, of="memories", index_type="hybrid")
    assert [key[0] for key in both.indexes._kept] == ["quiet", "loud", "loud"]
    assert [key[2] for key in both.indexes._kept][1:] == [(("user_id", "u4"),), (("user_id", "u5"),)]
    assert 0 < both.indexes.bytes <= both.indexes.limit
    assert both.indexes.evicted == 4
    small = Both(falkordb, limit=probe.indexes.bytes - 1)
    await small.ask("quiet", text="dog", memory={"user_id": "u0"}, of="memories", index_type="hybrid")
    assert (small.indexes.bytes, small.indexes.failed > 0) == (0, True)


async def sizes_of(store: GraphStore, url: str, apps: dict[str, dict[str, int]]) -> dict[tuple[str, str], int]:
    """Write so many memories for each user of each app; return the bytes of each index."""
    for app, users in apps.items():
        made = [({"user_id": user}, [f"dog number {each}" for each in range(count)]) for user, count in users.items()]
        await fill(store, url, app, await batches(made))
    sizes: dict[tuple[str, str], int] = {}
    for app, user in ((app, user) for app, users in apps.items() for user in users):
        probe = Both(store)
        await probe.ask(app, text="dog", memory={"user_id": user}, of="memories", index_type="hybrid")
        sizes[app, user] = probe.indexes.bytes
    return sizes


async def test_an_app_within_its_share_keeps_its_index_and_none_is_built_in_vain(
    url: str, falkordb: GraphStore
) -> None:
    sizes = await sizes_of(falkordb, url, {"large": {"u": 70}, "small": {"u": 50}})
    both = Both(falkordb, limit=sum(sizes.values()) - 1)
    for app in ["large", "small"] * 4:
        await both.ask(app, text="dog", memory={"user_id": "u"}, of="memories", index_type="hybrid")
    assert [key[0] for key in both.indexes._kept] == ["small"]
    assert (both.indexes.builds, both.indexes.evicted) == (2, 1)


async def test_of_two_indexes_that_are_used_in_turn_one_stays(url: str, falkordb: GraphStore) -> None:
    sizes = await sizes_of(falkordb, url, {"shop": {"u1": 50, "u2": 50}})
    both = Both(falkordb, limit=sum(sizes.values()) - 1)

    async def search(user: str) -> None:
        query = SearchQuery(text="dog", memory={"user_id": user}, of="memories", index_type="hybrid")
        await both.ours.search("shop", query, timeout_s=120)
        await both.indexes.built()

    for user in ["u1", "u2"] * 6:
        await search(user)
    assert (both.indexes.builds, both.indexes.evicted) == (2, 0)
    assert [key[2] for key in both.indexes._kept] == [(("user_id", "u1"),)]
    for _ in range(2):  # u1 is not used any more
        await search("u2")
    assert [key[2] for key in both.indexes._kept] == [(("user_id", "u2"),)]


async def test_empty_scopes_take_room_too(url: str, falkordb: GraphStore) -> None:
    """Requests may name any scope, so the number of indexes must be bounded as well."""
    await fill(falkordb, url, "shop", await batches([({"user_id": "u"}, ["a dog"])]))
    both = Both(falkordb, limit=10_000)
    for number in range(12):
        await both.ask("shop", text="dog", memory={"user_id": f"nobody{number}"}, of="memories", index_type="fulltext")
    assert 0 < both.indexes.counts()["index_entries"] <= 5
    assert both.indexes.evicted > 0


LONG = [" ".join(f"{'w' * 50}{letter}" for letter in "abcde") for _ in range(20)]
"""Texts of few terms with many characters."""


async def few_characters(both: Both, monkeypatch: pytest.MonkeyPatch) -> tuple[int, int]:
    """Return how many indexes a search has with the usual limit of characters, and with one that is too small."""
    asked = {"text": "w" * 50 + "a", "memory": {"user_id": "u"}, "of": "memories", "index_type": "fulltext"}
    await both.ask("shop", **asked)
    usual = both.indexes.counts()["index_entries"]
    both.indexes.purge()
    monkeypatch.setattr(scope_indexes, "_MOST_CHARACTERS", 20 * 5 * 50, raising=False)
    assert (await both.ask("shop", **asked)).rows
    return usual, both.indexes.counts()["index_entries"]


async def test_a_scope_with_many_characters_has_no_index(
    url: str, falkordb: GraphStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(falkordb, url, "shop", await batches([({"user_id": "u"}, LONG)]))
    assert await few_characters(Both(falkordb), monkeypatch) == (1, 0)


@pytest.mark.soak
async def test_a_scope_with_many_characters_has_no_index_on_neo4j(
    neo4j_server: Neo4jServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    neo4j_server.empty()
    store = Neo4jStore(neo4j_server.uri, write_timeout_ms=10_000)
    await fill_neo4j(store, "shop", await batches([({"user_id": "u"}, LONG)]))
    assert await few_characters(Both(store), monkeypatch) == (1, 0)
    await store.aclose()


class Talk:
    """A search of a user with an index, while events are applied."""

    def __init__(self, store: GraphStore, written: frozenset[str] | None = frozenset()) -> None:
        self.writer, self.background = Writer(store), Background()
        versions = IndexVersions(GraphVersions(store, Breaker(), self.background), Cache(0))
        self.both = Both(store, versions=versions)
        self.both.indexes.written = lambda: written

    async def ask(self, text: str = "dog", **more: Any) -> list[str]:
        """Return the texts that are found by index and by server alike; the index was there before."""
        asked = SearchQuery(**{"text": text, "memory": {"user_id": "u"}, "index_type": "hybrid", "top_k": 50} | more)
        found = await self.both.ours.search("shop", asked, timeout_s=120)
        assert found == await self.both.server.search("shop", asked, timeout_s=120)
        return [row[0] for row in found.table.rows]

    async def begin(self) -> None:
        """Write memories of a user, and search until there are indexes."""
        await self.writer.begin("shop")
        for number in range(12):
            await self.writer.add("shop", "u", f"dog number {number}", "Oslo")
            await self.writer.add("shop", "v", f"dog of another {number}", "Rome")
        for _ in range(3):
            await self.ask()
            await self.both.indexes.built()

    def counts(self) -> tuple[int, int]:
        """Return the kinds of records that the server searched, and the builds."""
        return self.both.indexes.misses, self.both.indexes.builds


async def test_an_index_lasts_while_another_user_talks(falkordb: GraphStore) -> None:
    talk = Talk(falkordb)
    await talk.begin()
    before, hits = talk.counts(), talk.both.indexes.hits
    for number in range(5):
        await talk.writer.add("shop", "v", f"dog said now {number}", "Bern")
        assert len(await talk.ask()) == 12
        await talk.both.indexes.built()
    assert talk.counts() == before
    assert talk.both.indexes.hits == hits + 5 * 6
    await talk.background.aclose()


async def test_memories_of_the_user_are_added_to_the_index(falkordb: GraphStore) -> None:
    talk = Talk(falkordb)
    await talk.begin()
    before = talk.counts()
    for number in range(5):
        await talk.writer.say("shop", "u", f"late dog {number}")
        assert f"late dog {number}" in await talk.ask()
        await talk.writer.embed("shop", f"late dog {number}")
        found = await talk.ask("late dog", index_type="vector", of="memories")
        assert f"late dog {number}" in found
    assert talk.counts() == before
    assert talk.both.indexes.added == 5
    await talk.background.aclose()


async def test_an_index_is_dropped_if_adding_to_it_is_cut_short(
    falkordb: GraphStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    talk = Talk(falkordb)
    await talk.begin()
    assert talk.both.indexes.bytes > 0
    await talk.writer.say("shop", "u", "late dog")

    async def cut(index: ScopeIndex) -> None:
        assert not index.read(1)
        raise asyncio.CancelledError

    with monkeypatch.context() as patch:
        patch.setattr(scope_indexes, "_read_all", cut)
        query = SearchQuery(text="dog", memory={"user_id": "u"}, of="memories", index_type="hybrid")
        with pytest.raises(asyncio.CancelledError):
            await talk.both.ours.search("shop", query, timeout_s=60)
    assert talk.both.indexes.added == 0
    assert all(key[1] != ("Memory",) for key in talk.both.indexes._kept)
    assert "late dog" in await talk.ask()
    await talk.background.aclose()


async def test_a_memory_that_is_older_than_others_makes_the_index_wrong(falkordb: GraphStore) -> None:
    talk = Talk(falkordb)
    await talk.begin()
    talk.writer.late = timedelta(days=-400)
    await talk.writer.say("shop", "u", "dog of long ago")
    assert "dog of long ago" in await talk.ask()
    assert talk.both.indexes.added == 0
    await talk.background.aclose()


@pytest.mark.parametrize("written", [frozenset({"Memory"}), None], ids=["memories", "anything"])
async def test_marks_say_nothing_where_rules_may_write_memories(
    falkordb: GraphStore, written: frozenset[str] | None
) -> None:
    talk = Talk(falkordb, written)
    await talk.begin()
    misses, _ = talk.counts()
    await talk.writer.say("shop", "v", "dog")
    await talk.ask()
    assert talk.counts()[0] > misses
    await talk.background.aclose()


async def test_what_is_forgotten_or_ends_is_found_no_more(falkordb: GraphStore) -> None:
    talk = Talk(falkordb)
    await talk.begin()
    await talk.writer.add("shop", "u", "dog in a new home", "Bern")
    assert "home Bern" in await talk.ask("home")
    assert "home Oslo" not in await talk.ask("home", of="facts", index_type="fulltext")
    for _ in range(3):
        await talk.ask()
        await talk.both.indexes.built()
    await talk.writer.forget("shop", "u")
    assert "dog number 0" not in await talk.ask()
    await talk.writer.erase("shop", "u")
    assert await talk.ask() == []
    await talk.background.aclose()


async def test_an_index_is_built_while_its_user_and_others_talk(falkordb: GraphStore) -> None:
    talk = Talk(falkordb)
    await talk.begin()
    talk.both.indexes.purge()
    await talk.ask()
    while talk.both.indexes.bytes == 0:  # each build reads while somebody writes
        await talk.writer.say("shop", "v", "dog")
        await talk.writer.say("shop", "u", "dog")
        await talk.ask()
    assert talk.both.indexes.outdated == 0
    await talk.both.indexes.built()
    await talk.background.aclose()


class Queries:
    """The queries of searches by an index, by what they look for."""

    def __init__(self, talk: Talk, store: FalkorDBStore, monkeypatch: pytest.MonkeyPatch) -> None:
        self._talk, self._read, self._asked = talk, store.read, list[str]()
        monkeypatch.setattr(store, "read", self._noted)

    async def _noted(self, app_id: str, statement: str, params: Any, **more: Any) -> Table:
        self._asked.append(statement)
        return await self._read(app_id, statement, params, **more)

    async def of_search(self) -> list[str]:
        query = SearchQuery(text="dog", memory={"user_id": "u"}, of="memories", index_type="hybrid", top_k=10)
        assert len((await self._talk.both.ours.search("shop", query, timeout_s=120)).table.rows) == 10
        parts = {
            "__Scope": "marks",
            "__gw_hits": "rows",
            "Statement": "ended",
            "count(n)": "size",
            "__gw_after": "later",
            "__gw_keys": "nodes",
        }
        found = [next(name for part, name in parts.items() if part in each) for each in self._asked]
        self._asked.clear()
        return found


async def test_a_search_with_an_index_reads_marks_and_then_rows_beside_what_has_ended(
    falkordb: FalkorDBStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    talk = Talk(falkordb)
    await talk.begin()
    queries = Queries(talk, falkordb, monkeypatch)
    await talk.writer.say("shop", "v", "dog said by another")
    marks, *others = await queries.of_search()
    assert (marks, sorted(others)) == ("marks", ["ended", "rows"])
    await talk.background.aclose()


async def test_a_scope_without_marks_is_compared_with_its_index_once_for_each_version(
    falkordb: FalkorDBStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker of an earlier version wrote its memories."""
    talk = Talk(falkordb)
    await talk.begin()
    await falkordb._redis.execute_command("GRAPH.QUERY", channels.graph_name("shop"), "MATCH (c:__Scope) DELETE c")
    talk.both.indexes.purge()
    for _ in range(3):
        await talk.ask()
        await talk.both.indexes.built()
    queries = Queries(talk, falkordb, monkeypatch)
    for _ in range(2):
        assert sorted(await queries.of_search()) == ["ended", "rows"]
    await talk.writer.say("shop", "v", "dog said by another")
    assert sorted(await queries.of_search()) == ["ended", "later", "marks", "rows", "size"]
    assert sorted(await queries.of_search()) == ["ended", "rows"]
    await talk.background.aclose()
