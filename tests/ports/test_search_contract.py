"""What every search promises, on both kinds of server, against a plain model of the same memories."""

from __future__ import annotations

import asyncio
import itertools
import math
import random
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

import neo4j
import pytest
import redis.asyncio as redis
from tests.services.memories import DIMENSIONS, NASTY, WORDS, Batch, Model, batches, empty_neo4j, fill, fill_neo4j
from tests.services.neo4j import Neo4jServer
from tests.services.waiting import until

from graphweft_contracts import Event, InvalidSettings, QueryFailed
from graphweft_contracts.memory import MemoryEmbedded
from graphweft_contracts.search import SearchQuery
from graphweft_workers.drivers.falkordb.store import FalkorDBStore
from graphweft_workers.drivers.neo4j.store import Neo4jStore
from graphweft_workers.embedding.hashing import HashingEmbedder
from graphweft_workers.embedding.protocol import EmbedderUnavailable, EmbeddingRefused
from graphweft_workers.features.memory.mutations import MemoryMutations
from graphweft_workers.ports.graph_store import Checkpoint, GraphStore, Write
from graphweft_workers.retrieval.search import Searcher, SearchRows

# The first test on Neo4j waits for its start, and each new query is compiled for 50 ms and more.
pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

APP = "shop"
NAMED = ("chunkEmbeddings", "farEmbeddings", "search_chunks", "search_bare", "later")
"""Indexes that tests make on Neo4j."""
EXACT = 1.1e-5
"""Scores of vectors are rounded to 5 decimals."""


@dataclass
class Place:
    """A graph, and how it is filled."""

    store: GraphStore
    url: str

    async def fill(self, made: Sequence[Batch]) -> Model:
        if self.store.dialect.name == "falkordb":
            await fill(self.store, self.url, APP, made)
        else:
            await fill_neo4j(self.store, self.url, APP, made)
        return Model(made)

    async def write(self, *statements: str) -> None:
        """Run Cypher; ``vecf32`` is for FalkorDB only."""
        if self.store.dialect.name == "falkordb":
            client = redis.Redis.from_url(self.url)
            for statement in statements:
                await client.execute_command("GRAPH.QUERY", f"mozaiks_{APP}", statement)
            await client.aclose()
        else:
            with neo4j.GraphDatabase.driver(self.url) as driver:
                for statement in statements:
                    driver.execute_query(statement.replace("vecf32", ""))

    def searcher(self, embedder: Any = None) -> Searcher:
        return Searcher(self.store, embedder)


@pytest.fixture
async def falkordb(url: str) -> AsyncIterator[Place]:
    store = FalkorDBStore(url, write_timeout_ms=5_000)
    yield Place(store, url)
    await store.aclose()


@pytest.fixture
async def on_neo4j(neo4j_server: Neo4jServer) -> AsyncIterator[Place]:
    empty_neo4j(neo4j_server.uri)
    store = Neo4jStore(neo4j_server.uri, write_timeout_ms=5_000)
    await store.prepare(APP, ())
    found = Place(store, neo4j_server.uri)
    yield found
    await store.aclose()
    await found.write(*(f"DROP INDEX {name} IF EXISTS" for name in NAMED))


@pytest.fixture(params=["falkordb", "on_neo4j"])
def place(request: pytest.FixtureRequest) -> Place:
    found: Place = request.getfixturevalue(request.param)
    return found


def embedder() -> HashingEmbedder:
    return HashingEmbedder(DIMENSIONS)


def query(text: str = "", index_type: str | None = None, k: int = 5, **more: Any) -> SearchQuery:
    scope = more.pop("memory", {"user_id": "u1"})
    return SearchQuery(text=text, index_type=index_type, top_k=k, memory=scope, **more)


async def search(searcher: Searcher, asked: SearchQuery, timeout_s: float = 20) -> SearchRows:
    return await searcher.search(APP, asked, timeout_s=timeout_s)


def texts(found: SearchRows) -> list[Any]:
    return [row[0] for row in found.table.rows]


def scores(found: SearchRows) -> list[Any]:
    return [row[1] for row in found.table.rows]


def ids(found: SearchRows) -> list[str]:
    at = found.table.columns.index("id")
    return [row[at] for row in found.table.rows]


async def some_memories(count: int = 300, *, seed: int = 1, embedded: float = 0.9) -> list[Batch]:
    rnd = random.Random(seed)
    said = []
    for _ in range(count // 6):
        scope = {"user_id": rnd.choice(NASTY[:6]), "thread_id": rnd.choice(NASTY), "application_id": "shop"}
        if rnd.random() < 0.3:
            del scope["user_id"]
        said.append((scope, [" ".join(rnd.choices(WORDS, k=rnd.randint(1, 9))) for _ in range(6)]))
        if rnd.random() < 0.3:  # equal texts
            said.append(said[-1])
    return await batches(said, embedded=embedded, seed=seed)


LONG = " ".join(f"word{n} dog" for n in range(20_000))
_QUESTIONS = r"""
dog
dogs and cats
the
to be or not to be
running to the river
日本
日本語
東京 서울
naïve strasse
Привет
سلام
🙂
!!!
"dog cat"
(dog|cat)
@terms:(dog) @scopes:(x)
dog* OR *og
NOT dog AND -cat
a:b [a TO z] {x} \
O'Brien don't
3.14
e-mail@example.org
nothingofthekind
"""
QUESTIONS = (*_QUESTIONS.strip().split("\n"), LONG)


async def test_both_servers_give_the_same_ranking_and_scores(falkordb: Place, on_neo4j: Place) -> None:
    made = await some_memories()
    model = await falkordb.fill(made)
    await on_neo4j.fill(made)
    rnd = random.Random(3)
    with_vectors = [place.searcher(embedder()) for place in (falkordb, on_neo4j)]
    with_words = [place.searcher() for place in (falkordb, on_neo4j)]
    found_some = 0
    for text, kind in itertools.product(("", *QUESTIONS), (None, "vector", "fulltext", "hybrid")):
        for _ in range(2):
            asked = query(text, kind, rnd.choice([1, 3, 10, 100]), memory=model.some_scope(rnd))
            one, other = [await search(searcher, asked) for searcher in with_vectors]
            assert ids(one) == ids(other), asked
            assert scores(one) == pytest.approx(scores(other), abs=EXACT)
            assert one.table.columns == other.table.columns
            found_some += bool(ids(one))
    shop = {"application_id": "shop"}
    one, other = [await search(searcher, query("dog", memory=shop, k=100)) for searcher in with_words]
    assert ids(one) == ids(other)
    assert scores(one) == pytest.approx(scores(other), abs=EXACT)
    latest = query("dog", memory=shop, k=100, without_embedder="latest")
    one, other = [await search(searcher, latest) for searcher in with_words]
    assert ids(one) == ids(other) == model.latest(shop)[:100]
    assert found_some > 100


@pytest.mark.parametrize("letter", ["\u4e2d", "\u044f", "\U0001f642"])
@pytest.mark.parametrize("length", [17_000, 49_999, 50_000, 50_001])
async def test_a_long_text_is_shown_whatever_its_letters_are(place: Place, letter: str, length: int) -> None:
    await place.fill(await batches([({"user_id": "u1"}, [f"tea {letter * (length - 4)}"])]))
    found = await search(place.searcher(), query("tea", "fulltext"))
    assert texts(found) == [f"tea {letter * (length - 4)}"[:50_000]]


async def test_vectors_that_are_equally_near_go_by_their_ids(place: Place) -> None:
    """Servers add 32-bit numbers in an order of their own, so the sums differ where they should not."""
    made = await batches([({"user_id": "u1"}, [f"tea {n}" for n in range(60)])], embedded=0)
    model = await place.fill(made)
    rnd = random.Random(13)
    numbers = [rnd.gauss(0, 1) + 0.3 for _ in range(DIMENSIONS)]
    name = embedder().model
    for memory in model.memories:
        vector = rnd.sample(numbers, len(numbers))
        await place.write(
            f"MATCH (m:Memory {{id: '{memory.id}'}}) SET m.embedding = vecf32({vector}), m.embedding_model = '{name}'"
        )
    found = await search(place.searcher(Fixed(*[1.0] * DIMENSIONS, name=name)), query("x", "vector", 40))
    assert ids(found) == sorted(model.by_id)[:40]
    assert len(set(scores(found))) == 1


@pytest.mark.parametrize("index_type", ["vector", "hybrid"])
async def test_a_vector_of_another_length_costs_only_its_own_memory(place: Place, index_type: str) -> None:
    made = await batches([({"user_id": "u1"}, ["green tea", "black tea", "black coffee"])], embedded=1)
    model = await place.fill(made)
    forged = next(each for each in model.memories if each.text == "black coffee")
    payload = MemoryEmbedded(memory_id=forged.id, model=embedder().model, embedding=(1.0, 0.5, 0.25))
    said = Event.create("memory.embedded", app_id=APP, chat_id="c", data=payload.model_dump(mode="json"))
    [(mutation, params)] = MemoryMutations().match(said)
    checkpoint = (await place.store.progress(APP, 9)).checkpoint
    write = Write(query=mutation.cypher, rows=[params], before=checkpoint, after=Checkpoint(offset="1"))
    assert (await place.store.apply(APP, 9, [write])).failure is None
    found = await search(place.searcher(embedder()), query("black tea", index_type))
    assert (found.degraded, texts(found)[0]) == (None, "black tea")
    assert ("black coffee" in texts(found)) == (index_type == "hybrid")  # by its words


async def test_vectors_that_all_have_another_length_are_reported(place: Place) -> None:
    await place.fill(await batches([({"user_id": "u1"}, ["green tea"])], embedded=1))
    found = await search(place.searcher(Fixed(1.0, 0.5, name=embedder().model)), query("tea", "hybrid"))
    assert texts(found) == ["green tea"]
    assert "another length" in (found.degraded or "")


async def test_by_vector_the_nearest_of_the_scope_are_found(place: Place) -> None:
    model = await place.fill(await some_memories(180))
    rnd = random.Random(5)
    searcher = place.searcher(embedder())
    for text in QUESTIONS:
        scope, k = model.some_scope(rnd), rnd.choice([1, 5, 50])
        asked = query(text, "vector", k, memory=scope)
        [vector] = await embedder().embed([asked.text])  # of a long question the end counts
        wanted = model.by_vector(scope, vector)
        found = await search(searcher, asked)
        assert len(ids(found)) == min(k, len(wanted))
        assert [wanted[id] for id in ids(found)] == pytest.approx(scores(found), abs=EXACT)
        assert scores(found) == pytest.approx(sorted(wanted.values(), reverse=True)[:k], abs=EXACT)
        ranked = [(-score, id) for score, id in zip(scores(found), ids(found), strict=True)]
        assert ranked == sorted(ranked)


async def test_by_words_the_order_is_that_of_bm25_within_the_scope(place: Place) -> None:
    model = await place.fill(await some_memories(180))
    rnd = random.Random(7)
    searcher = place.searcher()
    some = 0
    for text in QUESTIONS * 2:
        scope, k = model.some_scope(rnd), rnd.choice([1, 5, 50])
        wanted = model.by_words(scope, text)
        found = await search(searcher, query(text, "fulltext", k, memory=scope))
        assert ids(found) == sorted(wanted, key=lambda id: (-wanted[id], id))[:k], (text, scope)
        assert scores(found) == pytest.approx([wanted[id] for id in ids(found)], abs=1e-9)
        some += len(ids(found))
    assert some > 50


async def test_a_question_of_stop_words_only_finds_them(place: Place) -> None:
    said = ["to be or not to be", "the of and", "tea"]
    await place.fill(await batches([({"user_id": "u1"}, said)]))
    found = await search(place.searcher(), query("the to be", "fulltext"))
    assert texts(found) == ["to be or not to be", "the of and"]


async def test_stop_words_beside_others_count_only_when_they_are_asked_for(place: Place) -> None:
    await place.fill(await batches([({"user_id": "u1"}, ["the river", "the the the"])]))
    searcher = place.searcher()
    assert texts(await search(searcher, query("the river", "fulltext"))) == ["the river"]
    asked = query("the river", "fulltext", filter_stop_words=False)
    assert sorted(texts(await search(searcher, asked))) == ["the river", "the the the"]


async def test_long_texts_are_weighed_like_short_ones(place: Place) -> None:
    """The server counts their terms, the same term in a row included."""
    long = ("tea tea tea coffee " * 300 + "rome").strip()
    model = await place.fill(await batches([({"user_id": "u1"}, [long, "tea", "rome coffee", "tea tea tea " * 400])]))
    for text in ("tea", "rome", "coffee tea", "te"):
        wanted = model.by_words({"user_id": "u1"}, text)
        found = await search(place.searcher(), query(text, "fulltext"))
        assert dict(zip(ids(found), scores(found), strict=True)) == pytest.approx(wanted)


async def test_an_empty_question_gives_the_latest(place: Place) -> None:
    model = await place.fill(await some_memories(60))
    scope = {"application_id": "shop"}
    for text, kind in (("", "fulltext"), (" \n", None), ("", "hybrid"), ("", "vector")):
        found = await search(place.searcher(embedder()), query(text, kind, 7, memory=scope, of="memories"))
        assert ids(found) == model.latest(scope)[:7]
        assert found.table.columns == ("text", "score", "kind", "role", "timestamp", "author_name", "id")
        assert set(scores(found)) == {None}, "nothing was compared, so there is no score"


@pytest.mark.parametrize("user", ["u1", "u2"])
async def test_a_question_is_answered_by_default_with_an_embedder_or_without(place: Place, user: str) -> None:
    said = [f"My sister of {user} is called Grace", "The train to Oslo was late", "Coffee at nine"]
    more = [({"user_id": other}, ["sister sister", "Grace"]) for other in ("u1", "u2") if other != user]
    await place.fill(await batches([({"user_id": user}, said), *more]))
    asked = query("Who is her sister?", memory={"user_id": user})
    for made, kind in ((None, "fulltext"), (embedder(), "hybrid")):
        found = await search(place.searcher(made), asked)
        assert texts(found)[0] == said[0]
        assert found.table == (await search(place.searcher(made), asked.model_copy(update={"index_type": kind}))).table
    assert texts(await search(place.searcher(), query("violin", memory={"user_id": user}))) == []


async def test_the_latest_have_no_score_whatever_a_retrieval_query_says(place: Place) -> None:
    model = await place.fill(await some_memories(60))
    scope = {"application_id": "shop"}
    retrieval = "RETURN node.id AS id, node.text AS text, score"
    for order in ("", " ORDER BY score DESC"):
        found = await search(place.searcher(), query("", None, 9, memory=scope, retrieval_query=retrieval + order))
        assert ids(found) == model.latest(scope)[:9]
        assert set(scores(found)) == {None}


async def test_the_latest_may_be_asked_for_where_there_is_no_embedder(place: Place) -> None:
    model = await place.fill(await batches([({"user_id": "u1"}, ["tea", "coffee", "milk", "water"])]))
    latest = model.latest({"user_id": "u1"})
    for kind in (None, "vector", "hybrid"):
        asked = query("tea", kind, without_embedder="latest")
        found = await search(place.searcher(), asked)
        assert ids(found) == latest
        assert set(scores(found)) == {None}
        with_vectors = await search(place.searcher(embedder()), asked)
        wanted = await search(place.searcher(embedder()), query("tea", kind))
        assert with_vectors.table == wanted.table
        assert None not in scores(with_vectors)
    words = await search(place.searcher(), query("tea", "fulltext", without_embedder="latest"))
    assert texts(words) == ["tea"]


async def test_hybrid_finds_what_either_finds(place: Place) -> None:
    made = await batches([({"user_id": "u1"}, ["zebra crossing", "the old harbour", "tea with milk"])], embedded=0.0)
    near = await batches([({"user_id": "u1"}, ["milk and honey", "nothing at all"])], source="/other")
    await place.fill([*made, *near])
    found = await search(place.searcher(embedder()), query("zebra milk", "hybrid", 10))
    assert sorted(texts(found)) == ["milk and honey", "nothing at all", "tea with milk", "zebra crossing"]
    assert texts(found)[-1] == "nothing at all"
    assert all(0 <= score <= 1 for score in scores(found))
    assert "zebra crossing" in texts(await search(place.searcher(embedder()), query("zebra", "hybrid", 2)))


async def test_vectors_of_another_model_are_not_compared(place: Place) -> None:
    await place.fill(await batches([({"user_id": "u1"}, ["tea", "coffee"])]))
    other = await search(place.searcher(HashingEmbedder(32)), query("tea", "vector"))
    assert texts(other) == []
    assert other.degraded is None


async def test_vectors_of_another_length_under_the_same_name_are_told(place: Place) -> None:
    await place.fill(await batches([({"user_id": "u1"}, ["tea", "coffee"])]))
    changed = Fixed(1.0, 0.0, name=embedder().model)
    for index_type in ("vector", "hybrid"):
        found = await search(place.searcher(changed), query("tea", index_type))
        assert texts(found) == ["tea"]
        assert "'hash:64' returns 2 numbers, but memories have vectors of another length" in (found.degraded or "")


# -- enrichment --


async def test_a_retrieval_query_goes_on_from_node_and_score(place: Place) -> None:
    model = await place.fill(await batches([({"user_id": "u1"}, [f"tea {n}" for n in range(9)] + ["coffee"])]))
    retrieval = (
        "WITH node, score WHERE node.text <> $not "
        "RETURN score, node.id AS id, [1, 2] AS risks, node.text AS text ORDER BY score DESC"
    )
    asked = query("tea", "fulltext", 4, retrieval_query=retrieval, params={"not": "tea 3"})
    plain = await search(place.searcher(), query("tea", "fulltext", 4))
    found = await search(place.searcher(), asked)
    assert found.table.columns == ("text", "score", "id", "risks")
    wanted = [id for id in ids(plain) if model.by_id[id].text != "tea 3"]
    assert ids(found) == wanted
    assert len(set(scores(plain))) == 1
    assert scores(found) == pytest.approx(scores(plain)[: len(wanted)])
    assert found.table.rows[0][3] == [1, 2]


async def test_rows_come_in_the_order_of_the_hits_where_the_retrieval_query_gives_none(place: Place) -> None:
    await place.fill(await some_memories(120))
    await place.write("MATCH (m:Memory) CREATE (m)-[:NAMES]->(:Thing {name: 'a'}), (m)-[:NAMES]->(:Thing {name: 'b'})")
    scope = {"application_id": "shop"}
    for kind in ("vector", "fulltext", "hybrid", None):
        searcher, more = place.searcher(embedder() if kind else None), {} if kind else {"without_embedder": "latest"}
        plain = await search(searcher, query("dog running", kind, 20, memory=scope, **more))
        retrieval = "MATCH (node)-[:NAMES]->(t:Thing) RETURN t.name AS name, node.id AS id, node.text AS text, score;"
        found = await search(searcher, query("dog running", kind, 20, memory=scope, retrieval_query=retrieval, **more))
        assert len(ids(plain)) == 20
        assert ids(found) == [id for id in ids(plain) for _ in range(2)]


async def test_equal_scores_keep_their_order_when_a_retrieval_query_sorts_by_score(place: Place) -> None:
    await place.fill(await batches([({"user_id": "u1"}, ["tea"] * 120)]))
    retrieval = "MATCH (n:Memory {id: node.id}) RETURN node.text AS text, score, n.id AS id ORDER BY score DESC"
    plain = await search(place.searcher(), query("tea", "fulltext", 100))
    found = await search(place.searcher(), query("tea", "fulltext", 100, retrieval_query=retrieval))
    assert ids(found) == ids(plain) == sorted(ids(plain))


async def test_the_order_that_a_retrieval_query_gives_stays(place: Place) -> None:
    await place.fill(await batches([({"user_id": "u1"}, ["tea b", "tea c", "tea a a a"])]))
    retrieval = "RETURN node.text AS text, score ORDER BY text DESC"
    found = await search(place.searcher(), query("tea", "fulltext", retrieval_query=retrieval))
    assert texts(found) == ["tea c", "tea b", "tea a a a"]


@pytest.mark.parametrize(
    ("retrieval_query", "message"),
    [
        ("RETURN node.text AS content, score", "returns content, score but not text"),
        ("RETURN node.id AS id", "returns id but not text and score"),
        ("MATCH (node RETURN node", "."),
        ("CREATE (:X) RETURN node.text AS text, score", "."),
        ("SET node.text = 'x' RETURN node.text AS text, score", "."),
        ("RETURN node.text AS text, score, $nothing AS x", "."),
    ],
)
async def test_a_retrieval_query_that_cannot_work_is_refused(place: Place, retrieval_query: str, message: str) -> None:
    await place.fill(await batches([({"user_id": "u1"}, ["tea"])]))
    with pytest.raises(QueryFailed, match=message) as failed:
        await search(place.searcher(), query("tea", "fulltext", retrieval_query=retrieval_query))
    assert failed.value.code == "query_error"
    assert texts(await search(place.searcher(), query("tea", "fulltext"))) == ["tea"]


# -- what goes wrong --


class Broken(HashingEmbedder):
    def __init__(self, error: Exception | None) -> None:
        super().__init__(DIMENSIONS)
        self.error = error

    async def embed(self, texts: Sequence[str]) -> list[list[float]]:
        if self.error is None:
            await asyncio.Event().wait()
            raise AssertionError
        raise self.error


FAILURES = [
    (EmbedderUnavailable("no answer from the endpoint"), "no answer from the endpoint"),
    (EmbeddingRefused("m", [None]), "refuses 1 of 1 texts"),
    (ZeroDivisionError("secret"), "ZeroDivisionError"),
    (None, "no vector within"),
]


@pytest.mark.parametrize(("error", "reason"), FAILURES)
@pytest.mark.parametrize("kind", ["vector", "hybrid", None])
async def test_an_embedder_that_fails_leaves_the_words(
    place: Place, kind: str | None, error: Exception | None, reason: str
) -> None:
    await place.fill(await batches([({"user_id": "u1"}, ["tea", "coffee"])]))
    searcher = place.searcher(Broken(error))
    await search(searcher, query("tea", "fulltext"))  # the server knows the queries
    found = await search(searcher, query("tea", kind), timeout_s=2)
    assert texts(found) == ["tea"]
    assert found.degraded is not None
    assert reason in found.degraded
    assert "words" in found.degraded
    assert "secret" not in found.degraded
    if kind == "hybrid":
        assert 0 <= scores(found)[0] <= 1


@pytest.mark.parametrize("kind", ["vector", "hybrid"])
async def test_vectors_need_an_embedder(place: Place, kind: str) -> None:
    with pytest.raises(InvalidSettings, match=f"^embedder is required when index_type='{kind}'$"):
        await search(place.searcher(), query("tea", kind))


async def test_without_a_graph_nothing_is_found(falkordb: Place) -> None:
    for kind in (None, "vector", "fulltext", "hybrid"):
        asked = query("tea", kind, retrieval_query="RETURN node.text AS text, score")
        assert texts(await search(falkordb.searcher(embedder()), asked)) == []
    assert texts(await search(falkordb.searcher(), query("tea"))) == []


async def test_a_search_that_takes_too_long_fails_as_a_timeout(place: Place) -> None:
    await place.fill(await batches([({"user_id": "u1"}, ["tea"])]))
    slow = (
        "UNWIND range(1, 3000) AS a UNWIND range(1, 3000) AS b WITH node, score, max(a * b) AS c "
        "RETURN node.text AS text, score"
    )
    with pytest.raises(QueryFailed) as failed:
        await search(place.searcher(), query("tea", "fulltext", retrieval_query=slow), timeout_s=0.2)
    assert failed.value.code == "timeout"


# -- more candidates than are weighed --


async def test_of_very_many_candidates_the_rarest_terms_are_weighed(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("graphweft_workers.retrieval.fulltext.MOST_TERMED", 20)
    said = [f"dog {n}" for n in range(30)] + [f"cat {n}" for n in range(12)] + ["zebra dog", "zebra"]
    model = await place.fill(await batches([({"user_id": "u1"}, said)]))
    found = await search(place.searcher(), query("dog cat zebra", "fulltext", 100))
    latest = [id for id in model.latest({"user_id": "u1"}) if "dog" in model.by_id[id].text.split()][:6]
    wanted = {memory.id for memory in model.memories if not memory.text.startswith("dog")} | set(latest)
    assert set(ids(found)) == wanted
    # How rare the terms are is known of all of them, and all count.
    everything = model.by_words({"user_id": "u1"}, "dog cat zebra")
    assert scores(found) == pytest.approx([everything[id] for id in ids(found)])


# -- named indexes --


async def documents(place: Place) -> None:
    """Chunks with vectors of (cos, sin), texts, and what they are about."""
    if place.store.dialect.name == "falkordb":
        await place.write(
            "CREATE VECTOR INDEX FOR (n:Chunk) ON (n.embedding) OPTIONS {dimension: 2, similarityFunction: 'cosine'}",
            "CREATE VECTOR INDEX FOR (n:Far) ON (n.embedding) OPTIONS {dimension: 2, similarityFunction: 'euclidean'}",
            "CALL db.idx.fulltext.createNodeIndex('Chunk', 'text', 'title')",
            "CALL db.idx.fulltext.createNodeIndex('Bare', 'text')",
        )
    else:
        options = "OPTIONS {indexConfig: {`vector.dimensions`: 2, `vector.similarity_function`: '%s'}}"
        await place.write(
            "CREATE VECTOR INDEX chunkEmbeddings IF NOT EXISTS FOR (n:Chunk) ON (n.embedding) " + options % "cosine",
            "CREATE VECTOR INDEX farEmbeddings IF NOT EXISTS FOR (n:Far) ON (n.embedding) " + options % "euclidean",
            "CREATE FULLTEXT INDEX search_chunks IF NOT EXISTS FOR (n:Chunk) ON EACH [n.text, n.title]",
            "CREATE FULLTEXT INDEX search_bare IF NOT EXISTS FOR (n:Bare) ON EACH [n.text]",
            "CALL db.awaitIndexes(60)",
        )
    await place.write(
        "UNWIND range(0, 199) AS i CREATE (c:Chunk {id: i, text: 'filler number ' + toString(i), title: 'T', "
        "embedding: vecf32([cos(i / 100.0), sin(i / 100.0)])})-[:FROM]->(:Document {name: 'D' + toString(i % 3)})",
        "CREATE (:Chunk {id: 'r', text: 'The risks of competition', title: 'Apple', embedding: vecf32([0.0, -1.0])})",
        "CREATE (:Chunk {id: 's', text: 'A risk', title: 'Supply chains of Apple', embedding: vecf32([0.0, -1.0])})",
        "CREATE (:Chunk {text: 'risky without a vector'})",
        "CREATE (:Far {text: 'one', embedding: vecf32([1.0, 0.0])})",
        "CREATE (:Far {text: 'two', embedding: vecf32([3.0, 4.0])})",
        "CREATE (:Bare {text: 'bare'})",
    )


class Fixed(HashingEmbedder):
    """Knows one vector."""

    def __init__(self, *vector: float, name: str = "hash:8") -> None:
        super().__init__(8)
        self.vector = list(vector)
        self.name = name

    @property
    def model(self) -> str:
        return self.name

    async def embed(self, texts: Sequence[str]) -> list[list[float]]:
        return [self.vector for _ in texts]


def indexed(text: str, index_type: str | None, index_name: str, k: int = 5, **more: Any) -> SearchQuery:
    return SearchQuery(text=text, index_type=index_type, index_name=index_name, top_k=k, **more)


async def test_an_index_is_searched_by_vector(place: Place) -> None:
    await documents(place)
    searcher = place.searcher(Fixed(1.0, 0.001))
    found = await search(searcher, indexed("x", None, "Chunk.embedding", 3))
    assert texts(found) == ["filler number 0", "filler number 1", "filler number 2"]
    assert scores(found) == pytest.approx([1.0, 0.99998, 0.99991], abs=EXACT)
    assert found.table.columns == ("text", "score")
    retrieval = "MATCH (node)-[:FROM]->(d:Document) RETURN node.text AS text, score, collect(d.name) AS documents"
    found = await search(searcher, indexed("x", "vector", "Chunk.embedding", 2, retrieval_query=retrieval))
    assert [row[2] for row in found.table.rows] == [["D0"], ["D1"]]
    assert texts(await search(searcher, indexed(" ", "vector", "Chunk.embedding"))) == []


async def test_of_equal_vectors_the_smaller_id_comes_first(place: Place) -> None:
    await documents(place)
    found = await search(place.searcher(Fixed(0.0, -1.0)), indexed("x", None, "Chunk.embedding", 2))
    assert texts(found) == ["The risks of competition", "A risk"]
    assert scores(found) == [1.0, 1.0]


async def test_through_an_index_of_many_the_nearest_are_found(place: Place) -> None:
    await documents(place)
    count = 3_000
    rnd = random.Random(11)
    numbers = [rnd.random() * 3 for _ in range(count)]
    await place.write(
        f"UNWIND {numbers} AS x CREATE (:Chunk {{id: toString(x), text: toString(x), "
        "embedding: vecf32([cos(x), sin(x)])})"
    )
    for _ in range(20):
        x = rnd.random() * 3
        found = await search(place.searcher(Fixed(math.cos(x), math.sin(x))), indexed("x", None, "Chunk.embedding", 10))
        near = sorted((1 + math.cos(x - y)) / 2 for y in [*numbers, *(n / 100 for n in range(200))])[::-1][:10]
        assert scores(found) == pytest.approx(near, abs=EXACT)


async def test_euclidean_vectors(place: Place) -> None:
    await documents(place)
    found = await search(place.searcher(Fixed(0.0, 0.0001)), indexed("x", "vector", "Far.embedding"))
    assert texts(found) == ["one", "two"]
    assert scores(found) == pytest.approx([0.5, 1 / 26], abs=2e-5)


async def test_an_index_is_searched_by_words(place: Place) -> None:
    await documents(place)
    name = "Chunk" if place.store.dialect.name == "falkordb" else "search_chunks"
    for asked in ("risks", "the risk", "RISK!"):
        found = await search(place.searcher(), indexed(asked, "fulltext", name))
        assert texts(found) == ["The risks of competition", "A risk"]
    assert texts(await search(place.searcher(), indexed("apple", "fulltext", name))) == [
        "The risks of competition",
        "A risk",
    ]
    assert texts(await search(place.searcher(), indexed("apple", "fulltext", "Chunk.text"))) == []
    assert len(texts(await search(place.searcher(), indexed("filler", "fulltext", "Chunk.text", 300)))) == 200


async def test_hybrid_over_two_indexes(place: Place) -> None:
    await documents(place)
    asked = indexed("risky", "hybrid", "Chunk.embedding", 3, fulltext_index_name="Chunk.text")
    found = await search(place.searcher(Fixed(0.0, -1.0)), asked)
    assert texts(found)[0] == "risky without a vector"
    assert "A risk" in texts(found)
    other = indexed("risky", "hybrid", "Chunk.embedding", 3, fulltext_index_name="Bare.text")
    with pytest.raises(QueryFailed, match="different labels"):
        await search(place.searcher(Fixed(0.0, -1.0)), other)


async def test_without_a_vector_the_words_beside_an_index_are_searched(place: Place) -> None:
    await documents(place)
    broken = place.searcher(Broken(EmbedderUnavailable("down")))
    found = await search(broken, indexed("risks", "vector", "Chunk.embedding"))
    assert texts(found) == ["The risks of competition", "A risk"]
    assert found.degraded is not None
    found = await search(broken, indexed("one", "vector", "Far.embedding"))
    assert texts(found) == []
    assert found.degraded is not None
    assert "nothing was searched" in found.degraded


async def test_errors_of_indexes_say_what_there_is(place: Place) -> None:
    await documents(place)
    await place.fill(await batches([({"user_id": "u1"}, ["tea"])]))
    searcher = place.searcher(Fixed(1.0, 0.0))
    with pytest.raises(QueryFailed, match=r"unknown vector index 'nope'; the graph has: .*Chunk\.embedding"):
        await search(searcher, indexed("x", "vector", "nope"))
    with pytest.raises(QueryFailed, match=r"unknown fulltext index 'Chunk\.embedding'.*Chunk\.text"):
        await search(searcher, indexed("x", "fulltext", "Chunk.embedding"))
    with pytest.raises(QueryFailed, match="holds vectors of 2 numbers, but the embedder 'hash:8' returns 3"):
        await search(place.searcher(Fixed(1.0, 0.0, 0.0)), indexed("x", "vector", "Chunk.embedding"))
    index = MemoryMutations().indexes[0]
    for name in ("Memory.terms", index.name if place.store.dialect.name == "neo4j" else "Memory"):
        with pytest.raises(QueryFailed, match="within a scope only"):
            await search(searcher, indexed("tea", "fulltext", name))


async def test_an_index_that_is_made_later_is_found(place: Place) -> None:
    searcher = place.searcher()
    await place.write("CREATE (:Later {text: 'tea'})")
    with pytest.raises(QueryFailed):
        await search(searcher, indexed("tea", "fulltext", "Later.text"))
    if place.store.dialect.name == "falkordb":
        await place.write("CALL db.idx.fulltext.createNodeIndex('Later', 'text')")
    else:
        await place.write("CREATE FULLTEXT INDEX later IF NOT EXISTS FOR (n:Later) ON EACH [n.text]")
        await place.write("CALL db.awaitIndexes(60)")
    await until(
        lambda: search(searcher, indexed("tea", "fulltext", "Later.text")), lambda found: texts(found) == ["tea"]
    )
