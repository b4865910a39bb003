"""Facts of the graph beside what was recalled: see ``HybridRetriever``."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Literal, Self

import structlog

from graphweft_contracts import GraphUnavailable, QueryFailed
from graphweft_contracts.memory import SCOPES, MemoryScope
from graphweft_rules.clock import utc_text
from graphweft_rules.token_count import TokenCounter, count_characters
from graphweft_workers.graph.store import GraphStore
from graphweft_workers.graphrag.caps import LIMIT_CAP, Caps
from graphweft_workers.graphrag.expand import Expansion, bounds, connect, expand
from graphweft_workers.graphrag.pack import Packed, packing
from graphweft_workers.graphrag.pin import Path, documents_of, named, pin
from graphweft_workers.graphrag.rows import Handle, Node, mapped
from graphweft_workers.graphrag.safe_cypher import Template, checked
from graphweft_workers.graphrag.seed import Document, Seeds, seed
from graphweft_workers.settings import Settings

EXECUTED: Final = "GRAPHRAG_EXTENSION_EXECUTED"
INJECTED: Final = "GRAPHRAG_CONTEXT_INJECTED"
NOOP: Final = "GRAPHRAG_NOOP_NEO4J_DOWN"
UNREACHABLE: Final = "unreachable"
"""The reason beside ``NOOP`` when the graph is away."""
TOO_SLOW: Final = "too slow"
"""The reason beside ``NOOP`` when there was no answer in time."""

type Outcome = Literal["disabled", "injected", "empty", "unavailable", "failed"]

_CONNECTED: Final = 10
"""Pinned entities between which relationships are looked for: the best ones."""
_BETWEEN: Final = 5
"""Relationships of one pair."""
_SPARE: Final = 10
"""Relationships beyond the facts that are wanted: two that are asked for may have one in common, or it has no name."""
_GRACE_S: Final = 0.25
_NOTHING: Final = "graphweft:nothing"
"""No node's name, and no node's id."""
_NO_NODE: Final = "4:00000000-0000-0000-0000-000000000000:0"
_DEFAULT: Final = Caps()
_logger: Any = structlog.get_logger("graphweft.graphrag")


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphContext:
    """What a retrieval came to."""

    text: str = ""
    """The block for the prompt; empty unless ``outcome`` is ``injected``."""
    facts: tuple[str, ...] = ()
    """The lines of it, without secrets."""
    outcome: Outcome
    """``disabled``; ``injected``; ``empty``, nothing was found; ``unavailable``, the graph is away or too slow;
    ``failed``, for the reason in the log."""
    partial: bool = False
    """Whether the graph went away, or the time was up, when something had been found already."""
    paths: frozenset[Path] = frozenset()
    """Which ways led into the graph: A from what was recalled, B from the question."""
    reason: str | None = None
    """Why there is nothing, or not everything: ``UNREACHABLE``, ``TOO_SLOW``, or what failed."""


class HybridRetriever:
    """Finds facts around what was recalled and what a question names; off unless it is ``enabled``.

    Seed: what was recalled, and names in the question. Pin: entities of the graph that these are. Expand: their
    relationships of seven types, up to two hops. Pack: a block of text. Each hop is one query or two, all of them from
    ``safe_cypher``; FalkorDB and Neo4j give the same context for the same graph, except that of an entity with more
    relationships of one type than are looked at (``bounds``), the server chooses which.

    It adds to what was recalled and never takes the place of it: it does not raise, and when the graph is away there is
    no context. What it does stands in the log by the contract's markers, as events.
    """

    def __init__(
        self,
        graph: GraphStore,
        *,
        enabled: bool = False,
        caps: Caps = _DEFAULT,
        max_chars: int = 8_000,
        max_tokens: int | None = None,
        count: TokenCounter = count_characters,
    ) -> None:
        """Does not close ``graph``. A context has at most ``max_chars``, and ``max_tokens`` as ``count`` counts."""
        self._graph = graph
        self._enabled = enabled
        self._caps = caps
        self._max_chars = max_chars
        self._max_tokens = max_tokens
        self._count = count

    @classmethod
    def of(cls, graph: GraphStore, settings: Settings, **more: Any) -> Self:
        """Return one as the settings say; says in the log what was set beyond the hard caps."""
        return cls(graph, enabled=settings.graphrag_enabled, caps=Caps.of(settings), **more)

    @property
    def enabled(self) -> bool:
        """Whether the graph is asked at all."""
        return self._enabled

    def away(self, app_id: str) -> None:
        """Say in the log that facts were wanted and the graph was not asked: it is known to be away, or this is off."""
        _logger.info(EXECUTED, app_id=app_id, enabled=self._enabled)
        if self._enabled:
            _logger.warning(NOOP, app_id=app_id, reason="away")

    async def warm(self, app_id: str, timeout_s: float = 60.0) -> None:
        """Let the server plan the queries of an app's graph before its first question has to wait for that.

        A Neo4j that was just started takes seconds for it; on FalkorDB it takes a millisecond. Asks nothing unless it
        is enabled. Never raises; cancelling it does.
        """
        if self._enabled:
            run = _Retrieval(self._graph, Caps(query_timeout_s=timeout_s), app_id, timeout_s, None)
            with contextlib.suppress(Exception):
                await run.warm()

    async def retrieve(
        self,
        app_id: str,
        query_text: str,
        seeds: Iterable[Any] | None = None,
        timeout_s: float = 5.0,
        memory: MemoryScope | None = None,
    ) -> GraphContext:
        """Return facts of the app's graph within ``timeout_s``, and half a second.

        ``seeds`` are what was recalled, as ``seed`` takes it. Of what the graph says belongs to somebody, by one of
        the four scopes, it has only what belongs to ``memory``, in one scope at least and to nobody else in the others;
        without it, only what belongs to nobody. Never raises; cancelling it does.
        """
        _logger.info(EXECUTED, app_id=app_id, enabled=self._enabled)
        if not self._enabled:
            return GraphContext(outcome="disabled")
        run = _Retrieval(self._graph, self._caps, app_id, timeout_s, memory)
        failure: str | None = None
        try:
            async with asyncio.timeout(max(0.0, run.left_s()) + _GRACE_S):
                await run.run(seed(query_text, seeds))
        except GraphUnavailable:
            failure = UNREACHABLE
        except TimeoutError:
            failure = TOO_SLOW
        except QueryFailed as error:
            failure = TOO_SLOW if error.code == "timeout" else error.code
        except Exception as error:  # noqa: BLE001 - a prompt must come about whatever goes wrong here
            failure = type(error).__name__
        try:
            packed = await self._packed(run)
        except Exception as error:  # noqa: BLE001 - as above
            _logger.warning("graphrag_failed", app_id=app_id, reason=type(error).__name__)
            return GraphContext(outcome="failed", reason=type(error).__name__)
        failure = failure or (None if packed.complete else TOO_SLOW)
        away = failure in (UNREACHABLE, TOO_SLOW)
        if failure and not away:
            _logger.warning("graphrag_failed", app_id=app_id, reason=failure)
        if packed.text:
            _logger.info(INJECTED, app_id=app_id, facts=len(packed.facts), partial=failure is not None)
            return GraphContext(
                text=packed.text,
                facts=packed.facts,
                outcome="injected",
                partial=failure is not None,
                paths=run.paths,
                reason=failure,
            )
        if away:
            _logger.warning(NOOP, app_id=app_id, reason=failure)
            return GraphContext(outcome="unavailable", reason=failure)
        return GraphContext(outcome="failed" if failure else "empty", reason=failure)

    async def _packed(self, run: _Retrieval) -> Packed:
        """Pack what was found line by line; in between, others have their turn, for the gate takes a while."""
        steps = packing(
            run.found,
            most=self._caps.results,
            max_chars=self._max_chars,
            max_tokens=self._max_tokens,
            count=self._count,
            until=time.monotonic() + max(0.0, run.left_s()) + _GRACE_S,
        )
        while True:
            try:
                next(steps)
            except StopIteration as end:
                packed: Packed = end.value
                return packed
            await asyncio.sleep(0)


class _Retrieval:
    """One retrieval; ``found`` holds what there is, also when it ends early."""

    def __init__(
        self, graph: GraphStore, caps: Caps, app_id: str, timeout_s: float, memory: MemoryScope | None
    ) -> None:
        self._graph = graph
        self._caps = caps
        self._app_id = app_id
        self._until = time.monotonic() + (timeout_s if math.isfinite(timeout_s) else 0.0)
        given = {} if memory is None else memory.given
        self._scopes: Mapping[str, str | None] = {name: given.get(name) for name in SCOPES}
        self._times = {"now": utc_text(datetime.now(UTC))}
        self.found = Expansion()
        self.paths: frozenset[Path] = frozenset()

    def left_s(self) -> float:
        return self._until - time.monotonic()

    async def run(self, seeds: Seeds) -> None:
        """Run all stages but the last."""
        documents, names = await _together(self._documents(seeds), self._names(seeds))
        unlinked = [node.handle for node in documents if not node.entity]
        linked = await self._neighbours(unlinked, room=self._caps.limit)
        pinned = pin(documents, linked, names, limit=self._caps.limit)
        self.paths = pinned.paths
        self.found = Expansion.at(pinned)
        for hop in range(1, self._caps.hops + 1):
            room = self._caps.limit - len(self.found.nodes)
            wanted = self._caps.results - self.found.facts
            # Nearer facts come first, so what is beyond a full context would not be shown.
            if not self.found.frontier or (hop > 1 and min(room, wanted) <= 0):
                return
            frontier, room = self.found.frontier, min(room, max(wanted, 1))
            if hop == 1:
                between, rows = await _together(
                    self._between(frontier[:_CONNECTED]), self._neighbours(frontier, room=room)
                )
                self.found = connect(self.found, between)
            else:
                rows = await self._neighbours(frontier, room=room)
            self.found = expand(self.found, rows, hop=hop, limit=self._caps.limit)

    async def warm(self) -> None:
        """Ask each query for what is not there."""
        nobody: Handle = 0 if self._graph.dialect == "falkordb" else _NO_NODE
        await self._names(Seeds(terms=(_NOTHING,)))
        await self._documents(Seeds(documents=(Document(id=_NOTHING),)))
        await self._neighbours([nobody], room=1)
        await self._between([nobody, nobody])

    async def _documents(self, seeds: Seeds) -> list[Node]:
        if not seeds.ids:
            return []
        return documents_of(seeds, await self._ask("documents", {"ids": seeds.ids}))

    async def _names(self, seeds: Seeds) -> list[Node]:
        if not seeds.names:
            return []
        return named(seeds, await self._ask("names", {"names": seeds.names, "keys": seeds.keys}))

    async def _neighbours(self, handles: Sequence[Handle], *, room: int) -> Sequence[Mapping[str, Any]]:
        if not handles or room <= 0:
            return []
        scan, each = bounds(len(handles), room)
        most = min(room, self._caps.results + _SPARE, LIMIT_CAP)
        asked = {"handles": list(handles), "scan": scan, "each": each, "most": most, **self._times}
        return await self._ask("neighbours", asked)

    async def _between(self, handles: Sequence[Handle]) -> Sequence[Mapping[str, Any]]:
        if len(handles) < 2:
            return []
        return await self._ask("between", {"handles": list(handles), "each": _BETWEEN, **self._times})

    async def _ask(self, template: Template, params: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
        left_s = self.left_s()
        if left_s <= 0:
            raise TimeoutError
        text, values = checked(self._graph.dialect, template, {**params, **self._scopes})
        timeout_s = min(left_s, self._caps.query_timeout_s)
        return mapped(await self._graph.read(self._app_id, text, values, timeout_s=timeout_s))


async def _together[One, Two](one: Any, two: Any) -> tuple[Any, Any]:
    """Return both results; what one raises ends the other."""
    try:
        async with asyncio.TaskGroup() as group:
            first, second = group.create_task(one), group.create_task(two)
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return first.result(), second.result()
