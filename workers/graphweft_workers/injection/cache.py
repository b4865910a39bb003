"""The rows of recent queries, by app, statement and values, with the version of the graph that they belong to.

An entry outlives its version: requests get it while the graph returns nothing.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from graphweft_contracts.clock import SYSTEM_CLOCK, Clock
from graphweft_rules import BoundQuery
from graphweft_workers.injection.versions import Version
from graphweft_workers.ports.graph_store import Table
from graphweft_workers.ports.offsets import is_after
from graphweft_workers.support.app_shares import AppShares
from graphweft_workers.text.long_values import are_long

type Key = tuple[str, str, Any]
"""App, statement, and the row limit with the frozen parameters. A search has an empty statement and all its options as
parameters."""

_ENTRY_BYTES: Final = 400
"""Of an entry without its rows and the values of its key."""
_FLAT: Final[frozenset[type]] = frozenset({str, bytes, int, float, bool, type(None)})
"""Types of values without content, by far the most of them."""
_NESTED: Final[frozenset[type]] = frozenset({tuple, list, dict})
_MOST_LEVELS: Final = 50
_LONG: Final = 20_000
"""Characters and items of values that make no key."""
"""Queries with values nested more deeply are not cached."""
_ENDING: Final = frozenset({"all", "memories", "facts", "profile"})
"""The kinds of which some end without a write."""
_TODAY: Final = frozenset({"__date"})
"""The only clock parameter whose value repeats."""
_RANDOM: Final = re.compile(r"\brand(?:om)?\w*`?\s*\(|\.\s*(?:realtime|statement|transaction)\s*\(", re.IGNORECASE)


@dataclass(slots=True, kw_only=True, eq=False)
class CachedRows:
    """The rows of one query, which must not be changed."""

    table: Table
    version: Version | None
    """The rows are valid while the graph is at this version; None if it is unknown."""
    right_at: float
    """Latest monotonic time at which the rows are known to equal those of the graph."""


class Cache:
    """Keeps the most recently used entries, up to ``limit`` bytes in total; 0 keeps none. Apps have even shares.

    The bytes are an estimate: a shared object counts for each row that holds it, and the allocator's overhead does not
    count. For rows of text, numbers and maps it is 3 to 18 % above ``tracemalloc``.
    """

    def __init__(self, limit: int, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._purged_at = -math.inf
        self._purged_apps: dict[str, float] = {}
        """Monotonic times; rows of queries that were sent before are not stored."""
        self._erasures: dict[str, dict[int, str]] = {}
        """By app and partition: the offset of an erasure that the graph may not have yet."""
        self._entries: AppShares[Key, CachedRows] = AppShares(limit)
        self.hits = 0
        """Queries answered from the cache."""
        self.misses = 0
        """Queries that may be cached and went to the graph."""
        self.purges = 0
        """Purges of an app or of all."""
        self.joined = 0
        """Queries that shared the rows of an equal query under way."""

    @property
    def on(self) -> bool:
        """Whether the cache keeps entries."""
        return self._entries.limit > 0

    def counts(self) -> dict[str, int]:
        """Return the counters, the number of entries and their bytes. Hits and joined queries cost no query."""
        return {
            "cache_hits": self.hits,
            "cache_joined": self.joined,
            "cache_misses": self.misses,
            "cache_entries": self.entries,
            "cache_bytes": self.bytes,
            "cache_purges": self.purges,
        }

    @property
    def entries(self) -> int:
        """The number of entries."""
        return len(self._entries)

    @property
    def bytes(self) -> int:
        """The bytes of all entries."""
        return self._entries.size

    def get(self, key: Key) -> CachedRows | None:
        """Return the entry of a query, whatever its version, and count it as used."""
        return self._entries.get(key[0], key)

    def purge(self) -> None:
        """Drop all entries; rows of queries that were sent before are not stored either."""
        self._entries.clear()
        self.purges += 1
        self._purged_at = self._clock.monotonic()

    def purge_app(self, app_id: str, place: tuple[int, str] | None = None) -> None:
        """Drop the entries of an app; rows of queries that were sent before are not stored either.

        With the ``place`` of an erasure, partition and offset, neither are rows of a graph that does not have it yet.
        """
        self._entries.pop_app(app_id)
        self.purges += 1
        self._purged_apps[app_id] = self._clock.monotonic()
        if place is not None:
            self._erasures.setdefault(app_id, {})[place[0]] = place[1]

    def may_store(self, app_id: str, version: Version | None, right_at: float) -> bool:
        """Tell whether rows of a query that was sent at a monotonic time hold nothing that was erased since."""
        if right_at <= max(self._purged_at, self._purged_apps.get(app_id, -math.inf)):
            return False
        erasures = self._erasures.get(app_id)
        if erasures is None:
            return True
        if version is None:
            return False
        for partition, offset in erasures.items():
            reached = version.checkpoints.get(partition)
            if reached is None or is_after(offset, reached.offset):
                return False
        del self._erasures[app_id]  # later versions have them too
        return True

    def put(self, key: Key, table: Table, version: Version | None, right_at: float) -> None:
        """Store rows unless newer ones are there; rows larger than the whole cache are dropped."""
        before = self.get(key)
        if not self.may_store(key[0], version, right_at) or (before is not None and before.right_at > right_at):
            return
        size = _ENTRY_BYTES + size_of(key) + size_of(table.columns) + size_of(table.rows)
        self._entries.pop(key[0], key)
        if size <= self._entries.limit:
            self._entries.put(key[0], key, CachedRows(table=table, version=version, right_at=right_at), size)


def key_of(app_id: str, bound: BoundQuery) -> Key | None:
    """Return the key of a query, equal for equal values only: 1, 1.0 and true differ.

    None if the query cannot be cached: its values contain the time or unknown types, or its rows change without a
    write. Also None if its values are long: a key of a million values takes 0.2 s, and who sends these asks once.
    """
    cypher = bound.cypher
    if are_long(bound.params.values(), _LONG):
        return None
    if bound.graphrag is not None or (
        bound.search is not None and bound.search.memory is not None and bound.search.of in _ENDING
    ):
        return None
    if cypher is not None and (not cypher.clock <= _TODAY or _is_random(cypher.statement)):
        return None
    try:
        if bound.search is not None:
            asked = _frozen(bound.search.model_dump(), 0), bound.search.shown
            return (app_id, "", (bound.query.most_rows, *asked))
        assert cypher is not None
        return (app_id, cypher.statement, (bound.query.most_rows, _frozen(bound.params, 0)))
    except _Unfrozen:
        return None


def size_of(value: Any) -> int:
    """Return the estimated bytes of a value with its content."""
    total = sys.getsizeof(value)
    kind: type[Any] = type(value)  # pyright: ignore[reportUnknownVariableType]
    # By exact type first, because nearly all values have one of these, and to ask an abstract class takes long.
    if kind in _FLAT or (kind not in _NESTED and isinstance(value, str | bytes | int | float)):
        return total
    if kind is dict or (kind not in _NESTED and isinstance(value, Mapping)):
        for name, item in value.items():  # pyright: ignore[reportUnknownVariableType]
            total += sys.getsizeof(name) + size_of(item)  # pyright: ignore[reportUnknownArgumentType]
    elif kind in _NESTED or isinstance(value, Sequence):
        for item in value:  # pyright: ignore[reportUnknownVariableType]
            total += sys.getsizeof(item) if type(item) in _FLAT else size_of(item)  # pyright: ignore[reportUnknownArgumentType]
    return total


class _Unfrozen(Exception):
    """A value cannot be part of a key."""


def _frozen(value: Any, level: int) -> Any:
    # By exact type: equal values of two types differ, and so do 0.0 and -0.0. Text and null equal no other type.
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
