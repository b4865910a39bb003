"""What a range of the log does to the graphs: pure, no bus and no graph.

Entries are decoded, copies are dropped, and rules say which mutations are to run for each event.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

from graphweft_contracts import DeadLetter, DeadLetterReason, Event, InvalidEvent, wire
from graphweft_rules import BoundMutation, Ruleset, Skipped
from graphweft_workers.bus.log import Entry
from graphweft_workers.mutation.duplicates import Identity, RecentEvents

__all__ = ("EXTRACT", "WHOLE", "EventWork", "Range", "identity_of", "letter_for", "letter_of_lost", "read_range")

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


@dataclass(slots=True, kw_only=True)
class Range:
    """What a contiguous range of one partition amounts to."""

    apps: dict[str, list[EventWork]] = field(default_factory=dict[str, list[EventWork]])
    letters: list[DeadLetter] = field(default_factory=list[DeadLetter])
    skipped: list[tuple[Event, Skipped]] = field(default_factory=list[tuple[Event, Skipped]])
    copies: int = 0
    unknown: set[str | None] = field(default_factory=set[str | None])
    """Workflows that events name and that have no rules; None stands for events that name none."""
    waiting: tuple[str, str] | None = None
    """Offset and workflow of the entry in front of which the range ends early, because nobody has any rules yet."""


def read_range(
    partition: int, entries: Iterable[Entry], rules: Ruleset, recent: RecentEvents, *, now: datetime | None = None
) -> Range:
    """Decode and match the entries in order. Entries that break the contract become dead letters of the range.

    A set of rules without any workflow is one that is still to come: the range ends in front of the first event that
    its rules may be about.
    """
    result = Range()
    incomplete = not rules.workflows
    for entry in entries:
        try:
            event = wire.decode(entry.fields, received=entry.received)
            retried = wire.retry_of(entry.fields)
        except InvalidEvent as error:
            recent.is_copy(None)
            result.letters.append(letter_for(partition, entry, "invalid_event", str(error), now=now))
            continue
        if incomplete and event.workflow is not None and not rules.knows(event):
            result.waiting = (entry.offset, event.workflow)
            break
        if recent.is_copy(identity_of(entry, event)):
            result.copies += 1
            continue
        if retried is not None and (retried.rule, retried.mutation) == EXTRACT:
            continue
        one = None if retried is None or retried.mutation == WHOLE else retried
        packed: tuple[BoundMutation, ...] = ()
        if one is None or rules.is_packed(one.rule, one.mutation):
            refusal = rules.refusal(event)
            if refusal is not None:
                names = {"rule": event.type, "mutation": WHOLE}
                result.letters.append(
                    letter_for(partition, entry, "invalid_event", refusal, event=event, now=now, **names)
                )
                continue
            if one is not None:
                packed = rules.packed_from(event, one.rule, one.mutation)
        mutations: Sequence[BoundMutation]
        skipped: Sequence[Skipped]
        if packed:
            mutations, skipped = packed, ()
        elif one is None:
            if not rules.knows(event):
                result.unknown.add(event.workflow)
            matched = rules.match_event(event)
            mutations, skipped = matched.mutations, matched.skipped
        else:
            bound = _bound(rules, event, one)
            mutations = (bound,) if isinstance(bound, BoundMutation) else ()
            skipped = (bound,) if isinstance(bound, Skipped) else ()
            if bound is None and not one.asks:
                rule, mutation = one.rule, one.mutation
                message = (
                    f"the rule {rule!r} of workflow {event.workflow!r} has no mutation {mutation!r} any more; restore "
                    "it and retry this letter"
                )
                result.letters.append(
                    letter_for(
                        partition, entry, "missing_rule", message, event=event, rule=rule, mutation=mutation, now=now
                    )
                )
        result.skipped.extend((event, skip) for skip in skipped)
        if mutations:
            work = EventWork(entry=entry, event=event, mutations=tuple(mutations))
            result.apps.setdefault(event.appid, []).append(work)
    return result


def _bound(rules: Ruleset, event: Event, retried: wire.Retry) -> BoundMutation | Skipped | None:
    if not retried.asks:
        return rules.bind_one(event, retried.rule, retried.mutation)
    matched = rules.match_event(event)
    mine = (retried.rule, retried.mutation)
    ready = (bound for bound in matched.mutations if (bound.mutation.rule, bound.mutation.id) == mine)
    return next(ready, None) or next((skip for skip in matched.skipped if (skip.rule, skip.query) == mine), None)


def identity_of(entry: Entry, event: Event) -> Identity:
    """Return what makes two entries one event. Tenants cannot shadow one another; a retry is an event of its own.

    Raises ``InvalidEvent`` when the entry says that it is a retry and does not say of what.
    """
    retried = wire.retry_of(entry.fields)
    if retried is not None:
        return (event.appid, "retry", retried.letter)
    return (event.appid, event.source, event.id)


def letter_of_lost(partition: int, after: str, events: int, before: str | None) -> DeadLetter:
    """Return the dead letter of events that were trimmed from the bus before they were read."""
    until = f"in front of {before}" if before else "to the end of what there was"
    return DeadLetter(
        id=f"{partition}:{after or '0'}:trimmed",
        reason="trimmed",
        message=f"{events} events behind this position, {until}, were trimmed from the bus before they were read: "
        "their effects are missing. Keep more of the log, or add workers; emit the events again if you have them",
        position=f"{partition}:{after or '0'}",
        count=events,
        time=datetime.now(UTC),
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
    position = f"{partition}:{entry.offset}"
    return DeadLetter(
        id=position if rule is None else f"{position}:{rule}/{mutation}",
        reason=reason,
        message=message,
        position=position,
        time=now or datetime.now(UTC),
        app_id=event.appid if event else None,
        event_id=event.id if event else None,
        event_type=event.type if event else None,
        workflow=event.workflow if event else None,
        rule=rule,
        mutation=mutation,
        place=place,
        fields=wire.pack({name: value for name, value in entry.fields.items() if rule is None or name != wire.RETRY}),
    )
