"""The rows of recent queries, by app, statement and values, with the version of the graph that they are for.

An entry stays when its version is past: then it is what an agent gets while the graph gives nothing.
"""

from __future__ import annotations

import re
import sys
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from graphweft_rules import BoundQuery
from graphweft_workers.graph.store import Table
from graphweft_workers.injection.versions import Version

type Key = tuple[str, str, Any]
"""App, statement, and how many rows count with the frozen values of the parameters; of a search, all of it instead of
the parameters, and no statement."""

_ENTRY_BYTES: Final = 400
"""What an entry takes beside its rows: its key's and its own objects, and a place in the order."""
_MOST_LEVELS: Final = 50
"""Values nested more deeply are not kept."""
_TODAY: Final = frozenset({"__date"})
"""The only clock parameter whose value comes again."""
_RANDOM: Final = re.compile(r"\brand(?:om)?\w*`?\s*\(|\.\s*(?:realtime|statement|transaction)\s*\(", re.IGNORECASE)


@dataclass(slots=True, kw_only=True, eq=False)
class Entry:
    """Rows of one query. They are never handed out to be changed."""

    table: Table
    version: Version | None
    """What the graph is at while these are its rows; None when that is not known."""
    right_at: float
    """Monotonic time at which the rows were those of the graph, at least."""
    bytes: int


class Cache:
    """Keeps the entries used last, of ``limit`` bytes together at most; with 0 it keeps nothing.

    The bytes are an estimate: objects are counted as Python counts them, but one that several rows share (a short
    text, a small number, the keys of maps) for each of them, and what the allocator rounds up is not counted. Beside
    ``tracemalloc``, for rows of text, numbers and maps, it is 3 to 18 % too much.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._entries: OrderedDict[Key, Entry] = OrderedDict()
        self.bytes = 0
        """Of all entries."""
        self.hits = 0
        """Queries that were answered from here."""
        self.misses = 0
        """Queries that could have been, and went to the graph."""
        self.joined = 0
        """Queries that waited for the rows of an equal one under way."""

    @property
    def on(self) -> bool:
        """Whether anything is kept."""
        return self._limit > 0

    def counts(self) -> dict[str, int]:
        """Return the counters and what is kept. Of all three, hits and joined are what no query was run for."""
        return {
            "cache_hits": self.hits,
            "cache_joined": self.joined,
            "cache_misses": self.misses,
            "cache_entries": self.entries,
            "cache_bytes": self.bytes,
        }

    @property
    def entries(self) -> int:
        """The number of entries."""
        return len(self._entries)

    def get(self, key: Key) -> Entry | None:
        """Return the entry of a query, whatever its version; it counts as used."""
        entry = self._entries.get(key)
        if entry is not None:
            self._entries.move_to_end(key)
        return entry

    def put(self, key: Key, table: Table, version: Version | None, right_at: float) -> None:
        """Keep rows in the place of older ones. Rows that are larger than the whole cache are not kept."""
        before = self._entries.get(key)
        if before is not None and before.right_at > right_at:
            return
        size = _ENTRY_BYTES + size_of(key) + size_of(table.columns) + size_of(table.rows)
        if before is not None:
            del self._entries[key]
            self.bytes -= before.bytes
        if size > self._limit:
            return
        self._entries[key] = Entry(table=table, version=version, right_at=right_at, bytes=size)
        self.bytes += size
        while self.bytes > self._limit:
            _, oldest = self._entries.popitem(last=False)
            self.bytes -= oldest.bytes


def key_of(app_id: str, bound: BoundQuery) -> Key | None:
    """Return the key of a query, equal for equal values only: 1, 1.0 and true are three.

    None when it never comes again, because its values tell the time or are of unknown types, or when the graph gives
    other rows each time.
    """
    cypher = bound.cypher
    if bound.graphrag is not None or (
        bound.search is not None and bound.search.memory is not None and bound.search.of in {"all", "facts"}
    ):
        return None  # what is a fact now may be none in a minute, without any write
    if cypher is not None and (not cypher.clock <= _TODAY or _is_random(cypher.statement)):
        return None
    try:
        if bound.search is not None:
            return (app_id, "", (bound.query.most_rows, _frozen(bound.search.model_dump(), 0)))
        assert cypher is not None
        return (app_id, cypher.statement, (bound.query.most_rows, _frozen(bound.params, 0)))
    except _Unfrozen:
        return None


def size_of(value: Any) -> int:
    """Return the estimated bytes of a value and all that is in it."""
    total = sys.getsizeof(value)
    if isinstance(value, str | bytes | int | float) or value is None:
        return total
    if isinstance(value, Mapping):
        for name, item in value.items():  # pyright: ignore[reportUnknownVariableType]
            total += sys.getsizeof(name) + size_of(item)  # pyright: ignore[reportUnknownArgumentType]
    elif isinstance(value, Sequence):
        for item in value:  # pyright: ignore[reportUnknownVariableType]
            total += size_of(item)
    return total


class _Unfrozen(Exception):
    """A value cannot be part of a key."""


def _frozen(value: Any, level: int) -> Any:
    # By exact type: equal values of two types are two, and so are 0.0 and -0.0. Text and null equal nothing else.
    kind: type[Any] = type(value)  # pyright: ignore[reportUnknownVariableType]
    if kind is str or value is None or kind is bool:
        return value
    if kind is int:
        return ("i", value)
    if kind is float:
        return ("f", repr(value))
    if level > _MOST_LEVELS:
        raise _Unfrozen
    if kind is dict:
        return ("m", *((name, _frozen(item, level + 1)) for name, item in value.items()))
    if kind is list or kind is tuple:
        return ("l", *(_frozen(item, level + 1) for item in value))
    raise _Unfrozen


@lru_cache(maxsize=4_096)
def _is_random(statement: str) -> bool:
    return _RANDOM.search(statement) is not None
