"""FalkorDB as a graph store (measured on 4.22).

A write must take effect only if the checkpoint has the expected value, and FalkorDB has no transactions of several
queries. So every query has its own guard and moves the checkpoint itself::

    MATCH (__gw:__Progress) WHERE __gw.partition + 0 = $__p AND __gw.pos = $__o AND …
    SET __gw.pos = …, __gw.plan = …, __gw.done = … WITH __gw.done AS __gwd
    CALL { <the rule's query> }

Many rows of one mutation share a query where its batch query allows it: then ``CALL { UNWIND $rows AS row … }``.

One query is atomic: its effect and the checkpoint change together, and an error changes neither. The subquery is
needed: directly after the guard, a query that aggregates (``MATCH (n:X) WITH count(n) AS c MERGE …``) makes a row out
of none and writes although the guard did not match. Inside CALL it does not run then. The subquery imports nothing, so
names of rules cannot collide with graphweft's.

Rejected: MULTI/EXEC (no rollback, and the queries block the server's main thread), and a separate query for the
checkpoint (a crash between the two doubles the effect). See ``docs/decisions/0003-exactly-once-on-falkordb.md``.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any, Final

from falkordb.asyncio.graph import AsyncGraph
from redis.exceptions import RedisError, ResponseError

from graphweft.transports.redis.connection import Command, CommandBatcher, connect
from graphweft.transports.redis.lines import Lines
from graphweft.transports.redis.url import NO_CLUSTER
from graphweft_contracts import GraphUnavailable, QueryFailed, channels
from graphweft_contracts.bounded_dict import BoundedDict
from graphweft_contracts.clock import SYSTEM_CLOCK, Clock
from graphweft_rules.cypher.batch_query import BatchQuery
from graphweft_rules.cypher.indexes import SearchIndex
from graphweft_rules.cypher.query import Cypher
from graphweft_workers.drivers.falkordb import index_repair
from graphweft_workers.drivers.falkordb.dialect import FALKORDB
from graphweft_workers.drivers.falkordb.errors import NO_GRAPH, TIMED_OUT, of_graph, translate
from graphweft_workers.drivers.falkordb.limiter import Places, Query
from graphweft_workers.drivers.falkordb.literals import header
from graphweft_workers.drivers.falkordb.long_writes import LongWrites
from graphweft_workers.drivers.falkordb.positions import FalkorDBPositions
from graphweft_workers.drivers.falkordb.property_names import read_property_names
from graphweft_workers.drivers.falkordb.query_check import check_query
from graphweft_workers.drivers.falkordb.read_turns import ReadTurns
from graphweft_workers.drivers.falkordb.rows import bound_amount, plain_table, run_time_ms, table_of
from graphweft_workers.drivers.falkordb.shared_queries import SLOW_MS, SharedQueries, WriteQuery
from graphweft_workers.drivers.falkordb.statements import (
    DROP_COPIES,
    LIST_NAMES,
    MAKE_CHECKPOINT,
    READ_CHECKPOINT,
    READ_CHECKPOINTS,
    RESTORE_CHECKPOINT,
    checkpoint_of,
    drop_vector_index,
    placed,
    quoted,
    run_of,
    search_index,
    spares_checkpoints,
    took_effect,
)
from graphweft_workers.drivers.falkordb.timing import FALKORDB_TIMING, FalkorDBTiming
from graphweft_workers.drivers.falkordb.whole_graphs import FalkorDBGraphs
from graphweft_workers.drivers.falkordb.write_times import WriteTimes
from graphweft_workers.drivers.graph_owners import GraphOwners
from graphweft_workers.ports.dialect import GraphDialect, of_another_length
from graphweft_workers.ports.event_log import CommittedPosition
from graphweft_workers.ports.graph_store import (
    Checkpoint,
    OtherGraph,
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
from graphweft_workers.support.refused_right import RefusedRight
from graphweft_workers.text.long_values import are_long

logger = get_logger("graphweft.graph")

type _Index = tuple[str, str, str]
"""Label, property and kind."""

_LONG: Final = 10_000
"""Characters and items of parameters whose text is made in a thread."""
_NESTED: Final = frozenset({list, tuple, dict})
_INDEXES_OF_LABEL: Final = 128
"""Indexed properties of one label. The server ends at 344 of them (4.22), also if each is waited for."""
_THREADS: Final = 2
"""The assumed number of threads of a server that does not tell it."""
_LOOKERS: Final = 16
"""Concurrent queries for checkpoints. They have their own limit, so that slow queries of rules do not delay them."""


def _with_room(missing: Sequence[_Index], there: Collection[_Index]) -> list[_Index]:
    """Return the indexes that can be added: rules of many versions may have made others of the same label before."""
    count = Counter(label for label, _, _ in there)
    found: list[_Index] = []
    for index in missing:
        count[index[0]] += 1
        if count[index[0]] <= _INDEXES_OF_LABEL:
            found.append(index)
    return found


class FalkorDBStore:
    """``GraphStore`` on a Redis server with the FalkorDB module."""

    dialect: GraphDialect = FALKORDB
    settle_s = 0.0
    runs_again = False

    def __init__(
        self,
        url: str,
        *,
        graph_template: str = "mozaiks_{app_id}",
        write_timeout_ms: int = 5_000,
        clock: Clock = SYSTEM_CLOCK,
        timing: FalkorDBTiming = FALKORDB_TIMING,
    ) -> None:
        self._clock = clock
        self._timing = timing
        io_timeout_s = write_timeout_ms / 1000 + timing.writer_grace_s
        self._redis = connect(url, io_timeout_s=io_timeout_s, decode=True)
        self._lines = Lines(url, io_timeout_s=io_timeout_s, decode=True)
        self._template = graph_template
        self._write_timeout_ms = write_timeout_ms
        self._named: BoundedDict[str, set[str]] = BoundedDict()
        """By app: the statements whose labels and types the server knows."""
        self._shared_queries = SharedQueries()
        self._times = WriteTimes(LongWrites(self._redis, clock=clock, timing=timing), clock, timing)
        self._senders: BoundedDict[str, CommandBatcher] = BoundedDict()
        """By app: sends the writes of all partitions, see ``_apply``."""
        self._notes: BoundedDict[tuple[str, int], str] = BoundedDict()
        """By app and partition: the last note, to restore a checkpoint that a rule has deleted. Used ones stay."""
        self._not_durable = RefusedRight(clock)
        self._run = ""
        self._longest_ms: int | None = None
        self._shows_settings = RefusedRight(clock)
        self._asking = asyncio.Lock()
        self._places = Places(threads=_THREADS, clock=clock, timing=timing)
        self._turns = ReadTurns(self._redis, clock=clock, timing=timing)
        self.without_turn = Counter[str]()  # see ``GraphStore``
        self._lookers = asyncio.Semaphore(_LOOKERS)
        self._owners = GraphOwners(self._ask_owner, clock=clock, fresh_s=timing.owner_s)
        self._positions = FalkorDBPositions(self._redis, graph_template, clock)
        self.whole: WholeGraphs = FalkorDBGraphs(
            self._redis, self._name, rows=self._rows, list_rows=self._list, named=self._named, notes=self._notes,
            positions=self._positions,
        )  # fmt: skip

    async def check(self) -> str:
        """See ``GraphStore.check``."""
        try:
            await self._redis.execute_command("GRAPH.LIST")
            told = await self._redis.info("server")
            if told.get("redis_mode") == "cluster":
                raise GraphUnavailable(f"the graph server is a node of a cluster: {NO_CLUSTER}", retry_after_s=5.0)
            if (run := run_of(told)) != self._run:  # it may have been started with other settings
                self._longest_ms = None
            self._run = run
            return run
        except ResponseError as error:
            if type(error) is ResponseError:
                raise GraphUnavailable(
                    "the graph server is a Redis without the FalkorDB module; point GRAPHWEFT_GRAPH_URL at FalkorDB",
                    retry_after_s=5.0,
                ) from error
            raise translate(error) from error
        except (RedisError, OSError) as error:
            raise translate(error) from error

    async def apps(self) -> list[str]:
        """Return the apps that have a graph on the server, in order."""
        first, *rest = map(re.escape, self._name("\0").split("\0"))
        pattern = "(?P=app)".join([f"{first}(?P<app>[A-Za-z0-9_-]{{1,64}}){rest[0]}", *rest[1:]])
        try:
            names = [str(name) for name in await self._redis.execute_command("GRAPH.LIST")]
        except (RedisError, OSError) as error:
            raise translate(error) from error
        return sorted(found["app"] for name in names if (found := re.fullmatch(pattern, name)))

    async def other_templates(self) -> Sequence[str]:
        """Return the other names under which workers have written graphs on the server; see ``graph_template``."""
        return await self._positions.other_templates()

    async def property_names(self, app_id: str) -> frozenset[str]:
        """Return the names of all properties that the app's graph has ever had; none without a graph."""
        return await read_property_names(partial(self._rows, app_id, "GRAPH.RO_QUERY"))

    async def memory_of(self, app_id: str) -> int:
        """Return about the bytes that the app's graph takes in the server, in whole MiB; 0 without a graph."""
        try:
            found: Any = await self._redis.execute_command("GRAPH.MEMORY", "USAGE", self._name(app_id))
        except (RedisError, OSError) as error:
            if isinstance(error, ResponseError) and str(error).startswith(NO_GRAPH):
                return 0
            raise of_graph(error) from error
        sizes: dict[str, Any] = dict(zip(found[::2], found[1::2], strict=True))
        return int(sizes["total_graph_sz_mb"]) * 1024**2

    async def check_query(self, query: Cypher, batch_query: BatchQuery | None = None) -> Refusal | None:
        """See ``GraphStore.check_query``. It creates an empty graph for that."""
        return await check_query(self._redis, query, batch_query)

    async def prepare(self, app_id: str, keys: Iterable[tuple[str, str]], indexes: Iterable[SearchIndex] = ()) -> None:
        """See ``GraphStore.prepare``."""
        async with self._turns.writing(self._name(app_id)):
            await self._prepare(app_id, keys, indexes)

    async def _prepare(self, app_id: str, keys: Iterable[tuple[str, str]], indexes: Iterable[SearchIndex]) -> None:
        await self._owners.check(app_id)
        wanted = {(label, name, "RANGE") for label, name in keys}
        search = {(index.label, name, index.kind.upper()): index for index in indexes for name in index.properties}
        try:
            graph = self._graph(app_id)
            found = await index_repair.indexes_of(graph)
            there, unfinished = set(found.there), set(found.unfinished)
            replaced = await self._of_another_length(app_id, [search[key] for key in search.keys() & there])
            there -= {(index.label, index.properties[0], "VECTOR") for index in replaced}
            # Without its index a search finds nothing, and a look-up is only slower.
            absent = [*sorted(search.keys() - there), *sorted(wanted - there)]
            missing = _with_room(absent, there)
            if left_out := len(absent) - len(missing):
                logger.warning(
                    "indexes_left_out", app_id=app_id, indexes=left_out,
                    next=f"look up or search nodes of one label by at most {_INDEXES_OF_LABEL} properties: look-ups by "
                    "others are slow, and searches of others fail",
                )  # fmt: skip
            keyed = [(label, name) for label, name, kind in missing if kind == "RANGE"]
            made = {search[key]: None for key in missing if key in search}
            statements = [(index.label, drop_vector_index(index)) for index in replaced]
            statements += [(index.label, search_index(index)) for index in made if index.kind == "fulltext"]
            statements += [
                (label, f"CREATE INDEX FOR (n:{quoted(label)}) ON (n.{quoted(name)})") for label, name in keyed
            ]
            await self._change_indexes(app_id, statements, unfinished)
            if keyed:
                await index_repair.until_built(graph, self._clock, self._timing)
            if keyed and not any(kind == "RANGE" for _, _, kind in there):
                await index_repair.are_new(self._redis, self._name(app_id), await self._current_run())
            # Those of many vectors take minutes, and nobody who writes waits for them.
            vectors = [(index.label, search_index(index)) for index in made if index.kind == "vector"]
            await self._change_indexes(app_id, vectors, unfinished)
        except (RedisError, OSError) as error:
            raise of_graph(error) from error

    async def _change_indexes(self, app_id: str, statements: Iterable[tuple[str, str]], unfinished: set[str]) -> None:
        """Run statements that change the indexes of labels, each when those of its label are built.

        ``unfinished`` are the labels of which indexes may be being built.
        """
        for label, statement in statements:
            if label in unfinished:
                await index_repair.until_built(
                    self._graph(app_id), self._clock, self._timing, label=label, wait_s=self._timing.repair_s
                )
            unfinished.add(label)
            try:
                await self._redis.execute_command("GRAPH.QUERY", self._name(app_id), statement)
            except ResponseError as error:
                # Another worker may have created it. Without one of a look-up, queries are only slower.
                log = logger.debug if "already indexed" in str(error) else logger.warning
                log("index_not_made", app_id=app_id, statement=statement, error=str(error))

    async def _of_another_length(self, app_id: str, wanted: Sequence[SearchIndex]) -> list[SearchIndex]:
        """Return the vector indexes of which the graph has one for vectors of another length."""
        if not any(index.kind == "vector" for index in wanted):
            return []
        listed = (await self._graph(app_id).query(self.dialect.list_indexes)).result_set
        return [index for _, index in of_another_length(self.dialect.read_indexes(listed), wanted)]

    async def progress(self, app_id: str, partition: int) -> Progress:
        """See ``GraphStore.progress``."""
        async with self._turns.writing(self._name(app_id)):
            return await self._progress(app_id, partition)

    async def _progress(self, app_id: str, partition: int) -> Progress:
        graph = self._graph(app_id)
        await self._ask_owner(app_id)
        try:
            await index_repair.make_anew(self._redis, graph, await self._current_run(), self._clock, self._timing)
            result = await graph.query(MAKE_CHECKPOINT, {"__gw_partition": partition, "__gw_app": app_id})
            if len(result.result_set) > 1:
                await graph.query(DROP_COPIES, {"__gw_partition": partition})
        except (RedisError, OSError) as error:
            raise of_graph(error) from error
        checkpoint = checkpoint_of(result.result_set)
        if checkpoint is None:
            raise overwritten(app_id, partition)
        if result.nodes_created:
            self._named.pop(app_id, None)  # the graph may be new
        note = self._notes[app_id, partition] = str(result.result_set[0][3] or "")
        return Progress(checkpoint=checkpoint, note=note)

    async def apply(self, app_id: str, partition: int, writes: Sequence[Write]) -> WriteResult:
        """See ``GraphStore.apply``."""
        count = 0
        held_s: list[float] = []
        while count < len(writes) and sum(held_s) < self._timing.round_s:
            part = writes[count : count + self._times.most(self._name(app_id), writes, count, self._timing.round_s)]
            applied = await self._apply(app_id, partition, part)
            count += applied.count
            held_s += applied.held_s
            if applied.failure is not None or applied.count < len(part):
                return WriteResult(count=count, failure=applied.failure, held_s=held_s)
        return WriteResult(count=count, held_s=held_s)

    async def durable(self, run: str, move: PositionMove | None = None) -> None:
        """See ``GraphStore.durable``. A server without an append-only file cannot; a warning is logged once."""
        try:
            command = None if move is None else await self._positions.command(move, run)
            pipeline = self._redis.pipeline(transaction=False)
            # WAITAOF waits for writes of its own connection; this write comes after all earlier ones.
            pipeline.execute_command(*(command or ("INCR", channels.DURABLE)))
            pipeline.execute_command("WAITAOF", 1, 0, 0)
            pipeline.info("server")
            moved, waited, server = await pipeline.execute(raise_on_error=False)
        except (RedisError, OSError) as error:
            raise translate(error) from error
        if isinstance(server, Exception) or run_of(server) != run:
            raise GraphUnavailable(
                "the graph server was restarted and may have lost writes: the worker reads the events again"
            )
        if move is not None and command and not self._positions.took_effect(move, run, moved):
            return await self.durable(run)
        if not isinstance(waited, Exception):
            self._not_durable.allow()
        elif self._not_durable.refuse():
            logger.warning(
                "graph_not_durable",
                error=str(waited),
                next="a crash of the graph server loses writes: start it with --appendonly yes",
            )
        return None

    async def positions(self) -> Mapping[int, CommittedPosition] | None:
        """See ``GraphStore.positions``."""
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
        table = await self._read(
            app_id, statement, params, timeout_s=timeout_s, enough=enough, elements=elements, to_end=to_end
        )
        if not self._owners.is_fresh(app_id):  # afterwards: a responder asks for the checkpoints meanwhile
            try:
                async with asyncio.timeout(max(0.1, until - self._clock.monotonic())):
                    await self._owners.check(app_id)
            except TimeoutError as error:
                raise QueryFailed(f"no answer within {timeout_s:.3f} s", code="timeout") from error
        return table

    async def checkpoints(self, app_id: str, *, timeout_s: float) -> Mapping[int, Checkpoint]:
        """See ``GraphStore.checkpoints``."""
        rows = await self._checkpoint_rows(app_id, timeout_s)
        checkpoints: dict[int, Checkpoint] = {}
        for partition, *row in rows:
            checkpoint = checkpoint_of([row])
            if checkpoint is None or not isinstance(partition, int):
                raise overwritten(app_id, partition)
            checkpoints[partition] = checkpoint
        return checkpoints

    async def _checkpoint_rows(self, app_id: str, timeout_s: float) -> Sequence[Sequence[Any]]:
        with self._owners.asking(app_id):
            try:
                async with asyncio.timeout(timeout_s), self._lookers:
                    limit_ms = await self._allowed_ms(max(1, int(timeout_s * 1000)))
                    # Not in the compact format: numbers and text need no decoding.
                    reply = await self._lines.execute(
                        "GRAPH.RO_QUERY", self._name(app_id), READ_CHECKPOINTS, "TIMEOUT", limit_ms
                    )
                rows: Sequence[Sequence[Any]] = reply[1]
            except TimeoutError as error:
                raise GraphUnavailable(f"no checkpoints of the graph of {app_id!r} within {timeout_s:.3f} s") from error
            except (RedisError, OSError) as error:
                if not (isinstance(error, ResponseError) and str(error).startswith(NO_GRAPH)):
                    raise of_graph(error) from error
                rows = ()
            place = f"the graph {self._name(app_id)!r}"
            if other := self._owners.saw(app_id, [row[-1] for row in rows], place):
                raise OtherGraph.at(place, app_id, other)
        return rows

    async def _ask_owner(self, app_id: str) -> None:
        await self._checkpoint_rows(app_id, self._write_timeout_ms / 1000)

    async def aclose(self) -> None:
        """See ``GraphStore.aclose``."""
        await self._places.aclose()
        await self._turns.aclose()
        while self._senders:
            _, sender = self._senders.popitem()
            await sender.aclose()
        await self._lines.aclose()
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
        elements: bool = False,
        to_end: bool = False,
    ) -> Table:
        """Like ``read``; without ``limited`` the number of rows is not limited."""
        # A text of a million values takes 0.2 s; a thread lets others run meanwhile.
        values = await asyncio.to_thread(header, params) if are_long(params.values(), _LONG) else header(params)
        text = values + statement if params else statement
        try:
            ask = partial(self._ask, text, limited, enough, elements)
            return await self._places.run(app_id, statement, ask, timeout_s=timeout_s, to_end=to_end)
        except TimeoutError as error:
            raise QueryFailed(f"no answer within {timeout_s:.3f} s", code="timeout") from error
        except (RedisError, OSError) as error:
            if isinstance(error, ResponseError) and str(error).startswith(NO_GRAPH):
                return Table(columns=(), rows=())
            raise translate(error) from error

    async def _ask(self, text: str, limited: bool, enough: int | None, elements: bool, query: Query) -> Table:
        reply = await (self._ask_in_turn(text, query) if query.is_slow else self._ask_now(text, query))
        query.took_ms = run_time_ms(reply)
        if not query.wanted:
            return Table(columns=(), rows=())
        if (table := plain_table(reply)) is not None:
            return table
        if limited:
            bound_amount(reply, enough)
        return await table_of(reply, self._graph(query.app_id), elements=elements)

    async def _ask_in_turn(self, text: str, query: Query) -> list[Any]:
        await self._allowed_ms(0)  # asks for the number of threads too
        of_graph, of_all = self._places.most_slow, max(1, self._places.threads - 1)
        begun = False
        try:
            async with self._turns.reading(
                self._name(query.app_id), until=query.until, of_graph=of_graph, of_all=of_all
            ):
                begun = True
                return await self._ask_now(text, query)
        except TimeoutError as error:
            if begun:
                raise
            self.without_turn[query.app_id] += 1
            raise QueryFailed(
                "the query is slow and got no turn in time: slow queries wait while their app's graph is written, and "
                f"at most {of_graph} of an app and {of_all} of all apps run at once. Make the query quicker, or raise "
                "the budget",
                code="timeout",
            ) from error

    async def _ask_now(self, text: str, query: Query) -> list[Any]:
        limit_ms = await self._allowed_ms(max(1, int(query.limit_s * 1000)))
        command = ("GRAPH.RO_QUERY", self._name(query.app_id), text, "--compact", "TIMEOUT", limit_ms)
        try:
            reply: list[Any] = await self._lines.execute(*command)
            if isinstance(reply[-1], Exception):
                raise reply[-1]
        except ResponseError as error:
            if str(error).startswith(TIMED_OUT):
                query.took_ms, query.aborted = limit_ms, True
            raise
        return reply

    async def _rows(self, app_id: str, command: str, text: str) -> list[Any]:
        """Run a query without limits of its result; return the rows of its compact reply."""
        await self._owners.check(app_id)
        timeout_ms = await self._allowed_ms(self._timing.listing_ms)
        try:
            reply = await self._redis.execute_command(
                command, self._name(app_id), text, "--compact", "TIMEOUT", timeout_ms
            )
        except (RedisError, OSError) as error:
            raise translate(error) from error
        if isinstance(reply[-1], Exception):
            raise translate(reply[-1]) from reply[-1]
        return reply[1] if len(reply) == 3 else []

    async def _apply(self, app_id: str, partition: int, writes: Sequence[Write]) -> WriteResult:
        name = self._name(app_id)
        if not self._turns.heeds(name):  # an empty context would cost 1.5 us for each round trip
            return await self._apply_now(app_id, partition, writes)
        async with self._turns.writing(name):
            return await self._apply_now(app_id, partition, writes)

    async def _apply_now(
        self, app_id: str, partition: int, writes: Sequence[Write], *, share: bool = True
    ) -> WriteResult:
        name = self._name(app_id)
        timeout_ms = await self._allowed_ms(self._write_timeout_ms)
        await self._make_known(app_id, writes)
        make = partial(self._queries, partition, writes, share=share)
        queries, unsendable = await asyncio.to_thread(make) if _is_long_text(writes) else make()
        limits_ms = [min(timeout_ms, self._times.limit_ms(writes, each)) for each in queries]
        commands: list[Command] = [
            ("GRAPH.QUERY", name, each.text, "--compact", "TIMEOUT", limit_ms)
            for each, limit_ms in zip(queries, limits_ms, strict=True)
        ]
        # The server runs one writing query of a graph at a time, and waiting counts toward a query's time limit. One
        # round trip at a time keeps a slow query of one partition from timing out quick ones of another.
        sender = self._senders.get(app_id)
        if sender is None:
            sender = self._senders[app_id] = CommandBatcher(self._lines, connections=1, at_once=lambda: True)
        self._senders.move_to_end(app_id)
        try:
            began = self._clock.monotonic()
            replies = await sender.execute_all(commands) if commands else []
            held_s, has_waited = await self._times.held_s(name, writes, queries, replies, began)
            spared = unsendable is None and all(
                write.query is None or spares_checkpoints(write.query.outline) for write in writes
            )
            if spared and all(took_effect(reply) for reply in replies):
                for query, reply in zip(queries, replies, strict=True):
                    if query.shared and (run_time_ms(reply) or 0.0) > SLOW_MS:
                        self._shared_queries.keep_apart(writes[query.first : query.end])
                return self._applied(app_id, partition, writes, held_s=held_s)
            answered = list(zip(queries, replies, strict=True))
            failed = next(((query, reply) for query, reply in answered if isinstance(reply, Exception)), None)
            reason = translate(failed[1]) if failed else None
            if reason is not None and not isinstance(reason, QueryFailed):
                raise reason
            done = [query.end for query, reply in answered if took_effect(reply)]
            count = failed[0].first if failed else queries[-1].end if queries else 0
            where: Any = None
            # A refused query leaves the checkpoint where those before it moved it. If another worker has moved it, the
            # next write has no effect, and nothing follows from the refusal before that.
            if reason is None or not spared or reason.code == "timeout" or max(done, default=0) != count:
                [where] = await sender.execute_all(
                    [("GRAPH.RO_QUERY", name, header({"__gw_partition": partition}) + READ_CHECKPOINT)]
                )
        except (RedisError, OSError) as error:
            self._named.pop(app_id, None)  # a restarted server may have lost the names
            raise translate(error) from error
        if where is not None:
            if isinstance(where, Exception) and not isinstance(translate(where), QueryFailed):
                raise translate(where) from where
            rows: Any = [] if isinstance(where, Exception) else where[1]
            if not rows:
                self._named.pop(app_id, None)  # the graph was replaced or deleted
            checkpoint = checkpoint_of(rows)
            if checkpoint is None and done:
                # One of these writes deleted the checkpoint. Without it they would run again, for ever.
                await self._restore(app_id, partition, writes[: done[-1]])
                return WriteResult(count=done[-1], held_s=held_s)
            if checkpoint != (writes[count - 1].after if count else writes[0].before):
                raise moved_by_another(app_id, partition)
        if failed is None or reason is None:
            return self._applied(app_id, partition, writes[:count], unsendable, held_s=held_s)
        if has_waited:  # as if the rest was not tried
            return self._applied(app_id, partition, writes[:count], held_s=held_s)
        if not failed[0].shared:
            return self._applied(app_id, partition, writes[:count], placed(reason, writes[count]), held_s=held_s)
        self._applied(app_id, partition, writes[:count], held_s=held_s)
        self._shared_queries.keep_apart(writes[failed[0].first : failed[0].end])
        rest = await self._apply_now(app_id, partition, writes[count:], share=False)
        return WriteResult(count=count + rest.count, failure=rest.failure, held_s=(*held_s[:count], *rest.held_s))

    def _queries(
        self, partition: int, writes: Sequence[Write], *, share: bool
    ) -> tuple[Sequence[WriteQuery], QueryFailed | None]:
        """Return the queries for writes up to the first one that cannot be sent, and why it cannot."""
        found: list[WriteQuery] = []
        try:
            for query in self._shared_queries.queries(partition, writes, share=share):
                found.append(query)
        except QueryFailed as error:
            return found, error
        return found, None

    def _applied(
        self,
        app_id: str,
        partition: int,
        writes: Sequence[Write],
        failure: QueryFailed | None = None,
        *,
        held_s: Sequence[float],
    ) -> WriteResult:
        notes = [self._notes.pop((app_id, partition), None), *(write.note for write in writes)]
        if known := [note for note in notes if note is not None]:  # most writes have none
            self._notes[app_id, partition] = known[-1]
        return WriteResult(count=len(writes), failure=failure, held_s=held_s)

    async def _make_known(self, app_id: str, writes: Sequence[Write]) -> None:
        """Create every label and type of the writes before the server plans the first of them.

        A plan treats an unknown name as one that no node has, even if another client's write creates such a node before
        the plan runs: two processes that MERGE the first node of a label would create two.
        """
        done = self._named.setdefault(app_id, set())
        self._named.move_to_end(app_id)
        fresh = {write.query for write in writes if write.query and write.query.statement not in done}
        if not fresh:
            return
        wanted = {name for query in fresh for name in query.names if "`" not in name[1]}
        try:
            graph = self._graph(app_id)
            for kind, listing in LIST_NAMES.items():
                wanted -= {(kind, str(row[0])) for row in (await graph.ro_query(listing)).result_set}
            if wanted:
                labels = "".join(f":{quoted(name)}" for kind, name in sorted(wanted) if kind == "label")
                types = [quoted(name) for kind, name in sorted(wanted) if kind == "type"]
                ways = "".join(f", (__gw)-[:{name}]->(__gw)" for name in types)
                await graph.query(f"CREATE (__gw{labels}){ways} DELETE __gw")
        except (RedisError, OSError) as error:
            if not str(error).startswith(NO_GRAPH):  # the checkpoint is gone with the graph, so nothing will run
                raise of_graph(error) from error
        done.update(query.statement for query in fresh)

    async def _restore(self, app_id: str, partition: int, writes: Sequence[Write]) -> None:
        checkpoint = writes[-1].after
        note = next((write.note for write in reversed(writes) if write.note is not None), None)
        if note is None:
            note = self._notes.get((app_id, partition), "")
        values = {
            "__gw_partition": partition,
            "__gw_app": app_id,
            "__gw_next_pos": checkpoint.offset,
            "__gw_next_plan": checkpoint.plan,
            "__gw_next_done": checkpoint.done,
            "__gw_note": note,
        }
        try:
            await self._redis.execute_command("GRAPH.QUERY", self._name(app_id), header(values) + RESTORE_CHECKPOINT)
        except (RedisError, OSError) as error:
            raise of_graph(error) from error

    async def _allowed_ms(self, wanted_ms: int) -> int:
        """Return the time limit, or the server's TIMEOUT_MAX if that is lower: it refuses higher limits."""
        if self._longest_ms is None or (self._shows_settings.is_refused and self._shows_settings.is_due):
            async with self._asking:  # once, although many calls start at the same time
                if self._longest_ms is None or (self._shows_settings.is_refused and self._shows_settings.is_due):
                    self._places.threads = await self._setting("THREAD_COUNT", _THREADS)
                    self._longest_ms = await self._setting("TIMEOUT_MAX", 0)
        return min(wanted_ms, self._longest_ms) if self._longest_ms else wanted_ms

    async def _current_run(self) -> str:
        """Return the server's run at the last ``check``, or now."""
        return self._run or run_of(await self._redis.info("server"))

    async def _setting(self, name: str, unknown: int) -> int:
        try:
            found = int((await self._redis.execute_command("GRAPH.CONFIG", "GET", name))[1])
        except ResponseError:  # a server that hides its settings
            self._shows_settings.refuse()
            return unknown
        except (RedisError, OSError) as error:
            raise translate(error) from error
        self._shows_settings.allow()
        return found

    async def _list(self, app_id: str, statement: str, params: Mapping[str, Any]) -> Sequence[tuple[Any, ...]]:
        await self._owners.check(app_id)
        return (await self._read(app_id, statement, params, timeout_s=60.0, limited=False)).rows

    def _name(self, app_id: str) -> str:
        return channels.graph_name(app_id, self._template)

    def _graph(self, app_id: str) -> Any:
        # A new object each time: it caches names by number, which become wrong when the graph is replaced.
        return AsyncGraph(self._redis, self._name(app_id))


def _is_long_text(writes: Sequence[Write]) -> bool:
    """Tell whether the text of writes takes long: that of lists and maps does, and plain values take a tenth."""
    rows = [row for write in writes for row in write.rows]
    if _NESTED.isdisjoint(map(type, chain.from_iterable([row.values() for row in rows]))):
        return False
    return are_long([value for row in rows for value in row.values() if type(value) in _NESTED], _LONG)
