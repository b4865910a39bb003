"""Mends a bus: partitions that take no events, the queue of context requests, and an end that the bus lost."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection
from contextlib import aclosing

from graphweft_contracts import channels
from graphweft_contracts.plurals import counted
from graphweft_workers.drivers import bus_driver
from graphweft_workers.settings.settings import Settings
from graphweft_workers.wiring.connections import has_archive, make_archive, make_bus, make_graph


async def mended(settings: Settings, partition: int | None) -> AsyncGenerator[str]:
    """Mend a partition, or all; yield what was done, or is left to do. See ``BusDriver.mend`` and ``archive.joins``."""
    driver = bus_driver(settings.bus)
    async with aclosing(make_bus(settings, group=channels.ARCHIVE_GROUP, archived=False)) as bus:
        if has_archive(settings):
            from graphweft_workers.archive.joins import join_layout

            for app_id in await join_layout(bus, make_archive(settings), driver=driver, url=settings.bus):
                yield f"the bus knows the own partition of {app_id!r} again"
        partitions: Collection[int] = (
            [partition] if partition is not None else range(await bus.partitions.count(fresh=True))
        )
    for number in partitions:
        if done := await driver.mend(settings.bus, number):
            yield done
    if not has_archive(settings):
        return
    from graphweft_workers.archive.joins import join, join_rules, to_rebuild

    blobs = make_archive(settings)
    async with (
        aclosing(make_bus(settings, group=channels.ARCHIVE_GROUP, archived=False)) as bus,
        aclosing(make_graph(settings)) as graph,
    ):
        if activations := await join_rules(bus, blobs, driver=driver, url=settings.bus):
            yield f"the bus has {counted(activations, 'activation')} of rules again that it had lost"
        for number in partitions:
            joined = await join(bus, blobs, graph, number, driver=driver, url=settings.bus)
            if joined is not None:
                how = "with new offsets, because theirs were not behind it" if joined.moved else "with their offsets"
                yield (
                    f"partition {number} goes on behind the archive: {counted(joined.lost, 'entry')} that the bus had "
                    f"lost are read from there, and {counted(joined.kept, 'entry')} of the bus follow, {how}"
                )
    for app_id in await to_rebuild(blobs):
        yield f"the graph of {app_id!r} went on without the lost events: run `graphweft rebuild --app {app_id} --swap`"


async def mended_requests(settings: Settings) -> str:
    """Mend the queue of context requests; return what was done, empty if there was nothing to mend."""
    return await bus_driver(settings.bus).mend(settings.bus, None)
