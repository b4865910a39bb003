"""The page *Live*: events as they arrive, and what each did."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Final

from pydantic import Field, StringConstraints

from graphweft_contracts.clock import SYSTEM_CLOCK
from graphweft_contracts.layout import ALL_APPS
from graphweft_contracts.rules_log import Activation
from graphweft_rules import RuleSet
from graphweft_workers.console.access import Viewer
from graphweft_workers.console.questions import AppQuestion, Position
from graphweft_workers.console.sources import Sources
from graphweft_workers.engine.failures.set_aside import set_aside_id
from graphweft_workers.engine.log.read import row_id
from graphweft_workers.gateway.problems import Problem
from graphweft_workers.ports.bus import Bus
from graphweft_workers.ports.dead_letters import letter_count
from graphweft_workers.reports.effects import EntryEffect, covers, effects_of
from graphweft_workers.reports.entries import DecodedEntry
from graphweft_workers.reports.judging import Judgement, judge
from graphweft_workers.reports.lookup import copies_among
from graphweft_workers.reports.rules_at import activation_at
from graphweft_workers.reports.scan import ScanLimits, ends, newest_first, partitions_of
from graphweft_workers.reports.values import shown

MOST: Final = 100
"""Events of one answer."""
_SCANNED: Final = 2_000
"""Entries that are read for one answer: events of other apps are among them. As many are searched for copies."""
_SIZE: Final = 16 * 1024**2
"""Bytes of these entries."""
_LETTERS: Final = 200
"""Dead letters of many events that are looked at for one answer."""
_LOOKUPS: Final = 1_000
"""Entries and mutations of which the dead letter is looked up for one answer."""
_LETTERS_SIZE: Final = 2 * 1024**2
_ENDED: Final = frozenset({"applied", "passed"})
"""States of entries that workers have left behind."""
_PREVIEW: Final = 300
_VALUES: Final = 30
"""Values of an event's data in the list: it shows the first characters only."""

type Offset = Annotated[str, StringConstraints(pattern=r"^[0-9]{1,18}(-[0-9]{1,18})?$")]


class LiveQuestion(AppQuestion):
    """Asks for events after a cursor, or for the newest ones, and how far some earlier ones are."""

    cursor: dict[int, Offset] | None = Field(default=None, max_length=1_000)
    pending: list[Position] = Field(default_factory=list[str], max_length=MOST)
    limit: int = Field(default=50, ge=1, le=MOST)


async def live(sources: Sources, viewer: Viewer, question: LiveQuestion) -> dict[str, Any]:
    """Return the newest events that the page lacks, the newest first, and the state of those that it waits for."""
    app_id = viewer.apps(question.app)
    bus, decoder = sources.bus, await sources.decoder()
    reached = await ends(bus, await partitions_of(bus, app_id))
    found: list[DecodedEntry] = []
    limits = ScanLimits(entries=_SCANNED, size=_SIZE)
    cut = False
    activations = set[int]()
    async for partition, entry in limits.within(newest_first(bus.log, reached, _checked(bus, question.cursor or {}))):
        seen = await decoder.see(partition, entry)
        if not _is_shown(seen, app_id):
            continue
        if seen.activation is not None and not seen.note:  # it stands in every partition
            if seen.activation.number in activations:
                continue
            activations.add(seen.activation.number)
        if len(found) == question.limit:
            cut = True
            break
        found.append(seen)
    waiting = await _entries_at(sources, question.pending, app_id)
    effects = await effects_of(bus, sources.graph, [*found, *waiting])
    copies = await copies_among(bus, decoder, found, ScanLimits(entries=_SCANNED, size=_SIZE))
    # What waited and does so no longer may have failed since it was listed.
    ended = [seen for seen, effect in zip(waiting, effects[len(found) :], strict=True) if effect.state in _ENDED]
    judged = await _judge_all(sources, viewer, [*found, *ended], decoder.activations)
    letters, letters_partly = await _letters(bus, app_id, [*found, *ended], judged)
    outcomes = {
        seen.position: _outcome(seen, result, letters) for seen, result in zip(ended, judged[len(found) :], strict=True)
    }
    now = SYSTEM_CLOCK.now().timestamp()
    events = [
        _event(seen, effect, result, letters, redacts=sources.redacts)
        | ({"ms": _age_ms(seen, now)} if question.cursor is not None and effect.state == "applied" else {})
        if seen.position not in copies
        else _event(seen, effect, None, {}, redacts=sources.redacts) | _copy(copies[seen.position])
        for seen, effect, result in zip(found, effects, judged, strict=False)
    ]
    return {
        "events": events,
        "states": {
            seen.position: _state(effect) | {"ms": _age_ms(seen, now)} | outcomes.get(seen.position, {})
            for seen, effect in zip(waiting, effects[len(found) :], strict=True)
        },
        "cursor": {**(question.cursor or {}), **reached},
        "cut": (cut or limits.cut) and question.cursor is not None,
        "letters_partly": letters_partly,
        "partly": limits.cut and question.cursor is None,
        "scanned": limits.scanned,
        "graph_fault": next((True for effect in effects if effect.graph_fault), False),
    }


def _checked(bus: Bus, cursor: Mapping[int, str]) -> Mapping[int, str]:
    """Return a cursor. Raises ``Problem`` if it comes from another kind of bus."""
    if not all(map(bus.offsets.accepts, cursor.values())):
        raise Problem(422, "invalid-question", "the cursor is of another bus: load the page again")
    return cursor


def _is_shown(seen: DecodedEntry, app_id: str | None) -> bool:
    if app_id is None:
        return True
    if seen.activation is not None:
        return seen.activation.scope in (app_id, ALL_APPS)
    return seen.app_id == app_id


async def _entries_at(sources: Sources, positions: Iterable[str], app_id: str | None) -> list[DecodedEntry]:
    """Return the entries at positions, of one app or of all."""
    decoder = await sources.decoder()
    by_partition: dict[int, list[str]] = {}
    for position in positions:
        number, _, offset = position.partition(":")
        by_partition.setdefault(int(number), []).append(offset)
    count = await sources.bus.partitions.count()
    found: list[DecodedEntry] = []
    for partition, offsets in by_partition.items():
        if partition < count:
            try:
                entries = await sources.bus.log.entries(partition, offsets)
            except ValueError:
                raise Problem(422, "invalid-question", "a position is of another bus: load the page again") from None
            for entry in entries:
                seen = await decoder.see(partition, entry)
                if app_id in (None, seen.app_id):
                    found.append(seen)
    return found


async def _judge_all(
    sources: Sources, viewer: Viewer, entries: Sequence[DecodedEntry], activations: Sequence[Activation]
) -> list[Judgement | None]:
    """Return what the rules at its place do with each event; None for other entries, and where it may not be shown."""
    rules = [await _rules_at(sources, viewer, seen, activations) for seen in entries]
    # One thread for all: each turn of a thread waits for other requests.
    return await asyncio.to_thread(lambda: [_judge(*each) for each in zip(entries, rules, strict=True)])


async def _rules_at(
    sources: Sources, viewer: Viewer, seen: DecodedEntry, activations: Sequence[Activation]
) -> tuple[RuleSet, str] | None:
    """Return the rules at the place of an event and why they cannot be used, or None where they may not be shown."""
    event = seen.event
    if seen.activation is not None or event is None:
        return None
    if event.workflow is not None and not viewer.uses(event.appid, event.workflow):
        return None
    active = activation_at(activations, event.appid, seen.partition, seen.entry.offset)
    return await sources.usable_rules(active)


def _judge(seen: DecodedEntry, found: tuple[RuleSet, str] | None) -> Judgement | None:
    if found is None or seen.event is None:
        return None
    rules, lost = found
    if lost and not rules.is_of_packs(seen.event.type):
        return Judgement(reason=lost)
    try:
        return judge(seen, rules)
    except Exception as error:  # noqa: BLE001 - one event must not hide the others
        return Judgement(reason=f"it cannot be judged: {type(error).__name__}")


async def _letters(
    bus: Bus, app_id: str | None, found: Sequence[DecodedEntry], judged: Sequence[Judgement | None]
) -> tuple[dict[str, str], bool]:
    """Return the reasons of dead letters of these events, by their ids, and whether some letters were not looked at."""
    if not found or not (count := await letter_count(bus.dead_letters)):
        return {}, False
    ids: list[str] = []
    for seen, result in zip(found, judged, strict=True):
        ids.append(row_id(seen.partition, seen.entry.offset, None, None))
        if result is not None:
            ids += [_letter_id(seen, each.mutation.rule, each.mutation.id) for each in result.mutations]
            ids += [_letter_id(seen, each.rule, each.mutation) for each in (*result.skipped, *result.failed)]
    letters = await bus.dead_letters.read(limit=_LOOKUPS, ids=ids[:_LOOKUPS])
    reasons: dict[str, str] = {letter.id: letter.reason for letter in letters}
    many = await bus.dead_letters.read(limit=_LETTERS, app_id=app_id, size=_LETTERS_SIZE)
    of_partitions = {set_aside_id(seen.partition) for seen in found}
    aside = await bus.dead_letters.read(limit=len(of_partitions), ids=of_partitions)
    for letter in (*many, *aside):  # some stand for many events
        for seen in found:
            if covers(letter, seen):
                row = row_id(seen.partition, seen.entry.offset, letter.rule, letter.mutation)
                reasons.setdefault(row, letter.reason)
    if len(many) < count and app_id is not None:
        count = await letter_count(bus.dead_letters, app_id)
    return reasons, len(ids) > _LOOKUPS or len(many) < count


def _letter_id(seen: DecodedEntry, rule: str, mutation: str) -> str:
    return row_id(seen.partition, seen.entry.offset, rule, mutation)


def _event(
    seen: DecodedEntry, effect: EntryEffect, judged: Judgement | None, letters: Mapping[str, str], *, redacts: bool
) -> dict[str, Any]:
    found: dict[str, Any] = {
        "position": seen.position,
        "received": seen.entry.received.isoformat(),
        "kind": seen.kind,
        "note": seen.note,
        "fault": shown(seen.fault, redacts=redacts, text=_PREVIEW),
        **_outcome(seen, judged, letters),
        **_state(effect),
    }
    if seen.activation is not None:
        found |= {
            "app": seen.activation.restates or seen.activation.scope,
            "rules": seen.activation.digest[:12],
            "number": seen.activation.number,
        }
    event = seen.event
    if event is not None:
        found |= {
            "app": event.appid, "chat": event.chatid, "type": event.type, "id": event.id, "workflow": event.workflow,
            "agent": shown(event.data.get("agent"), redacts=redacts, text=100), "user": event.userid,
            "data": shown(event.data, redacts=redacts, text=_PREVIEW, depth=3, values=_VALUES),
        }  # fmt: skip
    if judged is None:
        return found
    return found | {
        "skipped": [
            {"rule": each.rule, "mutation": each.mutation, "reason": shown(each.reason, redacts=redacts)}
            for each in (*judged.skipped, *judged.failed)
        ],
        "rows": len(judged.mutations),
        "reason": shown(judged.reason, redacts=redacts),
    }


def _outcome(seen: DecodedEntry, judged: Judgement | None, letters: Mapping[str, str]) -> dict[str, Any]:
    """Return the dead letter of an entry, and its mutations, each with its dead letter."""
    found: dict[str, Any] = {"letter": letters.get(row_id(seen.partition, seen.entry.offset, None, None))}
    if judged is None:
        return found
    return found | {
        "matched": [
            {
                "rule": each.mutation.rule,
                "mutation": each.mutation.id,
                "letter": letters.get(_letter_id(seen, each.mutation.rule, each.mutation.id)),
            }
            for each in judged.mutations
        ]
    }


def _copy(first: str) -> dict[str, Any]:
    """Return what a copy of the event at ``first`` has in place of an effect of its own."""
    return {"state": "copy", "note": f"copy of {first}", "rows": 0}


def _age_ms(seen: DecodedEntry, now: float) -> int:
    """Return how long ago the bus took an entry, by two clocks that may differ a little."""
    return max(0, round((now - seen.entry.received.timestamp()) * 1000))


def _state(effect: EntryEffect) -> dict[str, Any]:
    return {"state": effect.state, "parked": None if effect.parked is None else effect.parked.why}
