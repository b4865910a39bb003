"""A second graph of an app, beside the live one: of a rebuild, or for the time of a command."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Final, Self

from graphweft_contracts import InvalidSettings
from graphweft_contracts.clock import SYSTEM_CLOCK, Clock
from graphweft_contracts.events import APP_ID_PATTERN
from graphweft_workers.ports.graph_store import GraphStore
from graphweft_workers.settings.settings import Settings
from graphweft_workers.support.timing import TIMING, Timing
from graphweft_workers.wiring.running import running_graph

if TYPE_CHECKING:  # the bus answers before what replays is loaded
    from graphweft_rules import RuleSet
    from graphweft_workers.replay.app_log import AppLog
    from graphweft_workers.replay.scratch_lease import ScratchLease
    from graphweft_workers.rule_sets.active_rules import ActiveRules

SCRATCH: Final = ".scratch"
"""Its dot cannot be in the id of an app."""
SCRATCH_SUFFIXES: Final = tuple(f"{SCRATCH}-{number}" for number in range(1, 5))
"""Of all scratch graphs of an app, the same few each time: a server may keep the names of labels for good."""
_LOOKS: Final = 10
_LOOK_S: Final = 0.05
"""For half a second, a server may still take a write that was cut off on its way."""


def second_place(
    settings: Settings, app: str, *, into: str | None = None, template: str | None = None, suffix: str
) -> Settings:
    """Return the settings with the place of a second graph of ``app``. Raises ``InvalidSettings`` for another app's.

    ``into`` is the URL of another graph server. Without ``template``, the name is that of the live graph, with
    ``suffix`` after the app's id if the server is the same. A suffix begins with a dot, which no id has.
    """
    if template is None:
        beside = settings.graph_template.replace("{app_id}", "{app_id}" + suffix)
        template = settings.graph_template if into else beside
    try:
        place = Settings.load(
            data=settings.data,
            bus_url=settings.bus_url,
            graph_url=into or settings.graph_url,
            graph_template=template,
        )
    except InvalidSettings as error:
        raise InvalidSettings(f"invalid --into or --graph-template: {error}") from error
    name, names = template.replace("{app_id}", app), re.escape(settings.graph_template).replace(r"\{app_id\}", "(.*)")
    owner = re.fullmatch(names, name)
    if owner and owner[1] != app and re.fullmatch(APP_ID_PATTERN, owner[1]):
        raise InvalidSettings(
            f"invalid --graph-template {template!r}: the graph {name!r} is that of the app {owner[1]!r}; write a name "
            "with a character that ids of apps cannot have, such as '.'"
        )
    return place


@contextlib.asynccontextmanager
async def scratch_graph(
    settings: Settings,
    log: AppLog,
    rules: ActiveRules,
    *,
    given: RuleSet | None = None,
    into: str | None = None,
    clock: Clock = SYSTEM_CLOCK,
    timing: Timing = TIMING,
) -> AsyncGenerator[GraphStore]:
    """Yield the store of an empty graph of an app that is deleted afterwards, on the live server or on ``into``.

    If the process is killed, the next call deletes it. Raises ``InvalidSettings`` where the place is that of the live
    graph, or holds a graph, and if the mutations of ``given``, or of the rules that events have followed, cannot run
    there.
    """
    from graphweft_workers.replay.scratch_lease import ScratchLease
    from graphweft_workers.replay.second_queries import check_second_queries, rule_sets

    app, live = log.app_id, log.live
    async with contextlib.AsyncExitStack() as stack:
        taken: GraphStore | None = None
        for suffix in [""] if into else SCRATCH_SUFFIXES:
            async with contextlib.AsyncExitStack() as opened:
                place = second_place(settings, app, into=into, suffix=suffix)
                graph = await opened.enter_async_context(running_graph(place, live=settings))
                lease = ScratchLease(graph, app, clock, timing)
                if taken is not None:
                    await lease.remove_remains()
                    continue
                await _check_place(graph, app, live)
                if graph.whole.rewrites:
                    await check_second_queries(graph, [given] if given else await rule_sets(log, rules))
                deletion = await opened.enter_async_context(_Deletion(graph, app, lease))
                if await lease.take(only_new=into is not None):
                    stack.push_async_exit(opened.pop_all())
                    await stack.enter_async_context(lease.kept())
                    taken = graph
                else:
                    deletion.cancel()
        if taken is None:
            raise InvalidSettings(
                f"the server of --into holds a graph of {app!r}: give the URL of another graph server that holds no "
                "graph of the app"
                if into
                else f"{len(SCRATCH_SUFFIXES)} commands replay the log of {app!r} at once: wait for one, or give "
                "--into with the URL of another graph server"
            )
        yield taken


async def _check_place(graph: GraphStore, app: str, live: GraphStore) -> None:
    """Raise ``InvalidSettings`` if a scratch graph would be at the place of the live graph."""
    if await _is_live(graph, app, live):
        raise InvalidSettings(
            f"this place is that of the live graph of {app!r}: give --into with the URL of another graph server that "
            "holds no graph of the app, or leave it out"
        )


async def _is_live(graph: GraphStore, app: str, live: GraphStore) -> bool:
    """Tell whether a store has an app's live graph: at the same place, or on the same server by another URL."""
    if await graph.whole.place(app) == await live.whole.place(app):
        return True
    there = await graph.whole.graph_id(app)
    return bool(there) and there == await live.whole.graph_id(app)


class _Deletion:
    """Deletes the graph of a lease at the end of a block, also one that the server makes just then."""

    def __init__(self, graph: GraphStore, app: str, lease: ScratchLease) -> None:
        self._graph = graph
        self._app = app
        self._lease: ScratchLease | None = lease

    def cancel(self) -> None:
        """Leave the graph as it is: it is another command's."""
        self._lease = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._lease is None:
            return
        if kind is None:
            await self._graph.whole.drop(self._app)
            return
        # A write that was cut off on its way, as by Ctrl-C, may make the graph a moment later.
        for _look in range(_LOOKS):
            if await self._lease.is_ours():
                await self._graph.whole.drop(self._app)
            await asyncio.sleep(_LOOK_S)


async def drop_second(place: Settings, app: str, live: GraphStore, settings: Settings) -> str | None:
    """Delete the graph of ``app`` at a second place; return its name, or None if there is none.

    ``settings`` name the live graph. Raises ``InvalidSettings`` if it is the live one.
    """
    async with running_graph(place, live=settings) as graph:
        if await _is_live(graph, app, live):
            raise InvalidSettings(f"this place is that of the live graph of {app!r}, which is not deleted")
        if not await graph.whole.graph_id(app):
            return None
        await graph.whole.drop(app)
    return place.graph_template.replace("{app_id}", app)
