"""What a range of the log does to the graphs: pure, no bus and no graph.

Entries are decoded, copies are dropped, and rules say which mutations are to run for each event. Each event is read
inside a net: an error that nobody expected becomes its dead letter, and the other events go on.
"""

from __future__ import annotations

import traceback
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final, Literal

from graphweft_contracts import DeadLetter, DeadLetterReason, Event, InvalidEvent, wire
from graphweft_rules import BoundMutation, Matched, Ruleset, Skipped
from graphweft_workers.bus.log import Entry
from graphweft_workers.mutation.duplicates import RecentEvents, identity_of

WHOLE: Final = "*"
"""In the place of a mutation, in the dead letter of an event of which nothing took effect: a retry runs all of it."""

EXTRACT: Final = ("graphweft:extract", "extract")
"""In the place of rule and mutation, in the dead letter of an episode that no model could read: a retry reads it again,
and the workers that read episodes do that."""


@dataclass(slots=True, kw_only=True, eq=False)  # not frozen: that doubles the cost of making one for every event
class EventWork:
    """One event that changes a graph, with its mutations in rule order (at least one)."""

    entry: Entry
    event: Event
    mutations: tuple[BoundMutation, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Missed:
    """A mutation that was skipped for an event, or an event whose workflow has no rules."""

    entry: Entry
    event: Event
    reason: Literal["skipped", "no_rules"]
    rule: str | None = None
    mutation: str | None = None
    message: str
    place: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Defect:
    """An error that nobody expected. It holds no text of the error, which may quote an event."""

    kind: str
    frames: str


@dataclass(slots=True, kw_only=True)
class Range:
    """What a contiguous range of one partition amounts to."""

    apps: dict[str, list[EventWork]] = field(default_factory=dict[str, list[EventWork]])
    letters: list[DeadLetter] = field(default_factory=list[DeadLetter])
    missed: list[Missed] = field(default_factory=list[Missed])
    defects: list[Defect] = field(default_factory=list[Defect])
    """What is behind the letters with the reason ``internal_error``, in their order."""
    copies: int = 0


def read_range(
    partition: int,
    entries: Iterable[Entry],
    rules: Ruleset,
    recent: RecentEvents,
    *,
    only: str | None = None,
    without: Collection[str] = (),
    set_aside: Collection[str] = (),
    now: datetime | None = None,
) -> Range:
    """Decode and match the entries in order; what cannot be read becomes a dead letter of the range.

    ``only`` and ``without`` name the one app, or the apps, whose events alone, or not, are matched; ``set_aside`` are
    offsets of entries that an operator told the worker to pass over. All entries are remembered in ``recent``.
    """
    result = Range()
    for entry in entries:
        try:
            event = wire.decode(entry.fields, received=entry.received)
            retried = wire.retry_of(entry.fields)
            identity = identity_of(entry, event)
        except InvalidEvent as error:
            recent.is_copy(None)
            if entry.offset not in set_aside:
                result.letters.append(letter_for(partition, entry, "invalid_event", str(error), now=now))
            continue
        except Exception as error:  # noqa: BLE001 - whatever one entry does to us, the others must go on
            recent.is_copy(None)
            if entry.offset not in set_aside:
                result.letters.append(letter_for(partition, entry, "internal_error", internal_error(error), now=now))
                result.defects.append(defect_of(error))
            continue
        if recent.is_copy(identity):
            result.copies += 1
            continue
        if event.appid in without or (only is not None and event.appid != only) or entry.offset in set_aside:
            continue
        try:
            _read_event(result, partition, entry, event, rules=rules, retried=retried, now=now)
        except Exception as error:  # noqa: BLE001
            names = {"rule": event.type, "mutation": WHOLE}
            message = internal_error(error)
            result.letters.append(
                letter_for(partition, entry, "internal_error", message, event=event, now=now, **names)
            )
            result.defects.append(defect_of(error))
    return result


def _read_event(
    result: Range,
    partition: int,
    entry: Entry,
    event: Event,
    *,
    rules: Ruleset,
    retried: wire.Retry | None,
    now: datetime | None,
) -> None:
    """Add to the result what one event amounts to; when this raises, nothing of the event was added."""
    if retried is not None and (retried.rule, retried.mutation) == EXTRACT:
        return
    one = None if retried is None or retried.mutation == WHOLE else retried
    packed: tuple[BoundMutation, ...] = ()
    if one is None or rules.is_packed(one.rule, one.mutation):
        refusal = rules.refusal(event)
        if refusal is not None:
            names = {"rule": event.type, "mutation": WHOLE}
            result.letters.append(letter_for(partition, entry, "invalid_event", refusal, event=event, now=now, **names))
            return
        if one is not None:
            packed = rules.packed_from(event, one.rule, one.mutation)
    matched = Matched(mutations=packed)
    letters: list[DeadLetter] = []
    missed: list[Missed] = []
    if one is None:
        matched = rules.match_event(event)
        if not rules.knows(event):
            missed.append(Missed(entry=entry, event=event, reason="no_rules", message=_without_rules(event.workflow)))
    elif not packed:
        matched = _matched_one(rules, event, one)
        if rules.find_mutation(event.workflow or "", one.rule, one.mutation) is None:
            message = (
                f"the rule {one.rule!r} of workflow {event.workflow!r} has no mutation {one.mutation!r} any more; "
                "restore it and retry this letter"
            )
            names = {"rule": one.rule, "mutation": one.mutation}
            letters.append(letter_for(partition, entry, "missing_rule", message, event=event, now=now, **names))
    missed.extend(_missed(entry, event, skip) for skip in matched.skipped)
    for failed in matched.failed:
        names = {"rule": failed.rule, "mutation": failed.query, "place": str(failed.place)}
        message = internal_error(failed.error)
        letters.append(letter_for(partition, entry, "internal_error", message, event=event, now=now, **names))
    result.letters += letters
    result.missed += missed
    result.defects += [defect_of(failed.error) for failed in matched.failed]
    if matched.mutations:
        work = EventWork(entry=entry, event=event, mutations=tuple(matched.mutations))
        result.apps.setdefault(event.appid, []).append(work)


def _matched_one(rules: Ruleset, event: Event, retried: wire.Retry) -> Matched:
    """Return what the rules say about one mutation of an event, as far as it is about the event at all."""
    if not retried.asks:
        bound = rules.bind_one(event, retried.rule, retried.mutation)
        if isinstance(bound, Skipped):
            return Matched(skipped=(bound,))
        return Matched(mutations=(bound,)) if bound is not None else Matched()
    matched = rules.match_event(event)
    mine = (retried.rule, retried.mutation)
    return Matched(
        mutations=tuple(each for each in matched.mutations if (each.mutation.rule, each.mutation.id) == mine),
        skipped=tuple(each for each in matched.skipped if (each.rule, each.query) == mine),
        failed=tuple(each for each in matched.failed if (each.rule, each.query) == mine),
    )


def _missed(entry: Entry, event: Event, skip: Skipped) -> Missed:
    return Missed(
        entry=entry,
        event=event,
        reason="skipped",
        rule=skip.rule,
        mutation=skip.query,
        message=skip.detail,
        place=str(skip.place),
    )


def _without_rules(workflow: str | None) -> str:
    if workflow is None:
        return (
            "the event names no workflow, so no rules apply to it: set `workflow` where the events are emitted, emit "
            "it under another id, and drop this letter"
        )
    return (
        f"no rules are loaded for the workflow {workflow!r}: add its rules or correct the name of their folder, "
        "restart the workers, then retry this letter"
    )


def internal_error(error: Exception) -> str:
    """Return the message of a dead letter for an error that nobody expected; it quotes nothing of the event."""
    return (
        f"graphweft failed on this event ({type(error).__name__}): the worker's log has the traceback. Please report "
        "it; after an update, retry this letter"
    )


def defect_of(error: BaseException) -> Defect:
    """Return what a log may say about an error that nobody expected: where it was raised, and not what it says."""
    return Defect(kind=type(error).__name__, frames="".join(traceback.format_tb(error.__traceback__)))


def row_id(partition: int, offset: str, rule: str | None, mutation: str | None) -> str:
    """Return the name of a mutation of an entry, or of the entry: its dead letter's id, and what a retry goes by."""
    return f"{partition}:{offset}" if rule is None else f"{partition}:{offset}:{rule}/{mutation}"


def letter_of_lost(
    partition: int, after: str, events: int, before: str | None, *, app_id: str | None = None
) -> DeadLetter:
    """Return the dead letter of events that were trimmed from the bus before they were read.

    With ``app_id`` they were read for all apps but this one, which was behind.
    """
    until = f"in front of {before}" if before else "to the end of what there was"
    return DeadLetter(
        id=f"{partition}:{after or '0'}:trimmed" + (f":{app_id}" if app_id else ""),
        reason="trimmed",
        message=f"{events} events behind this position, {until}, were trimmed from the bus before they were read: "
        "their effects are missing. Keep more of the log, or add workers; emit the events again if you have them",
        position=f"{partition}:{after or '0'}",
        count=events,
        time=datetime.now(UTC),
        app_id=app_id,
        fields={},
    )


def letter_for(
    partition: int,
    entry: Entry,
    reason: DeadLetterReason,
    message: str,
    *,
    event: Event | None = None,
    rule: str | None = None,
    mutation: str | None = None,
    place: str | None = None,
    now: datetime | None = None,
) -> DeadLetter:
    """Return the dead letter of an entry, or of one mutation of it."""
    return DeadLetter(
        id=row_id(partition, entry.offset, rule, mutation),
        reason=reason,
        message=_writable(message),
        position=f"{partition}:{entry.offset}",
        time=now or datetime.now(UTC),
        app_id=event.appid if event else None,
        event_id=_writable(event.id) if event else None,
        event_type=_writable(event.type) if event else None,
        workflow=_writable(event.workflow) if event and event.workflow is not None else None,
        rule=rule,
        mutation=mutation,
        place=place,
        fields=wire.pack({name: value for name, value in entry.fields.items() if rule is None or name != wire.RETRY}),
    )


def _writable(text: str) -> str:
    """Return text that any JSON writer takes: half of a surrogate pair becomes a question mark."""
    return text.encode(errors="replace").decode()
