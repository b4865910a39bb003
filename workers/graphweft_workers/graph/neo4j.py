"""Neo4j as a graph store (measured on 5.26).

A transaction holds what a batch does and the move of the mark. It begins by locking the app: a write on a node of
ours. Only what is read behind the lock can be relied on; a writer that was away for a while and read first doubles its
batch. All partitions of an app take the same lock, because rules MERGE by keys without a constraint, and two
transactions that do so at once make two nodes. A transaction always has a time limit at the server, else a connection
that died half-way keeps the lock for minutes.

The writes of a batch share a statement, in which the rows of all of them stand in their order. Where that does all
there is to do it also has the lock and the mark, so a batch is one trip to the server. How few rows stand between a
mutation and the next one then hardly matters; as statements of their own such writes took several times as long.

A write that deletes has a transaction of its own. A node that is given a new index entry and deleted in one transaction
is still found by that entry: MERGE matches it and makes none, and what reads it fails.

One database holds one app; who it belongs to stands in it. Neo4j Community has a single database.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import random
import re
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from datetime import time as time_of_day
from typing import Any, Final

import neo4j
from dateutil.relativedelta import relativedelta  # type: ignore[import-untyped]
from neo4j import AsyncDriver, AsyncGraphDatabase, AsyncSession, AsyncTransaction, NotificationMinimumSeverity, Query
from neo4j.exceptions import DriverError, Neo4jError
from neo4j.graph import Node as Neo4jNode
from neo4j.graph import Path as Neo4jPath
from neo4j.graph import Relationship as Neo4jRelationship
from neo4j.spatial import Point
from neo4j.time import Date, DateTime, Duration, Time

from graphweft_contracts import Displaced, GraphUnavailable, QueryFailed, channels
from graphweft_rules.batching import ROW, BatchForm, Dialect
from graphweft_rules.cypher import Cypher
from graphweft_rules.indexes import SearchIndex
from graphweft_rules.neo4j_form import with_plain_vectors
from graphweft_workers.graph.limits import check_rows, check_values
from graphweft_workers.graph.neo4j_errors import (
    DEADLOCK,
    FORBIDDEN,
    NO_DATABASE,
    THERE,
    TIMED_OUT,
    code_of,
    refusal_of,
    translate,
)
from graphweft_workers.graph.neo4j_url import APP, split_neo4j_url
from graphweft_workers.graph.store import Applied, Edge, Mark, Node, Progress, Refusal, Table, Write

logger = logging.getLogger("graphweft.graph")

_OLDEST: Final = (5, 23)
"""Since then a subquery names what it sees: CALL (n) { … }."""
_GRACE_S: Final = 15.0
"""Beyond the server's own limit, how long an answer may take before the connection counts as lost."""
_ADMIN_S: Final = 60.0
_LISTING_S: Final = 3_600.0
_READERS: Final = 64
"""Reading queries on the way at once, of the driver's 100 connections; further ones wait here."""
_FETCHED: Final = 1_000
"""Rows that are looked at together; the driver fetches as many at a time."""
_LOOKERS: Final = 16
"""Queries for marks on the way at once, beside the readers: slow queries of rules must not hold these up."""
_SETTLE_S: Final = 1.0
"""A commit shows bit by bit: in 1 of 1,400 tries a reader saw the mark of a transaction of 5,000 nodes, and then some
of the nodes as they were before; in 2 of 120 with 20,000 nodes. Bookmarks do not help. It must stay above the longest
time that the server takes to apply what it has committed, some milliseconds for each 1,000 nodes."""
_DEADLOCKS: Final = 6
"""Other programs may write the same nodes; after a deadlock nothing took effect, so the batch is tried again."""
_RACES: Final = 20
"""The same for what several processes do at once to a new database: each try there takes milliseconds."""
_TOGETHER: Final = 8
"""Forms of one statement. It is compiled as a whole when one more joins them, in 50 ms and more for each."""
_ROWS: Final = 5_000
"""Of one transaction, where a write alone does not have more: it has the time limit of a single query."""
_DATABASE: Final = re.compile(r"[a-z][a-z0-9.-]{2,62}")
_EPOCH: Final = datetime(1970, 1, 1)
_AXES: Final = {
    4326: ("longitude", "latitude"),
    4979: ("longitude", "latitude", "height"),
    7203: ("x", "y"),
    9157: ("x", "y", "z"),
}
"""The names of a point's numbers, by its coordinate system."""
_UNSENDABLE: Final = (OverflowError, ValueError, TypeError, RecursionError)
"""What the driver raises for parameters that Bolt cannot carry, before anything is sent."""

_CONSTRAINTS: Final = {
    "graphweft_app": "CREATE CONSTRAINT graphweft_app IF NOT EXISTS FOR (n:__App) REQUIRE n.only IS UNIQUE",
    # Without it two MERGEs at once make two marks.
    "graphweft_progress": (
        "CREATE CONSTRAINT graphweft_progress IF NOT EXISTS FOR (n:__Progress) REQUIRE n.partition IS UNIQUE"
    ),
}
_LIST_CONSTRAINTS: Final = "SHOW CONSTRAINTS YIELD name RETURN name"
_CLAIM: Final = (
    "MERGE (a:__App {only: true}) ON CREATE SET a.app_id = $__gw_app SET a.lock = true WITH a RETURN a.app_id"
)
_MAKE_MARK: Final = (
    "MERGE (p:__Progress {partition: $__gw_partition}) ON CREATE SET p.pos = '', p.plan = '', p.done = 0, p.note = '' "
    "RETURN p.pos, p.plan, p.done, p.note"
)
_READ_MARKS: Final = "MATCH (p:__Progress) RETURN p.partition, p.pos, p.plan, p.done"
_OWNER: Final = "MATCH (a:__App) RETURN a.app_id"
_LOCK: Final = "MATCH (__gw_a:__App {only: true}) WHERE __gw_a.app_id = $__gw_app SET __gw_a.lock = true WITH __gw_a "
_READ_MARK: Final = f"{_LOCK} MATCH (p:__Progress {{partition: $__gw_partition}}) RETURN p.pos, p.plan, p.done, p.note"
_GUARD: Final = (
    f"{_LOCK} MATCH (__gw:__Progress {{partition: $__gw_partition}}) "
    "WHERE __gw.pos = $__gw_pos AND __gw.plan = $__gw_plan AND __gw.done = $__gw_done "
    "WITH coalesce($__gw_note, __gw.note) AS __gw_kept "
)
# MERGE, because a rule may have taken the mark away with other nodes.
_MOVE: Final = "MERGE (__gw_p:__Progress {partition: $__gw_partition}) SET __gw_p += $__gw_next, __gw_p.note = "
_LIST_INDEXES: Final = (
    "SHOW INDEXES YIELD labelsOrTypes, properties, entityType, type "
    "WHERE entityType = 'NODE' AND type IN ['RANGE', 'FULLTEXT', 'VECTOR'] RETURN labelsOrTypes, properties, type"
)


@dataclass(frozen=True, slots=True)
class _Graph:
    """Where an app's graph is."""

    driver: AsyncDriver
    uri: str
    database: str | None
    """None: the server's only one."""
    made: bool
    """Whether the database is one that we make."""


type _Work = Sequence[tuple[Write, BatchForm | None]]
"""Writes with the forms in which their rows share a query; None where each row has one of its own."""


@dataclass(frozen=True, slots=True)
class _Part:
    """Writes that run together: of ``forms``, by one statement. Without forms it is a single write, if it is one."""

    work: _Work
    forms: tuple[BatchForm, ...] = ()

    @property
    def alone(self) -> bool:
        """Whether the rows have a query each."""
        return not self.forms and any(write.query for write, _ in self.work)


class _Refused(Exception):
    """A part of a transaction failed; leaving the transaction so rolls it back."""

    def __init__(self, index: int | None, failure: QueryFailed) -> None:
        """Without an index it is not known which one."""
        super().__init__(str(failure))
        self.index = index
        self.failure = failure


class Neo4jStore:
    """``GraphStore`` on Neo4j: one database per app, or one server per app (see ``split_neo4j_url``)."""

    dialect: Dialect = "neo4j"
    settle_s = _SETTLE_S

    def __init__(self, url: str, *, graph_template: str = "mozaiks_{app_id}", write_timeout_ms: int = 5_000) -> None:
        self._url = split_neo4j_url(url)
        self._template = graph_template
        self._write_timeout_s = write_timeout_ms / 1000
        self._drivers: dict[str, AsyncDriver] = {}
        self._multiple: dict[str, bool] = {}
        """For each server, whether it has a database per app."""
        self._compiles: dict[str, bool] = {}
        """For forms that many rows share, whether the server takes it, once it was asked."""
        self._groups: list[list[BatchForm]] = []
        """The forms that share a statement. One stays where it is, so that the statements stay the same."""
        self._group_of: dict[str, list[BatchForm]] = {}
        self._owned: set[str] = set()
        """Apps whose database has been seen to be theirs."""
        self._told_refusals: set[str] = set()
        """Apps of which the log says that their database is another one's."""
        self._writing: dict[str, asyncio.Lock] = {}
        self._opening: dict[str, asyncio.Lock] = {}
        self._readers = asyncio.Semaphore(_READERS)
        self._lookers = asyncio.Semaphore(_LOOKERS)

    async def check(self) -> str:
        """See ``GraphStore.check``. With a server per app there is none to ask before an app is known."""
        if self._url.one_server:
            await self._ask_edition(self._driver(self._url.uri), self._url.uri)
        return ""

    async def check_query(self, query: Cypher, form: BatchForm | None = None) -> Refusal | None:
        """See ``GraphStore.check_query``. The server is asked in the database that a session has without a name."""
        if not self._url.one_server:
            raise QueryFailed("GRAPHWEFT_GRAPH_URL names a server per app, so there is none at which to check queries")
        if form is None:
            return await self._refused(query.statement, neo4j.READ_ACCESS)
        refusal = await self._refused(with_plain_vectors(query.statement), neo4j.WRITE_ACCESS)
        if refusal is None or form.mode == "single":
            return refusal
        # Rows have a query each where the server does not take the form, and that of their author nowhere else.
        return refusal if await self._refused(_fused((form,)), neo4j.WRITE_ACCESS) is not None else None

    async def _refused(self, text: str, access: str) -> Refusal | None:
        """Return what the server says of a text that it does not take."""
        named = self._url.database if APP not in self._url.database else ""
        server = _Graph(self._driver(self._url.uri), self._url.uri, named or None, made=False)
        try:
            async with self._session(server, _ADMIN_S, access=access, ours=False) as session:
                # The line break: so that the server counts lines and columns as in the text, but for this one line.
                await (await session.run(_query(f"EXPLAIN\n{text}", _ADMIN_S))).consume()
        except QueryFailed as error:
            if error.code == "timeout" or not isinstance(error.__cause__, Neo4jError):
                raise GraphUnavailable(f"queries cannot be checked now: {error}") from error
            if code_of(error.__cause__) == FORBIDDEN:
                raise QueryFailed(f"the server does not let queries be checked: {error}") from error
            reason, place, fails = refusal_of(error.__cause__)
            return Refusal(reason=reason, place=place and _in_text(text, max(1, place[0] - 1), place[1]), fails=fails)
        return None

    async def prepare(self, app_id: str, keys: Iterable[tuple[str, str]], indexes: Iterable[SearchIndex] = ()) -> None:
        """See ``GraphStore.prepare``. An index that cannot be made is no reason to stop: queries are right without."""
        async with self._opening.setdefault(app_id, asyncio.Lock()):
            graph = await self._claimed(app_id)
            async with self._session(graph, _ADMIN_S) as session:
                listed = await (await session.run(_LIST_INDEXES)).values()
                there = {(kind, tuple(labels), tuple(names)) for labels, names, kind in listed}
                statements = [
                    f"CREATE INDEX IF NOT EXISTS FOR (n:{_quoted(label)}) ON (n.{_quoted(name)})"
                    for label, name in sorted(set(keys))
                    if ("RANGE", (label,), (name,)) not in there
                ]
                statements += [
                    _search_index(index)
                    for index in indexes
                    if (index.kind.upper(), (index.label,), index.properties) not in there
                ]
                for statement in (*statements, f"CALL db.awaitIndexes({_ADMIN_S / 2:.0f})") if statements else ():
                    try:
                        await _run_admin(session, statement)
                    except (GraphUnavailable, Neo4jError) as error:
                        logger.warning("the graph of %r works without an index: %s", app_id, error)

    async def progress(self, app_id: str, partition: int) -> Progress:
        """See ``GraphStore.progress``."""
        async with self._opening.setdefault(app_id, asyncio.Lock()):
            graph = await self._claimed(app_id)
            async with self._session(graph, self._write_timeout_s) as session:
                query = _query(_MAKE_MARK, self._write_timeout_s)
                rows = await _run(session, query, {"__gw_partition": partition})
        found = _progress_of(rows)
        if found is None:
            raise GraphUnavailable(f"the mark of partition {partition} in the graph of {app_id!r} was overwritten")
        return found

    async def apply(self, app_id: str, partition: int, writes: Sequence[Write]) -> Applied:
        """See ``GraphStore.apply``. Of very many rows it applies the first ones."""
        if not writes:
            return Applied(count=0)
        graph = await self._graph(app_id)
        writes = _first(writes)
        for attempt in range(1, _DEADLOCKS + 1):
            try:
                # Waiting for the lock counts for the server's time limit, so we wait here for those of our own.
                async with self._writing.setdefault(app_id, asyncio.Lock()):
                    return await self._apply(graph, app_id, partition, writes)
            except GraphUnavailable as error:
                if code_of(error.__cause__) != DEADLOCK or attempt == _DEADLOCKS:
                    raise
            await asyncio.sleep(random.uniform(0.05, 0.25))
        raise AssertionError("unreachable")

    async def durable(self, run: str) -> None:
        """See ``GraphStore.durable``: what Neo4j has acknowledged is on its disk."""

    async def read(
        self, app_id: str, statement: str, params: Mapping[str, Any], *, timeout_s: float, enough: int | None = None
    ) -> Table:
        """See ``GraphStore.read``."""
        until = time.monotonic() + timeout_s
        try:
            async with asyncio.timeout(timeout_s + 0.1), self._readers:
                graph = await self._graph(app_id)
                if not await self._is_owned(graph, app_id):
                    return Table(columns=(), rows=())
                # The server enforces the access mode. Its limit is looked at every two seconds or so; ours is exact.
                left_s = max(0.001, until - time.monotonic())
                async with self._session(graph, timeout_s, access=neo4j.READ_ACCESS, ours=False) as session:
                    result = await _send(session, _query(statement, left_s), params)
                    columns, rows = result.keys(), await _fetched(result, enough)
        except TimeoutError as error:
            raise QueryFailed(f"no answer within {timeout_s:.3f} s", code="timeout") from error
        return Table(columns=tuple(columns), rows=tuple(tuple(map(_plain, row)) for row in rows))

    async def marks(self, app_id: str, *, timeout_s: float) -> Mapping[int, Mark]:
        """See ``GraphStore.marks``. Raises ``QueryFailed`` when the database belongs to another app."""
        try:
            async with asyncio.timeout(timeout_s), self._lookers:
                graph = await self._graph(app_id)
                if not await self._is_owned(graph, app_id):
                    return {}
                async with self._session(graph, timeout_s, access=neo4j.READ_ACCESS) as session:
                    rows = await (await session.run(_query(_READ_MARKS, timeout_s))).values()
        except TimeoutError as error:
            raise GraphUnavailable(f"no marks of the graph of {app_id!r} within {timeout_s:.3f} s") from error
        marks: dict[int, Mark] = {}
        for row in rows:
            match row:
                case [int(partition), str(offset), str(plan), int(done)]:
                    marks[partition] = Mark(offset=offset, plan=plan, done=done)
                case _:
                    raise GraphUnavailable(f"a mark in the graph of {app_id!r} was overwritten")
        return marks

    async def nodes(self, app_id: str) -> AsyncIterator[Node]:
        """See ``GraphStore.nodes``."""
        async for row in self._listed(app_id, "MATCH (n) RETURN elementId(n), labels(n), properties(n)"):
            yield Node(id=_number(row[0]), labels=tuple(row[1]), properties=_plain(row[2]))

    async def edges(self, app_id: str) -> AsyncIterator[Edge]:
        """See ``GraphStore.edges``."""
        statement = "MATCH (a)-[e]->(b) RETURN elementId(a), elementId(b), type(e), properties(e)"
        async for row in self._listed(app_id, statement):
            yield Edge(start=_number(row[0]), end=_number(row[1]), type=row[2], properties=_plain(row[3]))

    async def aclose(self) -> None:
        """See ``GraphStore.aclose``."""
        while self._drivers:
            _, driver = self._drivers.popitem()
            await driver.close()

    # Where an app's graph is

    def _driver(self, uri: str) -> AsyncDriver:
        if uri not in self._drivers:
            library: Any = AsyncGraphDatabase
            self._drivers[uri] = library.driver(
                uri,
                auth=(self._url.user, self._url.password) if self._url.user else None,
                connection_timeout=5.0,
                connection_acquisition_timeout=_GRACE_S,
                notifications_min_severity=NotificationMinimumSeverity.OFF,
                telemetry_disabled=True,
                user_agent="graphweft",
            )
        return self._drivers[uri]

    async def _graph(self, app_id: str) -> _Graph:
        uri = self._url.uri.replace(APP, app_id)
        driver = self._driver(uri)
        if self._url.database:
            return _Graph(driver, uri, self._url.database.replace(APP, app_id), made=False)
        if not self._url.one_server or not await self._has_databases(driver, uri):
            return _Graph(driver, uri, None, made=False)
        return _Graph(driver, uri, _database_name(app_id, self._template), made=True)

    async def _has_databases(self, driver: AsyncDriver, uri: str) -> bool:
        if uri not in self._multiple:
            self._multiple[uri] = await self._ask_edition(driver, uri)
        return self._multiple[uri]

    async def _ask_edition(self, driver: AsyncDriver, uri: str) -> bool:
        """Return whether the server can have a database per app. Raises ``GraphUnavailable`` when it is too old."""
        named = self._url.database if APP not in self._url.database else ""
        server = _Graph(driver, uri, named or None, made=False)
        async with self._session(server, self._write_timeout_s, access=neo4j.READ_ACCESS) as session:
            result = await session.run("CALL dbms.components() YIELD versions, edition")
            [[versions, edition], *_] = await result.values()
        numbers = re.match(r"(\d+)\.(\d+)", versions[0])
        if numbers and (int(numbers[1]), int(numbers[2])) < _OLDEST:
            raise GraphUnavailable(f"Neo4j {versions[0]} is too old: 5.23 or later is needed", retry_after_s=5.0)
        return bool(edition != "community")

    async def _claimed(self, app_id: str) -> _Graph:
        """Return the app's graph, made where it was missing. Raises ``QueryFailed`` when it belongs to another app."""
        graph = await self._graph(app_id)
        if graph.made:
            system = _Graph(graph.driver, graph.uri, "system", made=False)
            async with self._session(system, _ADMIN_S) as session:
                await _run_admin(session, f"CREATE DATABASE {_quoted(graph.database or '')} IF NOT EXISTS WAIT")
        async with self._session(graph, _ADMIN_S) as session:
            there = {name for [name] in await (await session.run(_LIST_CONSTRAINTS)).values()}
            for name, statement in _CONSTRAINTS.items():
                if name not in there:
                    await _run_admin(session, statement)
            query = _query(_CLAIM, self._write_timeout_s)
            [[owner]] = await _run(session, query, {"__gw_app": app_id})
        self._check_owner(owner, app_id, graph)
        self._owned.add(app_id)
        return graph

    async def _is_owned(self, graph: _Graph, app_id: str) -> bool:
        """Return whether there is a graph of the app. Raises ``QueryFailed`` when it is that of another one."""
        if app_id not in self._owned:
            try:
                async with self._session(graph, _ADMIN_S, access=neo4j.READ_ACCESS) as session:
                    rows = await (await session.run(_OWNER)).values()
            except GraphUnavailable as error:
                if graph.made and code_of(error.__cause__) == NO_DATABASE:
                    return False
                raise
            if not rows:
                return False
            self._check_owner(rows[0][0], app_id, graph)
            self._owned.add(app_id)
        return True

    def _check_owner(self, owner: Any, app_id: str, graph: _Graph) -> None:
        """Raise ``QueryFailed`` when the database belongs to another app; the log alone names that one.

        The text goes to replies and dead letters of ``app_id``, which are another tenant's.
        """
        if owner == app_id:
            return
        place = f"the database {graph.database!r}" if graph.database else "the only database of this Neo4j server"
        if app_id not in self._told_refusals:
            self._told_refusals.add(app_id)
            logger.warning("%s holds the graph of app %r, so app %r has none", place, owner, app_id)
        raise QueryFailed(
            f"{place} holds the graph of another app, so app {app_id!r} cannot have it (the operator finds which one "
            "in the log and with `graphweft doctor`): give each app a server of its own "
            "(neo4j://{app_id}.example:7687 in GRAPHWEFT_GRAPH_URL), or use Neo4j Enterprise or FalkorDB"
        )

    @contextlib.asynccontextmanager
    async def _session(
        self, graph: _Graph, limit_s: float, *, access: str = neo4j.WRITE_ACCESS, ours: bool = True
    ) -> AsyncGenerator[AsyncSession]:
        """Open a session. With ``ours`` its statements are our own, and a refusal of one is no query's fault."""
        driver: Any = graph.driver
        session: AsyncSession = driver.session(database=graph.database, default_access_mode=access)
        async with _failing(limit_s + _GRACE_S, ours=ours), session:
            yield session

    # Writing

    def _form(self, write: Write) -> BatchForm | None:
        """Return the form in which the write's rows share a query; None where each row has one of its own."""
        form = write.query.form(self.dialect) if write.query else None
        if form is None or form.mode == "single" or not self._compiles.get(form.statement, True):
            return None
        return form

    async def _refused_forms(self, graph: _Graph, work: _Work) -> bool:
        """Ask the server about the forms of writes that failed, once each; return whether it does not take one."""
        refused = False
        for statement, form in {form.statement: form for _, form in work if form is not None}.items():
            if statement in self._compiles:
                continue
            try:
                async with self._session(graph, self._write_timeout_s, ours=False) as session:
                    query = _query(f"EXPLAIN {_fused((form,))}", self._write_timeout_s)
                    await (await session.run(query)).consume()
                self._compiles[statement] = True
            except QueryFailed as refusal:
                if refusal.code == "timeout":  # a busy server may have more time for it later
                    continue
                logger.debug("rows of a mutation go to Neo4j one by one: %s", refusal)
                self._compiles[statement] = False
                self._group_of.pop(statement).remove(form)
                refused = True
        return refused

    def _parts(self, work: _Work) -> list[_Part]:
        """Return the work as parts of as many writes as may share a statement."""
        for _, form in work:
            if form is not None and form.statement not in self._group_of:
                if not self._groups or len(self._groups[-1]) == _TOGETHER:
                    self._groups.append([])
                self._groups[-1].append(form)
                self._group_of[form.statement] = self._groups[-1]
        parts: list[_Part] = []
        together: list[tuple[Write, BatchForm | None]] = []
        shared: tuple[BatchForm, ...] = ()
        for write, form in work:
            forms = tuple(self._group_of[form.statement]) if form is not None else ()
            alone = write.query is not None and form is None
            if together and (alone or (forms and shared and forms != shared)):
                parts.append(_Part(together, shared))
                together, shared = [], ()
            if alone:
                parts.append(_Part([(write, form)]))
            else:
                together.append((write, form))
                shared = shared or forms
        if together:
            parts.append(_Part(together, shared))
        return parts

    async def _apply(self, graph: _Graph, app_id: str, partition: int, writes: Sequence[Write]) -> Applied:
        work = [(write, self._form(write)) for write in writes]
        parts = self._parts(work)
        try:
            if len(parts) == 1 and not parts[0].alone:
                await self._apply_at_once(graph, app_id, partition, parts[0])
            else:
                await self._transact(graph, app_id, partition, parts)
            return Applied(count=len(work))
        except (QueryFailed, _Refused) as error:
            refusal = error.failure if isinstance(error, _Refused) else error
        # Whose fault that is, the same tells with a statement for each write.
        if refusal.code == "timeout":
            await self._wait_for_lock(graph, app_id)
            return await self._one_by_one(graph, app_id, partition, work)
        if await self._refused_forms(graph, work):
            return await self._apply(graph, app_id, partition, writes)
        return await self._apart(graph, app_id, partition, work)

    async def _apart(self, graph: _Graph, app_id: str, partition: int, work: _Work) -> Applied:
        part = list(work)
        failure: QueryFailed | None = None
        while part:
            try:
                await self._transact(graph, app_id, partition, _apart(part))
                break
            except _Refused as refused:
                failure = refused.failure
                # All of them together may have taken too long.
                if refused.index is None or (failure.code == "timeout" and len(part) > 1):
                    await self._wait_for_lock(graph, app_id)
                    return await self._one_by_one(graph, app_id, partition, part)
                part = part[: refused.index]
        return Applied(count=len(part), failure=failure)

    async def _one_by_one(self, graph: _Graph, app_id: str, partition: int, work: _Work) -> Applied:
        for count, part in enumerate(_apart(work)):
            try:
                await self._transact(graph, app_id, partition, [part])
            except _Refused as refused:
                return Applied(count=count, failure=refused.failure)
        return Applied(count=len(work))

    async def _apply_at_once(self, graph: _Graph, app_id: str, partition: int, part: _Part) -> None:
        writes = [write for write, _ in part.work]
        before = writes[0].before
        params: dict[str, Any] = {
            "__gw_app": app_id,
            "__gw_partition": partition,
            "__gw_pos": before.offset,
            "__gw_plan": before.plan,
            "__gw_done": before.done,
            "__gw_next": _properties(writes[-1].after),
            "__gw_note": _last_note(writes),
        }
        if part.forms:
            params["__gw_runs"] = _runs(part)
        async with self._session(graph, self._write_timeout_s, ours=False) as session:
            query = _query(_fused(part.forms), self._write_timeout_s)
            done = await (await _send(session, query, params)).values()
        if not done:
            raise _displaced(app_id, partition)

    async def _transact(self, graph: _Graph, app_id: str, partition: int, parts: Sequence[_Part]) -> None:
        """Run the parts in a transaction. Raises ``_Refused`` when one fails; then nothing took effect."""
        writes = [write for part in parts for write, _ in part.work]
        try:
            async with self._session(graph, self._write_timeout_s, ours=False) as session:
                transaction = await session.begin_transaction(timeout=self._write_timeout_s)
                async with transaction:  # left without an exception, the block commits
                    note = await self._lock(transaction, app_id, partition, writes[0].before)
                    locked = time.monotonic()
                    for index, part in enumerate(parts):
                        try:
                            await _write(transaction, part)
                        except QueryFailed as failure:
                            raise _Refused(index, failure) from failure
                        except Neo4jError as error:
                            reason = translate(error)
                            if not isinstance(reason, QueryFailed):
                                raise
                            if reason.code == "timeout" and time.monotonic() - locked < self._write_timeout_s / 2:
                                raise GraphUnavailable("waiting for the graph's lock took most of the time") from error
                            raise _Refused(index, reason) from error
                    new = _last_note(writes)
                    values = {
                        "__gw_partition": partition,
                        "__gw_next": _properties(writes[-1].after),
                        "__gw_note": note if new is None else new,
                    }
                    await (await transaction.run(f"{_MOVE}$__gw_note", values)).consume()
        except QueryFailed as failure:  # at the end, where the server looks at all that was done
            raise _Refused(None if len(writes) > 1 else 0, failure) from failure

    async def _wait_for_lock(self, graph: _Graph, app_id: str) -> None:
        """Wait until a transaction that ran out of time is rolled back, which can take longer than it ran."""
        async with self._session(graph, _ADMIN_S) as session:
            try:
                await (await session.run(_query(f"{_LOCK} RETURN 1", _ADMIN_S), {"__gw_app": app_id})).consume()
            except Neo4jError as error:
                if code_of(error) not in TIMED_OUT:
                    raise
                raise GraphUnavailable("somebody else holds the graph's lock") from error

    async def _lock(self, transaction: AsyncTransaction, app_id: str, partition: int, before: Mark) -> str:
        """Take the lock, and return the note beside the mark. Raises ``Displaced`` when the mark is elsewhere."""
        try:
            values = {"__gw_app": app_id, "__gw_partition": partition}
            found = _progress_of(await (await transaction.run(_READ_MARK, values)).values())
        except Neo4jError as error:
            if code_of(error) not in TIMED_OUT:
                raise
            raise GraphUnavailable("somebody else holds the graph's lock", retry_after_s=0.25) from error
        if found is None or found.mark != before:
            raise _displaced(app_id, partition)
        return found.note

    async def _listed(self, app_id: str, statement: str) -> AsyncIterator[list[Any]]:
        graph = await self._graph(app_id)
        if not await self._is_owned(graph, app_id):
            return
        async with self._session(graph, _LISTING_S, access=neo4j.READ_ACCESS) as session:
            async for record in await session.run(_query(statement, _LISTING_S)):
                yield record.values()


@contextlib.asynccontextmanager
async def _failing(limit_s: float, *, ours: bool) -> AsyncGenerator[None]:
    """Translate what the driver raises, and wait no longer than that: a server that stands still never answers."""
    timeout = asyncio.timeout(limit_s)
    try:
        async with timeout:
            yield
    except TimeoutError as error:
        if not timeout.expired():
            raise
        raise GraphUnavailable(f"the graph server has not answered for {limit_s:.0f} s") from error
    except (Neo4jError, DriverError, OSError) as error:
        reason = translate(error)
        if ours and isinstance(reason, QueryFailed):
            raise GraphUnavailable(f"the graph server refuses: {reason}") from error
        raise reason from error


async def _run_admin(session: AsyncSession, statement: str) -> None:
    """Run a statement of our own on the schema: a refusal is no query's fault."""
    try:
        await _run(session, _query(statement, _ADMIN_S), {})
    except Neo4jError as error:
        if code_of(error) in THERE:  # IF NOT EXISTS looks before it waits for somebody who is making it
            return
        reason = translate(error)
        if isinstance(reason, QueryFailed):
            raise GraphUnavailable(f"the graph server refuses {statement!r}: {reason}", retry_after_s=5.0) from error
        raise


async def _run(session: AsyncSession, query: Query, params: dict[str, Any]) -> list[list[Any]]:
    """Return what a statement of our own returns. Others may be running it too on a new database: see ``_RACES``."""
    for _ in range(_RACES - 1):
        try:
            return await (await session.run(query, params)).values()
        except Neo4jError as error:
            if code_of(error) != DEADLOCK:
                raise
        await asyncio.sleep(random.uniform(0.0, 0.1))
    return await (await session.run(query, params)).values()


async def _send(runner: AsyncSession | AsyncTransaction, query: Any, params: Mapping[str, Any]) -> neo4j.AsyncResult:
    try:
        return await runner.run(query, dict(params))
    except OverflowError as error:
        raise QueryFailed("a parameter holds an integer beyond 64 bits; send it as a string") from error
    except _UNSENDABLE as error:  # UnicodeEncodeError (a lone surrogate) is a ValueError
        raise QueryFailed(f"a parameter cannot be sent to Neo4j: {type(error).__name__}") from error


async def _fetched(result: neo4j.AsyncResult, enough: int | None) -> list[list[Any]]:
    """Return the rows of a rule's query. As soon as there are too many it fetches no more.

    Then it returns the first ``enough``, or raises ``QueryFailed`` when it has no more than these.
    """
    rows: list[list[Any]] = []
    count = 0
    try:
        while records := await result.fetch(_FETCHED):
            for record in records:
                row = record.values()
                rows.append(row)
                check_rows(len(rows))
                count += sum(map(_count, row))
                check_values(count)
    except QueryFailed:
        if enough is None or enough >= len(rows):
            raise
        return rows[:enough]
    return rows


async def _write(transaction: AsyncTransaction, part: _Part) -> None:
    if part.forms:
        await (await _send(transaction, _shared(part.forms), {"__gw_runs": _runs(part)})).consume()
        return
    for write, _ in part.work:
        if write.query is not None:
            for row in write.rows:
                await (await _send(transaction, with_plain_vectors(write.query.statement), row)).consume()


def _shared(forms: Sequence[BatchForm]) -> str:
    """Return the statement for rows of several forms.

    A run holds a list of rows for each form, in the order of ``forms``, and the server takes one run after the other:
    the outer subquery sees to that, as that of a form does with its rows.
    """
    each = " ".join(
        f"CALL (__gw_run) {{ UNWIND __gw_run[{number}] AS {ROW} {form.statement} FINISH }}"
        for number, form in enumerate(forms)
    )
    return f"UNWIND $__gw_runs AS __gw_run CALL (__gw_run) {{ {each} }} RETURN count(*) AS __gw_count"


def _runs(part: _Part) -> list[list[list[list[Any]]]]:
    """Return the rows of the part's writes for ``_shared``: a run goes on as long as the writes follow its order."""
    numbers = {form.statement: number for number, form in enumerate(part.forms)}
    runs: list[list[list[list[Any]]]] = []
    last = len(numbers)
    for write, form in part.work:
        if form is not None:
            number = numbers[form.statement]
            if number < last:
                runs.append([[] for _ in numbers])
            runs[-1][number] += _rows(form, write)
            last = number
    return runs


def _fused(forms: Sequence[BatchForm]) -> str:
    """Return the statement that does writes and moves the mark if the mark stands where it should; one row if so.

    The runs are counted in a subquery, so there is one row behind it however many rows the rules make, and none when
    the guard did not match.
    """
    return f"{_GUARD}{f'CALL () {{ {_shared(forms)} }} ' if forms else ''}{_MOVE}__gw_kept RETURN 1"


def _apart(work: _Work) -> list[_Part]:
    """Return the work with a part for each write."""
    return [_Part([item], (form,) if (form := item[1]) is not None else ()) for item in work]


def _first(writes: Sequence[Write]) -> Sequence[Write]:
    """Return as many of the writes as one transaction may have, and one at least."""
    total = 0
    for count, write in enumerate(writes):
        total += len(write.rows)
        deletes = write.query is not None and write.query.deletes
        if count and (deletes or total > _ROWS):
            return writes[:count]
        if deletes:
            return writes[:1]
    return writes


def _last_note(writes: Sequence[Write]) -> str | None:
    return next((write.note for write in reversed(writes) if write.note is not None), None)


def _query(text: str, timeout_s: float) -> Query:
    make: Any = Query  # its type asks for literals, and a rule's text is none
    query: Query = make(text, timeout=timeout_s)
    return query


def _in_text(text: str, line: int, column: int) -> tuple[int, int]:
    """Return a place that the server names, with the column in characters: it counts pairs of bytes."""
    before = text.split("\n")[line - 1].encode("utf-16-le")[: 2 * (column - 1)].decode("utf-16-le", errors="ignore")
    return line, len(before) + 1


def _rows(form: BatchForm, write: Write) -> list[list[Any]]:
    return [[number, *(row[name] for name in form.columns)] for number, row in enumerate(write.rows)]


def _properties(mark: Mark) -> dict[str, Any]:
    return {"pos": mark.offset, "plan": mark.plan, "done": mark.done}


def _progress_of(rows: Sequence[Sequence[Any]]) -> Progress | None:
    """Return what was read; None when it is gone or a rule has overwritten it."""
    match rows:
        case [[str(offset), str(plan), int(done), str(note)]]:
            return Progress(mark=Mark(offset=offset, plan=plan, done=done), note=note)
        case _:
            return None


def _displaced(app_id: str, partition: int) -> Displaced:
    return Displaced(
        f"partition {partition} of app {app_id!r} was moved by another worker, or its graph was replaced",
        retry_after_s=0.05,
    )


def _database_name(app_id: str, template: str) -> str:
    """Return the database of an app: Neo4j takes lower case letters, digits, dots and dashes only.

    What had to be changed is told apart by a hash, so that two apps do not meet in one database.
    """
    plain = channels.graph_name(app_id, template)
    name = re.sub(r"[^a-z0-9.-]", "-", plain.lower())
    if not re.fullmatch(r"[a-z0-9-]+", app_id) or len(name) > 63:
        name = f"{name[:54]}-{hashlib.sha256(plain.encode()).hexdigest()[:8]}"
    if not _DATABASE.fullmatch(name) or name.startswith("system"):
        raise QueryFailed(
            f"{name!r} is no name of a Neo4j database: it has to begin with a letter, but not with 'system', and to "
            "have 3 characters or more; change GRAPHWEFT_GRAPH_TEMPLATE"
        )
    return name


def _search_index(index: SearchIndex) -> str:
    name, label = _quoted(index.name), _quoted(index.label)
    if index.kind == "vector":
        return (
            f"CREATE VECTOR INDEX {name} IF NOT EXISTS FOR (n:{label}) ON (n.{_quoted(index.properties[0])}) OPTIONS "
            f"{{indexConfig: {{`vector.dimensions`: {index.dimensions}, `vector.similarity_function`: 'cosine'}}}}"
        )
    analyzer = " OPTIONS {indexConfig: {`fulltext.analyzer`: 'whitespace'}}" if index.terms else ""
    properties = ", ".join(f"n.{_quoted(each)}" for each in index.properties)
    return f"CREATE FULLTEXT INDEX {name} IF NOT EXISTS FOR (n:{label}) ON EACH [{properties}]{analyzer}"


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _number(element_id: str) -> int:
    return int(element_id.rpartition(":")[2])


def _plain(value: Any) -> Any:
    """Return nodes, relationships and paths as maps and lists, as agents and JSON readers expect them."""
    match value:
        case Neo4jPath():
            return [_plain(node) for node in value.nodes]
        case Neo4jNode() | Neo4jRelationship():
            return {key: _plain(item) for key, item in value.items()}
        case Mapping():
            return {str(key): _plain(item) for key, item in value.items()}  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
        case Point():
            return dict(zip(_AXES[value.srid or 7203], value, strict=True))
        case list():
            return [_plain(item) for item in value]  # pyright: ignore[reportUnknownVariableType]
        case Date() | Time() | DateTime():
            return _native(value)
        case Duration():
            return _span(value)
        case _:
            return value


def _count(value: Any) -> int:
    """Count a value and what it holds."""
    match value:
        case list():
            return 1 + sum(map(_count, value))  # pyright: ignore[reportUnknownArgumentType]
        case Mapping() | Neo4jNode() | Neo4jRelationship():
            return 1 + sum(map(_count, value.values()))  # pyright: ignore[reportUnknownArgumentType]
        case Neo4jPath():
            return 1 + sum(map(_count, value.nodes))
        case _:
            return 1


def _native(value: Date | Time | DateTime) -> date | time_of_day | datetime | str:
    try:
        native = value.to_native()
    except ValueError:  # Neo4j knows years beyond 9999
        return value.iso_format()
    # FalkorDB has no time zones and gives times in UTC; the same content has to read the same.
    return native.replace(tzinfo=UTC) if isinstance(native, datetime) and native.tzinfo is None else native


def _span(value: Duration) -> timedelta | str:
    """Return the time that a duration takes from 1970 on, as FalkorDB keeps it."""
    try:
        until: datetime = _EPOCH + relativedelta(
            months=value.months, days=value.days, seconds=value.seconds, microseconds=value.nanoseconds // 1000
        )
    except (ValueError, OverflowError):
        return value.iso_format()
    return until - _EPOCH
