"""The indexes of scopes that this process keeps, each for one version of its graph.

An answer counts only if the graph is still at the index's version, as read after the search began. Otherwise the server
answers, and an index is built beside it, from the second search of a scope on. One is built at a time, and apps take
turns.
"""

from __future__ import annotations

import asyncio
import sys
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from graphweft_contracts import GraphUnavailable, QueryFailed
from graphweft_contracts.bounded_dict import BoundedDict
from graphweft_contracts.clock import SYSTEM_CLOCK, Clock
from graphweft_workers.ports.dialect import SearchTarget
from graphweft_workers.ports.graph_store import GraphStore, Table
from graphweft_workers.retrieval import statements
from graphweft_workers.retrieval.scope_index import IndexedNode, ScopeIndex, Unfit, Vectors, node_of
from graphweft_workers.retrieval.statements import Statement
from graphweft_workers.support.eager_task import begun
from graphweft_workers.support.lazy_logger import get_logger
from graphweft_workers.support.timing import TIMING, RetrievalTiming

logger = get_logger("graphweft.retrieval")

type _Key = tuple[str, tuple[str, ...], tuple[tuple[str, str], ...], tuple[tuple[str, str], ...], tuple[str, ...]]
"""App, labels, scope, scope of the origin, and the properties of validity if the target has one."""

_MOST_NODES: Final = 20_000
"""A search takes about 1 ms for 1,000 nodes with vectors."""
_MOST_TERMS: Final = 1_000_000
_MOST_CHARACTERS: Final = 16_000_000
"""Of the terms and ids of all nodes, which a build reads before it indexes them: up to 4 bytes each, mostly 1."""
_PAGE: Final = 2_000
_VECTORS: Final = 25
"""Vectors that are read at once: 384 numbers each block the event loop for about 4 ms."""
_TURN: Final = 200
_FROM: Final = 2
"""The search of a scope at which its index is built: most scopes are searched once."""
_LOOK: Final = 10
"""Steps of a build between two looks at the version."""
_MOST_WAITING: Final = 1_000
"""Apps that wait for a build."""


class _Outdated(Exception):
    """The graph has changed during a build, or something was erased."""


async def read_index(rows: Iterable[Sequence[Any]]) -> ScopeIndex:
    """Return an index of rows of ``statements.nodes``, for one search; rows that an index cannot hold are left out."""
    nodes: dict[str, IndexedNode] = {}
    for row in rows:
        try:
            node = node_of(row)
        except Unfit:
            continue
        nodes[node.key] = node
    index = ScopeIndex(list(nodes.values()))
    for _ in range(0, len(nodes), _TURN):
        index.read(_TURN)
        await asyncio.sleep(0)
    return index


class VersionSource(Protocol):
    """The versions of graphs."""

    async def current(self, app_id: str, timeout_s: float) -> object | None:
        """Return the version of a graph, read from now on; None if it is unknown. Equal versions are one object."""
        ...

    def may_keep(self, app_id: str, version: object, at: float) -> bool:
        """Tell whether what queries return from the monotonic time ``at`` on is right while the version stays.

        False also if something was erased that the version has not reached.
        """
        ...


@dataclass(slots=True, eq=False, kw_only=True)
class _Kept:
    index: ScopeIndex
    version: object
    bytes: int


@dataclass(slots=True, eq=False)
class _Scope:
    """The searches of a scope."""

    searches: int = 0
    not_before: float = 0.0
    """Monotonic time of its next build."""


type _Due = Sequence[tuple[_Key, SearchTarget, _Scope]]


@dataclass(slots=True, eq=False)
class Lookup:
    """The indexes that there are for the targets of a search, by the place of the target.

    They may be of an earlier version: an answer that used one counts only if ``right`` still has it.
    """

    indexes: Mapping[int, ScopeIndex]
    _reading: asyncio.Task[object | None] | None
    _settle: Callable[[object | None], dict[int, ScopeIndex]]

    async def right(self) -> Mapping[int, ScopeIndex]:
        """Return the indexes that are right for the graph as it was after the search began; call it once."""
        return self._settle(await self._reading) if self._reading is not None else {}

    def close(self) -> None:
        """Read the version no longer."""
        if self._reading is not None:
            self._reading.cancel()


@dataclass(slots=True)
class ScopeIndexes:
    """Keeps the most recently used indexes, up to ``limit`` bytes in total; 0 keeps none.

    If there is no room, the app with the most bytes loses the index that it has not used for the longest time.
    """

    graph: GraphStore
    versions: VersionSource
    limit: int
    model: str | None = None
    """The model whose vectors are indexed; None indexes none."""
    clock: Clock = SYSTEM_CLOCK
    timing: RetrievalTiming = TIMING.retrieval
    bytes: int = 0
    hits: int = 0
    """Targets that an index answered."""
    misses: int = 0
    """Targets that the server answered."""
    builds: int = 0
    outdated: int = 0
    """Builds during which the graph changed, or something was erased."""
    failed: int = 0
    """Builds that the graph did not answer, that took too long, or whose nodes are too many or unfit."""
    evicted: int = 0
    _kept: OrderedDict[_Key, _Kept] = field(default_factory=OrderedDict[_Key, _Kept])
    _scopes: BoundedDict[_Key, _Scope] = field(default_factory=BoundedDict[_Key, _Scope])
    _apps: BoundedDict[str, float] = field(default_factory=BoundedDict[str, float])
    """Monotonic time of an app's next build, after one that was in vain."""
    _waiting: dict[str, _Due] = field(default_factory=dict[str, _Due])
    """The indexes to build for the newest search of each app; the app that has waited for the longest is first."""
    _building: asyncio.Task[None] | None = None
    _builds_for: str = ""
    """The app of the build under way."""
    _purged: int = 0
    """Number of purges that concern a build."""

    def counts(self) -> dict[str, int]:
        """Return the counters, the number of indexes and their bytes."""
        return {
            "index_hits": self.hits,
            "index_misses": self.misses,
            "index_entries": len(self._kept),
            "index_bytes": self.bytes,
            "index_builds": self.builds,
            "index_outdated": self.outdated,
            "index_failed": self.failed,
            "index_evicted": self.evicted,
        }

    def find(self, app_id: str, targets: Sequence[SearchTarget], timeout_s: float) -> Lookup:
        """Look for the indexes of targets, and begin to read the version of the graph; build missing ones beside.

        Close the result.
        """
        if not self.limit:
            return Lookup({}, None, lambda _: {})
        keys = {of: key for of, target in enumerate(targets) if (key := _key_of(app_id, target)) is not None}
        kept = {of: self._kept[key] for of, key in keys.items() if key in self._kept}
        reading = begun(self.versions.current(app_id, min(timeout_s, self.timing.version_s))) if kept else None

        def settle(version: object | None) -> dict[int, ScopeIndex]:
            right: dict[int, ScopeIndex] = {}
            for of, each in kept.items():
                if self._kept.get(keys[of]) is not each:  # something was erased, or there was no room
                    continue
                if version is not None and each.version is version:
                    self._kept.move_to_end(keys[of])
                    right[of] = each.index
                elif version is not None:
                    self._drop(keys[of])
            self.hits += len(right)
            self.misses += len(targets) - len(right)
            if missing := [(key, targets[of]) for of, key in keys.items() if of not in right]:
                self._build_later(app_id, missing)
            return right

        if reading is None:
            settle(None)
        return Lookup({of: each.index for of, each in kept.items()}, reading, settle)

    def purge(self) -> None:
        """Drop all indexes, and those that are being built."""
        self._kept.clear()
        self.bytes = 0
        self._purged += 1

    def purge_app(self, app_id: str) -> None:
        """Drop the indexes of an app, and the one that is being built for it."""
        for key in [key for key in self._kept if key[0] == app_id]:
            self._drop(key)
        if app_id == self._builds_for:
            self._purged += 1

    async def built(self) -> None:
        """Wait for the end of the build under way, if there is one, and of those that wait for it."""
        if self._building is not None:
            await asyncio.wait([self._building])

    async def aclose(self) -> None:
        """Stop building."""
        self._waiting.clear()
        if self._building is not None:
            self._building.cancel()
            await asyncio.gather(self._building, return_exceptions=True)

    def _build_later(self, app_id: str, missing: Sequence[tuple[_Key, SearchTarget]]) -> None:
        due: list[tuple[_Key, SearchTarget, _Scope]] = []
        for key, target in missing:
            scope = self._scopes.get(key)
            if scope is None:
                scope = self._scopes[key] = _Scope()
            scope.searches += 1
            if scope.searches >= _FROM and self._may_build(key, scope):
                due.append((key, target, scope))
        if due and (app_id in self._waiting or len(self._waiting) < _MOST_WAITING):
            self._waiting[app_id] = due
        if self._waiting and (self._building is None or self._building.done()):
            self._building = asyncio.create_task(self._build_all(), name="graphweft-scope-index")

    def _may_build(self, key: _Key, scope: _Scope) -> bool:
        now = self.clock.monotonic()
        return key not in self._kept and now >= max(scope.not_before, self._apps.get(key[0], now))

    async def _build_all(self) -> None:
        while self._waiting:
            app_id = next(iter(self._waiting))
            await self._build_for(app_id, self._waiting.pop(app_id))

    async def _build_for(self, app_id: str, due: _Due) -> None:
        self._builds_for = app_id
        for key, target, scope in due:
            if not self._may_build(key, scope):  # since it is due, it was built, or a build was in vain
                continue
            began = self.clock.monotonic()
            self.builds += 1
            try:
                async with asyncio.timeout(self.timing.build_s):
                    await self._build(app_id, key, target)
            except (_Outdated, TimeoutError) as error:
                if isinstance(error, _Outdated):
                    self.outdated += 1
                else:
                    self.failed += 1
                self._apps[app_id] = self.clock.monotonic() + (self.clock.monotonic() - began) * self.timing.pause
                break
            except (Unfit, QueryFailed, GraphUnavailable) as error:
                self.failed += 1
                logger.debug("scope_not_indexed", app_id=app_id, labels=target.labels, error=str(error))
            except Exception:  # a defect: searches go on without an index
                self.failed += 1
                logger.exception("scope_not_indexed", app_id=app_id, labels=target.labels)
            finally:
                scope.not_before = self.clock.monotonic() + max(
                    self.timing.least_pause_s, (self.clock.monotonic() - began) * self.timing.pause
                )

    async def _build(self, app_id: str, key: _Key, target: SearchTarget) -> None:
        purged = self._purged
        version = await self.versions.current(app_id, self.timing.version_s)
        began = self.clock.monotonic()

        async def check() -> None:
            now = await self.versions.current(app_id, self.timing.version_s)
            if version is None or now is not version or purged != self._purged:
                raise _Outdated
            if not self.versions.may_keep(app_id, version, began):
                raise _Outdated

        await check()
        index = await self._read(app_id, target, check)
        await check()
        size = index.bytes + _bytes_of(key)
        self._check_size(size)
        self._drop(key)
        self._kept[key] = _Kept(index=index, version=version, bytes=size)
        self.bytes += size
        while self.bytes > self.limit:
            self._evict()

    async def _read(self, app_id: str, target: SearchTarget, check: Callable[[], Awaitable[None]]) -> ScopeIndex:
        async def ask(asked: Statement) -> Table:
            return await self.graph.read(app_id, asked.text, asked.params, timeout_s=self.timing.build_query_s)

        dialect = self.graph.dialect
        sizes = (await ask(statements.size_of_nodes(dialect, target))).rows
        count, length, characters = sizes[0] if sizes else (0, 0, 0)
        if count > _MOST_NODES or length > _MOST_TERMS or characters > _MOST_CHARACTERS:
            raise Unfit(f"{count} nodes with {length} terms of {characters} characters are too many for an index")
        nodes: list[IndexedNode] = []
        while True:
            after = nodes[-1].key if nodes else ""
            table = await ask(statements.nodes(dialect, target, after=after, limit=_PAGE))
            nodes += [node_of(row) for row in table.rows]
            if len(nodes) > _MOST_NODES:
                raise Unfit("its nodes are too many for an index")
            if len(table.rows) < _PAGE:
                break
            await asyncio.sleep(0)
        index = ScopeIndex(nodes)
        while await self._rested(lambda: not index.read(_TURN)):
            self._check_size(index.bytes)
        if target.vector is not None and self.model is not None:
            index.vectors = vectors = Vectors()
            places = {key: number for number, key in enumerate(index.keys)}
            for step, first in enumerate(range(0, len(index.keys), _VECTORS), 1):
                began = self.clock.monotonic()
                if step % _LOOK == 0:
                    await check()
                keys = index.keys[first : first + _VECTORS]
                rows = (await ask(statements.vectors(dialect, target, keys, model=self.model))).rows
                vectors.add(sorted((places[key], vector) for key, vector in rows))
                self._check_size(index.bytes)
                await self.clock.sleep((self.clock.monotonic() - began) * self.timing.rest)
            while await self._rested(lambda: not vectors.close(_TURN // 4)):
                pass
        return index

    def _check_size(self, size: int) -> None:
        if size > self.limit:
            raise Unfit("its index is larger than all indexes may be")

    async def _rested(self, step: Callable[[], bool]) -> bool:
        """Run a step, rest, and return its result."""
        began = self.clock.monotonic()
        result = step()
        await self.clock.sleep((self.clock.monotonic() - began) * self.timing.rest)
        return result

    def _drop(self, key: _Key) -> None:
        kept = self._kept.pop(key, None)
        if kept is not None:
            self.bytes -= kept.bytes

    def _evict(self) -> None:
        apps: dict[str, int] = {}
        for (app_id, *_), kept in self._kept.items():
            apps[app_id] = apps.get(app_id, 0) + kept.bytes
        largest = max(apps, key=lambda app_id: apps[app_id])
        self._drop(next(key for key in self._kept if key[0] == largest))
        self.evicted += 1


def _bytes_of(key: _Key) -> int:
    """Return the size of the names in a key: requests choose them."""
    _, _, *scopes, _ = key
    return sum(sys.getsizeof(value) for scope in scopes for _, value in scope)


def _key_of(app_id: str, target: SearchTarget) -> _Key | None:
    """Return the key of a target's index; None if it can have none."""
    text = target.text
    if target.key is None or target.time is None or text is None or text.terms is None or text.length is None:
        return None
    if not target.scope and not target.origin_scope:
        return None
    validity = target.validity if target.valid_at is not None else ()
    scopes = (tuple(sorted(scope.items())) for scope in (target.scope, target.origin_scope))
    return (app_id, target.labels, *scopes, validity)  # type: ignore[return-value]  # two scopes
