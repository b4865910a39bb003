"""Rows as text of FalkorDB: columns of plain values in one pass, with the content that single values have."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphweft_contracts import QueryFailed
from graphweft_workers.drivers.falkordb import literals
from graphweft_workers.drivers.falkordb.literals import header, literal

INTEGERS = st.integers(-(2**63), 2**63 - 1)
TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
VALUES = st.one_of(st.none(), st.booleans(), INTEGERS, TEXTS)


@given(rows=st.integers(1, 3).flatmap(lambda width: st.lists(st.tuples(*[VALUES] * width), min_size=1)))
def test_rows_are_written_like_their_values(rows: list[tuple[Any, ...]]) -> None:
    written = header({}, {"__gw_rows": rows}).removeprefix("CYPHER `__gw_rows`=").rstrip(" ")
    escapes = {"\\n": "\n", "\\r": "\r", "\\t": "\t", "\\b": "\b", "\\f": "\f"}
    for row in rows:  # JSON may also escape what a literal need not
        for value in row:
            if isinstance(value, str) and (set(value) & {*escapes.values(), "\\"}):
                return
    assert written == literal(rows)


@pytest.mark.parametrize(
    "value",
    [2**63, -(2**63) - 1, 2**64, math.nan, math.inf, -math.inf, "a\0b", "\ud800", object(), [math.nan], {"a": 2**63}],
    ids=lambda value: "an object" if type(value) is object else repr(value),
)
def test_a_value_that_the_server_would_change_is_refused_in_any_row(value: Any) -> None:
    with pytest.raises(QueryFailed) as refused:
        header({}, {"__gw_rows": [[0, "text", 1.5], [1, value, 2]]})
    assert refused.value.of_value


def test_columns_of_plain_values_are_not_written_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[Any] = []
    monkeypatch.setattr(literals, "literal", lambda value: written.append(value) or "")
    header({}, {"__gw_rows": [[0, "a", None, 1.5, True], [1, "b", 7, 2, None]]})
    assert written == []


@given(values=st.lists(st.one_of(VALUES, st.floats(allow_nan=False, allow_infinity=False)), min_size=6, max_size=12))
def test_a_long_list_of_plain_values_is_written_like_its_values(values: list[Any]) -> None:
    if any(isinstance(value, str) and not value.isprintable() for value in values):
        return  # JSON also escapes what a literal need not
    together, apart = json.loads(literal(values)), [json.loads(literal(value)) for value in values]
    assert list(zip(map(type, together), together, strict=True)) == list(zip(map(type, apart), apart, strict=True))


@pytest.mark.parametrize("value", [math.nan, math.inf, 2**63, "a\0b", [math.nan], object()])
def test_a_value_that_the_server_would_change_is_refused_in_a_long_list(value: Any) -> None:
    with pytest.raises(QueryFailed):
        literal([*range(20), value])


def test_a_vector_is_not_written_number_by_number(monkeypatch: pytest.MonkeyPatch) -> None:
    vector = [1.5, 0.0, -3e-5] * 100
    monkeypatch.setattr(literals, "_rarer", lambda value: pytest.fail(f"{value} alone"))
    assert json.loads(literal(vector)) == vector
