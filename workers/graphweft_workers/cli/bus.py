"""``graphweft bus mend``."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import aclosing
from typing import Annotated, Final

import typer

from graphweft_contracts import InvalidSettings, channels
from graphweft_contracts.plurals import counted
from graphweft_workers.cli.options import Data, command
from graphweft_workers.cli.output import say
from graphweft_workers.drivers import bus_driver
from graphweft_workers.roles import connections
from graphweft_workers.roles.running import running_bus
from graphweft_workers.roles.settings import Settings

_REQUESTS: Final = "requests"
_ALL: Final = "all"


@command
async def bus_mend(
    what: Annotated[
        str, typer.Argument(help="The number of a partition, 'all' partitions, or 'requests'.", metavar="PARTITION")
    ],
    data: Data = None,
) -> None:
    """Mend a partition that takes no events, or whose end the bus lost, or the queue of context requests.

    No event is lost that the bus or the archive holds.
    """
    if what not in (_REQUESTS, _ALL) and not (what.isascii() and what.isdecimal()):
        raise InvalidSettings(f"invalid partition {what!r}: expected a number, {_ALL!r}, or {_REQUESTS!r}")
    settings = Settings.load(data=data)
    async with running_bus(settings) as bus:
        count = await bus.partitions.count(fresh=True)
    done: list[str] = []
    for number in range(count) if what == _ALL else [None if what == _REQUESTS else int(what)]:
        if mended := await connections.mend(settings, number):
            done.append(mended)
            say(mended)
    if what != _REQUESTS and connections.has_archive(settings):
        done += await _join(settings, range(count) if what == _ALL else [int(what)])
    if not done:
        say("there is nothing to mend; `graphweft doctor` says what else is wrong")


async def _join(settings: Settings, partitions: Iterable[int]) -> list[str]:
    """Let the bus go on behind the archive where it lost its end; return and print what was done."""
    from graphweft_workers.archive.joins import join, join_rules, to_rebuild

    blobs, driver, done = connections.make_archive(settings), bus_driver(settings.bus), list[str]()
    async with (
        aclosing(connections.make_bus(settings, group=channels.ARCHIVE_GROUP, archived=False)) as bus,
        aclosing(connections.make_graph(settings)) as graph,
    ):
        if activations := await join_rules(bus, blobs, driver=driver, url=settings.bus):
            done.append(f"the bus has {counted(activations, 'activation')} of rules again that it had lost")
            say(done[-1])
        for number in partitions:
            joined = await join(bus, blobs, graph, number, driver=driver, url=settings.bus)
            if joined is not None:
                offsets = "with new offsets, because theirs were not behind it" if joined.moved else "with their offsets"
                done.append(
                    f"partition {number} goes on behind the archive: {counted(joined.lost, 'entry')} that the bus had "
                    f"lost are read from there, and {counted(joined.kept, 'entry')} of the bus follow, {offsets}"
                )
                say(done[-1])
    for app_id in await to_rebuild(blobs):
        done.append(
            f"the graph of {app_id!r} went on without the lost events: run `graphweft rebuild --app {app_id} --swap`"
        )
        say(done[-1])
    return done
