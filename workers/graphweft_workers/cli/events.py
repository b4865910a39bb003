"""``graphweft events show`` and ``why``."""

from __future__ import annotations

import json as json_module
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Final

import typer

from graphweft_contracts import DeadLetter, InvalidSettings, NotRunning
from graphweft_contracts.plurals import counted
from graphweft_workers.cli.event_lines import line_of, tell_progress
from graphweft_workers.cli.options import MOST_SCANNED, Data, Json, Scan, Since, check_app, command, since_time
from graphweft_workers.cli.output import plain, print_json, printable, printable_lines, say, short, warn
from graphweft_workers.ports.bus import Bus
from graphweft_workers.ports.graph_store import GraphStore
from graphweft_workers.reports.entries import DecodedEntry
from graphweft_workers.reports.entry_dicts import dict_of, fate_dict
from graphweft_workers.reports.scan import Decoder, ScanLimits, ends
from graphweft_workers.settings.settings import Settings
from graphweft_workers.wiring.running import running_bus, running_graph

if TYPE_CHECKING:  # the bus answers before what replays is loaded
    from graphweft_workers.reports.effects import EntryEffect, Letters
    from graphweft_workers.reports.lookup import Relatives

_PARAMS: Final = 2_000
"""Characters of the parameters of one mutation in the text."""
_ID: Final = 100
_LISTED: Final = 20

Target = Annotated[
    str, typer.Argument(metavar="ID|PARTITION:OFFSET", help="The event's id, or its position from `events tail`.")
]
OfApp = Annotated[str | None, typer.Option("--app", help="The event is of this app: only its partition is searched.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Event:
    """An entry of the bus, and what became of it."""

    bus: Bus
    seen: DecodedEntry
    decoder: Decoder
    relatives: Relatives
    effect: EntryEffect
    elsewhere: Sequence[str]
    """Positions of the same event in other partitions."""


@command
async def events_show(
    target: Target,
    app: OfApp = None,
    since: Since = None,
    scan: Scan = MOST_SCANNED,
    data: Data = None,
    json: Json = False,
) -> None:
    """Show one event as a whole, where it lies, whether it took effect, and its copies and retries."""
    limits = ScanLimits(entries=scan, since=since_time(since), on_progress=tell_progress)
    settings = Settings.load(data=data)
    async with _found(settings, target, app, limits) as found:
        from graphweft_workers.reports.effects import letters_of

        letters = await letters_of(found.bus, found.seen, ())
    if json:
        print_json(dict_of(found.seen) | fate_dict(found.effect, found.relatives, found.elsewhere, letters.found))
        return
    say(line_of(found.seen))
    _say_fate(found)
    for letter in letters.found:
        _say_letter(letter)
    _warn_letters(letters)
    event = found.seen.event
    shown = dict_of(found.seen)["fields"] if event is None else event.model_dump(mode="python", exclude_none=True)
    say(printable_lines(json_module.dumps(shown, ensure_ascii=False, indent=2, default=plain)))


@command
async def events_why(
    target: Target,
    app: OfApp = None,
    since: Since = None,
    scan: Scan = MOST_SCANNED,
    data: Data = None,
    json: Json = False,
) -> None:
    """Explain what an event did and why: the active rules, which match and which do not, skips and dead letters."""
    from graphweft_workers.reports.reasons import explain
    from graphweft_workers.wiring.rules import rules_maker

    limits = ScanLimits(entries=scan, since=since_time(since), on_progress=tell_progress)
    settings = Settings.load(data=data)
    async with _found(settings, target, app, limits) as found:
        reasons = await explain(
            found.bus, found.decoder, found.seen, found.relatives, found.effect, make=rules_maker(settings)
        )
    if json:
        print_json(
            {"position": found.seen.position, "kind": found.seen.kind, "id": found.seen.event and found.seen.event.id}
            | {"app_id": found.seen.app_id, "type": found.seen.event and found.seen.event.type}
            | fate_dict(found.effect, found.relatives, found.elsewhere, reasons.letters.found)
            | reasons.as_dict()
        )
        return
    say(line_of(found.seen))
    _say_fate(found)
    for line in reasons.lines(_PARAMS):
        say(printable(line))
    for letter in reasons.letters.found:
        _say_letter(letter)
    _warn_letters(reasons.letters)


@asynccontextmanager
async def _found(settings: Settings, target: str, app: str | None, limits: ScanLimits) -> AsyncGenerator[_Event]:
    """Yield the event that the user means. Raises ``InvalidSettings`` if there is none, or more than one."""
    if app is not None:
        check_app(app)
    async with running_bus(settings) as bus:
        from graphweft_workers.reports.effects import effect_of
        from graphweft_workers.reports.lookup import at_position, relatives_of

        decoder = await Decoder.of(bus)
        known = await ends(bus)
        seen, elsewhere = await at_position(bus, decoder, target, known), list[str]()
        if seen is not None and app is not None and seen.app_id != app:
            raise InvalidSettings(f"the entry at {target!r} is not an event of the app {app!r}")
        if seen is None:
            seen, elsewhere = await _by_id(bus, decoder, target, app, known, limits)
        relatives = await relatives_of(bus, decoder, seen, known, limits)
        async with _graph(settings) as graph:
            effect = await effect_of(bus, graph, seen)
        if effect.graph_fault:
            warn(printable(f"the graph does not say how far it is: {effect.graph_fault}"))
        yield _Event(
            bus=bus, seen=seen, decoder=decoder, relatives=relatives, effect=effect, elsewhere=elsewhere
        )  # fmt: skip


async def _by_id(
    bus: Bus, decoder: Decoder, event_id: str, app: str | None, known: dict[int, str], limits: ScanLimits
) -> tuple[DecodedEntry, list[str]]:
    from graphweft_workers.reports.lookup import with_id

    if app is not None:
        own = (await bus.partitions.layout()).partitions_of(app)
        known = {partition: end for partition, end in known.items() if partition in own}
    found = await with_id(bus, decoder, event_id, known, limits, app_id=app)
    events = {(seen.event.appid, seen.event.source) for seen in found if seen.event}
    name = repr(short(event_id, _ID))
    if not found:
        where = "the log" if app is None else f"the partitions that hold events of {app!r}"
        read = f"the newest {counted(limits.scanned, 'entry')} of {where}"
        more = ": raise --scan, or give PARTITION:OFFSET" if limits.cut else "; `graphweft events tail` shows some"
        raise InvalidSettings(f"no event with the id {name} in {read}{more}")
    if len(events) > 1:
        listed = "".join(
            f"\n  {seen.position}  app {seen.app_id}  source {seen.event.source}  {seen.event.type}"
            for seen in found[:_LISTED]
            if seen.event
        )
        more = f"\n  and {len(found) - _LISTED} others" if len(found) > _LISTED else ""
        raise InvalidSettings(
            printable_lines(
                f"{len(events)} events have the id {name}: give --app or one of the positions{listed}{more}"
            )
        )
    # The oldest entry is the one that takes effect.
    seen = next((each for each in reversed(found) if each.kind == "event"), found[-1])
    return seen, [each.position for each in found if each.partition != seen.partition and each.kind == "event"]


@asynccontextmanager
async def _graph(settings: Settings) -> AsyncGenerator[GraphStore | None]:
    """Yield the graph store; None, with a warning, while there is none that answers."""
    async with AsyncExitStack() as stack:
        graph: GraphStore | None = None
        try:
            graph = await stack.enter_async_context(running_graph(settings))
        except (NotRunning, InvalidSettings) as error:
            warn(f"without the graph's checkpoint: {error}")
        yield graph


def _say_fate(found: _Event) -> None:
    say(f"state: {_state(found.seen, found.effect)}")
    relatives = found.relatives
    if relatives.copy_of is not None:
        say(f"copy: of {relatives.copy_of}, so it has no effect of its own")
    for name, positions in (
        ("copies", relatives.copies),
        ("again", relatives.repeats),
        ("in other partitions", found.elsewhere),
    ):
        if positions:
            more = f" and {len(positions) - _LISTED} others" if len(positions) > _LISTED else ""
            say(f"{name}: {', '.join(positions[:_LISTED])}{more}")
    for retry in relatives.retries:
        assert retry.retry is not None
        say(printable(f"retry: {retry.position} of {retry.retry.rule}/{retry.retry.mutation}"))
    for new in relatives.corrections:
        assert new.event is not None
        assert new.retry is not None
        say(printable(f"corrected by: {new.event.id} at {new.position}, for {new.retry.rule}/{new.retry.mutation}"))
    for drop in relatives.drops:
        assert drop.dropped is not None
        what = "the event" if drop.dropped.rule is None else f"{drop.dropped.rule}/{drop.dropped.mutation}"
        say(printable(f"drop: {drop.position} of {what}"))
    if not relatives.complete:
        searched = counted(relatives.searched, "entry")
        say(f"copies and retries were looked for in the {searched} after it only: see --scan")


def _state(seen: DecodedEntry, effect: EntryEffect) -> str:
    if seen.kind == "activation":
        return "workers and responders follow it; it writes nothing" if not seen.note else "no effect"
    if seen.kind == "drop":
        return "it records a dropped dead letter; it writes nothing"
    checkpoint = "" if effect.checkpoint is None else f"the graph's checkpoint is at {effect.checkpoint or 'the start'}"
    match effect.state:
        case "applied":
            return f"applied: {checkpoint}"
        case "in_plan":
            done = sum(row[2] for row in effect.planned)
            rows = counted(len(effect.planned), "mutation")
            verb = "is" if done == 1 else "are"
            return f"in an unfinished batch up to {effect.plan_end}: {done} of its {rows} {verb} in the graph"
        case "passed":
            behind = f", and {checkpoint}: it wrote nothing" if checkpoint else ""
            return f"passed: workers are at {effect.position}{behind}"
        case "waiting":
            why = "" if effect.parked is None else f"; the app is parked ({effect.parked.why})"
            graph = f", and {checkpoint}" if checkpoint else ""
            return f"waiting: workers are at {effect.position or 'the start'}{graph}{why}"
        case "unknown":
            return f"unknown: workers are at {effect.position or 'the start'}, and the graph does not answer"


def _say_letter(letter: DeadLetter) -> None:
    rule = f" {letter.rule}/{letter.mutation}" if letter.rule else ""
    say(printable(f"dead letter: {letter.id}: {letter.reason}{rule}: {letter.message}"))


def _warn_letters(letters: Letters) -> None:
    if not letters.complete:
        warn("not all dead letters were searched: letters that stand for many events may be missing here")
