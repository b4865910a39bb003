"""Writes a graph as lines of JSON and reads it back, without losing anything of a value."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from itertools import batched
from typing import Any, Final

import pytz  # type: ignore[import-untyped]
from neo4j.spatial import CartesianPoint, Point, WGS84Point
from neo4j.time import Date, DateTime, Duration, Time

from graphweft_contracts import QueryFailed
from graphweft_workers.drivers.neo4j.dialect import quoted
from graphweft_workers.drivers.neo4j.namespaces import LIVE, Namespace
from graphweft_workers.drivers.neo4j.statements import properties as properties_of
from graphweft_workers.drivers.neo4j.values import check_readable
from graphweft_workers.ports.graph_store import NOT_DUMPED, Checkpoint

type List = Callable[[str], AsyncIterator[list[Any]]]
"""Runs a query that only reads and yields its rows with the driver's own values."""
type Run = Callable[[str, dict[str, Any]], Awaitable[list[list[Any]]]]
"""Runs a query in a transaction of its own and returns its rows."""

_ROWS: Final = 1_000
# The SET locks the checkpoint before it is compared, so that nobody deletes the graph before this has ended.
_GUARD: Final = (
    "MATCH (p:{progress} {{partition: $partition}}) SET p.partition = $partition "
    "WITH p WHERE p.pos = $pos AND p.plan = $plan AND p.done = $done UNWIND $rows AS row "
)
_MAKE: Final = _GUARD + "CREATE (n{labels}) SET n = row[1] RETURN row[0], elementId(n)"
_TIE: Final = (
    _GUARD + "MATCH (a) WHERE elementId(a) = row[0] MATCH (b) WHERE elementId(b) = row[1] "
    "CREATE (a)-[e:{type}]->(b) SET e = row[2] RETURN elementId(e)"
)
_POINTS: Final[dict[int, type[Point]]] = {
    4326: WGS84Point, 4979: WGS84Point, 7203: CartesianPoint, 9157: CartesianPoint,
}  # fmt: skip
_KIND: Final = "$"
"""The key of a value that JSON has no form for: {"$": kind, "of": …}. No property is a map."""


def nodes_of(space: Namespace) -> str:
    """Return the query for id, labels and properties of each node of a graph."""
    return f"MATCH (n) WHERE {space.within} RETURN elementId(n), labels(n), properties(n)"


def edges_of(space: Namespace) -> str:
    """Return the query for the ids, the type and the properties of each relationship of a graph."""
    return (
        f"MATCH (n)-[e]->(b) WHERE {space.within} "
        "RETURN elementId(e), elementId(n), elementId(b), type(e), properties(e)"
    )


async def dump(ask: List, space: Namespace = LIVE) -> AsyncIterator[bytes]:
    """Yield a line for each node, and then for each relationship, except those about the graph itself."""
    async for number, stored, properties in ask(nodes_of(space)):
        labels = space.plain(stored)
        if NOT_DUMPED.isdisjoint(labels):
            yield _line("node", number, labels, encoded(properties))
    async for _, start, end, type, properties in ask(edges_of(space)):
        yield _line("edge", start, end, type, encoded(properties))


async def load(run: Run, lines: Iterable[bytes], space: Namespace = LIVE, *, partition: int, mark: Checkpoint) -> bool:
    """Write what ``dump`` has yielded. The graph may hold other nodes.

    Stop and return False when the checkpoint of ``partition`` is not ``mark``.
    """
    ids: dict[str, str] = {}
    progress, guard = quoted(space.label("__Progress")), {"partition": partition, **properties_of(mark)}
    for some in batched(map(json.loads, lines), _ROWS):
        nodes: dict[tuple[str, ...], list[list[Any]]] = {}
        edges: dict[str, list[list[Any]]] = {}
        for kind, *rest, properties in some:
            values = {name: _decoded(value) for name, value in properties.items()}
            if kind == "node":
                nodes.setdefault(tuple(rest[1]), []).append([rest[0], values])
            else:
                edges.setdefault(rest[2], []).append([rest[0], rest[1], values])
        for labels, rows in nodes.items():
            named = "".join(f":{quoted(each)}" for each in space.stored(labels))
            made = await run(_MAKE.format(progress=progress, labels=named), {"rows": rows, **guard})
            if len(made) != len(rows):
                return False
            ids.update((old, new) for old, new in made)
        for type, rows in edges.items():
            there = [[ids[start], ids[end], values] for start, end, values in rows]
            tied = await run(_TIE.format(progress=progress, type=quoted(type)), {"rows": there, **guard})
            if len(tied) != len(there):
                return False
    return True


def encoded(value: Any) -> Any:
    """Return a value in a form for JSON that keeps it exactly. Raises ``QueryFailed`` if there is none."""
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else {_KIND: "float", "of": str(value)}
        case Point():
            return {_KIND: "point", "of": [value.srid, *map(float, value)]}
        case Duration():  # a tuple too
            return {_KIND: "duration", "of": [value.months, value.days, value.seconds, value.nanoseconds]}
        case list() | tuple():
            return [encoded(item) for item in value]  # pyright: ignore[reportUnknownVariableType]
        case dict():
            return {name: encoded(item) for name, item in value.items()}  # pyright: ignore[reportUnknownVariableType]
        case bytes() | bytearray():
            return {_KIND: "bytes", "of": base64.b64encode(value).decode()}
        case DateTime():
            return {_KIND: "datetime", "of": [_date(value), _time(value), _zone(value)]}
        case Date():
            return {_KIND: "date", "of": _date(value)}
        case Time():
            return {_KIND: "time", "of": [_time(value), _zone(value)]}
        case _:
            check_readable(value)
            raise QueryFailed(f"a property is a {type(value).__name__}, which a snapshot cannot keep")


def _decoded(value: Any) -> Any:
    if isinstance(value, list):
        return [_decoded(item) for item in value]  # pyright: ignore[reportUnknownVariableType]
    if not isinstance(value, dict):
        return value
    fields: Any = value  # pyright: ignore[reportUnknownVariableType]
    of: Any = fields["of"]
    match fields[_KIND]:
        case "float":
            return float(of)
        case "point":
            return _POINTS[of[0]](of[1:])
        case "bytes":
            return base64.b64decode(of)
        case "duration":
            return Duration(months=of[0], days=of[1], seconds=of[2], nanoseconds=of[3])
        case "date":
            return Date(*of)
        case "time":
            zone = None if of[1] is None else pytz.FixedOffset(of[1] // 60)
            hour, minute, second, nanosecond = of[0]
            return Time(hour, minute, second, nanosecond, zone)
        case _:
            return _zoned(DateTime(*of[0], *of[1]), of[2])


def _zoned(plain: Any, zone: Any) -> Any:
    if zone is None:
        return plain
    if isinstance(zone, int):
        return plain.replace(tzinfo=pytz.FixedOffset(zone // 60))
    name, offset = zone
    # By UTC: an hour of local time comes twice a year.
    moment = (plain - Duration(seconds=offset)).replace(tzinfo=pytz.utc)
    return moment.as_timezone(pytz.timezone(name))


def _date(value: Date | DateTime) -> list[int]:
    return [value.year, value.month, value.day]


def _time(value: Time | DateTime) -> list[int]:
    return [value.hour, value.minute, value.second, value.nanosecond]


def _zone(value: Time | DateTime) -> Any:
    """Return nothing, the seconds from UTC, or the name of a zone with the seconds."""
    if value.tzinfo is None:
        return None
    offset = value.utc_offset()
    seconds = round(offset.total_seconds()) if offset is not None else 0
    name = getattr(value.tzinfo, "zone", None) or getattr(value.tzinfo, "key", None)
    return [name, seconds] if name else seconds


def _line(*parts: Any) -> bytes:
    return json.dumps(parts, ensure_ascii=False, separators=(",", ":")).encode()
