"""The indexes of scopes that this process keeps, each for one state of what its scope holds.

An index is right while the marks of its scope (``scope_marks``) are those that it was built from, as read after the
search began; without marks that tell all changes of its scope, while the graph has that version. Memories that were
added meanwhile are added to it; after any other change the server answers, and the index is built anew beside it, from
the second search of a scope on. One is built at a time, and apps take turns.
"""

from __future__ import annotations

import asyncio
import sys
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import batched
from typing import Any, Final, Literal, Protocol

from graphweft_contracts import GraphUnavailable, QueryFailed
from graphweft_contracts.bounded_dict import BoundedDict
from graphweft_contracts.clock import SYSTEM_CLOCK, Clock
from graphweft_workers.ports.dialect import SearchTarget
from graphweft_workers.ports.graph_store import GraphStore, Table
from graphweft_workers.retrieval import statements
from graphweft_workers.retrieval.scope_index import IndexedNode, ScopeIndex, Unfit, Vectors, node_of, terms_in
from graphweft_workers.retrieval.scope_marks import MARKED, Marks, TargetMarks, marks_of, reading
from graphweft_workers.retrieval.statements import Statement
from graphweft_workers.support.app_shares import AppShares
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
_STEP: Final = 1_000
"""Terms that are read at once: new ones block the event loop for about 4 ms."""
_FROM: Final = 2
"""The search of a scope at which its index is built: most scopes are searched once."""
_LOOK: Final = 10
"""Steps of a build between two looks at the version."""
_MOST_ADDED: Final = 200
"""Nodes that are added to an index at once."""
_MOST_WITHOUT: Final = 200
"""Nodes of an index that wait for a vector: with each new vector of the app they are asked for theirs."""
_MOST_SCOPES: Final = 10_000
"""Scopes of all apps of which it is known that they were searched."""
_MOST_WAITING: Final = 1_000
"""Apps that wait for a build."""


class _Outdated(Exception):
    """The scope has changed during a build, or something was erased."""


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
    await _read_all(index)
    return index


async def _read_all(index: ScopeIndex) -> None:
    """Read the nodes of an index, while others have their turn."""
    while not index.read(_STEP):  # noqa: ASYNC110
        await asyncio.sleep(0)


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
    """An index, and the state for which it is right."""

    index: ScopeIndex
    version: object | None
    """Of the graph when it was built, or compared with marks since; None if that was not read."""
    marks: Marks
    """The last ones for which it was right."""
    concerned: TargetMarks | None = None
    """Those that tell all changes; None if none do."""
    bytes: int
    at: float
    """Monotonic time at which the marks were read."""
    without_vector: dict[str, None] = field(default_factory=dict[str, None])
    """The keys of the nodes that had no vector yet."""
    coming: tuple[Marks, float] | None = None
    """Marks of what is to be added once all readers see it, and the monotonic time at which they had been read."""
    vectors_seen_at: float | None = None
    """Monotonic time at which all readers see the vectors that are there; None if nodes were asked for them since."""
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while it is compared with the graph."""
    used: int
    """The number of the last search that used it."""


@dataclass(slots=True, eq=False)
class _Scope:
    """The searches of a scope."""

    since: int
    """The number of its first search, or of the last one for which it was to be built."""
    searches: int = 0
    not_before: float = 0.0
    """Monotonic time of its next build."""
    pause_s: float = 0.0
    """The pause after its last build."""
    bytes: int = 0
    """The size of its last index."""


type _Due = Sequence[tuple[_Key, SearchTarget, _Scope]]


@dataclass(slots=True)
class ScopeIndexes:
    """Keeps the most recently used indexes, up to ``limit`` bytes in total; 0 keeps none.

    If there is no room, apps with more than an even share lose what they have not used for the longest time, the one
    with the most bytes first. What is in use gives way to an app within its share, or to one that has less even then.
    """

    graph: GraphStore
    versions: VersionSource
    limit: int
    model: str | None = None
    """The model whose vectors are indexed; None indexes none."""
    written: Callable[[], frozenset[str] | None] = frozenset
    """Returns the labels and types that rules may write, or may have written; None: any. Rules set no marks."""
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
    added: int = 0
    """Nodes that were added to indexes."""
    _kept: OrderedDict[_Key, _Kept] = field(default_factory=OrderedDict[_Key, _Kept])
    _searches: int = 0
    _scopes: AppShares[_Key, _Scope] = field(default_factory=lambda: AppShares(_MOST_SCOPES))
    """The scopes that were searched."""
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
            "index_added": self.added,
        }

    async def find(self, app_id: str, targets: Sequence[SearchTarget], timeout_s: float) -> Mapping[int, ScopeIndex]:
        """Return the indexes of targets, by their place, that are right for the graph as it is from now on.

        Build missing ones beside.
        """
        if not self.limit:
            return {}
        self._searches += 1
        keys = {of: key for of, target in enumerate(targets) if (key := _key_of(app_id, target)) is not None}
        right: dict[int, ScopeIndex] = {}
        kept = {of: self._kept[key] for of, key in keys.items() if key in self._kept}
        if kept:
            limit_s = min(timeout_s, self.timing.version_s)
            tell_all = self._marks_tell_all()
            concerned = {of: some for of, each in kept.items() if tell_all and (some := each.concerned) is not None}
            version: object | None = None
            if any(of not in concerned or not concerned[of].are_there(each.marks) for of, each in kept.items()):
                version = await self.versions.current(app_id, limit_s)
            same = [of for of, each in kept.items() if version is not None and each.version is version]
            others = {of: (kept[of], some) for of, some in concerned.items() if of not in same}
            same += await self._with_same_marks(app_id, targets, others, version, limit_s)
            for of in kept.keys() - concerned.keys() - set(same) if version is not None else ():
                self._drop_if_kept(app_id, targets[of], kept[of])
            for of in same:
                if self._kept.get(keys[of]) is kept[of]:  # else something was erased meanwhile
                    self._kept.move_to_end(keys[of])
                    kept[of].used = self._searches
                    right[of] = kept[of].index
        self.hits += len(right)
        self.misses += len(targets) - len(right)
        if missing := [(key, targets[of]) for of, key in keys.items() if of not in right]:
            self._build_later(app_id, missing)
        return right

    async def _with_same_marks(
        self,
        app_id: str,
        targets: Sequence[SearchTarget],
        kept: Mapping[int, tuple[_Kept, TargetMarks]],
        version: object | None,
        timeout_s: float,
    ) -> Sequence[int]:
        """Return the places of the indexes that are right by their marks; others are dropped.

        Added memories are added to them first. They are right for the version, too, if that was read before.
        """
        began = self.clock.monotonic()
        now: Marks = {}
        try:
            if kept:
                now = await self._read_marks(app_id, [marks for _, marks in kept.values()], timeout_s)
        except (QueryFailed, GraphUnavailable):
            return ()
        found: list[int] = []
        for of, (each, marks) in kept.items():
            async with each.lock:
                if each.at > began:  # another search compared it with later marks
                    found.append(of)
                    continue
                compared = await self._compared(app_id, targets[of], each, marks, now, began=began)
                if compared == "right":
                    each.version = version if each.vectors_seen_at is None else None  # it is looked at again
                    each.marks, each.at = now, began
                    found.append(of)
                elif compared == "wrong":
                    self._drop_if_kept(app_id, targets[of], each)
        return found

    async def _compared(
        self, app_id: str, target: SearchTarget, kept: _Kept, marks: TargetMarks, now: Marks, *, began: float
    ) -> Literal["right", "later", "wrong"]:
        """Compare an index with the marks that were read after ``began``; what was added to its scope is added to it.

        ``later``: it lacks what is added once all readers see it (``GraphStore.settle_s``).
        """
        if not marks.are_kept(kept.marks, now):
            return "wrong"
        if (settle_s := self.graph.settle_s) and not marks.are_same(kept.marks, now):
            if kept.coming is not None and began >= kept.coming[1] + settle_s:
                (seen, _), kept.coming = kept.coming, None
                if not await self._followed(app_id, target, kept, marks, seen):
                    return "wrong"
                kept.marks = seen
            if not marks.are_same(kept.marks, now):
                if marks.added(kept.marks, now) is None:
                    return "wrong"
                kept.coming = kept.coming or (now, self.clock.monotonic())
                return "later"
        return "right" if await self._followed(app_id, target, kept, marks, now) else "wrong"

    async def _followed(self, app_id: str, target: SearchTarget, kept: _Kept, marks: TargetMarks, now: Marks) -> bool:
        """Add what marks tell to an index, of which they keep the rest; return whether it is right for them then."""
        before, at = kept.marks, self.clock.monotonic()
        embedded = kept.index.vectors is not None and before.get(marks.vectors) != now.get(marks.vectors)
        if embedded and kept.without_vector and self.graph.settle_s:
            kept.vectors_seen_at = kept.vectors_seen_at or at + self.graph.settle_s
        elif kept.vectors_seen_at is not None and at >= kept.vectors_seen_at:
            embedded, kept.vectors_seen_at = True, None
        if marks.are_same(before, now):
            return not (embedded and kept.without_vector) or await self._updated(app_id, target, kept, (), embedded)
        added = marks.added(before, now)
        if added is None:
            added = await self._counted(app_id, target, kept.index)
        return added is not None and await self._updated(app_id, target, kept, added, embedded)

    def _marks_tell_all(self) -> bool:
        """Tell whether no rule writes what only marks tell."""
        written = self.written()
        return written is not None and not written & MARKED

    async def _read_marks(self, app_id: str, of: Iterable[TargetMarks], timeout_s: float) -> Marks:
        text, params = reading([id for each in of for id in each.ids])
        table = await self.graph.read(app_id, text, params, timeout_s=timeout_s)
        return {str(id): str(value) for id, value in table.rows}

    async def _counted(self, app_id: str, target: SearchTarget, index: ScopeIndex) -> Sequence[str] | None:
        """Return the keys of what is later than an index; None unless the scope then has as many nodes and terms."""
        dialect = self.graph.dialect

        async def ask(asked: Statement) -> Table:
            return await self.graph.read(app_id, asked.text, asked.params, timeout_s=self.timing.build_query_s)

        try:
            later, sizes = await asyncio.gather(
                ask(statements.later(dialect, target, after=index.newest, limit=_MOST_ADDED + 1)),
                ask(statements.size(dialect, target, whole=True)),  # half as long as with all characters
            )
            nodes = [node_of(row) for row in later.rows]
        except (QueryFailed, GraphUnavailable, Unfit):
            return None
        length = index.total_length + sum(node.length for node in nodes)
        if not sizes.rows or (len(index.keys) + len(nodes), length) != tuple(sizes.rows[0]):
            return None
        return [node.key for node in nodes]

    async def _updated(
        self, app_id: str, target: SearchTarget, kept: _Kept, added: Sequence[str], embedded: bool
    ) -> bool:
        """Add nodes to an index, and the vectors that its nodes have got; return whether it is right then.

        It is not if too many nodes wait for a vector, or one cannot be added behind the others. A vector that took the
        place of another counts from the next build on.
        """
        index, missing = kept.index, kept.without_vector
        if len(added) > _MOST_ADDED or len(missing) > _MOST_WITHOUT:
            return False
        model = self.model if embedded else None
        nodes: list[IndexedNode] = []
        vectors: list[tuple[str, Any]] = []
        try:
            for keys in batched(dict.fromkeys([*added, *(missing if embedded else ())]), _VECTORS):
                asked = statements.nodes_of(self.graph.dialect, target, keys, model=model)
                table = await self.graph.read(app_id, asked.text, asked.params, timeout_s=self.timing.build_query_s)
                if embedded:
                    vectors += ((row[0], row[-1]) for row in table.rows if row[-1] is not None)
                nodes += (node_of(row[:-1] if embedded else row) for row in table.rows)
            if len({node.key for node in nodes}) < len(nodes):
                return False
            there = [node for node in nodes if node.key in index.numbers]  # read by the build, or applied again
            nodes = [node for node in nodes if node.key not in index.numbers]
            if not all(map(index.holds_as_it_is, there)) or len(index.keys) + len(nodes) > _MOST_NODES:
                return False
            if any(terms_in(node) > _STEP for node in nodes):  # searches would meet a part of it
                return False
            index.add(nodes)
        except (QueryFailed, GraphUnavailable, Unfit):
            return False
        try:
            await _read_all(index)
        except asyncio.CancelledError:
            self._drop_if_kept(app_id, target, kept)  # its size and what has no vector are not known
            raise
        self.added += len(nodes)
        if index.vectors is not None:
            missing.update(dict.fromkeys(node.key for node in nodes))
            try:
                self._add_vectors(index, vectors, missing)
            except Unfit:
                return False
        return self._resized(app_id, target, kept)

    async def _read_vectors(
        self, app_id: str, target: SearchTarget, index: ScopeIndex, keys: Sequence[str], missing: dict[str, None]
    ) -> None:
        """Add the vectors of nodes to an index; those that have one are missing no more."""
        assert self.model is not None
        asked = statements.vectors(self.graph.dialect, target, keys, model=self.model)
        table = await self.graph.read(app_id, asked.text, asked.params, timeout_s=self.timing.build_query_s)
        self._add_vectors(index, [(key, vector) for key, vector in table.rows], missing)

    def _add_vectors(self, index: ScopeIndex, vectors: Sequence[tuple[str, Any]], missing: dict[str, None]) -> None:
        """Add vectors to an index, of the nodes that miss one. Raises ``Unfit``."""
        assert index.vectors is not None
        index.vectors.add(sorted((index.numbers[key], vector) for key, vector in vectors if key in missing))
        for key, _ in vectors:
            missing.pop(key, None)

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
            scope = self._scopes.get(app_id, key)
            if scope is None:
                scope = _Scope(since=self._searches)
                self._scopes.put(app_id, key, scope)
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
            if (
                scope.bytes and self._giving_way(app_id, scope.bytes, scope.since) is None
            ):  # as far as is known, it would be built in vain
                scope.not_before, scope.since = began + scope.pause_s, self._searches
                continue
            self.builds += 1
            try:
                async with asyncio.timeout(self.timing.build_s):
                    await self._build(app_id, key, target, scope)
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
                scope.since = self._searches
                scope.pause_s = max(self.timing.least_pause_s, (self.clock.monotonic() - began) * self.timing.pause)
                scope.not_before = self.clock.monotonic() + scope.pause_s

    async def _build(self, app_id: str, key: _Key, target: SearchTarget, scope: _Scope) -> None:
        purged = self._purged
        version = await self.versions.current(app_id, self.timing.version_s)
        if version is None:
            raise _Outdated
        marks = marks_of(target) if self._marks_tell_all() else None
        before = None if marks is None else await self._read_marks(app_id, [marks], self.timing.version_s)
        if marks is not None and self.graph.settle_s:  # what was written with the marks is seen then
            await self.clock.sleep(self.graph.settle_s)
        began = self.clock.monotonic()

        async def check() -> object:
            """Return the version of the graph if the scope is as it was."""
            now = await self.versions.current(app_id, self.timing.version_s)
            if now is None or purged != self._purged:
                raise _Outdated
            if marks is None and now is not version:
                raise _Outdated
            # Marks were read first: what was written with them is seen by now.
            seen = began if marks is None else self.clock.monotonic() + self.graph.settle_s
            if not self.versions.may_keep(app_id, now, seen):
                raise _Outdated
            if marks is None or before is None or now is version:
                return now
            found = await self._read_marks(app_id, [marks], self.timing.version_s)
            if not marks.are_kept(before, found):
                raise _Outdated
            return now if marks.are_same(before, found) else version  # what was added is added at the next search

        await check()
        index, without_vector = await self._read(app_id, target, check)
        now = await check()
        size = index.bytes + _bytes_of(key)
        self._check_size(size)
        self._drop(key)
        scope.bytes = size
        kept = _Kept(
            index=index, version=now, marks=before or {}, concerned=marks, bytes=size, at=began,
            without_vector=without_vector, used=self._searches,
        )  # fmt: skip
        if not self._keep(key, kept, scope.since):
            raise Unfit("there is no room for its index beside those in use")

    async def _read(
        self, app_id: str, target: SearchTarget, check: Callable[[], Awaitable[object]]
    ) -> tuple[ScopeIndex, dict[str, None]]:
        """Return an index, and the keys of the nodes without a vector if it has vectors."""

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
        while await self._rested(lambda: not index.read(_STEP)):
            self._check_size(index.bytes)
        if target.vector is not None and self.model is not None:
            index.vectors = Vectors(len(index.keys))
            missing = dict.fromkeys(index.keys)
            for step, first in enumerate(range(0, len(index.keys), _VECTORS), 1):
                began = self.clock.monotonic()
                if step % _LOOK == 0:
                    await check()
                keys = index.keys[first : first + _VECTORS]
                await self._read_vectors(app_id, target, index, keys, missing)
                self._check_size(index.bytes)
                await self.clock.sleep((self.clock.monotonic() - began) * self.timing.rest)
            return index, missing
        return index, {}

    def _check_size(self, size: int) -> None:
        if size > self.limit:
            raise Unfit("its index is larger than all indexes may be")

    async def _rested(self, step: Callable[[], bool]) -> bool:
        """Run a step, rest, and return its result."""
        began = self.clock.monotonic()
        result = step()
        await self.clock.sleep((self.clock.monotonic() - began) * self.timing.rest)
        return result

    def _drop_if_kept(self, app_id: str, target: SearchTarget, kept: _Kept) -> None:
        """Drop an index, but none that took its place meanwhile."""
        key = _key_of(app_id, target)
        if key is not None and self._kept.get(key) is kept:
            self._drop(key)

    def _drop(self, key: _Key) -> None:
        kept = self._kept.pop(key, None)
        if kept is not None:
            self.bytes -= kept.bytes

    def _keep(self, key: _Key, kept: _Kept, since: int) -> bool:
        """Keep an index if there is room for it beside those in use since a search."""
        evicted = self._giving_way(key[0], kept.bytes, since)
        for each in evicted or ():
            self._drop(each)
            self.evicted += 1
        if evicted is not None:
            self._kept[key] = kept
            self.bytes += kept.bytes
        return evicted is not None

    def _resized(self, app_id: str, target: SearchTarget, kept: _Kept) -> bool:
        """Count the bytes of an index that has grown; without room it is dropped. Return whether it is right."""
        key = _key_of(app_id, target)
        if key is None or self._kept.get(key) is not kept:
            return True
        return self._grown(key, kept, kept.index.bytes + _bytes_of(key))

    def _grown(self, key: _Key, kept: _Kept, size: int) -> bool:
        """Keep an index that has grown, if there is room for it: only this search uses it."""
        self._drop(key)
        kept.bytes = size
        return self._keep(key, kept, self._searches)

    def _giving_way(self, own: str, size: int, since: int) -> Sequence[_Key] | None:
        """Return what makes room for an index of an app; None if it must not be kept.

        What was used since the search ``since`` is in use: for an index to build, since its scope was last to be built,
        so of two that are used in turn, one stays.
        """
        found = list[_Key]()
        apps: dict[str, int] = {own: size}
        for (app_id, *_), there in self._kept.items():
            apps[app_id] = apps.get(app_id, 0) + there.bytes
        share = self.limit // len(apps)
        beyond = {app_id for app_id, all_bytes in apps.items() if all_bytes > share}
        oldest: dict[str, deque[_Key]] = {app_id: deque() for app_id in beyond}
        for each in self._kept:
            if each[0] in beyond:
                oldest[each[0]].append(each)
        needed = self.bytes + size - self.limit
        while needed > 0:
            if not beyond:
                return None
            largest = max(beyond, key=apps.__getitem__)
            kept = self._kept[oldest[largest][0]] if oldest[largest] else None
            if apps[largest] <= share or kept is None:
                beyond.remove(largest)
                continue
            has_right = largest != own and apps[own] <= max(share, apps[largest] - kept.bytes)
            if not has_right and kept.used > since:
                beyond.remove(largest)
                continue
            found.append(oldest[largest].popleft())
            apps[largest] -= kept.bytes
            needed -= kept.bytes
        return found


def _bytes_of(key: _Key) -> int:
    """Return the size of the names in a key: requests choose them."""
    _, _, *scopes, _ = key
    return sum(sys.getsizeof(value) for scope in scopes for _, value in scope)


def _key_of(app_id: str, target: SearchTarget) -> _Key | None:
    """Return the key of a target's index; None if it can have none."""
    text = target.text
    if target.key is None or target.time is None or text is None or text.terms is None or text.length is None:
        return None
    if target.filters or (not target.scope and not target.origin_scope):
        return None
    validity = target.validity if target.valid_at is not None else ()
    scopes = (tuple(sorted(scope.items())) for scope in (target.scope, target.origin_scope))
    return (app_id, target.labels, *scopes, validity)  # type: ignore[return-value]  # two scopes
