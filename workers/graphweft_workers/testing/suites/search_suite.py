"""The suite of searches."""

from __future__ import annotations

import contextlib
import math
import random

import pytest

from graphweft_contracts import QueryFailed
from graphweft_workers.embedding.protocol import EmbedderUnavailable
from graphweft_workers.testing.suites.memory_end_suite import MemoryEndSuite
from graphweft_workers.testing.suites.memory_filter_suite import MemoryFilterSuite
from graphweft_workers.testing.suites.memory_model import batches
from graphweft_workers.testing.suites.memory_search_suite import MemorySearchSuite
from graphweft_workers.testing.suites.search_kit import (
    APP,
    EXACT,
    FailingEmbedder,
    OneVector,
    SearchKit,
    documents,
    indexed,
    scores,
    search,
    texts,
)
from graphweft_workers.testing.waiting import until


class SearchSuite(MemorySearchSuite, MemoryFilterSuite, MemoryEndSuite):
    """What every search promises on the graph of a driver: of memories, and of indexes of others."""

    async def test_an_index_is_searched_by_vector(self, kit: SearchKit) -> None:
        await documents(kit)
        searcher = kit.searcher(OneVector(1.0, 0.001))
        found = await search(searcher, indexed("x", None, "Chunk.embedding", 3))
        assert texts(found) == ["filler number 0", "filler number 1", "filler number 2"]
        assert scores(found) == pytest.approx([1.0, 0.99998, 0.99991], abs=EXACT)
        assert found.table.columns == ("text", "score")
        retrieval = "MATCH (node)-[:FROM]->(d:Document) RETURN node.text AS text, score, collect(d.name) AS documents"
        found = await search(searcher, indexed("x", "vector", "Chunk.embedding", 2, retrieval_query=retrieval))
        assert [row[2] for row in found.table.rows] == [["D0"], ["D1"]]
        assert texts(await search(searcher, indexed(" ", "vector", "Chunk.embedding"))) == []

    async def test_of_equal_vectors_the_smaller_id_comes_first(self, kit: SearchKit) -> None:
        await documents(kit)
        found = await search(kit.searcher(OneVector(0.0, -1.0)), indexed("x", None, "Chunk.embedding", 2))
        assert texts(found) == ["The risks of competition", "A risk"]
        assert scores(found) == [1.0, 1.0]

    async def test_through_an_index_of_many_the_nearest_are_found(self, kit: SearchKit) -> None:
        """An index of a server is approximate: of ten it may miss some."""
        await documents(kit)
        among_nearest = 0
        count = 3_000
        rnd = random.Random(11)
        numbers = [rnd.random() * 3 for _ in range(count)]
        await kit.write(
            f"UNWIND {numbers} AS x CREATE (:Chunk {{id: toString(x), text: toString(x), "
            "embedding: vecf32([cos(x), sin(x)])})"
        )
        for _ in range(20):
            x = rnd.random() * 3
            found = await search(
                kit.searcher(OneVector(math.cos(x), math.sin(x))), indexed("x", None, "Chunk.embedding", 10)
            )
            near = sorted((1 + math.cos(x - y)) / 2 for y in [*numbers, *(n / 100 for n in range(200))])[::-1][:10]
            assert len(scores(found)) == 10
            among_nearest += sum(score >= near[-1] - EXACT for score in scores(found))
        assert among_nearest >= 180, "of 200"

    async def test_euclidean_vectors(self, kit: SearchKit) -> None:
        await documents(kit)
        found = await search(kit.searcher(OneVector(0.0, 0.0001)), indexed("x", "vector", "Far.embedding"))
        assert texts(found) == ["one", "two"]
        assert scores(found) == pytest.approx([0.5, 1 / 26], abs=2e-5)

    async def test_an_index_is_searched_by_words(self, kit: SearchKit) -> None:
        await documents(kit)
        for asked in ("risks", "the risk", "RISK!"):
            found = await search(kit.searcher(), indexed(asked, "fulltext", kit.chunk_index))
            assert texts(found) == ["The risks of competition", "A risk"]
        assert texts(await search(kit.searcher(), indexed("apple", "fulltext", kit.chunk_index))) == [
            "The risks of competition",
            "A risk",
        ]
        assert texts(await search(kit.searcher(), indexed("apple", "fulltext", "Chunk.text"))) == []
        assert len(texts(await search(kit.searcher(), indexed("filler", "fulltext", "Chunk.text", 300)))) == 200

    async def test_hybrid_over_two_indexes(self, kit: SearchKit) -> None:
        await documents(kit)
        asked = indexed("risky", "hybrid", "Chunk.embedding", 3, fulltext_index_name="Chunk.text")
        found = await search(kit.searcher(OneVector(0.0, -1.0)), asked)
        assert texts(found)[0] == "risky without a vector"
        assert "A risk" in texts(found)
        other = indexed("risky", "hybrid", "Chunk.embedding", 3, fulltext_index_name="Bare.text")
        with pytest.raises(QueryFailed, match="different labels"):
            await search(kit.searcher(OneVector(0.0, -1.0)), other)

    async def test_without_a_vector_the_words_beside_an_index_are_searched(self, kit: SearchKit) -> None:
        await documents(kit)
        broken = kit.searcher(FailingEmbedder(EmbedderUnavailable("down")))
        found = await search(broken, indexed("risks", "vector", "Chunk.embedding"))
        assert texts(found) == ["The risks of competition", "A risk"]
        assert found.degraded is not None
        found = await search(broken, indexed("one", "vector", "Far.embedding"))
        assert texts(found) == []
        assert found.degraded is not None
        assert "nothing was searched" in found.degraded

    async def test_errors_of_indexes_say_what_there_is(self, kit: SearchKit) -> None:
        await documents(kit)
        await kit.fill(await batches([({"user_id": "u1"}, ["tea"])]))
        searcher = kit.searcher(OneVector(1.0, 0.0))
        with pytest.raises(QueryFailed, match=r"unknown vector index 'nope'; the graph has: .*Chunk\.embedding"):
            await search(searcher, indexed("x", "vector", "nope"))
        with pytest.raises(QueryFailed, match=r"unknown fulltext index 'Chunk\.embedding'.*Chunk\.text"):
            await search(searcher, indexed("x", "fulltext", "Chunk.embedding"))
        with pytest.raises(QueryFailed, match="holds vectors of 2 numbers, but the embedder 'hash:8' returns 3"):
            await search(kit.searcher(OneVector(1.0, 0.0, 0.0)), indexed("x", "vector", "Chunk.embedding"))
        for name in ("Memory.terms", kit.memory_index):
            with pytest.raises(QueryFailed, match="within a scope only"):
                await search(searcher, indexed("tea", "fulltext", name))

    async def test_an_index_that_a_new_graph_lacks_is_named_and_not_empty(self, kit: SearchKit) -> None:
        await documents(kit)
        searcher = kit.searcher(OneVector(1.0, 0.0))
        for asked in (
            indexed("risk", "fulltext", "Chunk.text"),
            indexed("risk", "vector", "Chunk.embedding"),
            indexed("risk", "hybrid", "Chunk.embedding", fulltext_index_name="Chunk.text"),
        ):
            assert texts(await search(searcher, asked))
        await kit.store.whole.drop(APP)
        await kit.drop_named_indexes()
        await kit.write("CREATE (:Chunk {text: 'A risk', embedding: vecf32([1.0, 0.0])})")
        for asked in (indexed("risk", "fulltext", "Chunk.text"), indexed("risk", "vector", "Chunk.embedding")):
            # A server that knows the graphs of apps by a mark of their own has none: nothing has applied an event.
            with pytest.raises(QueryFailed, match=r"unknown (fulltext|vector) index 'Chunk\.|has no graph"):
                await search(searcher, asked)

    async def test_an_index_that_is_being_built_is_named_and_not_empty(self, kit: SearchKit) -> None:
        await kit.write("UNWIND range(1, 30000) AS i CREATE (:Later {text: 'tea ' + toString(i)})")
        await kit.begin_fulltext_index("later", "Later", "text")

        async def found() -> int | str:
            try:
                return len(texts(await search(kit.searcher(), indexed("tea", "fulltext", "Later.text"))))
            except QueryFailed as error:
                return str(error)

        seen: list[int | str] = []

        def is_built(found: int | str) -> bool:
            seen.append(found)
            return isinstance(found, int)

        await until(found, is_built)
        assert seen.pop() == 5
        assert all("is being built" in str(each) for each in seen)

    async def test_no_hits_in_an_index_are_no_fault(self, kit: SearchKit) -> None:
        await documents(kit)
        assert texts(await search(kit.searcher(), indexed("nothing of this", "fulltext", "Chunk.text"))) == []

    async def test_an_index_that_is_made_later_is_found(self, kit: SearchKit) -> None:
        searcher = kit.searcher()
        await kit.write("CREATE (:Later {text: 'tea'})")
        with pytest.raises(QueryFailed):
            await search(searcher, indexed("tea", "fulltext", "Later.text"))
        await kit.make_fulltext_index("later", "Later", "text")

        async def found() -> list[str]:
            with contextlib.suppress(QueryFailed):  # it is being built
                return texts(await search(searcher, indexed("tea", "fulltext", "Later.text")))
            return []

        await until(found, lambda found: found == ["tea"])
