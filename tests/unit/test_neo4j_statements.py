"""The rows of writes for Neo4j, and which of them share a statement."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from graphweft_contracts import QueryFailed
from graphweft_rules.cypher.query import Cypher, parse
from graphweft_workers.drivers.neo4j.dialect import NEO4J
from graphweft_workers.drivers.neo4j.groups import Groups
from graphweft_workers.drivers.neo4j.statements import Part, Work, runs
from graphweft_workers.ports.graph_store import START, Checkpoint, Write


@pytest.mark.parametrize("rows", [[{"k": 2}], [{"k": 1, "v": 1}, {"k": 2}]])
def test_a_row_without_a_parameter_is_refused_by_its_name(rows: list[dict[str, Any]]) -> None:
    query = parse("MERGE (b:C {id: $k}) SET b.v = $v", role="write", dialects=(NEO4J,))
    batch_query = query.batch_query(NEO4J)
    write = Write(before=START, after=Checkpoint(offset="1-0"), query=query, rows=rows)
    with pytest.raises(QueryFailed, match="no value for its parameter 'v'"):
        runs(Part([(write, batch_query)], (batch_query,)))


def mutation(letter: str) -> Cypher:
    return parse(f"MERGE (n:N {{id: $id}}) SET n.log = '{letter}'", role="mutation", dialects=(NEO4J,))


def in_turn(*letters: str) -> Work:
    """Return writes of the mutations in this order."""
    queries = {letter: mutation(letter) for letter in letters}
    return [
        (Write(query=queries[letter], before=START, after=START), queries[letter].batch_query(NEO4J))
        for letter in letters
    ]


def statements(parts: Sequence[Part]) -> list[str]:
    """Return the letters of the mutations of each part's statement."""
    return ["".join(each.statement[-4] for each in part.batch_queries) for part in parts]


def test_mutations_in_turn_are_one_part_and_the_statement_stays_the_same() -> None:
    groups = Groups(often=0)
    work = in_turn(*"ab" * 20)
    assert statements(groups.parts(work)) == statements(groups.parts(work[::-1])) == ["ab"]


def test_a_mutation_that_came_seldom_has_a_statement_of_its_own() -> None:
    """So what the server plans depends on what it is, and not on what stands beside it in a batch."""
    groups = Groups(often=6)
    assert statements(groups.parts(in_turn(*"abba"))) == ["a", "b", "a"]
    assert all(part.is_new for part in groups.parts(in_turn("c")))
    [shared, rare] = groups.parts(in_turn(*"bbbaaaaac"))
    assert statements([shared, rare]) == ["ab", "c"]
    assert (shared.is_new, rare.is_new) == (False, True)


def test_mutations_that_become_frequent_together_share_one_statement_at_once() -> None:
    """Each further one would be planned with all others again."""
    groups = Groups(often=4)
    assert statements(groups.parts(in_turn(*"dcbadc"))) == [*"dcbadc"]
    assert statements(groups.parts(in_turn(*"dddccca"))) == ["cd", "a"]
    assert statements(groups.parts(in_turn(*"aaabbbb"))) == ["cdab"]


def test_a_batch_query_that_the_server_refuses_shares_no_statement() -> None:
    groups = Groups(often=0)
    work = in_turn(*"ab")
    groups.parts(work)
    for _, batch_query in work[:1]:
        assert batch_query is not None
        groups.remove(batch_query)
        groups.remove(batch_query)
    assert statements(groups.parts(in_turn("b"))) == ["b"]
