"""The rows of writes for Neo4j, and which of them share a statement."""

from __future__ import annotations

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


def test_mutations_in_turn_are_one_part_and_the_statement_stays_the_same() -> None:
    groups = Groups()
    work = in_turn(*"ab" * 20)
    [part] = groups.parts(work)
    [turned] = groups.parts(work[::-1])
    assert part.batch_queries == turned.batch_queries
    assert len(part.batch_queries) == 2
