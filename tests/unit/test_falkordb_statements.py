"""The text of a write: what decides whether a row has an effect is the same however many rows there are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from graphweft_contracts import QueryFailed
from graphweft_rules.cypher.query import parse
from graphweft_workers.drivers.falkordb.dialect import FALKORDB
from graphweft_workers.drivers.falkordb.statements import guarded
from graphweft_workers.ports.graph_store import START, Checkpoint, Write


def write(text: str, rows: Sequence[dict[str, Any]]) -> Write:
    return Write(
        before=START, after=Checkpoint(offset="1-0"), query=parse(text, role="write", dialects=(FALKORDB,)), rows=rows
    )


@pytest.mark.parametrize("unused", [2**63, "a\0", [[1], "x"]])
def test_a_parameter_that_no_query_uses_is_not_sent(unused: Any) -> None:
    rows = [{"k": number, "unused": unused} for number in range(2)]
    for some in (rows, rows[:1]):
        assert "unused" not in guarded(0, [write("MERGE (b:C {id: $k})", some)])


@pytest.mark.parametrize("key", ["", " a", "y" * 4_097])
@pytest.mark.parametrize("of", [{"k": "{}"}, {"l": [{"id": "{}"}, {"id": "{}"}]}])
def test_keys_of_rows_that_run_one_by_one_are_looked_at(key: str, of: dict[str, Any]) -> None:
    """A list with a text that indexes do not find ends the server (4.22)."""
    one_by_one = "UNWIND $l AS m MERGE (u:C {id: m.id}) MERGE (a:C {id: $k}) RETURN a.x + u.x"
    row = {"k": "k", "l": [{"id": "i"}]} | {
        name: [{"id": key} for _ in value] if isinstance(value, list) else key for name, value in of.items()
    }
    query = parse(one_by_one, role="write", dialects=(FALKORDB,))
    assert query.batch_query(FALKORDB).mode == "single"
    with pytest.raises(QueryFailed, match="looks up an entity"):
        guarded(0, [write(one_by_one, [row])])


LACKING = [{"k": 1, "v": 1}, {"k": 2}]


@pytest.mark.parametrize("rows", [LACKING, LACKING[1:]])
@pytest.mark.parametrize("count", [1, 2])
def test_a_row_without_a_parameter_is_refused_by_its_name(rows: Sequence[dict[str, Any]], count: int) -> None:
    writes = [write("MERGE (b:C {id: $k}) SET b.v = $v", rows)] * count
    with pytest.raises(QueryFailed, match="no value for its parameter 'v'"):
        guarded(0, writes)


def test_rows_of_other_rules_have_parameters_of_their_own() -> None:
    first, second = "MERGE (b:C {id: $k}) SET b.v = '$k', b.`$k` = $` k`", "WITH $k AS k MERGE (d:D {id: k})"
    text = guarded(0, [write(first, [{"k": 1, " k": 2}]), write(second, [{"k": 3}])])
    assert "MERGE (b:C {id: $__gw_0_1}) SET b.v = '$k', b.`$k` = $__gw_0_0\n} " in text
    assert "CALL { UNWIND [0] AS __gw_one WITH $__gw_1_0 AS k MERGE (d:D {id: k})\n} " in text
    assert "`__gw_0_0`=2 `__gw_0_1`=1 `__gw_1_0`=3 " in text


@pytest.mark.parametrize("other", [
    write("MERGE (d:D {id: $k})", [{"k": 1}, {"k": 2}]),
    write("MERGE (d:D {id: $k}) RETURN d", [{"k": 1}]),
    write("UNWIND $k AS k MERGE (d:D {id: k})", [{"k": [1]}]),
])  # fmt: skip
def test_writes_that_are_not_all_of_one_row_have_lists(other: Write) -> None:
    text = guarded(0, [write("MERGE (c:C {id: $k})", [{"k": 0}]), other])
    assert "`__gw_rows0`=[[0,0]] " in text
    assert "CALL { UNWIND $__gw_rows1 AS __gw_row " in text
