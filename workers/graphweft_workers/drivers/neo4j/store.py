"""Neo4j as a graph store (measured on 5.26).

A transaction contains a batch and the move of the checkpoint. It begins with a lock: a write to the app's own node.
Reads count only after the lock; a writer that reads first and then pauses would apply its batch twice. All partitions
of an app share the lock, because rules MERGE by keys without a constraint, and two concurrent transactions would create
two nodes. A transaction has a time limit at the server; otherwise a lost connection would keep the lock for minutes.

The writes of mutations that come often share one statement, with all rows in order. If that is the whole batch, the
statement also takes the lock and moves the checkpoint, so a batch is one round trip. The number of rows of each
mutation then hardly matters; separate statements took several times as long. A mutation that came seldom so far has a
statement of its own, because the server plans each new text: see ``groups``.

A write that deletes has its own transaction. A node that gets a new index entry and is deleted in the same transaction
is still found by that entry: MERGE matches it and creates none, and reads of it fail.

One database holds one app, whose id is stored in it. Neo4j Community has a single database. Second graphs of the app
are in the same database; see ``namespaces``.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final
from weakref import WeakValueDictionary

import neo4j
from neo4j import AsyncTransaction
from neo4j.exceptions import Neo4jError

from graphweft_contracts import GraphUnavailable, QueryFailed
from graphweft_contracts.clock import SYSTEM_CLOCK, Clock
from graphweft_rules.cypher.batch_query import BatchQuery
from graphweft_rules.cypher.indexes import SearchIndex
from graphweft_rules.cypher.query import Cypher
from graphweft_workers.drivers.neo4j import errors
from graphweft_workers.drivers.neo4j.batch_query import with_plain_vectors
from graphweft_workers.drivers.neo4j.calls import fetched, run, run_admin, send
from graphweft_workers.drivers.neo4j.databases import Database, Databases
from graphweft_workers.drivers.neo4j.dialect import NEO4J, quoted
from graphweft_workers.drivers.neo4j.errors import DEADLOCK, code_of, refusal_of, translate
from graphweft_workers.drivers.neo4j.groups import Groups
from graphweft_workers.drivers.neo4j.positions import Neo4jPositions
from graphweft_workers.drivers.neo4j.statements import (
    LIST_INDEXES,
    LOCK,
    MAKE_CHECKPOINT,
    MOVE,
    READ_CHECKPOINT,
    READ_OWNED_CHECKPOINTS,
    VALUES,
    Part,
    Work,
    apart,
    by_itself,
    first,
    fused,
    in_text,
    last_note,
    progress_of,
    properties,
    runs,
    search_index,
    shared,
    timed,
)
from graphweft_workers.drivers.neo4j.timing import NEO4J_TIMING, Neo4jTiming
from graphweft_workers.drivers.neo4j.values import plain, whole
from graphweft_workers.drivers.neo4j.whole_graphs import Neo4jGraphs
from graphweft_workers.ports.dialect import GraphDialect, of_another_length
from graphweft_workers.ports.event_log import CommittedPosition
from graphweft_workers.ports.graph_store import (
    Checkpoint,
    PositionMove,
    Progress,
    Refusal,
    Table,
    WholeGraphs,
    Write,
    WriteResult,
    moved_by_another,
    overwritten,
)
from graphweft_workers.support.lazy_logger import get_logger

logger = get_logger("graphweft.graph")

_READERS: Final = 64
"""Concurrent read queries, of the driver's 100 connections; others wait."""
_LOOKERS: Final = 16
"""Concurrent queries for checkpoints. They have their own limit, so that slow queries do not delay them."""
_SETTLE_S: Final = 1.0
"""A commit becomes visible gradually: in 1 of 1,400 tries a reader saw the checkpoint of a transaction of 5,000 nodes,
and then old values of some nodes; in 2 of 120 tries with 20,000 nodes. Bookmarks do not help. The value must exceed the
time in which the server applies a commit, a few milliseconds for each 1,000 nodes."""
_DEADLOCKS: Final = 6
"""Attempts after deadlocks with other programs; after a deadlock nothing took effect."""


class _Refused(Exception):
    """A part of a transaction failed; raising it rolls the transaction back."""

    def __init__(self, index: int | None, failure: QueryFailed) -> None:
        """Without an index the failed part is unknown."""
        super().__init__(str(failure))
        self.index = index
        self.failure = failure


class Neo4jStore:
    """``GraphStore`` on Neo4j: one database per app, or one server per app (see ``split_neo4j_url``)."""

    dialect: GraphDialect = NEO4J
    settle_s = _SETTLE_S
    runs_again = True

    def __init__(
        self, url: str, *, graph_template: str = "mozaiks_{app_id}", beside: str | None = None,
        write_timeout_ms: int = 5_000, clock: Clock = SYSTEM_CLOCK, timing: Neo4jTiming = NEO4J_TIMING,
    ) -> None:  # fmt: skip
        """With ``beside``, the template of names of second graphs, the store holds these; see ``namespaces``."""
        self._clock = clock
        self._timing = timing
        self.without_turn = Counter[str]()
        self._databases = Databases(
            url, graph_template=graph_template, beside=beside, timeout_s=write_timeout_ms / 1000,
            clock=clock, timing=timing,
        )  # fmt: skip
        self._write_timeout_s = write_timeout_ms / 1000
        self._compiles: dict[str, bool] = {}
        """By batch query: whether the server accepts it, once asked."""
        self._groups = Groups()
        self._writing = WeakValueDictionary[str, asyncio.Lock]()
        """By app, while somebody uses it; so is the next one."""
        self._opening = WeakValueDictionary[str, asyncio.Lock]()
        self._readers = asyncio.Semaphore(_READERS)
        self._lookers = asyncio.Semaphore(_LOOKERS)
        self._positions = Neo4jPositions(self._databases, beside or graph_template, self._write_timeout_s)
        self.whole: WholeGraphs = Neo4jGraphs(self._databases, timing, self._positions, self._refused)

    async def check(self) -> str:
        """See ``GraphStore.check``: the address, because nothing is lost in a restart.

        With a server per app no server is asked.
        """
        await self._databases.check()
        return self._databases.uri

    async def check_query(self, query: Cypher, batch_query: BatchQuery | None = None) -> Refusal | None:
        """See ``GraphStore.check_query``. It uses the default database."""
        if not self._databases.one_server:
            raise QueryFailed("GRAPHWEFT_GRAPH_URL names a server per app: there is no server for checking queries")
        if batch_query is None:
            return await self._refused(query.statement, neo4j.READ_ACCESS)
        refusal = await self._refused(with_plain_vectors(query.statement), neo4j.WRITE_ACCESS)
        if refusal is None or batch_query.mode == "single":
            return refusal
        # If the server refuses the batch query, each row runs the rule's own query.
        return refusal if await self._refused(fused((batch_query,)), neo4j.WRITE_ACCESS) is not None else None

    async def _refused(self, text: str, access: str) -> Refusal | None:
        """Return the server's refusal of a text; None if it accepts it."""
        try:
            async with self._databases.session(
                self._databases.server(), self._timing.admin_s, access=access, ours=False
            ) as session:
                # The line break keeps the server's columns equal to those of the text.
                await (await session.run(timed(f"EXPLAIN\n{text}", self._timing.admin_s))).consume()
        except QueryFailed as error:
            if error.code == "timeout" or not isinstance(error.__cause__, Neo4jError):
                raise GraphUnavailable(f"queries cannot be checked now: {error}") from error
            if code_of(error.__cause__) == errors.FORBIDDEN:
                raise QueryFailed(f"the server does not allow queries to be checked: {error}") from error
            reason, place, fails = refusal_of(error.__cause__)
            return Refusal(reason=reason, place=place and in_text(text, max(1, place[0] - 1), place[1]), fails=fails)
        return None

    async def prepare(self, app_id: str, keys: Iterable[tuple[str, str]], indexes: Iterable[SearchIndex] = ()) -> None:
        """See ``GraphStore.prepare``. A missing index only makes queries slower, so a failure is logged."""
        async with self._opening.setdefault(app_id, asyncio.Lock()):
            graph, space = await self._databases.claimed(app_id), self._databases.space(app_id)
            async with self._databases.session(graph, self._timing.admin_s) as session:
                listed = await (await session.run(LIST_INDEXES)).values()
                there = {(kind, tuple(labels), tuple(names)) for labels, names, kind in listed}
                statements = [
                    f"CREATE INDEX IF NOT EXISTS FOR (n:{quoted(label)}) ON (n.{quoted(name)})"
                    for label, name in sorted((space.label(label), name) for label, name in set(keys))
                    if ("RANGE", (label,), (name,)) not in there
                ]
                # Nobody searches in a second graph. It has them at once if it takes the place of the live one.
                search = list(indexes)
                replaced = await self._of_another_length(session, search)
                statements += [f"DROP INDEX {quoted(name)} IF EXISTS" for name in replaced]
                there -= {("VECTOR", (index.label,), index.properties) for index in replaced.values()}
                statements += [
                    search_index(index)
                    for index in search
                    if (index.kind.upper(), (index.label,), index.properties) not in there
                ]
                for statement in (
                    (*statements, f"CALL db.awaitIndexes({self._timing.admin_s / 2:.0f})") if statements else ()
                ):
                    try:
                        await run_admin(session, statement)
                    except (GraphUnavailable, Neo4jError) as error:
                        logger.warning("index_not_made", app_id=app_id, statement=statement, error=str(error))

    async def _of_another_length(
        self, session: neo4j.AsyncSession, wanted: Sequence[SearchIndex]
    ) -> Mapping[str, SearchIndex]:
        """Return the vector indexes that the database has for vectors of another length, by their names there."""
        if not any(index.kind == "vector" for index in wanted):
            return {}
        listed = await (await session.run(timed(self.dialect.list_indexes, self._timing.admin_s))).values()
        return {each.name: index for each, index in of_another_length(self.dialect.read_indexes(listed), wanted)}

    async def progress(self, app_id: str, partition: int) -> Progress:
        """See ``GraphStore.progress``."""
        async with self._opening.setdefault(app_id, asyncio.Lock()):
            graph = await self._databases.claimed(app_id)
            async with self._databases.session(graph, self._write_timeout_s) as session:
                text = self._databases.space(app_id).statement(MAKE_CHECKPOINT)
                query = timed(text, self._write_timeout_s)
                rows = await run(session, query, {"__gw_partition": partition, "__gw_app": app_id})
        found = progress_of(rows)
        if found is None:
            raise overwritten(app_id, partition)
        return found

    async def apply(self, app_id: str, partition: int, writes: Sequence[Write]) -> WriteResult:
        """See ``GraphStore.apply``. It applies at most ``ROWS`` rows of several writes."""
        if not writes:
            return WriteResult(count=0)
        graph, space = await self._databases.graph(app_id), self._databases.space(app_id)
        writes = first([space.write(write) for write in writes])
        for attempt in range(1, _DEADLOCKS + 1):
            try:
                # Waiting for the lock counts toward the server's time limit, so writers of this process wait here.
                async with self._writing.setdefault(app_id, asyncio.Lock()):
                    return await self._apply(graph, app_id, partition, writes)
            except GraphUnavailable as error:
                if code_of(error.__cause__) != DEADLOCK or attempt == _DEADLOCKS:
                    raise
            await asyncio.sleep(random.uniform(0.05, 0.25))
        raise AssertionError("unreachable")

    async def durable(self, run: str, move: PositionMove | None = None) -> None:
        """See ``GraphStore.durable``: Neo4j acknowledges writes that are on disk."""
        if move is not None and not await self._positions.move(move):
            raise move.refused()

    async def positions(self) -> Mapping[int, CommittedPosition] | None:
        """See ``GraphStore.positions``: none with a server for each app."""
        return await self._positions.read()

    async def reached(self, partition: int) -> Mapping[str, str]:
        """See ``GraphStore.reached``."""
        return await self._positions.reached(partition)

    async def read(
        self,
        app_id: str,
        statement: str,
        params: Mapping[str, Any],
        *,
        timeout_s: float,
        enough: int | None = None,
        elements: bool = False,
        to_end: bool = False,
    ) -> Table:
        """See ``GraphStore.read``."""
        until = self._clock.monotonic() + timeout_s
        try:
            async with asyncio.timeout(timeout_s + 0.1), self._readers:
                graph = await self._databases.graph(app_id)
                owners = self._databases.owners
                if app_id not in owners and not await self._databases.is_owned(app_id):
                    return Table(columns=(), rows=())
                # The server enforces the access mode. It checks its time limit every two seconds; this one is exact.
                left_s = max(0.001, until - self._clock.monotonic())
                statement = self._databases.space(app_id).statement(statement)
                async with self._databases.session(graph, timeout_s, access=neo4j.READ_ACCESS, ours=False) as session:
                    result = await send(session, timed(statement, left_s), params)
                    columns, rows = result.keys(), await fetched(result, enough)
                await owners.check(app_id)  # afterwards: a responder asks for the checkpoints meanwhile
        except TimeoutError as error:
            raise QueryFailed(f"no answer within {timeout_s:.3f} s", code="timeout") from error
        return Table(columns=tuple(columns), rows=tuple(tuple(map(whole if elements else plain, row)) for row in rows))

    async def checkpoints(self, app_id: str, *, timeout_s: float) -> Mapping[int, Checkpoint]:
        """See ``GraphStore.checkpoints``. Raises ``QueryFailed`` when the database belongs to another app."""
        try:
            async with asyncio.timeout(timeout_s), self._lookers:
                rows = await self._databases.owned_rows(app_id, READ_OWNED_CHECKPOINTS, timeout_s)
        except TimeoutError as error:
            raise GraphUnavailable(f"no checkpoints of the graph of {app_id!r} within {timeout_s:.3f} s") from error
        checkpoints: dict[int, Checkpoint] = {}
        for row in rows:
            match row:
                case [None, None, None, None, _]:  # a graph without any
                    pass
                case [int(partition), str(offset), str(plan), int(done), _]:
                    checkpoints[partition] = Checkpoint(offset=offset, plan=plan, done=done)
                case _:
                    raise overwritten(app_id, row[0])
        return checkpoints

    async def aclose(self) -> None:
        """See ``GraphStore.aclose``."""
        await self._databases.aclose()

    # Writing

    def _form(self, write: Write) -> BatchQuery | None:
        """Return the batch query of a write; None if each row has its own query."""
        batch_query = write.query.batch_query(self.dialect) if write.query else None
        if batch_query is None or batch_query.mode == "single" or not self._compiles.get(batch_query.statement, True):
            return None
        return batch_query

    async def _refused_forms(self, graph: Database, forms: Iterable[BatchQuery]) -> bool:
        """Ask the server once about each batch query of failed writes; return whether it refuses one."""
        refused = False
        for statement, batch_query in {form.statement: form for form in forms}.items():
            if statement in self._compiles:  # another batch may have asked since these writes were sent
                refused |= not self._compiles[statement]
                continue
            try:
                async with self._databases.session(graph, self._write_timeout_s, ours=False) as session:
                    # The text that runs next, if the write is tried by itself. With a parameter, the plan is kept.
                    query = timed(f"EXPLAIN {by_itself((batch_query,))}", self._write_timeout_s)
                    await (await session.run(query, {VALUES: {}})).consume()
                self._compiles[statement] = True
            except QueryFailed as refusal:
                if refusal.code == "timeout":  # a busy server may accept it later
                    continue
                logger.debug("rows_sent_one_by_one", error=str(refusal))
                self._compiles[statement] = False
                self._groups.remove(batch_query)
                refused = True
        return refused

    async def _apply(self, graph: Database, app_id: str, partition: int, writes: Sequence[Write]) -> WriteResult:
        work = [(write, self._form(write)) for write in writes]
        parts = self._groups.parts(work)
        try:
            if len(parts) == 1 and not (parts[0].alone or parts[0].is_new):
                await self._apply_at_once(graph, app_id, partition, parts[0])
            else:
                await self._transact(graph, app_id, partition, parts)
            return WriteResult(count=len(work))
        except (QueryFailed, _Refused) as error:
            refusal = error.failure if isinstance(error, _Refused) else error
        # Separate statements for each write show which one is at fault.
        if refusal.code == "timeout":
            await self._wait_for_lock(graph, app_id)
            return await self._one_by_one(graph, app_id, partition, work)
        alone = len(writes) == 1
        # The statement also has the batch queries of other mutations: a lone row must not become a dead letter by them.
        forms = parts[0].batch_queries if alone else [form for _, form in work if form is not None]
        if await self._refused_forms(graph, forms):
            return await self._apply(graph, app_id, partition, writes)
        # An error of the server's code may come from the whole statement.
        crashed = code_of(refusal.__cause__).startswith("Neo.DatabaseError.")
        if alone and not crashed and all(self._compiles.get(form.statement) for form in forms):
            return WriteResult(count=0, failure=refusal)
        return await self._apart(graph, app_id, partition, work)

    async def _apart(self, graph: Database, app_id: str, partition: int, work: Work) -> WriteResult:
        part = list(work)
        failure: QueryFailed | None = None
        while part:
            try:
                await self._transact(graph, app_id, partition, apart(part))
                break
            except _Refused as refused:
                failure = refused.failure
                # The writes together may have taken too long.
                if refused.index is None or (failure.code == "timeout" and len(part) > 1):
                    await self._wait_for_lock(graph, app_id)
                    return await self._one_by_one(graph, app_id, partition, part)
                part = part[: refused.index]
        return WriteResult(count=len(part), failure=failure)

    async def _one_by_one(self, graph: Database, app_id: str, partition: int, work: Work) -> WriteResult:
        for count, part in enumerate(apart(work)):
            try:
                await self._transact(graph, app_id, partition, [part])
            except _Refused as refused:
                return WriteResult(count=count, failure=refused.failure)
        return WriteResult(count=len(work))

    async def _apply_at_once(self, graph: Database, app_id: str, partition: int, part: Part) -> None:
        writes = [write for write, _ in part.work]
        values: dict[str, Any] = {
            "app": app_id,
            "partition": partition,
            **properties(writes[0].before),
            "next": properties(writes[-1].after),
            "note": last_note(writes),
        }
        if part.batch_queries:
            values["runs"] = runs(part)
        async with self._databases.session(graph, self._write_timeout_s, ours=False) as session:
            one_run = len(values.get("runs", ())) == 1
            text = fused(part.batch_queries, one_run=one_run, space=self._databases.space(app_id))
            query = timed(text, self._write_timeout_s)
            done = await (await send(session, query, {VALUES: values})).values()
        if not done:
            raise moved_by_another(app_id, partition)

    async def _transact(self, graph: Database, app_id: str, partition: int, parts: Sequence[Part]) -> None:
        """Run the parts in a transaction. Raises ``_Refused`` if one fails; then nothing took effect."""
        writes = [write for part in parts for write, _ in part.work]
        try:
            async with self._databases.session(graph, self._write_timeout_s, ours=False) as session:
                transaction = await session.begin_transaction(timeout=self._write_timeout_s)
                async with transaction:  # without an exception the block commits
                    note = await self._lock(transaction, app_id, partition, writes[0].before)
                    locked = self._clock.monotonic()
                    for index, part in enumerate(parts):
                        try:
                            await _write(transaction, part)
                        except QueryFailed as failure:
                            raise _Refused(index, failure) from failure
                        except Neo4jError as error:
                            reason = translate(error)
                            if not isinstance(reason, QueryFailed):
                                raise
                            if (
                                reason.code == "timeout"
                                and self._clock.monotonic() - locked < self._write_timeout_s / 2
                            ):
                                raise GraphUnavailable("waiting for the graph's lock took most of the time") from error
                            raise _Refused(index, reason) from error
                    new = last_note(writes)
                    values = {
                        "partition": partition,
                        "next": properties(writes[-1].after),
                        "note": note if new is None else new,
                    }
                    move = self._databases.space(app_id).statement(MOVE)
                    await (await send(transaction, f"{move}${VALUES}.note", {VALUES: values})).consume()
        except QueryFailed as failure:  # at the commit, where the server checks the whole transaction
            raise _Refused(None if len(writes) > 1 else 0, failure) from failure

    async def _wait_for_lock(self, graph: Database, app_id: str) -> None:
        """Wait for the rollback of a transaction that timed out, which can take longer than it ran."""
        async with self._databases.session(graph, self._timing.admin_s) as session:
            try:
                lock = timed(f"{self._databases.space(app_id).statement(LOCK)} RETURN 1", self._timing.admin_s)
                await (await session.run(lock, {VALUES: {"app": app_id}})).consume()
            except Neo4jError as error:
                if code_of(error) not in errors.TIMED_OUT:
                    raise
                raise GraphUnavailable("another writer holds the graph's lock") from error

    async def _lock(self, transaction: AsyncTransaction, app_id: str, partition: int, before: Checkpoint) -> str:
        """Take the lock and return the checkpoint's note. Raises ``Fenced`` if the checkpoint has moved."""
        try:
            values = {VALUES: {"app": app_id, "partition": partition}}
            read = self._databases.space(app_id).statement(READ_CHECKPOINT)
            found = progress_of(await (await send(transaction, read, values)).values())
        except Neo4jError as error:
            if code_of(error) not in errors.TIMED_OUT:
                raise
            raise GraphUnavailable("another writer holds the graph's lock", retry_after_s=0.25) from error
        if found is None or found.checkpoint != before:
            raise moved_by_another(app_id, partition)
        return found.note


async def _write(transaction: AsyncTransaction, part: Part) -> None:
    if part.batch_queries:
        given = runs(part)
        text = by_itself(part.batch_queries) if len(given) == 1 else shared(part.batch_queries)
        await (await send(transaction, text, {VALUES: {"runs": given}})).consume()
        return
    for write, _ in part.work:
        if write.query is not None:
            for row in write.rows:
                await (await send(transaction, with_plain_vectors(write.query.statement), row)).consume()
