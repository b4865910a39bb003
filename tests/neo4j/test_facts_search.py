"""Search over what episodes say and are: one order on both kinds of server, within the scope, and only what holds."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import redis.asyncio as redis
from tests.services.neo4j import Neo4jServer
from tests.services.rules import rule_set

from graphweft import Client, MemoryClient
from graphweft_contracts import Event, QueryFailed, channels
from graphweft_contracts.search import READ, SEARCHED, Searched, SearchQuery
from graphweft_rules import BoundQuery
from graphweft_workers.drivers.falkordb.store import FalkorDBStore
from graphweft_workers.drivers.neo4j.store import Neo4jStore
from graphweft_workers.drivers.redis.requests import RedisRequestQueue
from graphweft_workers.embedding.hashing import HashingEmbedder
from graphweft_workers.features.episodes.mutations import EpisodeMutations
from graphweft_workers.injection.cache import key_of
from graphweft_workers.injection.match import bind_search
from graphweft_workers.injection.pipeline import ContextPipeline
from graphweft_workers.injection.responder import InjectionResponder
from graphweft_workers.ports.graph_store import GraphStore
from graphweft_workers.retrieval.listing import list_facts, list_relations
from graphweft_workers.retrieval.search import Searcher
from graphweft_workers.testing.suites.search_kit import apply_all

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

APP = "shop"
T0 = datetime(2026, 2, 1, 10, tzinfo=UTC)
NOW = datetime.now(UTC)
U1 = {"user_id": "u1"}


class Place:
    """A graph, filled by what ``EpisodeMutations`` says of events."""

    def __init__(self, store: GraphStore, server: str | Neo4jServer) -> None:
        """``server`` is the URL of FalkorDB, or a Neo4j."""
        self.store = store
        self.server = server
        self.searcher = Searcher(store, HashingEmbedder(8))

    async def fill(self, events: Sequence[Event]) -> None:
        pack = EpisodeMutations()
        await self.store.prepare(APP, pack.keys, pack.indexes)
        matched = (each for event in events for each in pack.match(event))
        await apply_all(self.store, APP, ((mutation.cypher.statement, params) for mutation, params in matched))

    async def write(self, statement: str) -> None:
        if isinstance(self.server, str):
            client = redis.Redis.from_url(self.server)
            await client.execute_command("GRAPH.QUERY", channels.graph_name(APP), statement)
            await client.aclose()
        else:
            self.server.run(statement)

    async def search(self, of: Searched, text: str = "", **more: Any) -> list[dict[str, Any]]:
        query = SearchQuery(text=text, of=of, **({"memory": U1} | more))
        found = await self.searcher.search(APP, query, timeout_s=120)
        assert found.degraded is None
        return [dict(zip(found.table.columns, row, strict=True)) for row in found.table.rows]

    async def texts(self, of: Searched, text: str = "", **more: Any) -> list[str]:
        return [row["text"] for row in await self.search(of, text, **more)]


@pytest.fixture
async def falkordb(url: str) -> AsyncIterator[Place]:
    store = FalkorDBStore(url, write_timeout_ms=5_000)
    yield Place(store, url)
    await store.aclose()


@pytest.fixture
async def on_neo4j(neo4j_server: Neo4jServer) -> AsyncIterator[Place]:
    neo4j_server.empty()
    store = Neo4jStore(neo4j_server.uri, write_timeout_ms=5_000)
    yield Place(store, neo4j_server)
    await store.aclose()


@pytest.fixture(params=["falkordb", "on_neo4j"])
def place(request: pytest.FixtureRequest) -> Place:
    found: Place = request.getfixturevalue(request.param)
    return found


def episode(number: int, content: Any, *, at: int | None = None, chat: str = "c", **more: Any) -> Event:
    data = {"content": content, "episode_type": "text" if isinstance(content, str) else "json", **more}
    time = T0 + timedelta(minutes=number if at is None else at)
    return Event.create("episode.add", app_id=APP, chat_id=chat, data=data, id=f"e{number}", source="/test", time=time)


def knows(*facts: str, **times: Any) -> dict[str, Any]:
    """Return a structured content: the facts hold between Ann and Bob."""
    relation = {"type": "KNOWS", "source": "Ann", "target": "Bob", **times}
    return {
        "entities": [{"type": "Person", "name": name} for name in ("Ann", "Bob")],
        "relations": [relation | {"fact": fact} for fact in facts],
    }


def some_episodes(count: int = 120) -> list[Event]:
    """Facts of many scopes, some of which have ended or not begun; times are often equal."""
    rnd = random.Random(3)
    words = ["tea", "coffee", "river", "dog", "cat", "rome", "train", "night", "green", "the", "of"]
    names = ["Ann", "Bob", "Tea House", "Green Train", "River Dog"]
    made: list[Event] = []
    for number in range(count):
        chosen = rnd.sample(sorted(SCOPES), rnd.randint(1, 3))
        scope = {name: rnd.choice(SCOPES[name]) for name in chosen}
        times: dict[str, Any] = {}
        if rnd.random() < 0.3:
            times["valid_to"] = (NOW + timedelta(days=rnd.choice([-9, 9]))).isoformat()
        if rnd.random() < 0.3:
            times["valid_from"] = (NOW + timedelta(days=rnd.choice([-20, 5]))).isoformat()
        source, target = rnd.sample(names, 2)
        content = {
            "entities": [{"type": rnd.choice(["Person", "Project"]), "name": name} for name in (source, target)],
            "relations": [
                {"type": "KNOWS", "source": source, "target": target, **times,
                 "fact": " ".join(rnd.choices(words, k=rnd.randint(2, 8)))}
            ],
        }  # fmt: skip
        made.append(episode(number, content, at=rnd.randrange(20), name=f"n{number}", **scope))
    return made


SCOPES = {
    "application_id": ["a1", "a 2"],
    "agent_id": ["g1", "g2"],
    "user_id": ["u1", "u2", "ü*"],
    "thread_id": ["t1", "t2"],
}
OF_EPISODES: tuple[Searched, ...] = ("facts", "entities", "episodes")
ASKED = (("thread_id",), ("user_id", "thread_id"))


async def test_both_servers_give_the_same_order(falkordb: Place, on_neo4j: Place) -> None:
    events = some_episodes()
    await falkordb.fill(events)
    await on_neo4j.fill(events)
    rnd = random.Random(5)
    found_some = dict.fromkeys(OF_EPISODES, 0)
    for of, text, _ in itertools.product(
        OF_EPISODES, ("", "tea", "the green rivers of Rome", "dog ann", '"x" (|'), "ab"
    ):
        scope = {name: rnd.choice(SCOPES[name]) for name in rnd.choice(ASKED)}
        for k in (2, 50):
            one, other = [await each.search(of, text, memory=scope, top_k=k) for each in (falkordb, on_neo4j)]
            assert [row.keys() for row in one] == [row.keys() for row in other]
            assert [{**row, "score": 0} for row in one] == [{**row, "score": 0} for row in other], (of, text, scope)
            assert [row["score"] for row in one] == pytest.approx([row["score"] for row in other], abs=1e-9)
            found_some[of] += len(one)
    assert min(found_some.values()) > 40, found_some


async def test_a_fact_says_who_and_since_when_and_when_it_was_learnt(place: Place) -> None:
    content = knows("Ann knows Bob from work", valid_from="2026-01-01T00:00:00+01:00")
    again = episode(2, content, chat="c2", **U1)
    await place.fill([again, episode(1, content, **U1)])
    [row] = await place.search("facts", "Does Ann know Bob?")
    assert {name: row[name] for name in row if name not in {"score", "id"}} == {
        "text": "Ann knows Bob from work", "kind": "fact", "subject": "Ann", "predicate": "KNOWS", "object": "Bob",
        "valid_at": "2025-12-31T23:00:00.000000Z", "invalid_at": None,
        "doubted_at": None, "doubted_because": None,
        "created_at": "2026-02-01T10:01:00.000000Z",
    }  # fmt: skip
    assert list(row)[:2] == ["text", "score"]
    [ann] = await place.search("entities", "ann")
    assert (ann["text"], ann["type"], ann.keys()) == ("Ann", "Person", {"text", "score", "kind", "type", "id"})
    [latest] = await place.search("episodes", top_k=1)
    assert (latest["reference_time"], latest["episode_type"]) == ("2026-02-01T10:02:00.000000Z", "json")
    assert latest.keys() == {"text", "score", "kind", "name", "episode_type", "reference_time", "id"}


@pytest.mark.long("on_neo4j")
@pytest.mark.parametrize(
    "scope",
    [U1, {"thread_id": "t1"}, {"agent_id": "a", "thread_id": "t1"}, U1 | {"thread_id": "t1"}, U1 | {"thread_id": "t3"}],
    ids=str,
)
async def test_what_is_listed_in_a_scope_is_what_a_search_finds(place: Place, scope: dict[str, str]) -> None:
    said = [("tea", U1, "t1"), ("rome", U1, "t2"), ("night", {"agent_id": "a"}, "t1"), ("dog", {"user_id": "u2"}, "t1")]
    told = [
        episode(number, knows(fact), thread_id=thread, chat=f"c{number}", **who)
        for number, (fact, who, thread) in enumerate(said, 1)
    ]
    again = episode(5, knows("tea"), thread_id="t1", chat="c5", **U1)
    await place.fill([*told, again])
    table = await place.store.read(APP, list_relations(scope), {**scope, "limit": 10}, timeout_s=60)
    expected = await place.texts("all", "tea rome night dog", memory=scope)
    assert sorted(row["text"] for row in table.dicts()) == sorted(expected)
    assert bool(expected) == (scope.get("thread_id") != "t3")


async def test_in_a_thread_a_fact_of_a_conversation_is_listed_with_its_end_there(falkordb: Place) -> None:
    """Another thread ended it by saying it anew: in its own it holds on."""
    await falkordb.write(
        "CREATE (:Fact {id: 'f', user_id: 'u1', thread_id: 't1', text: 'tea', valid_from: '2026-02-01', "
        "valid_to: '2026-02-02'})"
    )

    async def end(scope: dict[str, str]) -> list[str | None]:
        table = await falkordb.store.read(APP, list_facts(scope), {**scope, "limit": 10}, timeout_s=60)
        return [row["valid_to"] for row in table.dicts()]

    assert await end(U1) == ["2026-02-02"]
    assert await end(U1 | {"thread_id": "t1"}) == [None]


async def test_without_a_text_the_latest_come_first(place: Place) -> None:
    """Of what was said early and late, the late time counts, in whichever order episodes came."""
    said = [
        (3, "third"), (1, "first"), (4, "fourth"), (2, "first"), (5, "first"), (2, "second"),
    ]  # fmt: skip
    events = [
        episode(number, {"entities": [{"type": "Person", "name": name}]} | knows(name), at=at, name=name, **U1)
        for number, (at, name) in enumerate(said)
    ]
    await place.fill(events)
    assert await place.texts("facts", top_k=3) == ["first", "fourth", "third"]
    assert [row["name"] for row in await place.search("episodes", top_k=3)] == ["first", "fourth", "third"]
    for of in ("facts", "entities", "episodes"):
        assert {row["score"] for row in await place.search(of, top_k=3)} == {None}


@pytest.mark.long("on_neo4j")
async def test_nodes_of_a_rule_with_the_same_labels_are_left_alone(place: Place) -> None:
    await place.fill([episode(1, knows("Ann drinks tea"), **U1)])
    said = "{user_id: 'u1', name: 'tea', fact: 'tea', content: 'tea', id: 'a' + n}"
    for label in ("Relation", "Entity", "Episode"):
        await place.write(f"UNWIND range(1, 20) AS n CREATE (:{label} {said})")
    for text in ("tea", ""):
        assert await place.texts("facts", text, top_k=1) == ["Ann drinks tea"]
        assert len(await place.texts("facts", text, top_k=9)) == 1
    assert sorted(await place.texts("entities", top_k=2)) == ["Ann", "Bob"]
    assert len(await place.search("episodes", top_k=1)) == 1


async def test_what_does_not_hold_now_takes_no_place(place: Place) -> None:
    """Ended and future facts fit better and are newer, and still the one that holds is the only result."""
    past, future = NOW - timedelta(minutes=1), NOW + timedelta(hours=1)
    await place.fill(
        [
            episode(1, knows("tea with friends on a long day by the river", valid_to=future.isoformat()), **U1),
            episode(2, knows(*(f"tea tea tea {n}" for n in range(200)), valid_to=past.isoformat()), **U1),
            episode(3, knows(*(f"tea tea {n}" for n in range(50)), valid_from=future.isoformat()), **U1),
        ]
    )
    for text in ("tea", ""):
        assert await place.texts("facts", text, top_k=1) == ["tea with friends on a long day by the river"]
        assert len(await place.texts("facts", text, top_k=50)) == 1
    assert len(await place.texts("entities", "Ann Bob")) == 2


@pytest.mark.long("on_neo4j")
async def test_nothing_is_found_beyond_the_scope_and_nobody_starves(place: Place) -> None:
    def said(who: str, count: int = 1) -> dict[str, Any]:
        facts = [f"{who} {n} drinks tea" for n in range(count)]
        return {
            **knows(*facts),
            "entities": [{"type": "Person", "name": name} for name in ("Ann", "Bob", f"tea {who}")],
        }

    await place.fill(
        [
            episode(1, said("mine"), user_id="u1", thread_id="t1"),
            episode(2, said("hog", 300), chat="h", user_id="hog"),
            episode(3, said("alone"), chat="t1", thread_id="t1"),
            episode(4, said("agent"), chat="a", agent_id="g1", user_id="u1"),
        ]
    )
    mine, agents = "mine 0 drinks tea", "agent 0 drinks tea"
    for scope, facts in (
        ({"user_id": "u1"}, {mine, agents}),
        ({"user_id": "u2"}, set()),
        ({"agent_id": "g1", "user_id": "u1"}, {agents}),
        ({"agent_id": "g1", "user_id": "hog"}, set()),
        # A fact is known beyond its thread, unless only the thread says whose it is.
        ({"user_id": "u1", "thread_id": "other"}, {mine, agents}),
        ({"thread_id": "t1"}, {"alone 0 drinks tea"}),
        ({"thread_id": "t2"}, set()),
    ):
        for text in ("tea", ""):
            assert set(await place.texts("facts", text, memory=scope)) == facts, (scope, text)
            names = await place.texts("entities", text, memory=scope, top_k=50)
            assert {name for name in names if "tea" in name} == {f"tea {fact.split()[0]}" for fact in facts}
    assert [
        row["id"] for row in await place.search("episodes", "tea", memory={"user_id": "u1", "thread_id": "t2"})
    ] == []
    assert len(await place.search("episodes", "tea", memory={"user_id": "u1", "thread_id": "t1"})) == 1


@pytest.mark.long("on_neo4j")
async def test_the_indexes_of_episodes_are_searched_within_a_scope_only(place: Place) -> None:
    await place.fill([episode(1, knows("tea"), **U1)])
    names = ("Relation", "Relation.terms", "Entity", "Episode.scopes")
    for name in names if place.store.dialect.name == "falkordb" else ("graphweft_Relation_terms", "Entity.terms"):
        query = SearchQuery(text="tea", index_type="fulltext", index_name=name)
        with pytest.raises(QueryFailed, match="searched within a scope only"):
            await place.searcher.search(APP, query, timeout_s=120)


async def test_a_retrieval_query_goes_on_from_a_fact(place: Place) -> None:
    await place.fill([episode(1, knows("Ann drinks tea"), **U1)])
    query = "MATCH (p:Episode)-[:STATES]->(node) RETURN node.fact AS text, score, p.episode_type AS type"
    [row] = await place.search("facts", "tea", retrieval_query=query)
    assert (row["text"], row["type"]) == ("Ann drinks tea", "json")


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ({"of": "facts"}, "facts are searched within a scope only"),
        ({"of": "entities", "index_name": "x"}, "entities are searched within a scope only"),
        ({"of": "facts", "memory": U1, "index_type": "vector"}, "facts have no vectors"),
        ({"of": "episodes", "memory": U1, "index_type": "hybrid"}, "episodes have no vectors"),
        ({"of": "facts", "memory": U1, "without_embedder": "latest"}, "without_embedder is for memories, and facts"),
        ({"index_name": "x", "without_embedder": "latest"}, "without_embedder is for memories: leave it out"),
        ({"of": "facts", "memory": U1, "index_name": "x"}, "facts have indexes of their own"),
        ({"of": "fact", "memory": U1}, "Input should be"),
    ],
)
def test_searches_that_can_never_work(query: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SearchQuery.model_validate(query)


def test_facts_are_asked_for_each_time() -> None:
    """A fact ends without any write, so the graph is at the same version with other rows."""
    for of in SEARCHED:
        asked = {} if of in READ else {"text": "tea"}
        bound = bind_search(SearchQuery.model_validate({"of": of, "memory": U1} | asked), NOW)
        assert isinstance(bound, BoundQuery)
        assert (key_of(APP, bound) is None) == (of in {"all", "facts", "memories", "profile"})


async def test_a_client_searches_facts(url: str, falkordb: Place) -> None:
    await falkordb.fill([episode(1, knows("Ann drinks tea", "Bob sleeps"), **U1)])
    pipeline = ContextPipeline(rule_set(), falkordb.store)
    queue = RedisRequestQueue(url, consumer="r")
    responder = InjectionResponder(queue, pipeline.answer)
    task = asyncio.create_task(responder.run())
    try:
        async with Client(url, app_id=APP) as client:
            memories = MemoryClient(client, user_id="u1")
            reply = await memories.recall("Who drinks tea?", of="facts", budget_ms=120_000)
            assert [(row["text"], row["subject"]) for row in reply.results] == [("Ann drinks tea", "Ann")]
            assert "- Ann drinks tea (since 2026-02-01)" in reply.text
            with pytest.raises(ValueError, match="within a scope only"):
                await client.search("tea", of="facts", index_name="x")
    finally:
        responder.stop()
        await task
        await queue.aclose()
        await pipeline.aclose()
