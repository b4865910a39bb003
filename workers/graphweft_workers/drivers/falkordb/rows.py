"""Reads FalkorDB's compact replies: their size, their execution time, and their rows as plain values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Final, cast

from dateutil.relativedelta import relativedelta  # type: ignore[import-untyped]
from falkordb.asyncio.graph import AsyncGraph
from falkordb.asyncio.query_result import QueryResult
from falkordb.edge import Edge
from falkordb.node import Node
from falkordb.path import Path

from graphweft_contracts import QueryFailed
from graphweft_workers.drivers.falkordb.far_times import say_far_times
from graphweft_workers.ports.graph_store import Table
from graphweft_workers.ports.result_limits import MOST_ROWS, MOST_VALUES, check_rows, check_values


def _null(_: Any) -> None:
    return None


def _vector(numbers: list[Any]) -> list[float]:
    return list(map(float, numbers))


_RUN_TIME: Final = "Query internal execution time: "
_ITEMS: Final = 3
"""The number of list items for one value in a compact reply: itself, its type and its content."""
_SCALARS: Final[Mapping[int, Callable[[Any], Any]]] = {1: _null, 2: str, 3: int, 4: "true".__eq__, 5: float}
"""By the number of a type: reads its values."""
_VECTOR: Final = 12
_WITH_VECTORS: Final = {**_SCALARS, _VECTOR: _vector}
_FLAT: Final[frozenset[type]] = frozenset({str, int, float, bool, type(None)})
"""Types of values that stay as they are, by far the most of them."""
_EPOCH: Final = datetime(1970, 1, 1)


def bound_amount(reply: list[Any], enough: int | None) -> None:
    """Cut a reply that exceeds the limits of a read-only query to its first ``enough`` rows, without decoding it.

    Raises ``QueryFailed`` if these exceed the limits too, or all rows are wanted.
    """
    rows: list[Any] = reply[1] if len(reply) == 3 else []
    try:
        _check(rows)
    except QueryFailed:
        if enough is None or enough >= len(rows):
            raise
        del rows[enough:]
        _check(rows)


def _check(rows: list[Any]) -> None:
    check_rows(len(rows))
    items, inner = 0, list(rows)
    while inner and items < (MOST_VALUES + 1) * _ITEMS:
        some = inner.pop()
        items += len(some)
        inner += [item for item in some if type(item) is list]
    check_values(items // _ITEMS)


def run_time_ms(reply: list[Any]) -> float | None:
    """Return the server's execution time in milliseconds; None if it does not say."""
    line = next((str(line) for line in reversed(reply[-1]) if str(line).startswith(_RUN_TIME)), None)
    return float(line.removeprefix(_RUN_TIME).split()[0]) if line else None


def plain_table(reply: list[Any]) -> Table | None:
    """Return the rows of a reply of scalars and vectors within the limits, as most are; else None.

    falkordb takes two coroutines for each value.
    """
    if len(reply) != 3 or len(reply[1]) > MOST_ROWS or (values := len(reply[0]) * len(reply[1])) > MOST_VALUES:
        return None
    try:
        try:
            rows = _cells(reply, _SCALARS)
        except KeyError:
            if values + sum(len(value) for row in reply[1] for kind, value in row if kind == _VECTOR) > MOST_VALUES:
                return None
            rows = _cells(reply, _WITH_VECTORS)
    except (KeyError, TypeError, ValueError):
        return None
    return Table(columns=tuple([str(name) for _, name in reply[0]]), rows=rows)


def _cells(reply: list[Any], read: Mapping[int, Callable[[Any], Any]]) -> tuple[tuple[Any, ...], ...]:
    """Return the cells of a reply. Raises ``KeyError`` for a type that is not in ``read``."""
    return tuple([tuple([read[kind](value) for kind, value in row]) for row in reply[1]])


async def table_of(reply: list[Any], graph: AsyncGraph, *, elements: bool = False) -> Table:
    """Return the rows of a reply; see ``GraphStore.read`` for ``elements``.

    Asks the server for names that the reply gives as numbers. Times of years that Python does not have become text.
    """
    result: Any = QueryResult(graph)
    try:
        await result.parse(reply)
    except (OverflowError, ValueError):  # as by a date of the year 10000
        say_far_times(reply[1])
        await result.parse(reply)
    plain = _whole if elements else _plain
    return Table(
        columns=tuple(str(name) for _, name in result.header),
        rows=tuple(tuple([cell if type(cell) in _FLAT else plain(cell) for cell in row]) for row in result.result_set),
    )


def _plain(value: Any) -> Any:
    """Return nodes, relationships and paths as maps and lists, as agents and JSON readers expect them."""
    if isinstance(value, Node | Edge):
        properties = cast("dict[str, Any]", value.properties or {})  # pyright: ignore[reportUnknownMemberType]
        return {key: _plain(item) for key, item in properties.items()}
    if isinstance(value, Path):
        return [_plain(item) for item in value.nodes()]
    if isinstance(value, relativedelta):
        # The server stores a duration as seconds; falkordb converts them to a date after 1970, and this converts back.
        return _EPOCH + value - _EPOCH
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    if isinstance(value, list | tuple):
        return [item if type(item) in _FLAT else _plain(item) for item in value]  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    return value


def _whole(value: Any) -> Any:
    """Return nodes, relationships and paths as maps with their ids, labels and types."""
    match value:
        case Node():
            labels: Any = value.labels or []  # pyright: ignore[reportUnknownMemberType]
            return {"id": value.id, "labels": list(labels), "properties": _plain(value)}
        case Edge():
            ends = {"start": _id_of(value.src_node), "end": _id_of(value.dest_node)}
            return {"id": value.id, "type": value.relation, **ends, "properties": _plain(value)}
        case Path():
            return {"nodes": list(map(_whole, value.nodes())), "relationships": list(map(_whole, value.edges()))}
        case Mapping():
            return {str(key): _whole(item) for key, item in value.items()}  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
        case list() | tuple():
            return [_whole(item) for item in value]  # pyright: ignore[reportUnknownVariableType]
        case _:
            return _plain(value)


def _id_of(end: Any) -> Any:
    return end.id if isinstance(end, Node) else end
