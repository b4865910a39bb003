"""Follows the purges of the bus: drops cached rows and indexes of apps for which something was erased.

Rows that the graph confirms need no purge: an erasure moves the graph to another version. But rows that are served
while the graph is unavailable are confirmed by nobody, so they need a read of the purges that began after their request
arrived. A worker announces an erasure before it applies it, so whoever knows that something is erased asks later.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field

from graphweft_contracts import BusUnavailable
from graphweft_contracts.clock import SYSTEM_CLOCK, Clock
from graphweft_workers.injection.background import Background
from graphweft_workers.injection.cache import Cache
from graphweft_workers.ports.fact_retriever import FactRetriever
from graphweft_workers.ports.graph_basis import GraphBasis
from graphweft_workers.ports.purges import PurgeReader, Purges
from graphweft_workers.ports.records import RecordLog
from graphweft_workers.retrieval.scope_indexes import ScopeIndexes
from graphweft_workers.support.lazy_logger import get_logger

logger = get_logger("graphweft.injection")


@dataclass(slots=True)
class PurgeFollower:
    """Applies purges to the cache, to the indexes of scopes and to the texts of facts."""

    log: RecordLog
    cache: Cache
    indexes: ScopeIndexes
    facts: FactRetriever | None
    background: Background
    clock: Clock = SYSTEM_CLOCK
    followed: float = float("-inf")
    """Monotonic time at which the last successful read began."""
    failed: int = 0
    """Reads that failed."""
    _reader: PurgeReader = field(init=False)
    _waiting: asyncio.Task[None] | None = None
    _begun: int = -1
    """``PurgeReader.begun`` when ``_waiting`` was started."""

    def __post_init__(self) -> None:
        self._reader = PurgeReader(self.log, handle=self._handle)

    @property
    def needed(self) -> Mapping[str, GraphBasis]:
        """By app: what its graph needs to have, by the purges that were read."""
        return self._reader.needed

    @property
    def has_read(self) -> bool:
        """Whether anything was read yet."""
        return self._reader.has_read

    async def follow(self) -> None:
        """Apply the purges up to now. Raises ``BusUnavailable``."""
        began = self.clock.monotonic()
        try:
            await self._reader.read()
        except BusUnavailable:
            self.failed += 1
            raise
        self.followed = max(self.followed, began)

    def _handle(self, purges: Purges) -> None:
        if purges.complete:
            for purge in purges.found:
                self.drop(purge.app_id, None if purge.partition is None else (purge.partition, purge.offset))
            return
        if self.followed > float("-inf"):
            logger.warning("purges_of_another_bus", next="all cached rows are dropped")
        self.cache.purge()
        self.indexes.purge()
        self._forget_facts()

    def drop(self, app_id: str, place: tuple[int, str] | None = None) -> None:
        """Drop what is remembered of an app's graph: see ``Cache.purge_app``."""
        self.cache.purge_app(app_id, place)
        self.indexes.purge_app(app_id)
        self._forget_facts(app_id, place)

    async def is_followed(self, since: float, until: float) -> bool:
        """Tell whether all purges from before the monotonic time ``since`` are applied, at the latest at ``until``."""
        if self.followed >= since:
            return True
        await asyncio.wait([self.read()], timeout=max(0.0, until - self.clock.monotonic()))
        return self.followed >= since

    def read(self) -> asyncio.Task[None]:
        """Return a task that applies the purges up to now or later; requests share it, and it never raises."""
        if self._waiting is None or self._begun != self._reader.begun:
            self._begun = self._reader.begun
            self._waiting = self.background.start(self._read())
        return self._waiting

    def _forget_facts(self, app_id: str | None = None, place: tuple[int, str] | None = None) -> None:
        if self.facts is not None:
            self.facts.forget(app_id, place)

    async def _read(self) -> None:
        try:
            await self.follow()
        except BusUnavailable as error:
            logger.debug("purges_not_read", error=str(error))
