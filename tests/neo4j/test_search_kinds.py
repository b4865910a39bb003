"""Facts, preferences and summaries are searched within the scope in which they were said, alike on both servers."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.services.memories import NASTY
from tests.services.neo4j import Neo4jServer

from graphweft_contracts import Event
from graphweft_contracts.memory import SCOPES, memory_id
from graphweft_contracts.search import Searched, SearchQuery
from graphweft_workers.drivers.falkordb.store import FalkorDBStore
from graphweft_workers.drivers.neo4j.store import Neo4jStore
from graphweft_workers.embedding.hashing import HashingEmbedder
from graphweft_workers.features.episodes.mutations import EpisodeMutations
from graphweft_workers.features.memory.mutations import MemoryMutations
from graphweft_workers.ports.graph_store import GraphStore
from graphweft_workers.retrieval.search import Searcher
from graphweft_workers.testing.suites.search_kit import apply_all

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

T0 = datetime(2026, 2, 1, 10, tzinfo=UTC)
VALUES: Mapping[str, Sequence[str]] = {
    "application_id": ["app", "app-2", "*"],
    "agent_id": ["a", "a-b", "u1"],
    "user_id": [name for name in NASTY if name == name.strip()][:6],
    "thread_id": ["t", "t|", "u1"],
}
WORDS = ("tea", "coffee", "river", "dog", "the", "green")


@dataclass(frozen=True, slots=True)
class Said:
    """One thing that is remembered, and every scope in which it was said."""

    kind: str
    text: str
    scopes: tuple[Mapping[str, str], ...]
    of_episode: bool = False

    def within(self, scope: Mapping[str, str], of: Searched) -> bool:
        if of == "facts":  # by name they are known beyond the thread: those of conversations to their user
            beyond = self.of_episode or "user_id" in scope
            wide = {name: value for name, value in scope.items() if name != "thread_id"}
            if beyond and wide:
                scope = wide
            elif self.of_episode and any(name != "thread_id" for name in self.scopes[0]):
                return False
        return any(scope.items() <= each.items() for each in self.scopes)


def some(app: str, seed: int, count: int = 40) -> tuple[list[Event], list[Said]]:
    """Return events, and what they leave: words are common to all, and each text says where it comes from."""
    rnd = random.Random(seed)
    events: list[Event] = []
    said: list[Said] = []
    liked: dict[tuple[str, str], list[Mapping[str, str]]] = {}
    for number in range(count):
        chosen = rnd.sample(SCOPES, rnd.randint(1, 4))
        scope = {name: rnd.choice(VALUES[name]) for name in chosen}
        time = T0 + timedelta(minutes=rnd.randrange(30))

        def sentence(kind: str, number: int = number) -> str:
            return f"{app} {kind} {number} " + " ".join(rnd.choices(WORDS, k=rnd.randint(1, 6)))

        def event(
            type: str, data: dict[str, Any], number: int = number, time: datetime = time, scope: Any = scope
        ) -> Event:
            return Event.create(
                type, app_id=app, chat_id="c", data=data | scope, id=f"{type}{number}", source="/test", time=time
            )

        if number % 4 == 3:
            fact = sentence("stated")
            relation = {"type": "KNOWS", "source": f"A{number}", "target": f"B{number}", "fact": fact}
            people = [{"type": "Person", "name": name} for name in (f"A{number}", f"B{number}")]
            content = {"entities": people, "relations": [relation]}
            events.append(event("episode.add", {"content": content, "episode_type": "json"}))
            said.append(Said("fact", fact, (scope,), of_episode=True))
            continue
        message, summary, fact = sentence("message"), sentence("summary"), sentence("fact")
        added = event("memory.add", {"messages": [{"role": "user", "text": message}]})
        data: dict[str, Any] = {
            "summary": summary, "model": "x", "memory_ids": [memory_id("/test", added.id, 0)],
            "facts": [{"subject": f"s{number}", "predicate": "said", "object": "x", "text": fact}],
        }  # fmt: skip
        said += [Said("memory", message, (scope,)), Said("summary", summary, (scope,)), Said("fact", fact, (scope,))]
        if "user_id" in scope:
            liked_text = f"{app} likes {rnd.choice(WORDS[:3])}"
            data["preferences"] = [{"text": liked_text}]
            liked.setdefault((scope["user_id"], liked_text), []).append(scope)
        events += [added, event("memory.summarized", data)]
    said += [Said("preference", text, tuple(scopes)) for (_, text), scopes in liked.items()]
    return events, said


async def write(store: GraphStore, app: str, events: Sequence[Event]) -> None:
    packs = (MemoryMutations(), EpisodeMutations())
    for pack in packs:
        await store.prepare(app, pack.keys, pack.indexes)
    matched = (each for event in events for pack in packs for each in pack.match(event))
    await apply_all(store, app, ((mutation.cypher.statement, params) for mutation, params in matched))


@pytest.fixture
async def falkordb(url: str) -> AsyncIterator[GraphStore]:
    store = FalkorDBStore(url, write_timeout_ms=5_000)
    yield store
    await store.aclose()


@pytest.fixture
async def on_neo4j(neo4j_server: Neo4jServer) -> AsyncIterator[GraphStore]:
    neo4j_server.empty()
    store = Neo4jStore(neo4j_server.uri, write_timeout_ms=5_000)
    yield store
    await store.aclose()


async def found(searcher: Searcher, app: str, **asked: Any) -> list[dict[str, Any]]:
    table = (await searcher.search(app, SearchQuery(**asked), timeout_s=120)).table
    return [dict(zip(table.columns, row, strict=True)) for row in table.rows]


KINDS: Mapping[Searched, frozenset[str]] = {
    "all": frozenset({"memory", "fact", "preference", "summary"}),
    "memories": frozenset({"memory"}),
    "facts": frozenset({"fact"}),
    "preferences": frozenset({"preference"}),
    "summaries": frozenset({"summary"}),
}


ALL: Sequence[Searched] = ("all",)


@pytest.mark.long
async def test_nothing_is_found_beyond_its_scope_and_all_within_it_alike_on_both_servers(
    falkordb: GraphStore, on_neo4j: GraphStore
) -> None:
    """Two apps with the same names in them, users and threads that are called alike, and every kind in each."""
    held: dict[str, list[Said]] = {}
    for seed, app in enumerate(("shop", "shop2")):
        events, held[app] = some(app, seed)
        await write(falkordb, app, events)
        if app == "shop":
            await write(on_neo4j, app, events)
    one, other = Searcher(falkordb), Searcher(on_neo4j)
    rnd = random.Random(7)
    rows = dict.fromkeys([*KINDS["all"], "starved"], 0)
    for number in range(100):
        app = "shop2" if number % 4 == 0 else "shop"
        scope = dict(rnd.choice(rnd.choice(held[app]).scopes))
        if rnd.random() < 0.3:
            scope[rnd.choice(SCOPES)] = rnd.choice(NASTY[:8])
        scope = {name: scope[name] for name in rnd.sample(sorted(scope), rnd.randint(1, len(scope)))}
        of: Searched = rnd.choice([*KINDS, *ALL, *ALL])
        k = rnd.choice([1, 3, 50])
        word = rnd.choice(["", *WORDS[:4], "tea coffee", app])
        asked = {"text": word, "memory": scope, "of": of, "top_k": k, "index_type": "fulltext" if word else None}
        ours = await found(one, app, **asked)
        texts = [row["text"] for row in ours]
        wanted = set(word.split())
        inside = [
            (each.kind, each.text)
            for each in held[app]
            if each.kind in KINDS[of] and each.within(scope, of) and (not wanted or wanted & set(each.text.split()))
        ]
        assert {(row["kind"], row["text"]) for row in ours} <= set(inside), asked
        assert len(texts) == len({row["id"] for row in ours}) == min(k, len(inside)), (asked, texts, inside)
        for row in ours:
            rows[row["kind"]] += 1
        rows["starved"] += len(ours) < k
        if number % 4 == 1:
            theirs = await found(other, app, **asked)
            assert [{**row, "score": 0} for row in ours] == [{**row, "score": 0} for row in theirs], asked
            assert [row["score"] for row in ours] == pytest.approx([row["score"] for row in theirs], abs=1e-9)
    assert min(rows.values()) > 6, rows


async def test_with_an_embedder_the_kinds_without_vectors_are_found_by_words(
    falkordb: GraphStore, on_neo4j: GraphStore
) -> None:
    scope = {"user_id": "u", "thread_id": "t"}
    embedder = HashingEmbedder(64)
    text = "the green dog sleeps"

    def event(type: str, data: dict[str, Any]) -> Event:
        return Event.create(type, app_id="shop", chat_id="c", data=data, id=type, source="/test", time=T0)

    memory = memory_id("/test", "memory.add", 0)
    [vector] = await embedder.embed([text])
    fact = {"subject": "user", "predicate": "owns", "object": "a river boat"}
    events = [
        event("memory.add", {"messages": [{"role": "user", "text": text}], **scope}),
        event("memory.embedded", {"memory_id": memory, "model": embedder.model, "embedding": vector}),
        event(
            "memory.summarized", {"summary": "of a dog", "model": "x", "memory_ids": [memory], "facts": [fact], **scope}
        ),
    ]
    for store in (falkordb, on_neo4j):
        await write(store, "shop", events)
        searcher = Searcher(store, embedder)
        for how in (None, "vector", "hybrid"):
            rows = await found(searcher, "shop", text="green dogs on a river boat", memory=scope, index_type=how)
            assert {row["kind"] for row in rows} == {"memory", "fact", "summary"}, how
            assert all(0 <= row["score"] <= 1 for row in rows)
            rows = await found(searcher, "shop", text="green", memory={"user_id": "v"}, index_type=how)
            assert rows == []
        [row] = await found(searcher, "shop", text="green", memory=scope, of="memories", index_type="vector")
        assert row["text"] == text


@pytest.mark.long
async def test_the_latest_memories_take_turns_with_other_kinds_found_by_words(
    falkordb: GraphStore, on_neo4j: GraphStore
) -> None:
    """Two users who say the contrary; the last thing that each said is about something else."""
    users = {"u1": "nuts", "u2": "no nuts"}
    events: list[Event] = []
    for user, food in users.items():

        def event(type: str, number: int, data: dict[str, Any], user: str = user) -> Event:
            time = T0 + timedelta(minutes=number)
            data = data | {"user_id": user}
            return Event.create(
                type, app_id="shop", chat_id=user, data=data, id=f"{user}{number}", source="/test", time=time
            )

        for number in range(5):
            messages = [{"role": "user", "text": f"{user} train {number}"}]
            events.append(event("memory.add", number, {"messages": messages}))
        facts = [{"subject": user, "predicate": "eats", "object": food}]
        facts += [{"subject": f"{user} {number}", "predicate": "has", "object": "a boat"} for number in range(3)]
        preferences = [{"text": f"{user} likes cake"}, {"text": f"{user} likes tea"}]
        data = {"summary": "tea", "memory_ids": [memory_id("/test", f"{user}0", 0)], "model": "x"}
        events.append(event("memory.summarized", 5, {**data, "facts": facts, "preferences": preferences}))
    for store in (falkordb, on_neo4j):
        await write(store, "shop", events)
        plain = Searcher(store)
        for user, food in users.items():
            latest = [f"{user} train {number}" for number in (4, 3, 2, 1, 0)]
            for how in (None, "vector", "hybrid"):
                asked: dict[str, Any] = {
                    "memory": {"user_id": user}, "index_type": how, "without_embedder": "latest",
                }  # fmt: skip
                rows = await found(plain, "shop", text="a cake without nuts", **asked)
                assert texts(rows[::2]) == latest[:3]
                assert {*texts(rows[1::2])} == {f"{user} eats {food}", f"{user} likes cake"}
                assert {row["score"] for row in rows} == {None}
                many = await found(plain, "shop", text="a cake without nuts", top_k=50, **asked)
                assert texts([row for row in many if row["kind"] == "memory"]) == latest
                assert len(many) == 7, "what holds no word of the question is not there"
                assert await found(plain, "shop", text="nuts", top_k=1, **asked) == rows[:1]
                boats = await found(plain, "shop", text="boat", top_k=9, **asked)
                assert [row["kind"] for row in boats] == ["memory", "fact"] * 3 + ["memory"] * 2
                assert texts(await found(plain, "shop", text="violin", **asked)) == latest
                assert texts(await found(plain, "shop", text="boat nuts", of="memories", **asked)) == latest
            asked = {"memory": {"user_id": user}, "without_embedder": "latest"}
            query = "RETURN coalesce(node.text, node.fact) AS text, score ORDER BY score DESC"
            rows = await found(plain, "shop", text="boat", top_k=4, retrieval_query=query, **asked)
            assert texts(rows[::2]) == latest[:2]
            assert {row["score"] for row in rows} == {None}
            words = await found(plain, "shop", text="cake", index_type="fulltext", **asked)
            assert texts(words) == [f"{user} likes cake"]


def texts(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    return [row["text"] for row in rows]
