"""Connections to the bus and the graph for a short work. Each is checked first; an error says what to do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Final

from graphweft.transports.embedded import embedded_socket
from graphweft_contracts import BusUnavailable, GraphUnavailable, NotRunning
from graphweft_workers.ports.bus import Bus
from graphweft_workers.settings.settings import Settings
from graphweft_workers.wiring.connections import judged_bus, make_archive, make_bus, make_graph

if TYPE_CHECKING:  # a command that asks the bus alone need not wait for it
    from graphweft_workers.ports.graph_store import GraphStore
    from graphweft_workers.replay.app_log import AppLog

_MOST_FOLDERS: Final = 100
_ANSWER_S: Final = 15.0
"""A suspended server keeps its connections open and never answers."""


@asynccontextmanager
async def running_bus(settings: Settings) -> AsyncGenerator[Bus]:
    """Yield the bus. Raises ``NotRunning``, which says what to do, when the bus does not answer within 15 s."""
    async with aclosing(make_bus(settings)) as bus:
        await _answered(bus.partitions.count(), lambda reason: _no_bus(settings, reason))
        yield bus


@asynccontextmanager
async def running_log(settings: Settings, *, archive_only: bool) -> AsyncGenerator[Bus]:
    """Yield the bus, or with ``archive_only`` the archive without one. Raises ``NotRunning`` like ``running_bus``."""
    if not archive_only:
        async with running_bus(settings) as bus:
            yield bus
        return
    from graphweft_workers.archive.archive_bus import archive_bus

    alone = judged_bus(settings, archive_bus(make_archive(settings)))
    await alone.partitions.layout()  # says that the archive is empty
    yield alone


@asynccontextmanager
async def running_graph(settings: Settings, *, live: Settings | None = None) -> AsyncGenerator[GraphStore]:
    """Yield the graph store; with ``live``, the store of second graphs: see ``make_graph``.

    Raises ``NotRunning``, which says what to do, when it does not answer within 15 s.
    """
    async with aclosing(make_graph(settings, live=live)) as graph:
        await _answered(graph.check(), lambda reason: _no_graph(settings, reason))
        yield graph


@asynccontextmanager
async def running_app_log(settings: Settings, app: str, *, archive_only: bool = False) -> AsyncGenerator[AppLog]:
    """Yield the log of an app, with its live graph. Raises ``NotRunning`` if one of the servers does not answer."""
    async with running_log(settings, archive_only=archive_only) as bus, running_graph(settings) as live:
        from graphweft_workers.replay.app_log import AppLog  # the servers answer before what replays is loaded

        yield AppLog(bus=bus, app_id=app, live=live)


async def check_bus(settings: Settings) -> None:
    """Raise ``NotRunning``, which says what to do, when the bus does not answer within 15 s."""
    async with running_bus(settings):
        pass


async def _answered(question: Awaitable[object], fault: Callable[[str], str]) -> None:
    """Wait for the answer of a server. Raises ``NotRunning`` with the ``fault`` for a reason, if there is none."""
    try:
        async with asyncio.timeout(_ANSWER_S):
            await question
    except (BusUnavailable, GraphUnavailable, TimeoutError) as error:
        raise NotRunning(fault(_reason(error))) from error


def _no_bus(settings: Settings, reason: str) -> str:
    if settings.bus_url is not None:
        return f"the bus that GRAPHWEFT_BUS_URL names does not work: run `graphweft doctor` for details. {reason}"
    if settings.graph_url is None:
        return _no_embedded(settings)
    return (
        "the settings name a graph server and no bus, and no embedded server runs on the data folder "
        f"{str(settings.data)!r}: set GRAPHWEFT_BUS_URL too"
    )


def _no_graph(settings: Settings, reason: str) -> str:
    if settings.graph_url is not None:
        return (
            "the graph server that the settings name (GRAPHWEFT_GRAPH_URL) does not work: run `graphweft doctor` for "
            f"details. {reason}"
        )
    if settings.bus_url is None:
        return _no_embedded(settings)
    return "GRAPHWEFT_BUS_URL is set and GRAPHWEFT_GRAPH_URL is not: set GRAPHWEFT_GRAPH_URL too"


def _no_embedded(settings: Settings) -> str:
    return (
        f"no embedded server runs on the data folder {str(settings.data)!r}: run `graphweft up --data "
        f"{settings.data}`, or set GRAPHWEFT_DATA to the folder of a running one"
        + (f". One may run in the folder {str(near)!r}: change to it" if (near := _near(settings.data)) else "")
    )


def _near(data: Path) -> Path | None:
    """Return the folder below this one in which a server runs; None if ``data`` is a path, or none does."""
    if data.parts != (data.name,):
        return None
    folders = islice(Path().glob(f"*/{data}"), _MOST_FOLDERS)
    return min((folder.parent for folder in folders if embedded_socket(folder).exists()), default=None)


def _reason(error: Exception) -> str:
    words = " ".join(str(error).split())  # some drivers write several lines
    for said in ("the bus is unavailable: ", "the graph server is unavailable: "):  # before the reason
        words = words.removeprefix(said)
    return f"Reason: {words}" if words else f"Reason: no answer within {_ANSWER_S:.0f} s"
