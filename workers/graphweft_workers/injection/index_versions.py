"""Tells the indexes of scopes for which version of a graph they are right."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from graphweft_workers.injection.cache import Cache
from graphweft_workers.injection.versions import GraphVersions, Version


@dataclass(frozen=True, slots=True)
class IndexVersions:
    """See ``retrieval.scope_indexes.VersionSource``."""

    versions: GraphVersions
    cache: Cache
    """Knows what was erased."""

    async def current(self, app_id: str, timeout_s: float) -> Version | None:
        """Return the version, read from now on; None without an answer in time, and for a graph without checkpoints."""
        reading = self.versions.read(app_id)
        await asyncio.wait([reading], timeout=timeout_s)
        if not reading.done() or reading.cancelled() or reading.exception() is not None:
            return None
        version = reading.result()
        return version if version.checkpoints else None

    def may_keep(self, app_id: str, version: object, at: float) -> bool:
        """See ``GraphVersions.may_keep``."""
        assert isinstance(version, Version)
        return self.versions.is_settled(version, at) and self.cache.may_store(app_id, version, at)
