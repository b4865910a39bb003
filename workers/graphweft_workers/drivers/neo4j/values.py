"""Converts the driver's values to JSON-like values and Python's dates and times."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta
from datetime import time as time_of_day
from typing import Any, Final

from dateutil.relativedelta import relativedelta  # type: ignore[import-untyped]
from neo4j.graph import Node as Neo4jNode
from neo4j.graph import Path as Neo4jPath
from neo4j.graph import Relationship as Neo4jRelationship
from neo4j.spatial import Point
from neo4j.time import Date, DateTime, Duration, Time

from graphweft_contracts import QueryFailed

UNREADABLE: Final = (
    "the answer cannot be read, as with a date beyond the years 1 to 9999: return it as text, by toString"
)
_EPOCH: Final = datetime(1970, 1, 1)
_AXES: Final = {
    4326: ("longitude", "latitude"),
    4979: ("longitude", "latitude", "height"),
    7203: ("x", "y"),
    9157: ("x", "y", "z"),
}
"""The names of a point's coordinates, by coordinate system."""
SIMPLE: Final = frozenset({str, int, float, bool, bytes, type(None)})
"""The types of nearly all values: to find out that a value is nothing else takes ten times longer."""


def number_of(element_id: str) -> int:
    """Return the number in an element id."""
    return int(element_id.rpartition(":")[2])


def plain(value: Any) -> Any:
    """Return nodes, relationships and paths as maps and lists, as agents and JSON readers expect them."""
    if type(value) in SIMPLE:
        return value
    match value:
        case Neo4jPath():
            return [plain(node) for node in value.nodes]
        case Neo4jNode() | Neo4jRelationship():
            return {key: plain(item) for key, item in value.items()}
        case Mapping():
            return {str(key): plain(item) for key, item in value.items()}  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
        case Point():
            return dict(zip(_AXES[value.srid or 7203], value, strict=True))
        case list():
            return [plain(item) for item in value]  # pyright: ignore[reportUnknownVariableType]
        case Date() | Time() | DateTime():
            return _native(value)
        case Duration():
            return _span(value)
        case _:
            check_readable(value)
            return value


def check_readable(value: Any) -> None:
    """Raise ``QueryFailed`` for what the driver puts in the place of a date that Python cannot hold, in a map."""
    if type(value).__name__ == "BrokenHydrationObject":  # the driver does not export it
        raise QueryFailed(UNREADABLE, of_value=True)


def whole(value: Any) -> Any:
    """Return nodes, relationships and paths as maps with their ids, labels and types."""
    if type(value) in SIMPLE:
        return value
    match value:
        case Neo4jPath():
            return {"nodes": list(map(whole, value.nodes)), "relationships": list(map(whole, value.relationships))}
        case Neo4jNode():
            return {"id": value.element_id, "labels": sorted(value.labels), "properties": plain(value)}
        case Neo4jRelationship():
            ends = {
                "start": value.start_node and value.start_node.element_id,
                "end": value.end_node and value.end_node.element_id,
            }
            return {"id": value.element_id, "type": value.type, **ends, "properties": plain(value)}
        case Mapping():
            return {str(key): whole(item) for key, item in value.items()}  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
        case list():
            return [whole(item) for item in value]  # pyright: ignore[reportUnknownVariableType]
        case _:
            return plain(value)


def count_values(value: Any) -> int:
    """Count a value and its members."""
    if type(value) in SIMPLE:
        return 1
    match value:
        case list():
            return 1 + sum(map(count_values, value))  # pyright: ignore[reportUnknownArgumentType]
        case Mapping() | Neo4jNode() | Neo4jRelationship():
            return 1 + sum(map(count_values, value.values()))  # pyright: ignore[reportUnknownArgumentType]
        case Neo4jPath():
            return 1 + sum(map(count_values, value.nodes))
        case _:
            return 1


def _native(value: Date | Time | DateTime) -> date | time_of_day | datetime | str:
    try:
        native = value.to_native()
    except ValueError:  # Neo4j allows years beyond 9999
        return value.iso_format()
    # FalkorDB has no time zones and returns UTC; equal content must read equal.
    return native.replace(tzinfo=UTC) if isinstance(native, datetime) and native.tzinfo is None else native


def _span(value: Duration) -> timedelta | str:
    """Return a duration as the time from 1970 that it takes, as FalkorDB stores it."""
    try:
        until: datetime = _EPOCH + relativedelta(
            months=value.months, days=value.days, seconds=value.seconds, microseconds=value.nanoseconds // 1000
        )
    except (ValueError, OverflowError):
        return value.iso_format()
    return until - _EPOCH
