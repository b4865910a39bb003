"""The suite of searches, on both kinds of server, and the comparison of the two."""

from __future__ import annotations

import itertools
import random
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from tests.services.neo4j import Neo4jServer
from tests.services.search_kits import falkordb_search_kit, neo4j_search_kit
from tests.services.tiers import repeats

from graphweft_workers.testing.suites.memory_search_suite import QUESTIONS
from graphweft_workers.testing.suites.search_kit import (
    EXACT,
    SearchKit,
    embedder,
    ids,
    query,
    scores,
    search,
    some_memories,
    texts,
)
from graphweft_workers.testing.suites.search_suite import SearchSuite

# The first test on Neo4j waits for its start, and each new query is compiled for 50 ms and more.
pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]


@pytest_asyncio.fixture
async def falkordb(url: str) -> AsyncIterator[SearchKit]:
    async with falkordb_search_kit(url) as kit:
        yield kit


@pytest_asyncio.fixture
async def on_neo4j(neo4j_server: Neo4jServer) -> AsyncIterator[SearchKit]:
    async with neo4j_search_kit(neo4j_server) as kit:
        yield kit


class TestFalkorDB(SearchSuite):
    @pytest.fixture
    def kit(self, falkordb: SearchKit) -> SearchKit:
        return falkordb


@repeats(
    SearchSuite,
    "test_a_chain_of_updates_shows_what_was_said_at_each_time",
    "test_a_memory_is_found_in_its_language",
    "test_a_question_is_answered_by_default_with_an_embedder_or_without",
    "test_a_vector_of_an_earlier_text_has_no_effect",
    "test_no_ids_find_nothing_and_no_score_is_too_low",
    "test_pinned_memories_are_shown_whatever_is_asked",
    "test_vectors_that_are_equally_near_go_by_their_ids",
    "test_an_update_behind_an_erasure_restores_nothing",
    "test_an_update_changes_what_a_memory_says_and_keeps_what_it_said",
    "test_an_embedder_that_fails_leaves_the_words",
    "test_an_update_of_another_chat_or_of_nothing_has_no_effect",
    "test_an_update_twice_is_the_same_as_once",
    "test_by_words_the_order_is_that_of_bm25_within_the_scope",
    "test_of_equal_vectors_the_smaller_id_comes_first",
    "test_pinned_memories_come_with_the_latest_rows",
    "test_pinned_memories_do_not_hide_that_nothing_fits",
    "test_stop_words_beside_others_count_only_when_they_are_asked_for",
    "test_the_latest_have_no_score_whatever_a_retrieval_query_says",
    "test_the_latest_may_be_asked_for_where_there_is_no_embedder",
    "test_the_order_that_a_retrieval_query_gives_stays",
    "test_vectors_need_an_embedder",
    "test_vectors_of_another_length_under_the_same_name_are_reported",
    "test_vectors_that_all_have_another_length_are_reported",
    "test_what_an_update_does_not_give_stays",
    cases={
        "test_a_long_text_is_shown_whatever_its_letters_are": ("17000", "49999", "50001"),
        "test_filters_and_scopes_apply_before_the_limit": ("tea-fulltext", "tea-vector"),
        "test_forgetting_and_erasing_reach_every_version": ("memory.forget",),
        "test_no_row_has_less_than_the_least_score": ("made1",),
    },
)
class TestNeo4j(SearchSuite):
    @pytest.fixture
    def kit(self, on_neo4j: SearchKit) -> SearchKit:
        return on_neo4j


@pytest.mark.long
async def test_falkordb_and_neo4j_give_the_same_ranking_and_scores(falkordb: SearchKit, on_neo4j: SearchKit) -> None:
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


async def test_without_a_graph_nothing_is_found(falkordb: SearchKit) -> None:
    for kind in (None, "vector", "fulltext", "hybrid"):
        asked = query("tea", kind, retrieval_query="RETURN node.text AS text, score")
        assert texts(await search(falkordb.searcher(embedder()), asked)) == []
    assert texts(await search(falkordb.searcher(), query("tea"))) == []
