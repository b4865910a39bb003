"""Whose the graphs of a server are, as they said not long ago.

A graph says to which app it belongs beside its checkpoints, so whoever reads these learns it at no cost. Everybody else
relies on that for a moment, and asks only then.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from contextlib import AbstractContextManager
from functools import partial

from graphweft_contracts.bounded_dict import BoundedDict
from graphweft_contracts.clock import Clock
from graphweft_workers.support.lazy_logger import get_logger
from graphweft_workers.support.recent_answers import RecentAnswers

logger = get_logger("graphweft.graph")


class GraphOwners:
    """What the graphs of one store said last. Texts for an app never name another app; only the log does."""

    def __init__(self, ask: Callable[[str], Awaitable[object]], *, clock: Clock, fresh_s: float) -> None:
        """``ask`` reads whose the graph of an app is: within ``asking``, it calls ``saw``, and raises for another."""
        self._ask = ask
        self._own = RecentAnswers[str, bool](clock=clock, fresh_s=fresh_s)
        """By app: its graph has said that it is the app's, or that there is none."""
        self._reported: BoundedDict[str, str] = BoundedDict()
        """By app: the other app that the log has named."""

    def __contains__(self, app_id: str) -> bool:
        """Tell whether the graph has said that it is the app's, however long ago."""
        return self._own.last(app_id) is not None

    def is_fresh(self, app_id: str) -> bool:
        """Tell whether the graph said not long ago that it is the app's."""
        return self._own.is_fresh(app_id)

    def saw(self, app_id: str, owners: Iterable[object], place: str) -> str:
        """Note what a graph says, which may name no app. Return the other app that it names, empty if it is the app's.

        ``place`` is where the graph is, in words for the log.
        """
        others = sorted({str(owner) for owner in owners if owner is not None and owner != app_id})
        if not others:
            self._own.note(app_id, True)
            self._reported.pop(app_id, None)
            return ""
        self._own.forget(app_id)
        if self._reported.get(app_id) != others[0]:
            self._reported[app_id] = others[0]
            logger.warning("graph_of_another_app", app_id=app_id, owner=others[0], place=place)
        return others[0]

    def forget(self, app_id: str) -> None:
        """Ask the next time."""
        self._own.forget(app_id)

    def asking(self, app_id: str) -> AbstractContextManager[None]:
        """Let others wait for the call within, which asks the graph, instead of asking too."""
        return self._own.asking(app_id)

    async def check(self, app_id: str) -> None:
        """Return if the graph is the app's; ask only if that is not known. Raises like ``ask``."""
        await self._own.get(app_id, partial(self._ask, app_id))
