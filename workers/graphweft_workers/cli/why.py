"""``graphweft why``."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Final

import typer

from graphweft_contracts.clock import SYSTEM_CLOCK
from graphweft_contracts.plurals import counted
from graphweft_workers.cli.command_logs import set_up_command_logs
from graphweft_workers.cli.options import App, ArchiveOnly, Data, Json, command
from graphweft_workers.cli.output import show
from graphweft_workers.settings.settings import Settings
from graphweft_workers.wiring.rules import logged_rules
from graphweft_workers.wiring.running import running_app_log
from graphweft_workers.wiring.second_graph import scratch_graph

if TYPE_CHECKING:  # the bus answers before what replays is loaded
    from graphweft_workers.replay.recording import RecordResult

_TELL_S: Final = 2.0


@command
async def why(
    app: App,
    label: Annotated[str, typer.Option("--label", help="Label of the node.")],
    key: Annotated[
        list[str],
        typer.Option("--key", metavar="VALUE", help="Key of the node, or PROPERTY=VALUE; repeatable."),
    ],
    property: Annotated[str | None, typer.Option("--property", help="Only changes of this property.")] = None,
    relationship: Annotated[
        str | None,
        typer.Option("--relationship", metavar="TYPE", help="Changes of the node's relationships of this type."),
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=10_000, help="Show the newest ones.")] = 20,
    fast: Annotated[
        bool, typer.Option("--fast", help="Only read the log: which events may have written the node.")
    ] = False,
    into: Annotated[
        str | None,
        typer.Option("--into", metavar="URL", help="Graph server of the replay.", show_default="that of the app"),
    ] = None,
    payload: Annotated[bool, typer.Option("--payload", help="Show the data of the events.")] = False,
    archive_only: ArchiveOnly = False,
    data: Data = None,
    json: Json = False,
) -> None:
    """Show which events wrote a node, by which rules, and what each changed.

    The log is replayed into a second graph, which is deleted afterwards. The app's graph is only read.
    """
    settings = Settings.load(data=data)
    set_up_command_logs(settings)
    lines = _ProgressLines()
    started = SYSTEM_CLOCK.monotonic()
    async with running_app_log(settings, app, archive_only=archive_only) as log:
        from graphweft_workers.cli.why_target import hints, target_of, there_hints
        from graphweft_workers.replay.node_state import NodeReader
        from graphweft_workers.replay.why import Why
        from graphweft_workers.reports.why import WhyReport, entries_read

        await log.refuse_preludes()
        rules = logged_rules(settings, log.bus, without_lost=True)
        work = Why(log, rules, limit=limit, tell=lines.tell)
        keys = await work.keys()
        target = target_of(label, key, keys, property=property, relationship=relationship)
        NodeReader(target, keys, log.live, app)  # refuses names that no query can hold
        found = await work.find(target, exact=not fast)
        read_s = SYSTEM_CLOCK.monotonic() - started
        recorded: RecordResult | None = None
        if found.rows and not fast:
            lines.say(
                f"{entries_read(found)} in {read_s:.1f} s; {counted(found.rows, 'mutation')} may have written it; "
                "replaying the events that matter into a second graph"
            )
            async with scratch_graph(settings, log, rules, into=into) as graph:
                recorded = await work.record(target, graph, found)
        elapsed = SYSTEM_CLOCK.monotonic() - started
        near: list[str] = []
        older = await log.older()
        if not older and not (recorded.changed if recorded else found.rows):
            near = await hints(log.live, app, target)
            there = await NodeReader(target, keys, log.live, app).read()
            near[:0] = there_hints(there, target)
    report = WhyReport(
        target=target, found=found, recorded=recorded, older=older, near=near, seconds=elapsed, payload=payload
    )
    show(report, json=json)


class _ProgressLines:
    """Says the progress on standard error, every two seconds."""

    def __init__(self) -> None:
        self._last = SYSTEM_CLOCK.monotonic()

    def tell(self, what: str, number: int) -> None:
        now = SYSTEM_CLOCK.monotonic()
        if now - self._last >= _TELL_S:
            self._last = now
            self.say(f"{number:,} {'entries' if what == 'read' else 'events'} {what}")

    def say(self, text: str) -> None:
        sys.stderr.write(text + "\n")
        sys.stderr.flush()
