"""Writes a graph as lines of JSON and reads it back, without losing anything of a value (tried on 4.22).

The compact protocol says the type of each value. It cuts off two kinds: it gives 15 digits of a float, and a
duration as seconds. So floats are read again as a whole number and a power of two, and durations as text.
"""

from __future__ import annotations

import json
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from datetime import datetime, timedelta
from itertools import batched
from typing import Any, Final, cast

from graphweft_workers.drivers.falkordb.far_times import is_far, numbers_of
from graphweft_workers.drivers.falkordb.literals import header
from graphweft_workers.drivers.falkordb.statements import GUARD, guard_values, quoted
from graphweft_workers.ports.graph_store import NOT_DUMPED, Checkpoint

type _Kind = str | tuple[_Kind | None, ...] | None
"""What a value needs to be made: nothing, a kind, or something for each item of a list."""
type _Shape = tuple[tuple[str, _Kind], ...]
"""The properties that need something."""
type Ask = Callable[[str], Awaitable[list[Any]]]
"""Runs a query and returns the rows of its compact reply."""

_EPOCH: Final = datetime(1970, 1, 1)
_PAGE: Final = 5_000
_ROWS: Final = 500
"""Rows of one writing query, which blocks the server for milliseconds."""
_LAST: Final = "MATCH (n) RETURN max(id(n))"
_NODES: Final = "MATCH (n) WHERE id(n) >= {low} AND id(n) < {high}"
_DEGREES: Final = "MATCH (n) WHERE id(n) >= {low} AND id(n) < {high} RETURN id(n), outdegree(n)"
_EDGES: Final = "MATCH (a)-[n]->(b) WHERE id(a) >= {low} AND id(a) < {high}"
_OF_HUB: Final = "MATCH (a)-[n]->(b) WHERE id(a) = {hub} WITH a, n, b SKIP {skip} LIMIT {limit}"
_VALUES: Final = "keys(n), [k IN keys(n) | n[k]]"
_EXACT: Final = (
    "WITH i, k, at, x WHERE abs(x) >= 1e-290 AND abs(x) <= 1e300 "
    "WITH i, k, at, x, toInteger(floor(log(abs(x)) / log(2))) AS e RETURN i, k, at, toInteger(x / pow(2, e - 53)), e"
)
_PROPERTIES: Final = "UNWIND keys(n) AS k WITH id(n) AS i, k, n[k] AS v"
_ITEMS: Final = f"{_PROPERTIES} WHERE typeOf(v) = 'List' AND size(v) > 0 UNWIND range(0, size(v) - 1) AS at"
_FLOATS: Final = f"{_PROPERTIES} WHERE typeOf(v) = 'Float' WITH i, k, -1 AS at, v AS x {_EXACT}"
_LISTED_FLOATS: Final = f"{_ITEMS} WITH i, k, at, v[at] AS x WHERE typeOf(x) = 'Float' {_EXACT}"
_DURATIONS: Final = f"{_PROPERTIES} WHERE typeOf(v) = 'Duration' RETURN i, k, -1, toString(v)"
_LISTED_DURATIONS: Final = (
    f"{_ITEMS} WITH i, k, at, v[at] AS x WHERE typeOf(x) = 'Duration' RETURN i, k, at, toString(x)"
)
_TIMES: Final = {13: "localdatetime", 14: "date", 15: "localtime"}
_MAKERS: Final = {
    **{name: f"{name}({{}})" for name in _TIMES.values()},
    "far": (
        "localdatetime({{year: {0}[0], month: {0}[1], day: {0}[2], hour: {0}[3], minute: {0}[4], second: {0}[5]}})"
    ),
    "far date": "date({{year: {0}[0], month: {0}[1], day: {0}[2]}})",
    "duration": "duration({})",
    "seconds": "duration({{seconds: {}}})",
    "vector": "vecf32({})",
    "point": "point({{latitude: {0}[0], longitude: {0}[1]}})",
    "nan": "0.0 / 0.0",
    "inf": "1.0 / 0.0",
    "-inf": "-1.0 / 0.0",
}
"""By kind: the expression that makes a value of what a line holds of it."""
_KIND: Final = "$"
"""The key of a value that JSON has no form for: {"$": kind, "of": …}. No property is a map."""


async def dump(ask: Ask) -> AsyncIterator[bytes]:
    """Yield a line for each node, and then for each relationship, except those about the graph itself."""
    highest = _plain((await ask(_LAST))[0][0])
    for low in range(0, (-1 if highest is None else highest) + 1, _PAGE):
        source = _NODES.format(low=low, high=low + _PAGE)
        rows = await ask(f"{source} RETURN id(n), labels(n), {_VALUES}")
        found = {row[0][1]: _properties(row[2], row[3]) for row in rows}
        await _refine(ask, source, found)
        for row in rows:
            labels = _plain(row[1])
            if NOT_DUMPED.isdisjoint(labels):
                yield _line("node", row[0][1], labels, found[row[0][1]])
    async for source in _edge_pages(ask, -1 if highest is None else highest):
        rows = await ask(f"{source} RETURN id(n), id(a), id(b), type(n), {_VALUES}")
        found = {row[0][1]: _properties(row[4], row[5]) for row in rows}
        await _refine(ask, source, found)
        for row in rows:
            yield _line("edge", row[1][1], row[2][1], _plain(row[3]), found[row[0][1]])


async def _edge_pages(ask: Ask, highest: int) -> AsyncIterator[str]:
    """Yield patterns for pages of relationships: a hub may have more of them than one reply should hold."""
    for low in range(0, highest + 1, _PAGE):
        start, room = low, _PAGE
        for node, degree in await ask(_DEGREES.format(low=low, high=low + _PAGE)):
            number, count = node[1], degree[1]
            if count > room and number > start:
                yield _EDGES.format(low=start, high=number)
                start, room = number, _PAGE
            if count > _PAGE:
                for skip in range(0, count, _PAGE):
                    yield _OF_HUB.format(hub=number, skip=skip, limit=_PAGE)
                start, room = number + 1, _PAGE
            else:
                room -= count
        if room < _PAGE:
            yield _EDGES.format(low=start, high=low + _PAGE)


async def load(ask: Ask, lines: Iterable[bytes], *, partition: int, mark: Checkpoint) -> bool:
    """Write what ``dump`` has yielded. The graph may hold other nodes.

    Stop and return False when the checkpoint of ``partition`` is not ``mark``.
    """
    ids: dict[int, int] = {}
    values, guard = guard_values(partition, mark), f"{GUARD}WITH __gw LIMIT 1 UNWIND $__gw_rows AS row"
    for some in batched(map(json.loads, lines), _ROWS):
        nodes: dict[tuple[tuple[str, ...], _Shape], list[list[Any]]] = {}
        edges: dict[tuple[str, _Shape], list[list[Any]]] = {}
        for kind, *rest, properties in some:
            plain, special = _apart(properties)
            shape = tuple((name, _shape(value)) for name, value in special.items())
            row = [*rest[:-1], plain, *map(_content, special.values())]
            if kind == "node":
                nodes.setdefault((tuple(rest[-1]), shape), []).append(row)
            else:
                edges.setdefault((rest[-1], shape), []).append(row)
        for (labels, shape), rows in nodes.items():
            name = "".join(f":{quoted(label)}" for label in labels)
            made = await ask(
                f"{header({'__gw_rows': rows}, given=values)}{guard} CREATE (n{name}) {_set(shape, 1)} "
                "RETURN row[0], id(n)"
            )
            if len(made) != len(rows):
                return False
            ids.update((old[1], new[1]) for old, new in made)
        for (type, shape), rows in edges.items():
            there = [[ids[row[0]], ids[row[1]], *row[2:]] for row in rows]
            tied = await ask(
                f"{header({'__gw_rows': there}, given=values)}{guard} MATCH (a) WHERE id(a) = row[0] "
                f"MATCH (b) WHERE id(b) = row[1] CREATE (a)-[n:{quoted(type)}]->(b) {_set(shape, 2)} RETURN id(n)"
            )
            if len(tied) != len(there):
                return False
    return True


async def _refine(ask: Ask, source: str, found: dict[int, dict[str, Any]]) -> None:
    """Put exact floats and durations in the place of those that the protocol cut off."""
    kinds = {kind for properties in found.values() for value in properties.values() for kind in _kinds(value)}
    for kind, query in (
        ("float", _FLOATS), ("float in list", _LISTED_FLOATS),
        ("duration", _DURATIONS), ("duration in list", _LISTED_DURATIONS),
    ):  # fmt: skip
        if kind not in kinds:
            continue
        for row in await ask(f"{source} {query}"):
            number, name, at, value, *more = map(_plain, row)
            holder, key = (found[number], name) if at < 0 else (found[number][name], at)
            if more:
                holder[key] = math.ldexp(value, more[0] - 53)
            elif holder[key][_KIND] == "duration":
                holder[key]["of"] = value


def _kinds(value: Any, inside: str = "") -> Iterable[str]:
    if isinstance(value, float):
        yield f"float{inside}"
    elif isinstance(value, dict) and value[_KIND] == "duration":
        yield f"duration{inside}"
    elif isinstance(value, list) and not inside:
        for item in cast("Iterable[Any]", value):
            yield from _kinds(item, " in list")


def _properties(names: Any, values: Any) -> dict[str, Any]:
    return dict(zip(_plain(names), map(_plain, values[1]), strict=True))


def _plain(cell: Any) -> Any:
    """Return a value of the compact protocol as JSON has it."""
    kind, value = cell[0], cell[1]
    match kind:
        case 1:
            return None
        case 2:
            return str(value)
        case 3:
            return int(value)
        case 4:
            return value == "true"
        case 5:
            number = float(value)
            return number if math.isfinite(number) else {_KIND: str(number), "of": None}
        case 6:
            return [_plain(item) for item in value]
        case 11:
            return {_KIND: "point", "of": [float(axis) for axis in value]}
        case 12:
            return {_KIND: "vector", "of": [float(number) for number in value]}
        case 16:  # the text comes later; there is none of a negative one
            return {_KIND: "duration" if value >= 0 else "seconds", "of": int(value)}
        case _ if kind in _TIMES:
            return _time_of(kind, int(value))
        case _:
            raise AssertionError(f"a property of the unknown type {kind}")


def _time_of(kind: int, seconds: int) -> dict[str, Any]:
    """Return a time as the server reads it: as text, or as numbers where Python has no such year."""
    if kind != 15 and is_far(seconds):
        numbers = numbers_of(seconds)
        return {_KIND: "far", "of": [*numbers]} if kind == 13 else {_KIND: "far date", "of": [*numbers[:3]]}
    moment = _EPOCH + timedelta(seconds=seconds)
    text = {13: moment.isoformat(), 14: moment.date().isoformat(), 15: moment.time().isoformat()}[kind]
    return {_KIND: _TIMES[kind], "of": text}


def _apart(properties: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the properties that a parameter can hold, and the others."""
    special = {name: value for name, value in properties.items() if _shape(value) is not None}
    return {name: value for name, value in properties.items() if name not in special}, special


def _shape(value: Any) -> _Kind:
    if isinstance(value, dict):
        return str(value[_KIND])  # pyright: ignore[reportUnknownArgumentType]
    if isinstance(value, list):
        items = tuple(map(_shape, value))  # pyright: ignore[reportUnknownArgumentType]
        return items if any(item is not None for item in items) else None
    return None


def _content(value: Any) -> Any:
    """Return what a row holds of a value that is not plain."""
    if isinstance(value, dict):
        return value["of"]  # pyright: ignore[reportUnknownVariableType]
    return [_content(item) for item in value] if isinstance(value, list) else value  # pyright: ignore[reportUnknownVariableType]


def _set(shape: _Shape, place: int) -> str:
    """Return the clause that gives ``n`` its properties: the map at a place of the row, and the values after it."""
    special = (
        f", n.{quoted(name)} = {_made(kind, f'row[{place + number}]')}" for number, (name, kind) in enumerate(shape, 1)
    )
    return f"SET n = row[{place}]{''.join(special)}"


def _made(kind: _Kind, path: str) -> str:
    if kind is None:
        return path
    if isinstance(kind, str):
        return _MAKERS[kind].format(path)
    return "[" + ", ".join(_made(item, f"{path}[{number}]") for number, item in enumerate(kind)) + "]"


def _line(*parts: Any) -> bytes:
    return json.dumps(parts, ensure_ascii=False, separators=(",", ":")).encode()
