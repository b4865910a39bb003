"""FalkorDB as a graph store (measured on 4.22).

A write must take effect exactly when the graph stands where the writer thinks it does, and FalkorDB has no transaction
over several queries. So every query carries its own guard and moves the mark itself::

    MATCH (__gw:__Progress {partition: $__p}) WHERE __gw.pos = $__o AND __gw.plan = $__n AND __gw.done = $__d
    SET __gw.pos = …, __gw.plan = …, __gw.done = … WITH __gw.done AS __gwd
    CALL { <the rule's query> }

Many rows of one mutation share a query where ``falkordb_form`` allows it: then ``CALL { UNWIND $rows AS row … }``.

One query is atomic: effect and mark move together, and an error moves neither. The subquery matters. Put simply after
the guard, a query that aggregates (``MATCH (n:X) WITH count(n) AS c MERGE …``) makes a row out of none and writes
although the guard did not match; inside CALL it is not run at all. The subquery imports nothing, so no name of the
rule can meet one of ours.

Rejected: MULTI/EXEC (no roll-back, and the queries block the server's main thread), and a mark in a query of its own
(a crash in between doubles the effect). See ``docs/decisions/0003-exactly-once-on-falkordb.md``.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any, Final, Literal

from falkordb.asyncio.graph import AsyncGraph
from redis.exceptions import NoPermissionError, ReadOnlyError, RedisError, ResponseError

from graphweft.redis_connection import Command, Together, connect
from graphweft_contracts import Displaced, GraphUnavailable, GraphweftError, QueryFailed, channels
from graphweft_rules.batching import ROW, BatchForm, Dialect
from graphweft_rules.clauses import outline
from graphweft_rules.cypher import Cypher
from graphweft_rules.indexes import SearchIndex
from graphweft_rules.tokens import tokenize
from graphweft_rules.traps import bare_nodes
from graphweft_workers.graph.falkordb_rows import bound_amount, run_time_ms, table_of
from graphweft_workers.graph.literals import header, literal
from graphweft_workers.graph.places import Places, Query
from graphweft_workers.graph.store import Applied, Edge, Mark, Node, Progress, Refusal, Table, Write

logger = logging.getLogger("graphweft.graph")

_PIPELINE: Final = 500
"""Queries of one round trip; bounds what the server queues for us."""
_PAGE: Final = 5_000
"""Entities of one page of a listing."""
_THREADS: Final = 2
"""What a server is taken to have that does not say."""
_LOOKERS: Final = 16
"""Queries for marks on the way at once, beside the others: slow queries of rules must not hold these up."""
_WRITER_GRACE_S: Final = 15.0
"""Beyond the server's own limit of a query, how long a reply may take before the connection counts as lost."""

_GUARD: Final = (
    "MATCH (__gw:__Progress {partition: $__gw_partition}) "
    "WHERE __gw.pos = $__gw_pos AND __gw.plan = $__gw_plan AND __gw.done = $__gw_done "
)
_MOVE: Final = "SET __gw.pos = $__gw_next_pos, __gw.plan = $__gw_next_plan, __gw.done = $__gw_next_done"
_NOTE: Final = ", __gw.note = $__gw_note"
_ROWS: Final = f"UNWIND $__gw_rows AS {ROW} "
_ONE_ROW: Final = "UNWIND [0] AS __gw_one "
"""At the head of a subquery WITH imports variables; behind a row of one it means what it means in the rule."""
_RESTORE_MARK: Final = (
    "MERGE (p:__Progress {partition: $__gw_partition}) "
    "SET p.pos = $__gw_next_pos, p.plan = $__gw_next_plan, p.done = $__gw_next_done, p.note = $__gw_note"
)
_MOVED: Final = " WITH __gw.done AS __gw_moved"
_CARRIED: Final = "WITH __gw CALL { "
_COUNTED: Final = " CALL { "
_POSITION: Final = re.compile(r" line: (\d+), column: (\d+), offset: \d+")
_LIST_INDEXES: Final = "CALL db.indexes() YIELD label, status, types RETURN label, status, types"
_BUILT: Final = "OPERATIONAL"
_BUILD_POLL_S: Final = 0.02
_BUILD_S: Final = 10.0
_BLANKS: Final = " \t\n\v\f\r"
"""What indexes lose at both ends of a text; other blanks of Unicode they keep."""
_LIST_NAMES: Final[Mapping[Literal["label", "type"], str]] = {
    "label": "CALL db.labels() YIELD label RETURN label",
    "type": "CALL db.relationshipTypes() YIELD relationshipType RETURN relationshipType",
}
_READ_MARK: Final = "MATCH (p:__Progress {partition: $__gw_partition}) RETURN p.pos, p.plan, p.done"
_READ_MARKS: Final = "MATCH (p:__Progress) RETURN p.partition, p.pos, p.plan, p.done"
_MAKE_MARK: Final = (
    "MERGE (p:__Progress {partition: $__gw_partition}) ON CREATE SET p.pos = '', p.plan = '', p.done = 0, p.note = '' "
    "RETURN p.pos, p.plan, p.done, p.note"
)

# FalkorDB gives its errors no code, so the few that are no fault of the query are told by how they start. redis-py has
# classes for most of the server's own codes; these it hands over as text.
_NOT_THE_QUERY: Final = (
    "Max pending queries exceeded",
    "unknown command",
    "MISCONF ",
    "NOREPLICAS ",
    "BUSY ",
    "The query TIMEOUT parameter value cannot exceed",  # TIMEOUT_MAX was lowered while we ran
)
_NO_GRAPH_KEY: Final = "WRONGTYPE"
_TIMED_OUT: Final = "Query timed out"
_NO_GRAPH: Final = "Invalid graph operation on empty key"

_FAULT: Final = re.compile(
    r"errMsg: |'[^']*' not defined|Unknown function '[^'.]*'|Received \d+ arguments to function|"
    r"Procedure `[^`]*` (?:requires|does not yield)|A WITH clause is required|Query cannot (?:conclude|begin) with|"
    r"Error: (?:Multiple result columns|query with more than one statement)|All sub queries in a UNION|"
    r"Invalid (?:combination of UNION|use of aggregating|usage of 'NOT')|Can't use aggregat|"
    r"WITH (?:clause projections|imports in CALL)|Expression in CALL must be aliased|"
    r"The (?:alias|bound variable) '|Variable `|Variable length |Maximum number of hops|"
    r"Exactly one relationship type|Only directed relationships|Cannot use the same relationship|"
    r"FalkorDB (?:does not currently support|currently only supports|support )|'\w+' function requires a WHERE|"
    r"DELETE can only be called|RETURN \* is not allowed|Cannot specify both DISTINCT|Unexpected clause following|"
    r"ORDER BY cannot reference|(?:A |all)?shortestPath"
)
"""How the server begins to say that a query is wrong whatever the values of its parameters are (4.22)."""
_OF_VALUES: Final = re.compile(r"(?:Limit|Skip) operates only on|Missing parameters")
"""What it says of a query for want of values, which are not given when it is checked."""
_NAMED: Final = re.compile(r"['`]([^'`]+)['`]")
_CHECKS: Final = 5
"""Tries to check a query where somebody deletes the graph for it."""


class FalkorDBStore:
    """``GraphStore`` on a Redis server with the FalkorDB module."""

    dialect: Dialect = "falkordb"
    settle_s = 0.0

    def __init__(
        self,
        url: str,
        *,
        graph_template: str = "mozaiks_{app_id}",
        write_timeout_ms: int = 5_000,
    ) -> None:
        self._redis = connect(url, io_timeout_s=write_timeout_ms / 1000 + _WRITER_GRACE_S, decode=True)
        self._template = graph_template
        self._write_timeout_ms = write_timeout_ms
        self._named: dict[str, set[str]] = {}
        """By app: the statements whose labels and types are known to the server."""
        self._senders: dict[str, Together] = {}
        """By app: sends the writes of all partitions, see ``_apply``."""
        self._notes: dict[tuple[str, int], str] = {}
        """The notes beside the marks, as last seen, for the marks that a rule takes away."""
        self._warned_not_durable = False
        self._longest_ms: int | None = None
        self._asking = asyncio.Lock()
        self._places = Places(threads=_THREADS)
        self._lookers = asyncio.Semaphore(_LOOKERS)

    async def check(self) -> str:
        """See ``GraphStore.check``."""
        try:
            await self._redis.execute_command("GRAPH.LIST")
            return _run_of(await self._redis.info("server"))
        except ResponseError as error:
            if type(error) is ResponseError:
                raise GraphUnavailable(
                    "the graph server is a Redis without the FalkorDB module; point GRAPHWEFT_GRAPH_URL at FalkorDB",
                    retry_after_s=5.0,
                ) from error
            raise _translate(error) from error
        except (RedisError, OSError) as error:
            raise _translate(error) from error

    async def apps(self) -> list[str]:
        """Return the apps that have a graph on the server, by the names of the graphs."""
        first, *rest = map(re.escape, self._name("\0").split("\0"))
        pattern = "(?P=app)".join([f"{first}(?P<app>[A-Za-z0-9_-]{{1,64}}){rest[0]}", *rest[1:]])
        try:
            names = [str(name) for name in await self._redis.execute_command("GRAPH.LIST")]
        except (RedisError, OSError) as error:
            raise _translate(error) from error
        return sorted(found["app"] for name in names if (found := re.fullmatch(pattern, name)))

    async def check_query(self, query: Cypher, form: BatchForm | None = None) -> Refusal | None:
        """See ``GraphStore.check_query``. It leaves an empty graph of our own, in which the server is asked."""
        single = query.statement if form is None else _in_guard(query, None)
        texts = [single] if form is None or not form.always else []
        if form is not None and form.mode != "single":
            texts.append(_in_guard(query, form))
        refusals = [await self._refused(text) for text in texts]
        if (said := refusals[0]) is None:
            if (said := next(filter(None, refusals), None)) is None or _OF_VALUES.match(said):
                return None
            return Refusal(reason=f"many rows of it in one query: {_reason(said)}", fails=False)
        # Its own text has the place, and an end where it ends; what stands around it may be the reason, too.
        alone = await self._refused(query.statement) if form is not None else said
        if _OF_VALUES.match(said) or (alone is not None and _OF_VALUES.match(alone)):
            return None
        place = await self._place_of(query.statement, alone) if alone is not None else None
        return Refusal(reason=_reason(alone or said), place=place, fails=bool(_FAULT.match(alone or said)))

    async def _refused(self, text: str) -> str | None:
        """Return the server's words about a text that it does not take."""
        for attempt in range(_CHECKS):
            try:
                if attempt:  # it explains a query only where there is a graph
                    await self._redis.execute_command("GRAPH.QUERY", channels.GRAPH_CHECK, "RETURN 1")
                await self._redis.execute_command("GRAPH.EXPLAIN", channels.GRAPH_CHECK, text)
                return None
            except (NoPermissionError, ReadOnlyError) as error:
                raise _unchecked(error) from error
            except (RedisError, OSError) as error:
                reason = _translate(error)
                if not isinstance(reason, QueryFailed) or reason.code == "timeout":
                    raise GraphUnavailable(f"queries cannot be checked now: {reason}") from error
                if str(error).startswith(_NO_GRAPH_KEY):
                    raise _unchecked(error) from error
                if not str(error).startswith(_NO_GRAPH):
                    return str(error)
        raise GraphUnavailable(f"queries cannot be checked now: the graph {channels.GRAPH_CHECK!r} is deleted again")

    async def _place_of(self, statement: str, said: str) -> tuple[int, int] | None:
        """Return the place that the server names, or that of the name that it finds fault with."""
        if found := _POSITION.search(said):
            line, column = int(found[1]), int(found[2])  # the column counts bytes
            before = statement.split("\n")[line - 1].encode()[: column - 1].decode(errors="ignore")
            return line, len(before) + 1
        named = _NAMED.search(said)
        starts = list(_uses(statement, named[1])) if named else []
        # It may be any of them. The words change when the one that is meant has another name, or one in front of it.
        for number in reversed(range(len(starts))):
            changed = statement
            for start in reversed(starts[number:]):
                changed = f"{changed[:start]}__gw_{changed[start:]}"
            if await self._refused(changed) != said:
                start = starts[number]
                return statement.count("\n", 0, start) + 1, start - statement.rfind("\n", 0, start)
        return None

    async def prepare(self, app_id: str, keys: Iterable[tuple[str, str]], indexes: Iterable[SearchIndex] = ()) -> None:
        """See ``GraphStore.prepare``."""
        wanted = {(label, name, "RANGE") for label, name in {("__Progress", "partition"), *keys}}
        search = {(index.label, name, index.kind.upper()): index for index in indexes for name in index.properties}
        try:
            listed = await self._graph(app_id).query(_LIST_INDEXES)
            there = {
                (str(label), str(name), str(kind))
                for label, _, kinds_of in listed.result_set
                for name, kinds in kinds_of.items()
                for kind in kinds
            }
            missing = sorted(wanted - there)
            statements = [f"CREATE INDEX FOR (n:{_quoted(label)}) ON (n.{_quoted(name)})" for label, name, _ in missing]
            statements += [
                _search_index(index) for index in {search[key]: None for key in sorted(search.keys() - there)}
            ]
            for statement in statements:
                try:
                    await self._redis.execute_command("GRAPH.QUERY", self._name(app_id), statement)
                except ResponseError as error:
                    # Another worker may have been quicker; without an index queries are right, only slower.
                    logger.debug("index not made by %s: %s", statement, error)
            if statements:
                await self._built(app_id)
        except (RedisError, OSError) as error:
            raise _of_graph(error) from error

    async def _built(self, app_id: str) -> None:
        """Wait until all indexes are built: look-ups through one that is under way miss what is there."""
        until = time.monotonic() + _BUILD_S
        while time.monotonic() < until:
            listed = await self._graph(app_id).query(_LIST_INDEXES)
            if all(str(status) == _BUILT for _, status, _ in listed.result_set):
                return
            await asyncio.sleep(_BUILD_POLL_S)
        raise GraphUnavailable(f"the indexes of the graph of {app_id!r} are not built after {_BUILD_S:.0f} s: wait on")

    async def progress(self, app_id: str, partition: int) -> Progress:
        """See ``GraphStore.progress``."""
        try:
            result = await self._graph(app_id).query(_MAKE_MARK, {"__gw_partition": partition})
        except (RedisError, OSError) as error:
            raise _of_graph(error) from error
        mark = _mark_of(result.result_set)
        if mark is None:
            raise GraphUnavailable(f"the mark of partition {partition} in the graph of {app_id!r} was overwritten")
        if result.nodes_created:
            self._named.pop(app_id, None)  # the graph may be another one
        note = self._notes[app_id, partition] = str(result.result_set[0][3] or "")
        return Progress(mark=mark, note=note)

    async def apply(self, app_id: str, partition: int, writes: Sequence[Write]) -> Applied:
        """See ``GraphStore.apply``."""
        count = 0
        for start in range(0, len(writes), _PIPELINE):
            part = writes[start : start + _PIPELINE]
            applied = await self._apply(app_id, partition, part)
            count += applied.count
            if applied.failure is not None or applied.count < len(part):
                return Applied(count=count, failure=applied.failure)
        return Applied(count=count)

    async def durable(self, run: str) -> None:
        """See ``GraphStore.durable``. A server without append-only file cannot promise it: said once in the log."""
        try:
            pipeline = self._redis.pipeline(transaction=False)
            # WAITAOF waits for the writes of its own connection; one more of them stands behind all earlier ones.
            pipeline.incr(channels.DURABLE)
            pipeline.execute_command("WAITAOF", 1, 0, 0)
            pipeline.info("server")
            _, waited, server = await pipeline.execute(raise_on_error=False)
        except (RedisError, OSError) as error:
            raise _translate(error) from error
        if isinstance(server, Exception) or _run_of(server) != run:
            raise GraphUnavailable("the graph server was started again, so what it had not on disk is gone: read on")
        if isinstance(waited, Exception) and not self._warned_not_durable:
            self._warned_not_durable = True
            logger.warning(
                "the graph server keeps no append-only file, so a crash of it loses writes: start it with "
                "--appendonly yes (%s)",
                waited,
            )

    async def read(
        self, app_id: str, statement: str, params: Mapping[str, Any], *, timeout_s: float, enough: int | None = None
    ) -> Table:
        """See ``GraphStore.read``."""
        return await self._read(app_id, statement, params, timeout_s=timeout_s, enough=enough)

    async def marks(self, app_id: str, *, timeout_s: float) -> Mapping[int, Mark]:
        """See ``GraphStore.marks``."""
        try:
            async with asyncio.timeout(timeout_s), self._lookers:
                limit_ms = await self._allowed_ms(max(1, int(timeout_s * 1000)))
                # Not compact, and so without falkordb: numbers and text need no decoding.
                reply = await self._redis.execute_command(
                    "GRAPH.RO_QUERY", self._name(app_id), _READ_MARKS, "TIMEOUT", limit_ms
                )
        except TimeoutError as error:
            raise GraphUnavailable(f"no marks of the graph of {app_id!r} within {timeout_s:.3f} s") from error
        except (RedisError, OSError) as error:
            if isinstance(error, ResponseError) and str(error).startswith(_NO_GRAPH):
                return {}
            raise _of_graph(error) from error
        marks: dict[int, Mark] = {}
        for partition, *row in reply[1]:
            mark = _mark_of([row])
            if mark is None or not isinstance(partition, int):
                raise GraphUnavailable(f"the mark of partition {partition} in the graph of {app_id!r} was overwritten")
            marks[partition] = mark
        return marks

    async def nodes(self, app_id: str) -> AsyncIterator[Node]:
        """See ``GraphStore.nodes``."""
        async for row in self._pages(
            app_id,
            "MATCH (n) RETURN max(id(n))",
            "MATCH (n) WHERE id(n) >= $a AND id(n) < $b RETURN id(n), labels(n), properties(n)",
        ):
            yield Node(id=row[0], labels=tuple(row[1]), properties=row[2])

    async def edges(self, app_id: str) -> AsyncIterator[Edge]:
        """See ``GraphStore.edges``."""
        async for row in self._pages(
            app_id,
            "MATCH (n) RETURN max(id(n))",
            "MATCH (a)-[e]->(b) WHERE id(a) >= $a AND id(a) < $b RETURN id(a), id(b), type(e), properties(e)",
        ):
            yield Edge(start=row[0], end=row[1], type=row[2], properties=row[3])

    async def aclose(self) -> None:
        """See ``GraphStore.aclose``."""
        await self._places.aclose()
        while self._senders:
            _, sender = self._senders.popitem()
            await sender.aclose()
        await self._redis.aclose()

    async def _read(
        self,
        app_id: str,
        statement: str,
        params: Mapping[str, Any],
        *,
        timeout_s: float,
        enough: int | None = None,
        limited: bool = True,
    ) -> Table:
        """Read as ``read`` does; what is not ``limited`` may return any number of rows."""
        text = header(params) + statement if params else statement
        try:
            ask = partial(self._ask, text, limited, enough)
            return await self._places.run(app_id, statement, ask, timeout_s=timeout_s)
        except TimeoutError as error:
            raise QueryFailed(f"no answer within {timeout_s:.3f} s", code="timeout") from error
        except (RedisError, OSError) as error:
            if isinstance(error, ResponseError) and str(error).startswith(_NO_GRAPH):
                return Table(columns=(), rows=())
            raise _translate(error) from error

    async def _ask(self, text: str, limited: bool, enough: int | None, query: Query) -> Table:
        limit_ms = await self._allowed_ms(max(1, int((query.until - time.monotonic()) * 1000)))
        command = ("GRAPH.RO_QUERY", self._name(query.app_id), text, "--compact", "TIMEOUT", limit_ms)
        try:
            reply = await self._redis.execute_command(*command)
            if isinstance(reply[-1], Exception):
                raise reply[-1]
        except ResponseError as error:
            if str(error).startswith(_TIMED_OUT):
                query.took_ms = limit_ms
            raise
        query.took_ms = run_time_ms(reply)
        if not query.wanted:
            return Table(columns=(), rows=())
        if limited:
            bound_amount(reply, enough)
        return await table_of(reply, self._graph(query.app_id))

    async def _apply(self, app_id: str, partition: int, writes: Sequence[Write]) -> Applied:
        name = self._name(app_id)
        timeout_ms = await self._allowed_ms(self._write_timeout_ms)
        await self._make_known(app_id, writes)
        commands: list[Command] = []
        unsendable: QueryFailed | None = None
        for write in writes:
            try:
                command = _guarded(partition, write)
            except QueryFailed as error:
                unsendable = error
                break
            commands.append(("GRAPH.QUERY", name, command, "--compact", "TIMEOUT", timeout_ms))
        # The server runs one writing query of a graph at a time, and waiting counts for a query's time limit: a slow
        # query of one partition must not time out quick ones of another. So one round trip is under way.
        sender = self._senders.get(app_id) or self._senders.setdefault(app_id, Together(self._redis, connections=1))
        try:
            replies = await sender.execute_all(commands) if commands else []
            spared = unsendable is None and all(
                write.query is None or _spares_marks(write.query.statement) for write in writes
            )
            if spared and all(_took_effect(reply) for reply in replies):
                return self._applied(app_id, partition, writes)
            [where] = await sender.execute_all(
                [("GRAPH.RO_QUERY", name, header({"__gw_partition": partition}) + _READ_MARK)]
            )
        except (RedisError, OSError) as error:
            self._named.pop(app_id, None)  # a server that starts again may have lost what was made known
            raise _translate(error) from error
        failed = next(((i, reply) for i, reply in enumerate(replies) if isinstance(reply, Exception)), None)
        count = failed[0] if failed else len(commands)
        failure = unsendable
        if failed:
            reason = _translate(failed[1])
            if not isinstance(reason, QueryFailed):
                raise reason
            failure = _placed(reason, writes[count])
        expected = writes[count - 1].after if count else writes[0].before
        if isinstance(where, Exception) and not isinstance(_translate(where), QueryFailed):
            raise _translate(where) from where
        rows: Any = [] if isinstance(where, Exception) else where[1]
        if not rows:
            self._named.pop(app_id, None)  # the graph is another one, if there is one
        mark = _mark_of(rows)
        done = [i for i, reply in enumerate(replies) if _took_effect(reply)]
        if mark is None and done:
            # One of these writes took our mark away with other nodes. Without it they would run again, for ever.
            await self._restore(app_id, partition, writes[: done[-1] + 1])
            return Applied(count=done[-1] + 1)
        if mark != expected:
            raise Displaced(
                f"partition {partition} of app {app_id!r} was moved by another worker, or its graph was replaced",
                retry_after_s=0.05,
            )
        return self._applied(app_id, partition, writes[:count], failure)

    def _applied(
        self, app_id: str, partition: int, writes: Sequence[Write], failure: QueryFailed | None = None
    ) -> Applied:
        for write in writes:
            if write.note is not None:
                self._notes[app_id, partition] = write.note
        return Applied(count=len(writes), failure=failure)

    async def _make_known(self, app_id: str, writes: Sequence[Write]) -> None:
        """Let the server know every label and type of the writes before it plans the first of them.

        A plan takes a name that is unknown when it is made for one that nothing has, even when another client's write
        runs between planning and running: two processes that MERGE the first of a kind would make two.
        """
        done = self._named.setdefault(app_id, set())
        fresh = {write.query for write in writes if write.query and write.query.statement not in done}
        if not fresh:
            return
        wanted = {name for query in fresh for name in query.names if "`" not in name[1]}
        try:
            graph = self._graph(app_id)
            for kind, listing in _LIST_NAMES.items():
                wanted -= {(kind, str(row[0])) for row in (await graph.ro_query(listing)).result_set}
            if wanted:
                labels = "".join(f":{_quoted(name)}" for kind, name in sorted(wanted) if kind == "label")
                types = [_quoted(name) for kind, name in sorted(wanted) if kind == "type"]
                ways = "".join(f", (__gw)-[:{name}]->(__gw)" for name in types)
                await graph.query(f"CREATE (__gw{labels}){ways} DELETE __gw")
        except (RedisError, OSError) as error:
            if not str(error).startswith(_NO_GRAPH):  # the mark is gone with the graph, so nothing will run
                raise _of_graph(error) from error
        done.update(query.statement for query in fresh)

    async def _restore(self, app_id: str, partition: int, writes: Sequence[Write]) -> None:
        mark = writes[-1].after
        note = next((write.note for write in reversed(writes) if write.note is not None), None)
        if note is None:
            note = self._notes.get((app_id, partition), "")
        values = {
            "__gw_partition": partition,
            "__gw_next_pos": mark.offset,
            "__gw_next_plan": mark.plan,
            "__gw_next_done": mark.done,
            "__gw_note": note,
        }
        try:
            await self._redis.execute_command("GRAPH.QUERY", self._name(app_id), header(values) + _RESTORE_MARK)
        except (RedisError, OSError) as error:
            raise _of_graph(error) from error

    async def _allowed_ms(self, wanted_ms: int) -> int:
        """Return the time limit, or the server's TIMEOUT_MAX where that is less: it refuses a query that asks more."""
        if self._longest_ms is None:
            async with self._asking:  # not by each of those who come at the start
                if self._longest_ms is None:
                    self._places.threads = await self._setting("THREAD_COUNT", _THREADS)
                    self._longest_ms = await self._setting("TIMEOUT_MAX", 0)
        return min(wanted_ms, self._longest_ms) if self._longest_ms else wanted_ms

    async def _setting(self, name: str, unknown: int) -> int:
        try:
            return int((await self._redis.execute_command("GRAPH.CONFIG", "GET", name))[1])
        except ResponseError:  # a server that shows no settings
            return unknown
        except (RedisError, OSError) as error:
            raise _translate(error) from error

    async def _pages(self, app_id: str, last: str, page: str) -> AsyncIterator[tuple[Any, ...]]:
        highest = (await self._read(app_id, last, {}, timeout_s=60.0)).rows
        if not highest or highest[0][0] is None:
            return
        for start in range(0, int(highest[0][0]) + 1, _PAGE):
            values = {"a": start, "b": start + _PAGE}
            for row in (await self._read(app_id, page, values, timeout_s=60.0, limited=False)).rows:
                yield row

    def _name(self, app_id: str) -> str:
        return channels.graph_name(app_id, self._template)

    def _graph(self, app_id: str) -> Any:
        # A new object each time: it caches names by number, which go wrong when the graph is replaced under it.
        return AsyncGraph(self._redis, self._name(app_id))


def _guarded(partition: int, write: Write) -> str:
    values: dict[str, Any] = {
        "__gw_partition": partition,
        "__gw_pos": write.before.offset,
        "__gw_plan": write.before.plan,
        "__gw_done": write.before.done,
        "__gw_next_pos": write.after.offset,
        "__gw_next_plan": write.after.plan,
        "__gw_next_done": write.after.done,
    }
    move = _MOVE
    if write.note is not None:
        values["__gw_note"] = write.note
        move += _NOTE
    form = write.form_for("falkordb")
    if form is not None:
        for row in write.rows:
            _check_keys(form.keys, row)
    if write.query is None or form is None:
        return f"{header(values)}{_GUARD}{move}{_MOVED} RETURN __gw_moved"
    rows: list[list[Any]] | None = None
    alone = _alone(write)
    if alone:
        values |= write.rows[0]
    else:
        rows = [[number, *map(row.__getitem__, form.columns)] for number, row in enumerate(write.rows)]
    return header(values, rows) + _in_guard(write.query, None if alone else form, move)


def _in_guard(query: Cypher, form: BatchForm | None, move: str = _MOVE) -> str:
    """Return the text of a query behind its guard: that for one row, or with a form that for many.

    The mark moves last: from its first write on a query holds the server's main thread, so that nobody else is served
    (4.22). A query that is slow in finding what it writes holds up nobody then. One that returns rows may return none,
    and behind these nothing would move; there the mark moves first.
    """
    inner = _as_subquery(query.statement) if form is None else _ROWS + form.statement
    # The line break ends a comment on the rule's last line.
    if form is None and query.returns:
        return f"{_GUARD}{move}{_MOVED}{_COUNTED}{inner}\n}} RETURN count(*)"
    return f"{_GUARD}{_CARRIED}{inner}\n}} {move}"


def _check_keys(keys: Sequence[str], row: Mapping[str, Any]) -> None:
    """Refuse values that FalkorDB's indexes never find again: MERGE makes a new node of them each time.

    The empty text in a list has ended the server (4.22).
    """
    for key in keys:
        for value in _at(row, key.split(".")):
            if isinstance(value, str) and (not value or value[0] in _BLANKS or value[-1] in _BLANKS):
                raise QueryFailed(
                    f"the parameter {key.partition('.')[0]!r} is to find an entity, and FalkorDB finds no text that is "
                    "empty, or begins or ends with a blank: trim it, or leave such events out by a condition"
                )


def _at(value: Any, way: Sequence[str]) -> Iterator[Any]:
    """Yield what stands at the end of a way of keys, of lists all items'."""
    if isinstance(value, list | tuple):
        for item in value:  # pyright: ignore[reportUnknownVariableType]
            yield from _at(item, way)
    elif not way:
        yield value
    elif isinstance(value, Mapping):
        yield from _at(value.get(way[0]), way[1:])  # pyright: ignore[reportUnknownMemberType]


def _alone(write: Write) -> bool:
    """Tell whether a write runs by its author's text."""
    form = write.form_for("falkordb")
    return len(write.rows) == 1 and not (form and form.always)


@lru_cache(maxsize=1_024)
def _as_subquery(statement: str) -> str:
    """Put a row of one before each WITH that a branch of the statement (there are several with UNION) begins with."""
    query = outline(statement)
    parts: list[str] = []
    position = 0
    for clause in query.clauses:
        first = clause.words[0]
        begins = first == 0 or query.words.keyword(first - 1) in ("UNION", "ALL")
        if clause.keyword == "WITH" and clause.depth == 0 and begins:
            start = query.words.tokens[first].start
            parts += (statement[position:start], _ONE_ROW)
            position = start
    return "".join(parts) + statement[position:]


def _placed(failure: QueryFailed, write: Write) -> QueryFailed:
    """Let the server's line and column count in the rule's query, not in what stands around it.

    The text of a batch differs from the rule's, so there the place says nothing and goes away.
    """
    statement = write.query.statement if write.query else ""
    around = len(_GUARD) + len(_CARRIED)
    if write.query is not None and write.query.returns:
        around = len(_GUARD + _MOVE + _MOVED + _COUNTED) + (len(_NOTE) if write.note is not None else 0)

    def place(found: re.Match[str]) -> str:
        if not _alone(write):
            return ""
        line, column = int(found[1]), int(found[2])
        if line == 1:
            column -= around + (len(_ONE_ROW) if _as_subquery(statement).startswith(_ONE_ROW) else 0)
        return f" (line {line}, column {max(1, column)} of the query)"

    return QueryFailed(_POSITION.sub(place, str(failure)), code=failure.code)


def _uses(statement: str, name: str) -> Iterator[int]:
    """Yield where a name stands, dotted or not; functions have it in any case, and servers in lower case."""
    for token in tokenize(statement):
        start = token.start + (token.kind == "quoted")
        end = start + len(name)
        found = token.kind in ("name", "quoted") and statement[start:end].lower() == name.lower()
        if found and not re.match(r"\w", statement[end : end + 1]):
            yield start


def _reason(said: str) -> str:
    """Return what the server finds wrong, without the place, on one line."""
    return " ".join(_POSITION.sub("", said.partition(" errCtx:")[0]).removeprefix("errMsg: ").split())


def _unchecked(error: RedisError | OSError) -> QueryFailed:
    commands, key = "GRAPH.QUERY and GRAPH.EXPLAIN", channels.GRAPH_CHECK
    return QueryFailed(f"the server does not let queries be checked; that needs {commands} on the key {key!r}: {error}")


def _run_of(server: Any) -> str:
    return str(server.get("run_id", ""))


def _took_effect(reply: Any) -> bool:
    """Tell from the statistics of a guarded write whether its guard matched: then it has at least moved the mark."""
    return not isinstance(reply, Exception) and any(
        str(line).startswith(("Properties set:", "Nodes deleted:")) for line in reply[-1]
    )


@lru_cache(maxsize=1_024)
def _spares_marks(statement: str) -> bool:
    """Tell whether a query reaches no nodes but those that it names by a label or a relationship."""
    return not any(bare_nodes(outline(statement)))


def _mark_of(rows: Any) -> Mark | None:
    """Return the mark that was read; None when it is gone or a rule has overwritten it."""
    try:
        # Graphs of the first version have no plan in their marks.
        if not rows or isinstance(rows[0][2], bool):
            return None
        return Mark(offset=str(rows[0][0]), plan=str(rows[0][1] or ""), done=int(rows[0][2]))
    except (TypeError, ValueError):
        return None


def _search_index(index: SearchIndex) -> str:
    if index.kind == "vector":
        return (
            f"CREATE VECTOR INDEX FOR (n:{_quoted(index.label)}) ON (n.{_quoted(index.properties[0])}) "
            f"OPTIONS {{dimension: {index.dimensions}, similarityFunction: 'cosine'}}"
        )
    # The server takes stop words of its own language, and stems, unless it is told otherwise.
    plain = ", stopwords: []" if index.terms else ""
    fields = ", ".join(
        f"{{field: {literal(name)}{', nostem: true' if index.terms else ''}}}" for name in index.properties
    )
    return f"CALL db.idx.fulltext.createNodeIndex({{label: {literal(index.label)}{plain}}}, {fields})"


def _quoted(name: str) -> str:
    if "`" in name:
        raise QueryFailed(f"{name!r} cannot be indexed: FalkorDB knows no escaped backtick")
    return f"`{name}`"


def _of_graph(error: BaseException) -> GraphweftError:
    """Translate the error of a query of our own, which is no query's fault but may be that of the graph's key."""
    reason = _translate(error)
    if isinstance(reason, QueryFailed) and not str(error).startswith(_NO_GRAPH_KEY):
        return GraphUnavailable(f"the graph server refuses: {reason}")
    return reason


def _translate(error: BaseException) -> GraphweftError:
    # ResponseError itself is a query's fault; its subclasses (LOADING, OOM, READONLY, NOPERM …) are the server's.
    if type(error) is ResponseError:
        text = str(error).partition(" errCtx:")[0]
        if text.startswith(_TIMED_OUT):
            return QueryFailed("the query was aborted at its time limit", code="timeout")
        if not text.startswith(_NOT_THE_QUERY):
            return QueryFailed(text.removeprefix("errMsg: "))
    return GraphUnavailable(f"the graph server is away: {error}")
