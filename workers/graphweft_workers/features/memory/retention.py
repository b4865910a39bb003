"""Retention of memories: by age, and by number per owner.

Events name the memories to forget, so a replay forgets the same ones. Summaries, facts and preferences stay, and so do
pinned memories, which do not count.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing
from datetime import datetime, timedelta
from itertools import batched
from typing import Any, Final, Protocol, runtime_checkable

from graphweft_contracts import Event, GraphUnavailable, QueryFailed
from graphweft_contracts.bounded_dict import BoundedDict
from graphweft_contracts.memory import SCOPES, derived_id
from graphweft_rules.matching.clock import utc_text
from graphweft_workers.ports.graph_store import GraphStore
from graphweft_workers.ports.job import JobSkip
from graphweft_workers.retrieval.records import MEMORY_LABEL, NOT_PINNED, SUMMARY
from graphweft_workers.support.lazy_logger import get_logger
from graphweft_workers.support.timing import TIMING

logger = get_logger("graphweft.memory")

_SOURCE: Final = "/graphweft/retention"
_PAGE: Final = 2_000
"""Rows of one query."""
_MOST: Final = 500
"""Limit of memories in one event."""
_REMEMBERED: Final = 100_000
"""Limit of memories that are known to have an event."""
_AWAY: Final = 3
"""So many graphs in a row that are unavailable are an outage, unless one that has answered still does."""

type _Row = tuple[Any, ...]

_OLD: Final = (
    f"MATCH (m:{MEMORY_LABEL}) WHERE m.timestamp < $before AND {NOT_PINNED} "
    "AND (m.timestamp > $timestamp OR (m.timestamp = $timestamp AND m.id > $id)) "
    "RETURN m.timestamp, m.id, m.chat_id, m.recorded ORDER BY m.timestamp, m.id LIMIT $page"
)
# What was recorded long ago is old, however far in the future its message says that it was said.
_AHEAD: Final = _OLD.replace("m.timestamp < $before ", "m.timestamp > $now AND m.recorded < $before ", 1)
_OWNER: Final = "coalesce(m.user_id, '')"
_OTHERS: Final = tuple(name for name in SCOPES if name != "user_id")
_REST: Final = ", ".join(f"CASE WHEN m.user_id IS NULL THEN coalesce(m.{name}, '') ELSE '' END AS {name}"
                         for name in _OTHERS)  # fmt: skip
_MANY: Final = (
    f"MATCH (m:{MEMORY_LABEL}) WHERE {NOT_PINNED} "
    f"WITH {_OWNER} AS user_id, {_REST}, count(m) AS memories WHERE memories > $keep "
    f"RETURN user_id, {', '.join(_OTHERS)} ORDER BY user_id, {', '.join(_OTHERS)} SKIP $skip LIMIT $page"
)
_OF_USER: Final = f"MATCH (m:{MEMORY_LABEL} {{user_id: $user_id}}) WHERE {NOT_PINNED} "
_OF_NOBODY: Final = f"MATCH (m:{MEMORY_LABEL}) WHERE m.user_id IS NULL AND {NOT_PINNED} AND " + " AND ".join(
    f"coalesce(m.{name}, '') = ${name}" for name in _OTHERS
)
_BEYOND: Final = (
    " WITH m ORDER BY m.timestamp DESC, m.id SKIP $skip LIMIT $page "
    f"OPTIONAL MATCH (m)-[:PART_OF]->(s:{SUMMARY}) "
    "RETURN m.timestamp, m.id, m.chat_id, m.recorded, s.id ORDER BY m.timestamp DESC, m.id"
)


@runtime_checkable
class Apps(Protocol):
    """A graph store that can list its apps."""

    async def apps(self) -> Sequence[str]:
        """Return the apps that have a graph."""
        ...


class Retention:
    """Finds the memories to forget.

    ``keep_days`` forgets memories that were said, or recorded by the log, longer ago. ``keep_count`` keeps the newest
    of each user; memories without a user count per thread (application, agent and thread together). 0 means no limit.
    Of equal times, the lower id is newer. With ``condensed``, ``keep_count`` forgets only memories that have a summary.

    It covers the apps that the graph store lists and those given to ``note``.
    """

    def __init__(
        self, graph: GraphStore, *, keep_days: float = 0, keep_count: int = 0, condensed: bool = False
    ) -> None:
        """Does not close ``graph``."""
        self._graph = graph
        self._keep_days = keep_days
        self._keep_count = keep_count
        self._condensed = condensed
        self._noted: dict[str, None] = {}
        self._last = ""
        """The app that had the last turn."""
        self._given: BoundedDict[tuple[str, str], None] = BoundedDict(_REMEMBERED)
        """(App, memory) of emitted events; the graph may still have the memory."""

    @property
    def goes_by_age(self) -> bool:
        """Whether memories are forgotten by their age."""
        return self._keep_days > 0

    def note(self, apps: Iterable[str]) -> None:
        """Add apps that may have memories."""
        self._noted.update(dict.fromkeys(apps))

    async def due(
        self, now: datetime, *, older: Callable[[str], Awaitable[str]] | None = None
    ) -> AsyncGenerator[Sequence[Event | JobSkip]]:
        """Yield ``memory.forget`` events, a page of memories of each app in turn, after the app that had the last one.

        ``older`` says why the graph of an app must not be read. If it does, if a query of an app fails, or if its graph
        is unavailable while others are not, that is a skip, and the app is tried again in the next run. Raises
        ``GraphUnavailable`` if three graphs in a row are unavailable and none is known to answer, or if all are.
        """
        listed = await self._graph.apps() if isinstance(self._graph, Apps) else ()
        apps = sorted({*listed, *self._noted})
        first = bisect_right(apps, self._last)
        left_out: list[str] = []
        away, answered = 0, ""
        async with AsyncExitStack() as stack:
            turns: deque[tuple[str, AsyncGenerator[Sequence[_Row]]]] = deque()
            for app_id in (*apps[first:], *apps[:first]):
                turns.append((app_id, await stack.enter_async_context(aclosing(self._of(app_id, now, older)))))
            while turns:
                app_id, pages = turns.popleft()
                self._last, rows = app_id, None
                try:
                    rows = await anext(pages, None)
                except QueryFailed as error:
                    logger.warning("retention_failed", app_id=app_id, code=error.code, message=str(error))
                    left_out.append(app_id)
                except GraphUnavailable as error:
                    away += 1
                    if not (answered or turns):
                        raise
                    if away == _AWAY:
                        if not answered or not await self._answers(answered):
                            raise
                        away = 0
                    logger.warning("retention_failed", app_id=app_id, code="unavailable", message=str(error))
                    left_out.append(app_id)
                    if turns:  # the next graph tells whether all are unavailable
                        continue
                away, answered = 0, app_id
                if left_out:
                    yield [JobSkip(app_id=each, reason="query_failed") for each in left_out]
                    left_out.clear()
                if rows is not None:
                    turns.append((app_id, pages))
                    if events := self._events(app_id, rows):
                        yield events
                    self._remember(app_id, rows)

    async def _answers(self, app_id: str) -> bool:
        try:
            await self._rows(app_id, "RETURN 1", {})
        except GraphUnavailable:
            return False
        except QueryFailed:
            pass
        return True

    async def _of(
        self, app_id: str, now: datetime, older: Callable[[str], Awaitable[str]] | None
    ) -> AsyncGenerator[Sequence[_Row]]:
        """Yield the memories of an app that are due, after few queries each time; some pages are empty."""
        if older is not None and (why := await older(app_id)):
            raise QueryFailed(why)
        if self._keep_days:
            times = {"before": utc_text(now - timedelta(days=self._keep_days)), "now": utc_text(now)}
            for statement in (_OLD, _AHEAD):
                async for rows in self._old(app_id, statement, times):
                    yield rows
        if self._keep_count:
            async for rows in self._many(app_id):
                yield rows

    async def _old(self, app_id: str, statement: str, times: Mapping[str, str]) -> AsyncGenerator[Sequence[_Row]]:
        params: dict[str, Any] = {**times, "timestamp": "", "id": "", "page": _PAGE}
        while rows := await self._rows(app_id, statement, params):
            yield rows
            params |= {"timestamp": rows[-1][0], "id": rows[-1][1]}

    async def _many(self, app_id: str) -> AsyncGenerator[Sequence[_Row]]:
        params: dict[str, Any] = {"keep": self._keep_count, "skip": 0, "page": _PAGE}
        while owners := await self._rows(app_id, _MANY, params):
            for owner in owners:
                async for rows in self._beyond(app_id, owner):
                    yield rows
            params["skip"] += len(owners)

    async def _beyond(self, app_id: str, owner: _Row) -> AsyncGenerator[Sequence[_Row]]:
        user_id, *others = owner
        params: dict[str, Any] = {"skip": self._keep_count, "page": _PAGE}
        if user_id:
            statement = _OF_USER + _BEYOND
            params["user_id"] = user_id
        else:
            statement = _OF_NOBODY + _BEYOND
            params |= dict(zip(_OTHERS, others, strict=True))
        found: list[_Row] = []
        # Read all pages before the first deletion, which would shift the rest.
        while rows := await self._rows(app_id, statement, params):
            found += [row[:-1] for row in rows if row[-1] is not None or not self._condensed]
            params["skip"] += len(rows)
        for page in batched(found, _PAGE):
            yield page
        if not found:
            yield ()

    async def _rows(self, app_id: str, statement: str, params: dict[str, Any]) -> Sequence[_Row]:
        return (await self._graph.read(app_id, statement, params, timeout_s=TIMING.memory.retention_query_s)).rows

    def _events(self, app_id: str, rows: Sequence[_Row]) -> list[Event]:
        chats: dict[str, list[tuple[str, str]]] = {}
        for _, id, chat_id, recorded in rows:
            if (app_id, id) not in self._given:
                chats.setdefault(chat_id, []).append((id, recorded))
        return [
            Event.create(
                "memory.forget",
                app_id=app_id,
                chat_id=chat_id,
                id=derived_id("forget", *sorted(id for id, _ in some)),
                source=_SOURCE,
                time=datetime.fromisoformat(max(recorded for _, recorded in some)),
                data={"memory_ids": [id for id, _ in some], **({"keep_statements": True} if self._condensed else {})},
            )
            for chat_id, of_chat in chats.items()
            for some in batched(of_chat, _MOST)
        ]

    def _remember(self, app_id: str, rows: Sequence[_Row]) -> None:
        for row in rows:
            self._given[app_id, row[1]] = None
