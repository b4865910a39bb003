"""``graphweft show``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from graphweft_contracts import InvalidSettings
from graphweft_contracts.plurals import counted
from graphweft_workers.cli.current_graph import current_graph
from graphweft_workers.cli.options import App, Data, command
from graphweft_workers.cli.output import say, warn, write_page
from graphweft_workers.settings.settings import Settings

_MOST = 150


@command
async def show(
    app: App,
    html: Annotated[Path | None, typer.Option("--html", metavar="FILE", help="Write a page with the picture.")] = None,
    mermaid: Annotated[bool, typer.Option("--mermaid", help="Print the picture as Mermaid text.")] = False,
    label: Annotated[
        list[str] | None, typer.Option("--label", help="Nodes with this label. Repeat it.", show_default="the largest")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=_MOST, help="Nodes to begin with.")] = 40,
    data: Data = None,
) -> None:
    """Draw a part of an app's graph: some nodes of the largest labels, and some of their neighbours.

    Secrets are replaced as in contexts. The page has no scripts and needs no network.
    """
    from graphweft_workers.reports.drawing import as_html, as_mermaid
    from graphweft_workers.reports.picture import picture

    if (html is None) == (not mermaid):
        raise InvalidSettings("give either --html FILE or --mermaid")
    settings = Settings.load(data=data)
    async with current_graph(settings, app) as graph:
        found = await picture(graph, app, labels=label or [], limit=limit, redacts=settings.context_redact)
    known = {str(each["label"]) for each in found.labels}
    if unknown := [each for each in label or [] if each not in known]:
        raise InvalidSettings(f"no node has the label {unknown[0]!r}; labels: {', '.join(sorted(known)) or 'none'}")
    drawn = found.first(_MOST).to_dict()
    nodes, relationships = drawn["nodes"], drawn["relationships"]
    if not nodes:
        warn(
            f"the app {app!r} has no graph yet: no event of it has written anything; if you expect one, check the name"
        )
    total = sum(each["nodes"] for each in found.labels)
    if html is None:
        say(as_mermaid(nodes, relationships).rstrip())
    else:
        write_page(html, as_html(app, nodes, relationships, total))
    if nodes:
        between = counted(len(relationships), "relationship")
        warn(f"{len(nodes):,} of {counted(total, 'node')}, and {between} between them")
