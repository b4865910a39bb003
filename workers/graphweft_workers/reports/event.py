"""One entry of the event log, and what became of it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from graphweft_contracts import DeadLetter, InvalidSettings
from graphweft_contracts.plurals import counted
from graphweft_workers.ports.bus import Bus
from graphweft_workers.ports.graph_store import GraphStore
from graphweft_workers.reports.entries import DecodedEntry
from graphweft_workers.reports.report import Notice, Part
from graphweft_workers.reports.scan import Decoder, ScanLimits, ends
from graphweft_workers.reports.short_texts import plain, short
from graphweft_workers.support.printable import printable, printable_lines

if TYPE_CHECKING:  # the bus answers before what replays is loaded
    from graphweft_workers.reports.effects import EntryEffect, Letters
    from graphweft_workers.reports.lookup import Relatives

_ID: Final = 100
_LISTED: Final = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryFate:
    """What became of an entry."""

    seen: DecodedEntry
    relatives: Relatives
    effect: EntryEffect
    elsewhere: Sequence[str] = ()
    """Positions of the same event in other partitions."""

    def to_dict(self, letters: Sequence[DeadLetter]) -> dict[str, Any]:
        """Return it as plain values, with the dead letters of the entry."""
        return {
            "state": self.effect.state,
            "committed": self.effect.position,
            "checkpoint": self.effect.checkpoint,
            "plan": None
            if self.effect.state != "in_plan"
            else {
                "end": self.effect.plan_end,
                "rows": [
                    {"rule": rule, "mutation": mutation, "done": done} for rule, mutation, done in self.effect.planned
                ],
            },
            "parked": self.effect.parked and asdict(self.effect.parked),
            "copy_of": self.relatives.copy_of,
            "copies": self.relatives.copies,
            "again": self.relatives.repeats,
            "elsewhere": list(self.elsewhere),
            "retries": [each.to_dict() | {"event": None} for each in self.relatives.retries],
            "corrections": [
                each.to_dict() | {"event": None, "id": each.event and each.event.id}
                for each in self.relatives.corrections
            ],
            "drops": [each.to_dict() for each in self.relatives.drops],
            "complete": self.relatives.complete,
            "dead_letters": [
                each.model_dump(mode="json", exclude={"fields", "offsets"}, exclude_none=True) for each in letters
            ],
        }

    def parts(self) -> Iterator[Part]:
        """Yield it for people."""
        yield self.seen.line()
        yield f"state: {_state(self.seen, self.effect)}"
        relatives = self.relatives
        if relatives.copy_of is not None:
            yield f"copy: of {relatives.copy_of}, so it has no effect of its own"
        for name, positions in (
            ("copies", relatives.copies),
            ("again", relatives.repeats),
            ("in other partitions", self.elsewhere),
        ):
            if positions:
                more = f" and {len(positions) - _LISTED} others" if len(positions) > _LISTED else ""
                yield f"{name}: {', '.join(positions[:_LISTED])}{more}"
        for retry in relatives.retries:
            assert retry.retry is not None
            yield printable(f"retry: {retry.position} of {retry.retry.rule}/{retry.retry.mutation}")
        for new in relatives.corrections:
            assert new.event is not None
            assert new.retry is not None
            mutation = f"{new.retry.rule}/{new.retry.mutation}"
            yield printable(f"corrected by: {new.event.id} at {new.position}, for {mutation}")
        for drop in relatives.drops:
            assert drop.dropped is not None
            what = "the event" if drop.dropped.rule is None else f"{drop.dropped.rule}/{drop.dropped.mutation}"
            yield printable(f"drop: {drop.position} of {what}")
        if not relatives.complete:
            searched = counted(relatives.searched, "entry")
            yield f"copies and retries were looked for in the {searched} after it only: see --scan"


@dataclass(frozen=True, slots=True, kw_only=True)
class EventReport:
    """One event as a whole, and what became of it."""

    fate: EntryFate
    letters: Letters

    @classmethod
    async def read(cls, bus: Bus, fate: EntryFate) -> EventReport:
        """Read the dead letters of an entry. Raises ``BusUnavailable``."""
        from graphweft_workers.reports.effects import letters_of

        return cls(fate=fate, letters=await letters_of(bus, fate.seen, ()))

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain values, for JSON."""
        return self.fate.seen.to_dict() | self.fate.to_dict(self.letters.found)

    def parts(self) -> Iterator[Part]:
        """Yield it for people."""
        yield from self.fate.parts()
        yield from letter_parts(self.letters)
        seen = self.fate.seen
        shown = seen.to_dict()["fields"] if seen.event is None else seen.event.model_dump(exclude_none=True)
        yield printable_lines(json.dumps(shown, ensure_ascii=False, indent=2, default=plain))


async def fate_of(
    bus: Bus,
    decoder: Decoder,
    graph: GraphStore | None,
    seen: DecodedEntry,
    limits: ScanLimits,
    *,
    elsewhere: Sequence[str] = (),
) -> EntryFate:
    """Return what became of an entry; without ``graph``, what the bus knows. Raises ``BusUnavailable``."""
    from graphweft_workers.reports.effects import effect_of
    from graphweft_workers.reports.lookup import relatives_of

    relatives = await relatives_of(bus, decoder, seen, await ends(bus), limits)
    return EntryFate(seen=seen, relatives=relatives, effect=await effect_of(bus, graph, seen), elsewhere=elsewhere)


async def find_entry(
    bus: Bus, decoder: Decoder, target: str, app: str | None, limits: ScanLimits
) -> tuple[DecodedEntry, list[str]]:
    """Return the entry at a position or with an id, and the positions of the same event in other partitions.

    Raises ``InvalidSettings`` if there is none, or more than one.
    """
    from graphweft_workers.reports.lookup import at_position

    seen = await at_position(bus, decoder, target, await ends(bus))
    if seen is None:
        return await _with_id(bus, decoder, target, app, limits)
    if app is not None and seen.app_id != app:
        raise InvalidSettings(f"the entry at {target!r} is not an event of the app {app!r}")
    return seen, []


async def _with_id(
    bus: Bus, decoder: Decoder, event_id: str, app: str | None, limits: ScanLimits
) -> tuple[DecodedEntry, list[str]]:
    from graphweft_workers.reports.lookup import with_id

    known = await ends(bus, None if app is None else (await bus.partitions.layout()).partitions_of(app))
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


def _state(seen: DecodedEntry, effect: EntryEffect) -> str:
    if seen.kind == "activation":
        return "workers and responders follow it; it writes nothing" if not seen.note else "no effect"
    if seen.kind == "drop":
        return "it records a dropped dead letter; it writes nothing"
    if seen.kind == "erased":
        return "it was erased; it writes nothing"
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


def letter_parts(letters: Letters) -> Iterator[Part]:
    """Yield the dead letters of an entry for people."""
    for letter in letters.found:
        rule = f" {letter.rule}/{letter.mutation}" if letter.rule else ""
        yield printable(f"dead letter: {letter.id}: {letter.reason}{rule}: {letter.message}")
    if not letters.complete:
        yield Notice("not all dead letters were searched: letters that stand for many events may be missing here")
