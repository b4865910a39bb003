"""Summarizes the oldest memories of a thread, and forgets memories by the retention settings.

Both emit events in the chat of the memories: ``memory.summarized`` and ``memory.forget``. Event ids derive from the ids
of the memories, so two workers, or a repetition, emit the same event. If a model answers differently the second time,
memories belong to the first event that names them.

The job reads its state from the graph, which it first waits for to hold the event that triggers the job. A later event
triggers it again, so stale data can delay a summary but never falsify it. An app whose graph is behind, and a
conversation for which the model fails alone, keep no other one back.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, override

from graphweft_contracts import Event, QueryFailed, channels
from graphweft_contracts.bounded_dict import BoundedDict
from graphweft_contracts.clock import SYSTEM_CLOCK, Clock
from graphweft_contracts.memory import SCOPES, MemoryScope, MemorySummarized, derived_id
from graphweft_workers.engine.log.log_time import log_time
from graphweft_workers.features.memory.graph_progress import GraphProgress
from graphweft_workers.features.memory.retention import Retention
from graphweft_workers.features.memory.summariser import ConversationFailed, MemoryText, Summariser
from graphweft_workers.ports.bus import Bus
from graphweft_workers.ports.graph_store import GraphStore
from graphweft_workers.ports.job import AppWait, Job, JobEvent, JobSkip
from graphweft_workers.retrieval.records import LASTING, MEMORY_LABEL, NOT_PINNED
from graphweft_workers.support.lazy_logger import get_logger
from graphweft_workers.support.timing import TIMING, MemoryTiming

logger = get_logger("graphweft.memory")

SOURCE: Final = "/graphweft/consolidation"
"""The source of ``memory.summarized`` events."""
_ADD: Final = "memory.add"
_SUMMARIZED: Final = "memory.summarized"
_REMEMBERED: Final = 10_000
"""Limit of threads with a pending summary."""

_SCOPE: Final = ", ".join(f"m.{name} AS {name}" for name in SCOPES)
_THREADS: Final = (
    f"MATCH (m:{MEMORY_LABEL} {{chat_id: $chat_id}}) WHERE m.summary_id IS NULL AND {NOT_PINNED} AND {LASTING} "
    f"WITH {_SCOPE}, count(m) AS memories WHERE memories >= $least "
    f"RETURN {', '.join(SCOPES)} ORDER BY {', '.join(f"coalesce({name}, '')" for name in SCOPES)} LIMIT 1000"
)
_SAME_SCOPE: Final = " AND ".join(f"coalesce(m.{name}, '') = ${name}" for name in SCOPES)
_OLDEST: Final = (
    f"MATCH (m:{MEMORY_LABEL} {{chat_id: $chat_id}}) WHERE m.summary_id IS NULL AND {NOT_PINNED} "
    f"AND {LASTING} AND {_SAME_SCOPE} "
    "RETURN m.id, m.role, m.text, m.timestamp, m.author_name, m.recorded, m.stated "
    "ORDER BY m.timestamp, m.recorded, m.event_id, m.id LIMIT $count"
)

type _Thread = tuple[str, str, tuple[str | None, ...]]
"""App, chat and scope."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Oldest:
    """The memories of a thread that a summary will replace."""

    messages: Sequence[MemoryText]
    recorded: datetime
    """The latest time at which one of them was recorded."""


class ConsolidationJob(Job):
    """Emits ``memory.summarized`` for threads, and ``memory.forget`` for memories beyond retention.

    A thread is the memories of one chat and scope. When at least ``after`` of them have no summary, the oldest
    ``after - keep`` get one. A thread has one pending summary at a time; when it has been applied, the thread is
    checked again.

    A memory belongs to the first event that names it. If one of the memories of a summary is erased or forgotten before
    the summary is applied, the summary has no effect, and the other memories are never summarized.
    """

    def __init__(
        self,
        graph: GraphStore,
        bus: Bus,
        summariser: Summariser | None,
        *,
        after: int = 60,
        keep: int = 20,
        retention: Retention | None = None,
        tick_s: float = 600.0,
        clock: Clock = SYSTEM_CLOCK,
        timing: MemoryTiming = TIMING.memory,
    ) -> None:
        """``bus`` is open for the mutation workers' group, whose offsets it reads.

        Closes ``bus`` and ``summariser`` with itself, not ``graph``. Retention runs every ``tick_s`` seconds.
        """
        self.group = channels.CONSOLIDATION_GROUP
        self.types = frozenset({_ADD, _SUMMARIZED})
        self.tick_s = tick_s if retention is not None else 0.0
        self._graph = graph
        self._bus = bus
        self._summariser = summariser
        self._after = after
        self._keep = keep
        self._retention = retention
        self._clock = clock
        self._timing = timing
        self._progress = GraphProgress(graph, bus, clock=clock, timing=timing)
        self._under_way: BoundedDict[_Thread, tuple[str, float]] = BoundedDict(_REMEMBERED)
        """Thread -> id of its pending event, and when it was emitted."""
        self.summaries: int = 0
        """Number of emitted summaries."""

    @override
    async def handle(self, seen: Sequence[JobEvent]) -> AsyncGenerator[Sequence[Event | JobSkip | AppWait]]:
        """See ``Job.handle``. Raises ``SummariserUnavailable``."""
        if self._retention is not None:
            self._retention.note(each.event.appid for each in seen)
        if self._summariser is None:
            return
        chats: dict[tuple[str, str], list[JobEvent]] = {}
        for each in seen:
            chats.setdefault((each.event.appid, each.event.chatid), []).append(each)
        behind = await self._progress.behind({each.event.appid: each.position for each in seen})
        if behind:
            yield behind
        waits = {each.app_id for each in behind}
        for (app_id, chat_id), of_chat in chats.items():
            if app_id in waits:
                continue
            for each in of_chat:
                if each.event.type == _SUMMARIZED:
                    self._came_back(each.event)
            try:
                async for outcome in self._chat(app_id, chat_id, self._summariser):
                    yield [outcome]
            except ConversationFailed as error:
                yield [AppWait(app_id=app_id, error=error)]
                continue
            for each in of_chat:
                each.done = True

    @override
    async def tick(self, partition: int, partitions: int) -> AsyncGenerator[Sequence[Event | JobSkip]]:
        """See ``Job.tick``. The owner of the first partition runs retention for all apps.

        Raises ``ClocksDiffer`` rather than forget by a clock that may be wrong.
        """
        if self._retention is None or partition != 0:
            return
        now = self._clock.now()
        if self._retention.goes_by_age:
            now = await log_time(self._bus, skew_s=self._timing.skew_s, clock=self._clock)
        async for outcomes in self._retention.due(now, older=self._progress.older):
            yield outcomes

    @override
    async def aclose(self) -> None:
        """See ``Job.aclose``."""
        if self._summariser is not None:
            await self._summariser.aclose()
        await self._bus.aclose()

    # What the graph holds

    def _came_back(self, event: Event) -> None:
        scope = MemorySummarized.model_validate(event.data).scope
        thread = (event.appid, event.chatid, tuple(getattr(scope, name) for name in SCOPES))
        if thread in self._under_way and self._under_way[thread][0] == event.id:
            del self._under_way[thread]

    # Summaries

    async def _chat(self, app_id: str, chat_id: str, summariser: Summariser) -> AsyncGenerator[Event | JobSkip]:
        """Yield an event for each thread of a chat that has enough memories.

        If a query fails, the chat is looked at again with its next event.
        """
        try:
            params = {"chat_id": chat_id, "least": self._after}
            table = await self._graph.read(app_id, _THREADS, params, timeout_s=self._timing.query_s)
            for row in table.rows:
                thread = (app_id, chat_id, tuple(row))
                if self._is_under_way(thread):
                    continue
                event = await self._summarised(thread, summariser)
                if event is not None:
                    yield event
                    self._remember(thread, event.id)
                    self.summaries += 1
        except QueryFailed as error:
            logger.warning("chat_not_condensed", app_id=app_id, code=error.code, message=str(error))
            yield JobSkip(app_id=app_id, reason="query_failed")

    async def _summarised(self, thread: _Thread, summariser: Summariser) -> Event | None:
        app_id, chat_id, values = thread
        scope = {name: value for name, value in zip(SCOPES, values, strict=True) if value is not None}
        oldest = await self._oldest(thread)
        if oldest is None:
            return None
        summary = await summariser.summarise(oldest.messages, scope=MemoryScope(**scope))
        ids = [message.id for message in oldest.messages]
        data: dict[str, Any] = {
            "summary": summary.text,
            "memory_ids": ids,
            "facts": [fact.model_dump(mode="json", exclude_none=True) for fact in summary.facts],
            "preferences": [each.model_dump(mode="json", exclude_none=True) for each in summary.preferences],
            "model": summary.model,
        }
        if "user_id" not in scope:
            del data["preferences"]
        return Event.create(
            _SUMMARIZED,
            app_id=app_id,
            chat_id=chat_id,
            user_id=scope.get("user_id"),
            id=derived_id("summary", *sorted(ids)),
            source=SOURCE,
            time=oldest.recorded,
            data=data | scope,
        )

    async def _oldest(self, thread: _Thread) -> _Oldest | None:
        app_id, chat_id, values = thread
        count = self._after - self._keep
        params: dict[str, Any] = {name: value or "" for name, value in zip(SCOPES, values, strict=True)}
        params |= {"chat_id": chat_id, "count": count}
        rows = (await self._graph.read(app_id, _OLDEST, params, timeout_s=self._timing.query_s)).rows
        if len(rows) < count:
            return None  # some were deleted since the count
        messages = [
            MemoryText(
                id=id,
                role=role,
                text=text,
                time=datetime.fromisoformat(said),
                author_name=author,
                has_statements=stated is not None,
            )
            for id, role, text, said, author, _, stated in rows
        ]
        return _Oldest(messages=messages, recorded=max(datetime.fromisoformat(row[5]) for row in rows))

    def _is_under_way(self, thread: _Thread) -> bool:
        # Expires, because the event may have been read by another worker after a rebalance.
        return (
            thread in self._under_way
            and self._clock.monotonic() < self._under_way[thread][1] + self._timing.under_way_s
        )

    def _remember(self, thread: _Thread, event_id: str) -> None:
        self._under_way[thread] = event_id, self._clock.monotonic()
