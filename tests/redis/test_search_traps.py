"""What FalkorDB 4.22 does in searches where one would not expect it, and what we rely on: each test names it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import redis

from graphweft_workers.drivers.embedded.server import EmbeddedServer
from graphweft_workers.drivers.falkordb.dialect import FALKORDB
from graphweft_workers.drivers.falkordb.literals import header
from graphweft_workers.drivers.falkordb.store import FalkorDBStore
from graphweft_workers.features.memory.mutations import MemoryMutations
from graphweft_workers.retrieval.targets import memories
from graphweft_workers.text.terms import scope_term

pytestmark = pytest.mark.integration

type Ask = Callable[..., list[Any]]


@pytest.fixture
async def ask(server: EmbeddedServer, graph: FalkorDBStore) -> Ask:
    """Run a query in a graph with the indexes of memory; return its rows."""
    pack = MemoryMutations()
    await graph.prepare("t", pack.keys, pack.indexes)
    return _asking(str(server.socket))


def _asking(socket: str) -> Ask:
    def run(query: str, **params: Any) -> list[Any]:
        with redis.Redis(unix_socket_path=socket, decode_responses=True) as client:
            reply: Any = client.execute_command("GRAPH.QUERY", "mozaiks_t", (header(params) if params else "") + query)
        return reply[1] if len(reply) == 3 else []

    return run


def holding(ask: Ask, question: str) -> list[str]:
    found = ask("CALL db.idx.fulltext.queryNodes('Memory', $q) YIELD node RETURN node.id ORDER BY node.id", q=question)
    return [row[0] for row in found]


def test_trap_a_bare_word_is_stemmed_though_the_index_does_not_stem(ask: Ask) -> None:
    ask("CREATE (:Memory {id: 'on', terms: 'on'}), (:Memory {id: 'onli', terms: 'onli'})")
    assert holding(ask, "@terms:(onli)") == ["on", "onli"]
    assert holding(ask, '@terms:("onli")') == ["onli"]


def test_stop_words_are_kept_and_words_are_not_stemmed(ask: Ask) -> None:
    ask("CREATE (:Memory {id: 'a', terms: 'the runs'}), (:Memory {id: 'b', terms: 'run'})")
    assert holding(ask, '@terms:("the")') == ["a"]
    assert holding(ask, '@terms:("run")') == ["b"]


@pytest.mark.parametrize(
    "term", ["inf", "nan", "null", "5", "1e5", "0x1", "or", "and", "not", "日本", "são", "ß", "x" * 64]
)
def test_a_quoted_term_is_no_operator_and_no_number(ask: Ask, term: str) -> None:
    ask("CREATE (:Memory {id: 'a', terms: $term}), (:Memory {id: 'b', terms: 'other'})", term=f"zz {term}")
    assert holding(ask, f'@terms:("{term}"|"nothing")') == ["a"]


def test_a_scope_holds_for_all_words_of_a_question(ask: Ask) -> None:
    mine, other = scope_term("user_id", "a-b"), scope_term("user_id", "a")
    ask("CREATE (:Memory {id: 'mine', terms: 'x y', scopes: $s})", s=mine)
    ask("CREATE (:Memory {id: 'other', terms: 'x y', scopes: $s})", s=other)
    side = memories({}, now="").text
    assert side is not None
    question = FALKORDB.question(side, {"user_id": "a-b"}, ["x", "y"])
    assert question == f'@terms:("x"|"y") @scopes:("{mine}")'
    assert holding(ask, question) == ["mine"]


def test_trap_the_servers_score_goes_by_the_distance_of_words(ask: Ask) -> None:
    """By BM25 these are equal. So its scores are not used."""
    ask("CREATE (:Memory {id: 'near', terms: 'x y a b c d'}), (:Memory {id: 'far', terms: 'x a b c d y'})")
    found = ask("CALL db.idx.fulltext.queryNodes('Memory', '@terms:(x y)') YIELD node, score RETURN node.id, score")
    scores = {row[0]: float(row[1]) for row in found}
    assert scores["near"] > scores["far"] * 1.5


@pytest.mark.parametrize("value", [" u", "u ", "\tu"])
def test_trap_an_index_finds_no_value_that_begins_or_ends_with_a_blank(ask: Ask, value: str) -> None:
    ask("CREATE (:Memory {id: 'a', thread_id: $value})", value=value)
    by_key = "UNWIND ['a'] AS id MATCH (m:Memory {id: id}) "
    assert ask("MATCH (m:Memory) WHERE m.thread_id = $value RETURN m.id", value=value) == []
    # Behind WITH too, for the server moves the condition back.
    assert ask(f"{by_key} WITH m WHERE m.thread_id = $value RETURN m.id", value=value) == []
    equal = FALKORDB.equal("m.thread_id", "$value")
    assert ask(f"{by_key} WHERE {equal} RETURN m.id", value=value) == [["a"]]


def test_trap_vectors_of_zeros_and_of_other_lengths(ask: Ask) -> None:
    ask("CREATE (:Memory {id: 'zero', e: vecf32([0, 0])}), (:Memory {id: 'one', e: vecf32([1, 0])})")
    distance = "MATCH (m:Memory) WITH m, 1.0 - vec.cosineDistance(m.e, vecf32($q)) / 2.0 AS score "
    assert ask(f"{distance} RETURN m.id, score ORDER BY m.id", q=[1, 0]) == [["one", "1"], ["zero", "-nan"]]
    assert ask(f"{distance} WHERE score >= 0.0 RETURN m.id", q=[1, 0]) == [["one"]]
    with pytest.raises(redis.ResponseError, match="dimension mismatch"):
        ask(f"{distance} RETURN m.id", q=[1, 0, 0])


def test_a_label_without_an_index_finds_nothing(ask: Ask) -> None:
    ask("CREATE (:Bare {terms: 'x'})")
    assert ask("CALL db.idx.fulltext.queryNodes('Bare', 'x') YIELD node RETURN node") == []
