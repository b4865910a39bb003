"""Retrieval of facts around recalled memories: see ``HybridRetriever``."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, Self

from graphweft_contracts import GraphUnavailable, QueryFailed
from graphweft_contracts.clock import SYSTEM_CLOCK, Clock
from graphweft_contracts.memory import SCOPES, MemoryScope
from graphweft_rules.matching.clock import utc_text
from graphweft_rules.output.token_count import TokenCounter, count_characters
from graphweft_workers.features.graphrag.caps import LIMIT_CAP, Caps, GraphragSettings
from graphweft_workers.features.graphrag.context_block import FactsBlock, pack
from graphweft_workers.features.graphrag.expansion import (
    Expansion,
    bounds,
    connect,
    expand,
)
from graphweft_workers.features.graphrag.fact_texts import FactTexts
from graphweft_workers.features.graphrag.rows import EntityNode, Handle
from graphweft_workers.features.graphrag.safe_cypher import Template, checked, rows_of
from graphweft_workers.features.graphrag.seeds import Document, Seeds, mentioned_keys, seed
from graphweft_workers.features.graphrag.starting_entities import Path, documents_of, named, pin
from graphweft_workers.ports.fact_retriever import TOO_SLOW
from graphweft_workers.ports.graph_store import GraphStore
from graphweft_workers.ports.offsets import is_after
from graphweft_workers.support.lazy_logger import get_logger
from graphweft_workers.support.timing import TIMING, FactTiming

EXECUTED: Final = "GRAPHRAG_EXTENSION_EXECUTED"
INJECTED: Final = "GRAPHRAG_CONTEXT_INJECTED"
NOOP: Final = "GRAPHRAG_NOOP_NEO4J_DOWN"
UNREACHABLE: Final = "unreachable"
"""The reason in ``NOOP`` if the graph is unavailable."""

type Outcome = Literal["disabled", "injected", "empty", "unavailable", "failed"]

_CONNECTED: Final = 10
"""Limit of pinned entities, best first, whose mutual relationships are fetched."""
_BETWEEN: Final = 5
"""Limit of relationships between a pair."""
_SPARE: Final = 10
"""Relationships fetched beyond the wanted facts: some are duplicates or have no name."""
_LOOK_SHARE: Final = 0.2
"""Largest share of a retrieval's time for the look whether the graph has an erasure."""
_NOTHING: Final = "graphweft:nothing"
"""A name and id that no node has."""
_DEFAULT: Final = Caps()
_logger: Any = get_logger("graphweft.graphrag")


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphContext:
    """The result of a retrieval."""

    text: str = ""
    """The block for the prompt; empty unless ``outcome`` is ``injected``."""
    facts: tuple[str, ...] = ()
    """The lines of ``text``, without secrets."""
    outcome: Outcome
    """``empty``: no facts; ``unavailable``: the graph is unavailable or too slow; ``failed``: see the log."""
    partial: bool = False
    """Whether an outage or a timeout cut the retrieval short."""
    paths: frozenset[Path] = frozenset()
    """The sources of pinned entities: A, recalled documents; B, the question."""
    reason: str | None = None
    """Why facts are missing: ``UNREACHABLE``, ``TOO_SLOW``, or the error."""


class HybridRetriever:
    """Finds facts around recalled documents and the names in a question; off unless ``enabled``.

    Seed: recalled documents, and names in the question. Pin: the entities that these are. Expand: relationships of
    seven types, up to two hops. Pack: a block of text. All queries come from ``safe_cypher``. Every graph server gives
    the same context, except for entities with more relationships of a type than are read (``bounds``).

    It never raises; without the graph there is no context. Each step is logged by the events below.
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
        clock: Clock = SYSTEM_CLOCK,
        timing: FactTiming = TIMING.facts,
    ) -> None:
        """Does not close ``graph``. ``max_chars`` and ``max_tokens``, counted by ``count``, limit the context.

        Facts must be valid at the time of ``clock``.
        """
        self._graph = graph
        self._enabled = enabled
        self._caps = caps
        self._max_chars = max_chars
        self._max_tokens = max_tokens
        self._count = count
        self._clock = clock
        self._texts = FactTexts()
        self._erasures: dict[str, dict[int, str]] = {}
        """By app and partition: the offset of an erasure that the graph may not have yet."""
        self._timing = timing

    @classmethod
    def of(cls, graph: GraphStore, settings: GraphragSettings, **more: Any) -> Self:
        """Return a retriever for the settings; logs a warning for values beyond the hard caps."""
        return cls(graph, enabled=settings.graphrag_enabled, caps=Caps.of(settings), **more)

    @property
    def enabled(self) -> bool:
        """Whether it queries the graph."""
        return self._enabled

    def log_unavailable(self, app_id: str) -> None:
        """Log that facts were wanted but the graph was not queried: it is unavailable, or this is off."""
        _logger.info(EXECUTED, app_id=app_id, enabled=self._enabled)
        if self._enabled:
            _logger.warning(NOOP, app_id=app_id, reason="away")

    @property
    def kept_chars(self) -> int:
        """How many characters of facts are kept for later retrievals."""
        return self._texts.chars

    def forget(self, app_id: str | None = None, place: tuple[int, str] | None = None) -> None:
        """Forget the texts of earlier retrievals, of all apps, because some were erased.

        With a place, the texts of the app are kept again when its graph has what is there.
        """
        self._texts = FactTexts()
        if app_id is not None and place is not None:
            self._erasures.setdefault(app_id, {})[place[0]] = place[1]

    async def warm(self, app_id: str, timeout_s: float = 60.0) -> None:
        """Run each query once, so that the server plans it, which may take seconds, before the first question.

        Does nothing unless enabled. Raises only if cancelled.
        """
        if self._enabled:
            caps = Caps(query_timeout_s=timeout_s)
            run = _Retrieval(self._graph, caps, app_id, timeout_s, None, texts=FactTexts(), clock=self._clock)
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
        """Return facts of the app's graph within ``timeout_s`` plus half a second. Raises only if cancelled.

        ``seeds`` are the recalled documents (see ``seed``). Without ``memory``, facts are shared ones only. With it,
        they are also those that match at least one of its scopes and contradict none.
        """
        _logger.info(EXECUTED, app_id=app_id, enabled=self._enabled)
        if not self._enabled:
            return GraphContext(outcome="disabled")
        run = _Retrieval(self._graph, self._caps, app_id, timeout_s, memory, texts=self._texts, clock=self._clock)
        failure: str | None = None
        try:
            async with asyncio.timeout(max(0.0, run.left_s()) + self._timing.grace_s):
                if app_id in self._erasures:
                    run.texts = FactTexts()
                    await self._look_for_erasures(app_id, run.left_s() * _LOOK_SHARE)
                await run.run(seed(query_text, seeds))
        except GraphUnavailable:
            failure = UNREACHABLE
        except TimeoutError:
            failure = TOO_SLOW
        except QueryFailed as error:
            failure = TOO_SLOW if error.code == "timeout" else error.code
        except Exception as error:  # noqa: BLE001 - a failure must not stop the prompt
            failure = type(error).__name__
        try:
            packed = await self._packed(run)
        except Exception as error:  # noqa: BLE001 - as above
            _logger.warning("graphrag_failed", app_id=app_id, reason=type(error).__name__)
            return GraphContext(outcome="failed", reason=type(error).__name__)
        if run.left_out:
            _logger.info("graphrag_names_left_out", app_id=app_id, names=run.left_out)
        failure = failure or (None if packed.complete else TOO_SLOW)
        unavailable = failure in (UNREACHABLE, TOO_SLOW)
        if failure and not unavailable:
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
        if unavailable:
            _logger.warning(NOOP, app_id=app_id, reason=failure)
            return GraphContext(outcome="unavailable", reason=failure)
        return GraphContext(outcome="failed" if failure else "empty", reason=failure)

    async def _look_for_erasures(self, app_id: str, limit_s: float) -> None:
        """Forget the erasures of an app if its graph has them. Raises ``GraphUnavailable``."""
        with contextlib.suppress(QueryFailed):
            reached = await self._graph.checkpoints(app_id, timeout_s=max(0.001, limit_s))
            if all(
                number in reached and not is_after(offset, reached[number].offset)
                for number, offset in self._erasures.get(app_id, {}).items()
            ):
                self._erasures.pop(app_id, None)

    async def _packed(self, run: _Retrieval) -> FactsBlock:
        """Pack the facts line by line, and let other tasks run from time to time, because redaction takes a while."""
        lines = pack(
            run.found,
            most=self._caps.results,
            max_chars=self._max_chars,
            max_tokens=self._max_tokens,
            count=self._count,
            until=self._clock.monotonic() + max(0.0, run.left_s()) + self._timing.grace_s,
            clock=self._clock,
            texts=run.texts,
        )
        turn_ends = self._clock.monotonic() + self._timing.turn_s
        for packed in lines:
            if packed is not None:
                return packed
            if self._clock.monotonic() >= turn_ends:
                await asyncio.sleep(0)
                turn_ends = self._clock.monotonic() + self._timing.turn_s
        raise AssertionError  # the last item is the block


class _Retrieval:
    """One retrieval; ``found`` has the result so far, also if it ends early."""

    def __init__(
        self,
        graph: GraphStore,
        caps: Caps,
        app_id: str,
        timeout_s: float,
        memory: MemoryScope | None,
        *,
        texts: FactTexts,
        clock: Clock,
    ) -> None:
        """``texts`` are those of the beginning: after ``forget`` the retrieval keeps nothing for later ones."""
        self.texts = texts
        self._graph = graph
        self._caps = caps
        self._app_id = app_id
        self._clock = clock
        self._until = clock.monotonic() + (timeout_s if math.isfinite(timeout_s) else 0.0)
        given = {} if memory is None else memory.given
        self._scopes: Mapping[str, str | None] = {name: given.get(name) for name in SCOPES}
        self._times = {"now": utc_text(clock.now())}
        self.found = Expansion()
        self.paths: frozenset[Path] = frozenset()
        self.left_out = 0
        """Names in the texts of documents that were not looked up, because there are too many."""

    def left_s(self) -> float:
        return self._until - self._clock.monotonic()

    async def run(self, seeds: Seeds) -> None:
        """Run the stages pin and expand."""
        (documents, said), names = await _together(self._documents(seeds), self._names(seeds))
        unlinked = [node.handle for node in documents if not node.entity]
        linked, mentioned = await _together(
            self._neighbours(unlinked, room=self._caps.limit), self._mentioned(seeds, said)
        )
        pinned = pin(documents, linked, names, mentioned, limit=self._caps.limit)
        self.paths = pinned.paths
        self.found = Expansion.at(pinned)
        for hop in range(1, self._caps.hops + 1):
            room = self._caps.limit - len(self.found.nodes)
            wanted = self._caps.results - self.found.facts
            # Nearer facts come first, so a full context needs no second hop.
            if not self.found.frontier or (hop > 1 and min(room, wanted) <= 0):
                return
            frontier, room = self.found.frontier, min(room, max(wanted, 1))
            if hop == 1:
                between, rows = await _together(
                    self._between(frontier[:_CONNECTED]), self._neighbours(frontier, room=room)
                )
                self.found = connect(self.found, between)
            else:
                rows = await self._neighbours(frontier, room=room, hop=hop)
            self.found = expand(self.found, rows, hop=hop, limit=self._caps.limit)

    async def warm(self) -> None:
        """Run each query for nodes that do not exist."""
        nobody: Handle = self._graph.dialect.no_node
        await self._names(Seeds(terms=(_NOTHING,)))
        await self._documents(Seeds(documents=(Document(id=_NOTHING),)))
        await self._neighbours([nobody], room=1)
        await self._between([nobody, nobody])

    async def _documents(self, seeds: Seeds) -> tuple[list[EntityNode], Mapping[Any, str]]:
        """Return the nodes with the ids of documents, and by id what those say that are no entities."""
        if not seeds.ids:
            return [], {}
        rows = await self._ask("documents", {"ids": seeds.ids})
        return documents_of(seeds, rows), {row["found"]: row["said"] for row in rows if not row["shown"]}

    async def _names(self, seeds: Seeds) -> list[EntityNode]:
        if not seeds.names:
            return []
        found = await self._ask("names", {"names": seeds.names, "keys": seeds.keys})
        return named((*seeds.names, *seeds.keys), found)

    async def _mentioned(self, seeds: Seeds, said: Mapping[Any, str]) -> list[EntityNode]:
        """Return the entities that documents mention, by their texts, or by what the graph has of them."""
        keys, self.left_out = mentioned_keys([each.text or said.get(each.id, "") for each in seeds.documents])
        return named(keys, await self._ask("names", {"names": [], "keys": keys})) if keys else []

    async def _neighbours(self, handles: Sequence[Handle], *, room: int, hop: int = 1) -> Sequence[Mapping[str, Any]]:
        if not handles or room <= 0:
            return []
        scan, each = bounds(len(handles), room, hop=hop)
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
        table = await self._graph.read(self._app_id, text, values, timeout_s=timeout_s)
        return rows_of(self._graph.dialect, template, table)


async def _together[One, Two](one: Any, two: Any) -> tuple[Any, Any]:
    """Return both results; an error of one cancels the other."""
    try:
        async with asyncio.TaskGroup() as group:
            first, second = group.create_task(one), group.create_task(two)
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return first.result(), second.result()
