"""``graphweft import mem0``, ``graphiti`` and ``memories``: what other stores of memories hold, as events."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, Iterator
from dataclasses import asdict, dataclass
from typing import Annotated, Final, Literal

import typer
from pydantic import ValidationError

from graphweft_contracts import Event, InvalidSettings, MemoryScope
from graphweft_contracts.plurals import counted
from graphweft_workers.cli.options import App, command, words
from graphweft_workers.cli.output import print_error, print_json, say, warn
from graphweft_workers.cli.publishing import PublishOptions, bar, interruptible, publish
from graphweft_workers.imports.graphiti_export import Graphiti
from graphweft_workers.imports.items import read_items
from graphweft_workers.imports.made_events import Store
from graphweft_workers.imports.report import MOST_LISTED, ImportReport
from graphweft_workers.imports.runs import ImportProblem
from graphweft_workers.imports.stored_events import events_of_items, grouped
from graphweft_workers.imports.stored_memories import Mem0, PlainMemories
from graphweft_workers.reports.delivery import DeliveryOutcome
from graphweft_workers.wiring.running import check_bus

_MOST_SHOWN: Final = 20
_MOST_CAUSES: Final = 20
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
    outcome: DeliveryOutcome | None = None
    unknown = False
    if importing.dry_run:
        with interruptible(), bar("checking", None) as advance:
            deque((advance(1) for _ in events), maxlen=0)
    else:
        await check_bus(settings)
        try:
            published, outcome = await publish(settings, _groups(events), None, options, harmless=True)
            unknown = published.without_outcome
        except ImportProblem as error:
            sent = report.events.total()
            if not sent:
                raise
            raise ImportProblem(
                f"{error} ({counted(sent, 'event was', 'events were')} sent before; it is safe to run again)"
            ) from error
    if not (report.events or report.refused or report.left_out):
        raise ImportProblem(f"{file}: it has no items")
    code = _print(report, outcome, dry_run=importing.dry_run, json=options.json)
    return code or (1 if unknown else None)


async def _groups(events: Iterator[Event]) -> AsyncGenerator[list[Event]]:
    """Yield the events in groups, so that a file of any size is read while it is sent."""
    groups = grouped(events)
    while True:
        with interruptible():
            group = next(groups, None)
        if group is None:
            return
        yield group


def _print(report: ImportReport, outcome: DeliveryOutcome | None, *, dry_run: bool, json: bool) -> int | None:
    """Print what became of the items; return the exit code."""
    if json:
        found: dict[str, object] = {
            "dry_run": dry_run,
            "events": dict(report.events),
            "refused": report.refused,
            "reasons": dict(report.reasons.most_common()),
            "refused_items": [{"place": place, "reason": reason} for place, reason in report.listed],
            "repeated_in_file": report.repeated,
            "left_out": dict(report.left_out),
            "times_without_zone": report.without_zone,
            "missing": report.missing or None,
            "first": report.first,
            "last": report.last,
        }
        print_json(found | ({} if outcome is None else asdict(outcome)))
    else:
        _print_refused(report)
        _print_counts(report, dry_run=dry_run)
        if report.missing:
            warn(report.missing)
        if outcome is not None:
            _print_outcome(outcome)
    if report.refused or report.missing:
        return 2
    return 1 if outcome is not None and not outcome.complete else None


def _print_refused(report: ImportReport) -> None:
    for place, reason in report.listed[:_MOST_SHOWN]:
        print_error(ImportProblem(f"{place}: {reason}"))
    if report.refused > _MOST_SHOWN:
        warn(f"{report.refused:,} items are refused in all (--json lists the first {MOST_LISTED}):")
        for reason, number in report.reasons.most_common():
            warn(f"  {number:,} x {reason}")


def _print_counts(report: ImportReport, *, dry_run: bool) -> None:
    kinds = ", ".join(f"{kind}: {number:,}" for kind, number in report.events.items())
    total = counted(report.events.total(), "event") + (f" ({kinds})" if kinds else "")
    say(f"{'would send' if dry_run else 'sent'} {total}, refused {counted(report.refused, 'item')}")
    if report.first is not None and report.last is not None:
        say(f"times: {report.first:%Y-%m-%dT%H:%M:%SZ} to {report.last:%Y-%m-%dT%H:%M:%SZ}")
    if report.repeated:
        say(f"repeated in the file: {report.repeated:,}")
    if report.without_zone:
        say(f"times without a zone, read as UTC: {report.without_zone:,}")
    if report.left_out:
        say("left out: " + ", ".join(f"{name} ({number:,})" for name, number in report.left_out.most_common()))


def _print_outcome(outcome: DeliveryOutcome) -> None:
    say(f"{outcome.applied:,} applied, {outcome.skipped:,} skipped, {outcome.dead_lettered:,} dead-lettered")
    if outcome.repeated:
        say(f"{outcome.repeated:,} were on the bus before and have no effect again")
    for cause in outcome.causes[:_MOST_CAUSES]:
        say(f"  {cause.events:,} x {cause.reason}: {cause.name}: {cause.message}")
    if not outcome.complete:
        say("see graphweft dlq list")
