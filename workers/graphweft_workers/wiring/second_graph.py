"""A second graph of an app, beside the live one: of a rebuild, or for the time of a command."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncGenerator
from typing import Final
from uuid import uuid4

from graphweft_contracts import InvalidSettings
from graphweft_contracts.events import APP_ID_PATTERN
from graphweft_workers.ports.graph_store import GraphStore
from graphweft_workers.settings.settings import Settings
from graphweft_workers.wiring.running import running_graph

_LOOKS: Final = 2
_LOOK_S: Final = 0.05


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
    settings: Settings, app: str, live: GraphStore, *, into: str | None = None, purpose: str
) -> AsyncGenerator[GraphStore]:
    """Yield the store of an empty graph of ``app`` that is deleted afterwards, on the live server or on ``into``.

    ``purpose`` becomes part of its name. Raises ``InvalidSettings`` where the place is that of the live graph, or holds
    a graph: some servers have one database only.
    """
    place = second_place(settings, app, into=into, suffix=f".{purpose}-{uuid4().hex[:8]}")
    async with running_graph(place) as graph:
        if await graph.whole.place(app) == await live.whole.place(app) or await graph.whole.graph_id(app):
            raise InvalidSettings(
                f"a second graph of {app!r} is needed for a while, and this server has no place for one: give --into "
                "with the URL of another graph server that holds no graph of the app"
            )
        try:
            yield graph
        finally:
            await _drop(graph, app)


async def _drop(graph: GraphStore, app: str) -> None:
    """Delete a graph. A write that was cut off on its way may make it again, empty, so it looks again."""
    await graph.whole.drop(app)
    for _ in range(_LOOKS):
        await asyncio.sleep(_LOOK_S)
        if await graph.whole.graph_id(app):
            await graph.whole.drop(app)


async def drop_second(place: Settings, app: str, live: GraphStore, settings: Settings) -> str | None:
    """Delete the graph of ``app`` at a second place; return its name, or None if there is none.

    ``settings`` are those of the live graph. Raises ``InvalidSettings`` if it is the live one.
    """
    async with running_graph(place, live=settings) as graph:
        there = await graph.whole.graph_id(app)
        if await graph.whole.place(app) == await live.whole.place(app) or (
            there and there == await live.whole.graph_id(app)
        ):
            raise InvalidSettings(f"this place is that of the live graph of {app!r}, which is not deleted")
        if not there:
            return None
        await graph.whole.drop(app)
    return place.graph_template.replace("{app_id}", app)
