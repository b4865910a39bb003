"""The rows of writes for Neo4j."""

from __future__ import annotations

from typing import Any

import pytest

from graphweft_contracts import QueryFailed
from graphweft_rules.cypher.query import parse
from graphweft_workers.drivers.neo4j.dialect import NEO4J
from graphweft_workers.drivers.neo4j.statements import Part, runs
from graphweft_workers.ports.graph_store import START, Checkpoint, Write


@pytest.mark.parametrize("rows", [[{"k": 2}], [{"k": 1, "v": 1}, {"k": 2}]])
def test_a_row_without_a_parameter_is_refused_by_its_name(rows: list[dict[str, Any]]) -> None:
    query = parse("MERGE (b:C {id: $k}) SET b.v = $v", role="write", dialects=(NEO4J,))
    batch_query = query.batch_query(NEO4J)
    write = Write(before=START, after=Checkpoint(offset="1-0"), query=query, rows=rows)
    with pytest.raises(QueryFailed, match="no value for its parameter 'v'"):
        runs(Part([(write, batch_query)], (batch_query,)))
