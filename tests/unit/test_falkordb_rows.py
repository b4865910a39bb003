"""Rows of scalars and vectors are read at once, and equal those that falkordb reads."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from falkordb.asyncio.graph import AsyncGraph
from redis.asyncio import Redis

from graphweft_workers.drivers.falkordb.rows import plain_table, table_of
from graphweft_workers.ports.result_limits import MOST_ROWS

_STATISTICS = ["Cached execution: 1", "Query internal execution time: 0.5 milliseconds"]
_PLAIN: list[list[Any]] = [
    [1, None],
    [2, "text"],
    [2, ""],
    [3, -(2**63)],
    [4, "true"],
    [4, "false"],
    [5, "0.1"],
    [5, "-1e+300"],
    [5, "inf"],
    [12, ["0.1", "-1.5e-05", "0"]],
]


def reply(*cells: list[Any], rows: int = 1) -> list[Any]:
    return [[[1, f"c{number}"] for number in range(len(cells))], [list(cells) for _ in range(rows)], _STATISTICS]


@pytest.mark.parametrize(
    "given", [reply(*_PLAIN), reply(*_PLAIN, rows=3), reply([2, "one"], rows=0), [[], [], _STATISTICS]]
)
def test_scalars_and_vectors_are_what_falkordb_reads(given: list[Any]) -> None:
    graph: Any = AsyncGraph(Redis(), "graph")  # it asks for names only, and scalars have none
    read = asyncio.run(table_of(given, graph))
    assert plain_table(given) == read
    assert [list(map(type, row)) for row in read.rows] == [
        list(map(type, row)) for row in (plain_table(given) or read).rows
    ]


@pytest.mark.parametrize(
    "given",
    [
        reply([6, [[3, 1]]]),  # a list
        reply([2, "text"], [10, ["a", [3, 1]]]),  # a map
        reply([16, 5]),  # a duration
        reply([99, 1]),  # a type of another version
        reply([3, "no number"]),
        reply([12, ["0.5", "no number"]]),
        reply([12, ["0.5"] * 100_000], [12, ["0.5"] * 100_000]),
        reply([3, 1], rows=MOST_ROWS + 1),
        reply(*([[3, 1]] * 201), rows=1_000),
        [_STATISTICS],
    ],
)
def test_others_are_left_to_falkordb_and_the_limits(given: list[Any]) -> None:
    assert plain_table(given) is None
