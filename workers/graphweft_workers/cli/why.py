"""``graphweft why``."""

from __future__ import annotations

import json as json_module
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from graphweft_contracts.clock import SYSTEM_CLOCK
from graphweft_contracts.plurals import counted
from graphweft_workers.cli.command_logs import set_up_command_logs
from graphweft_workers.cli.event_lines import clock
from graphweft_workers.cli.options import App, ArchiveOnly, Data, Json, command
from graphweft_workers.cli.output import plain, print_json, printable, say, short, warn
from graphweft_workers.settings.settings import Settings
from graphweft_workers.wiring.rules import logged_rules
from graphweft_workers.wiring.running import running_graph, running_log
from graphweft_workers.wiring.second_graph import scratch_graph

if TYPE_CHECKING:  # the bus answers before what replays is loaded
    from graphweft_rules.cypher.node_writes import NodeTarget
    from graphweft_workers.replay.node_state import Change, State
    from graphweft_workers.replay.recording import Recorded
    from graphweft_workers.replay.why import LogFindings

_TELL_S: Final = 2.0
_VALUE: Final = 100


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
    telling = _Telling()
    started = SYSTEM_CLOCK.monotonic()
    async with running_log(settings, archive_only=archive_only) as bus, running_graph(settings) as live:
        from graphweft_workers.cli.why_target import hints, target_of, there_hints
        from graphweft_workers.replay.app_log import AppLog
        from graphweft_workers.replay.node_state import NodeReader
        from graphweft_workers.replay.why import Why
        from graphweft_workers.reports.why_dicts import why_dict

        log = AppLog(bus=bus, app_id=app, live=live)
        await log.refuse_preludes()
        rules = logged_rules(settings, bus, without_lost=True)
        work = Why(log, rules, limit=limit, tell=telling.tell)
        keys = await work.keys()
        target = target_of(label, key, keys, property=property, relationship=relationship)
        NodeReader(target, keys, live, app)  # refuses names that no query can hold
        found = await work.find(target)
        read_s = SYSTEM_CLOCK.monotonic() - started
        recorded: Recorded | None = None
        if found.rows and not fast:
            work.check_complete(found)
            telling.say(
                f"{_entries(found)} in {read_s:.1f} s; {_counted(found.rows, 'mutation')} may have written it; "
                "replaying the events that matter into a second graph"
            )
            async with scratch_graph(settings, app, live, into=into, purpose="why") as graph:
                recorded = await work.record(target, graph, found)
        elapsed = SYSTEM_CLOCK.monotonic() - started
        near: list[str] = []
        if not (recorded.changed if recorded else found.rows):
            near = await hints(live, app, target)
            there = await NodeReader(target, keys, live, app).read()
            near[:0] = there_hints(there, target)
    if json:
        print_json(why_dict(target, found, recorded, near, elapsed, payload=payload))
        return
    for line in _lines(target, found, recorded, payload=payload):
        say(printable(line))
    for line in near:
        warn(printable(line))
    _warn(found, recorded)


class _Telling:
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


def _lines(target: NodeTarget, found: LogFindings, recorded: Recorded | None, *, payload: bool) -> Iterator[str]:
    if not found.rows:
        yield f"{_named(target)}: no event has written it; {_entries(found)}"
        return
    if recorded is None:
        newest, total = found.newest, found.rows
        yield f"{_named(target)}: {_counted(total, 'mutation')} may have written it; {_entries(found)}"
    else:
        newest, total = recorded.newest, recorded.changed
        yield f"{_named(target)}: {_counted(total, 'write')}; {_entries(found)}"
    if total > len(newest):
        yield f"The newest {len(newest):,} of them:"
    for writer in newest:
        event = writer.event
        retry = " (retry)" if writer.retried else ""
        position = f"{writer.partition}:{writer.offset}"
        yield f"{position}  {clock(writer.received)}  {event.type}  {event.source} {event.id}{retry}"
        user = f", user {event.userid}" if event.userid is not None else ""
        rules = f", rules {writer.rules[:12]}" if writer.rules else ""
        name = f"{event.workflow or '-'}/{writer.rule}/{writer.mutation}"
        yield f"    chat {event.chatid}{user}; {name} ({writer.place}){rules}"
        if recorded is None:
            yield f"    may have written it: {writer.reason}"
        yield from (f"    {_change(change)}" for change in writer.changes)
        if payload:
            yield f"    data {json_module.dumps(event.data, ensure_ascii=False, default=plain)}"
    if recorded is not None:
        yield from _now(recorded.state, target)


def _entries(found: LogFindings) -> str:
    return f"{counted(found.entries, 'entry was', 'entries were')} read"


def _counted(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _now(state: State, target: NodeTarget) -> Iterator[str]:
    if not state:
        yield "now: it does not exist" if target.relationship is None else "now: none"
    for thing in state.values():
        arrow = f"{_arrow(thing.arrow)} " if thing.arrow else ""
        if target.property is None:
            yield f"now: {arrow}{_value(dict(thing.properties))}"
        else:
            yield f"now: {arrow}{target.property} = {_value(thing.properties.get(target.property))}"


def _change(change: Change) -> str:
    arrow = f"{_arrow(change.relationship)} " if change.relationship else ""
    match change.kind:
        case "created":
            return f"{arrow}created {_value(change.after)}"
        case "deleted":
            return f"{arrow}deleted {_value(change.before)}"
        case "labels":
            return f"labels: {_value(change.before)} -> {_value(change.after)}"
        case "property":
            return f"{arrow}{change.name}: {_value(change.before)} -> {_value(change.after)}"


def _arrow(arrow: tuple[str, str, str]) -> str:
    name, direction, other = arrow
    return f"-[:{name}]->{other}" if direction == "out" else f"<-[:{name}]-{other}"


def _value(value: Any) -> str:
    return "(none)" if value is None else short(json_module.dumps(value, ensure_ascii=False, default=plain), _VALUE)


def _named(target: NodeTarget) -> str:
    keys = ", ".join(f"{name}: {_value(values[0])}" for name, values in target.keys.items())
    what = f"(:{target.label} {{{keys}}})"
    if target.relationship is not None:
        what += f"-[:{target.relationship}]-"
    return what if target.property is None else f"{what}.{target.property}"


def _warn(found: LogFindings, recorded: Recorded | None) -> None:
    if found.lost:
        warn(f"The log lacks {counted(found.lost, 'entry')}: events in them are not counted.")
    if recorded is None:
        return
    if recorded.unseen:
        warn(
            f"{counted(recorded.unseen, 'older mutation')} may have written it too. What is replayed in batches is not "
            "counted."
        )
    for letter in recorded.letters:
        warn(f"failed, and has not failed live: {letter.rule}/{letter.mutation} at {letter.offset}: {letter.message}")
    if recorded.like_live is False:
        warn(
            "The app's graph has another content than this: something else than the rules has written to it, or a rule "
            "gives other results each time."
        )
