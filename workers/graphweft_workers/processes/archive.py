"""Opens the archiver of a process."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager

from graphweft_contracts import channels
from graphweft_workers.archive.archiver import Archiver
from graphweft_workers.processes.role_metrics import archive_metrics
from graphweft_workers.processes.service import Service, worker_name
from graphweft_workers.settings.settings import Settings
from graphweft_workers.wiring.connections import make_archive, make_bus


@asynccontextmanager
async def open_archive(settings: Settings) -> AsyncGenerator[Service]:
    """Open an archiver. Raises ``InvalidSettings`` if the settings name no archive."""
    blobs = make_archive(settings)
    async with aclosing(make_bus(settings, group=channels.ARCHIVE_GROUP, archived=False)) as bus:
        archiver = Archiver(
            bus,
            blobs,
            name=worker_name(settings),
            every_s=settings.archive_every_s,
            trims=settings.archive_trim,
            lease_s=settings.lease_s,
        )
        async with archive_metrics(settings, bus, archiver):
            yield archiver
