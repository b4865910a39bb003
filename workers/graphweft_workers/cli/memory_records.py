"""``graphweft memory get`` and ``update``, and the options by which memories are filtered."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Final, override

import typer
from pydantic import ValidationError

from graphweft.memory import update_event
from graphweft.searching import faults
from graphweft_contracts import InvalidSettings, MemoryScope, SearchQuery
from graphweft_contracts.search import MOST_RESULTS, Searched
from graphweft_workers.cli.current_graph import current_graph
from graphweft_workers.cli.options import AnyOf, App, Data, Json, assignments, command, scopes_of
from graphweft_workers.cli.output import show
from graphweft_workers.cli.publishing import PublishOptions, publish_events
from graphweft_workers.ports.graph_store import GraphStore
from graphweft_workers.reports.report import Notice, PlainReport, TextTable
from graphweft_workers.retrieval.listing import read_memory, read_versions
from graphweft_workers.settings.settings import Settings
from graphweft_workers.text.iso_time import in_utc, iso_time

READ_S: Final = 60.0
_Tags = Annotated[list[str] | None, typer.Option("--tag", help="Only memories with this tag; repeatable: all of them.")]
_Metadata = Annotated[
    list[str] | None,
    typer.Option("--metadata", help="Only memories with this metadata: name=text, or name:=JSON; repeatable."),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterOptions:
    """Options that say which memories of a scope are meant."""

    tag: _Tags = None
    metadata: _Metadata = None
    since: Annotated[str | None, typer.Option("--since", metavar="TIME", help="Only what was said from then on.")] = (
        None
    )
    until: Annotated[str | None, typer.Option("--until", metavar="TIME", help="Only what was said before.")] = None

    def given(self) -> dict[str, Any]:
        """Return the fields of ``SearchQuery``. Raises ``InvalidSettings``."""
        found: dict[str, Any] = {
            "tags": self.tag,
            "metadata": assignments(self.metadata, "--metadata") if self.metadata else None,
            "since": time_of(self.since, "--since"),
            "until": time_of(self.until, "--until"),
        }
        return {name: value for name, value in found.items() if value}


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordOptions(FilterOptions):
    """Options that say which records of a scope, and of others beside it, are found."""

    as_of: Annotated[
        str | None, typer.Option("--as-of", metavar="TIME", help="As at that time.", show_default="now")
    ] = None
    include_ended: Annotated[bool, typer.Option("--include-ended", help="Also what has ended.")] = False
    any_of: AnyOf = None

    @override
    def given(self) -> dict[str, Any]:
        """See ``FilterOptions.given``."""
        more = {
            "as_of": time_of(self.as_of, "--as-of"),
            "include_ended": self.include_ended,
            "any_of": scopes_of(self.any_of),
        }
        return FilterOptions.given(self) | {name: value for name, value in more.items() if value}


def time_of(text: str | None, option: str) -> datetime | None:
    """Return the time of an option; one without a zone is in UTC. Raises ``InvalidSettings``."""
    if text is None:
        return None
    try:
        return in_utc(iso_time(text))
    except ValueError:
        msg = f"invalid {option} {text!r}: expected a time or a day, such as 2026-02-01T10:00:00Z or 2026-02-01"
        raise InvalidSettings(msg) from None


async def find_records(
    graph: GraphStore, app: str, scope: MemoryScope, limit: int, *, of: Searched = "memories", **filters: Any
) -> list[dict[str, Any]]:
    """Return the latest records of a scope that pass filters. Raises ``InvalidSettings`` for invalid ones."""
    from graphweft_workers.retrieval.search import Searcher

    try:
        query = SearchQuery(memory=scope, of=of, top_k=limit, **filters)
    except ValidationError as error:
        raise InvalidSettings(faults(error)) from None
    return (await Searcher(graph).search(app, query, timeout_s=READ_S)).rows()


async def find_ids(graph: GraphStore, app: str, scope: MemoryScope, **filters: Any) -> list[str]:
    """Return the ids of the latest memories of a scope that pass filters, ended ones too, at most 1,000."""
    found = await find_records(graph, app, scope, MOST_RESULTS, **filters, include_ended=True)
    return [str(row["id"]) for row in found]


@command
async def memory_get(
    app: App,
    memory_id: Annotated[str, typer.Argument(metavar="ID", help="The id of a memory, from `memory list`.")],
    data: Data = None,
    json: Json = False,
) -> int | None:
    """Show a memory, and what it said before it was updated. The command reads the graph and needs no responder."""
    settings = Settings.load(data=data)
    async with current_graph(settings, app) as graph:
        found = (await graph.read(app, read_memory(), {"id": memory_id}, timeout_s=READ_S)).rows
        versions = (await graph.read(app, read_versions(), {"id": memory_id}, timeout_s=READ_S)).rows
    names = (
        "text", "role", "time", "author_name", "user_id", "chat_id", "tags", "metadata", "pinned", "expires_at", "id",
    )  # fmt: skip
    records = [dict(zip(names, row, strict=True)) for row in found]
    before = [dict(zip(("text", "time", "until"), row, strict=True)) for row in versions]
    said: list[Any] = [TextTable(("", ""), [[name, value] for name, value in record.items()]) for record in records]
    if before:
        said.append(TextTable(("said before", "time", "until"), versions))
    if not records:
        said = [Notice(f"there is no memory {memory_id!r}: `graphweft memory list` shows the ids")]
    show(PlainReport({"memory": records[0] if records else None, "before": before}, said), json=json)
    return None if records else 2


@command
async def memory_update(
    app: App,
    memory_id: Annotated[str, typer.Argument(metavar="ID", help="The id of a memory, from `memory list`.")],
    options: PublishOptions,
    text: Annotated[str | None, typer.Option("--text", help="What it says from now on.")] = None,
    tag: Annotated[
        list[str] | None, typer.Option("--tag", help="A tag; repeatable: together all tags from now on.")
    ] = None,
    metadata: Annotated[
        list[str] | None,
        typer.Option("--metadata", help="name=text, or name:=JSON; repeatable: together all metadata from now on."),
    ] = None,
    pinned: Annotated[
        bool | None, typer.Option("--pin/--unpin", help="Always show it, and never summarize it or forget it by age.")
    ] = None,
    expires_at: Annotated[
        str | None,
        typer.Option(
            "--expires-at",
            metavar="TIME",
            help="Its end; `never`: it has none. From then on no search for now finds it.",
        ),
    ] = None,
    time: Annotated[
        str | None, typer.Option("--time", metavar="TIME", help="Since when it says so.", show_default="now")
    ] = None,
) -> None:
    """Change a memory: what it says, its tags, its metadata, its end, or whether it is pinned.

    What it said before is kept.
    """
    settings = options.settings()
    async with current_graph(settings, app) as graph:
        found = (await graph.read(app, read_memory(), {"id": memory_id}, timeout_s=READ_S)).rows
    if not found:
        raise InvalidSettings(f"there is no memory {memory_id!r}: `graphweft memory list` shows the ids")
    author, user, chat = found[0][3:6]
    changes = {
        "text": text,
        "tags": tag,
        "metadata": None if metadata is None else assignments(metadata, "--metadata"),
        "pinned": pinned,
        "expires_at": expires_at if expires_at == "never" else time_of(expires_at, "--expires-at"),
        "time": time_of(time, "--time"),
    }
    try:
        event = update_event(app, memory_id, chat_id=chat, user_id=user, author_name=author, changes=changes)
    except ValueError as error:
        raise InvalidSettings(str(error)) from None
    position = await publish_events(settings, [event], options)
    said = "The memory is updated" if options.wait else "The workers will update the memory"
    show(PlainReport({"updated": options.wait, "position": position}, [said]), json=options.json)


def chats_of(rows: Iterable[Sequence[Any]]) -> dict[str, list[str]]:
    """Return the ids of memories by their chat, from rows of both."""
    chats: dict[str, list[str]] = {}
    for memory_id, chat_id in rows:
        chats.setdefault(str(chat_id), []).append(str(memory_id))
    return chats
