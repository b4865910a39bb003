"""``graphweft import mem0``, ``graphiti`` and ``memories``: what other stores of memories hold, as events."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Annotated, Final, Literal

import typer
from pydantic import ValidationError

from graphweft_contracts import InvalidSettings, MemoryScope
from graphweft_workers.cli.options import App, command, words
from graphweft_workers.cli.output import show
from graphweft_workers.cli.publishing import PublishOptions, bar, interruptible, publish, read_between
from graphweft_workers.imports.graphiti_export import Graphiti
from graphweft_workers.imports.items import read_items
from graphweft_workers.imports.report import ImportReport
from graphweft_workers.imports.runs import ImportProblem
from graphweft_workers.imports.stored_events import Store, events_of_items, grouped
from graphweft_workers.imports.stored_memories import Mem0, PlainMemories
from graphweft_workers.reports.imports import StoreImport
from graphweft_workers.wiring.running import check_bus

_GROUPS: Final = {"user": "user_id", "thread": "thread_id", "agent": "agent_id", "application": "application_id"}

File = Annotated[
    str,
    typer.Argument(help="JSON lines (.jsonl), or one JSON document of up to 64 MiB; also .gz, or - for stdin."),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreImportOptions:
    """Options of every import of a store."""

    user: Annotated[str | None, typer.Option("--user", help="User of items that name nobody.")] = None
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say what would be sent and what is refused. Needs no server.")
    ] = False

    def otherwise(self) -> MemoryScope | None:
        """Return the scope of items without one. Raises ``InvalidSettings``."""
        try:
            return None if self.user is None else MemoryScope(user_id=self.user)
        except ValidationError:
            raise InvalidSettings(
                "--user has 1 to 256 characters, without control characters and without a blank at either end"
            ) from None


@command
async def import_mem0(file: File, app: App, importing: StoreImportOptions, options: PublishOptions) -> int | None:
    """Import the memories that `get_all` of mem0 returns."""
    return await _import(file, app, Mem0(), ImportReport(), importing, options)


@command
async def import_memories(file: File, app: App, importing: StoreImportOptions, options: PublishOptions) -> int | None:
    """Import memories of any other store: JSON with text and user_id, optionally id, time and role."""
    return await _import(file, app, PlainMemories(), ImportReport(), importing, options)


@command
async def import_graphiti(
    file: File,
    app: App,
    importing: StoreImportOptions,
    options: PublishOptions,
    group_as: Annotated[
        Literal["user", "thread", "agent", "application"],
        typer.Option("--group-as", **words(*_GROUPS), help="The scope that a group_id becomes."),
    ] = "user",
) -> int | None:
    """Import the episodes, entities and facts of Graphiti. No model reads the facts again."""
    report = ImportReport()
    store = Graphiti(report, group_as=_GROUPS[group_as])
    return await _import(file, app, store, report, importing, options)


async def _import(
    file: str, app: str, store: Store, report: ImportReport, importing: StoreImportOptions, options: PublishOptions
) -> int | None:
    settings = options.settings()
    otherwise = importing.otherwise()
    events = events_of_items(read_items(file, store.sections, report), store, report, app_id=app, otherwise=otherwise)
    if importing.dry_run:
        with interruptible(), bar("checking", None) as advance:
            deque((advance(1) for _ in events), maxlen=0)
        found = StoreImport(items=report, dry_run=True)
    else:
        await check_bus(settings)
        sent, outcome = await publish(settings, read_between(grouped(events)), options, harmless=True)
        found = StoreImport(items=report, outcome=outcome, without_outcome=sent.without_outcome)
    if not (report.events or report.refused or report.left_out):
        raise ImportProblem(f"{file}: it has no items")
    show(found, json=options.json)
    return found.exit_code
