"""What a range of the log does to the graphs: pure, no bus and no graph.

``read_range`` decodes, drops copies and matches rules; ``writes_after`` turns one app's share into writes that carry
the graph's mark from one event to the next.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from graphweft_contracts import DeadLetter, DeadLetterReason, Event, InvalidEvent, wire
from graphweft_rules import BoundMutation, Ruleset, Skipped
from graphweft_workers.bus.log import Entry
from graphweft_workers.graph.store import Mark, Write
from graphweft_workers.mutation.duplicates import Identity, RecentEvents

__all__ = ("EventWork", "PlannedWrite", "Range", "identity_of", "letter_for", "read_range", "writes_after")


@dataclass(frozen=True, slots=True, kw_only=True)
class EventWork:
    """One event that changes a graph, with its mutations in rule order (at least one)."""

    entry: Entry
    event: Event
    mutations: tuple[BoundMutation, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedWrite:
    """A write and where it comes from; ``mutation`` is None for a mere move of the mark."""

    write: Write
    work: EventWork
    mutation: BoundMutation | None


@dataclass(slots=True, kw_only=True)
class Range:
    """What a contiguous range of one partition amounts to."""

    apps: dict[str, list[EventWork]] = field(default_factory=dict[str, list[EventWork]])
    letters: list[DeadLetter] = field(default_factory=list[DeadLetter])
    skipped: list[tuple[Event, Skipped]] = field(default_factory=list[tuple[Event, Skipped]])
    copies: int = 0
    unknown: set[str | None] = field(default_factory=set[str | None])
    """Workflows that events name and that have no rules; None stands for events that name none."""


def read_range(
    partition: int, entries: Iterable[Entry], rules: Ruleset, recent: RecentEvents, *, now: datetime | None = None
) -> Range:
    """Decode and match the entries in order. Entries that break the contract become dead letters of the range."""
    result = Range()
    for entry in entries:
        try:
            event = wire.decode(entry.fields, received=entry.received)
            retried = wire.retry_of(entry.fields)
        except InvalidEvent as error:
            recent.is_copy(None)
            result.letters.append(letter_for(partition, entry, "invalid_event", str(error), now=now))
            continue
        if recent.is_copy(identity_of(entry, event)):
            result.copies += 1
            continue
        if retried is None:
            if event.workflow not in rules.workflows:
                result.unknown.add(event.workflow)
            matched = rules.match_event(event)
            mutations, skipped = matched.mutations, matched.skipped
        else:
            _, rule, mutation = retried
            bound = rules.bind_one(event, rule, mutation)
            mutations = (bound,) if isinstance(bound, BoundMutation) else ()
            skipped = (bound,) if isinstance(bound, Skipped) else ()
            if bound is None:
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
            result.apps.setdefault(event.appid, []).append(EventWork(entry=entry, event=event, mutations=mutations))
    return result


def identity_of(entry: Entry, event: Event) -> Identity:
    """Return what makes two entries one event. Tenants cannot shadow one another; a retry is an event of its own.

    Raises ``InvalidEvent`` when the entry says that it is a retry and does not say of what.
    """
    retried = wire.retry_of(entry.fields)
    if retried is not None:
        return (event.appid, "retry", retried.letter)
    return (event.appid, event.source, event.id)


def writes_after(mark: Mark, works: Sequence[EventWork], is_after: Callable[[str, str], bool]) -> list[PlannedWrite]:
    """Return the writes that lead from ``mark`` over ``works``, leaving out what the mark says is done."""
    writes: list[PlannedWrite] = []
    before = mark
    for work in works:
        offset = work.entry.offset
        done = mark.done if offset == mark.offset else 0
        if not done and not is_after(offset, mark.offset):
            continue
        last = len(work.mutations) - 1
        if done > last:
            # The rules have changed since the mark was set within this event, and fewer mutations are left of it.
            moved = Write(statement="", before=before, after=Mark(offset=offset))
            writes.append(PlannedWrite(write=moved, work=work, mutation=None))
            before = moved.after
        else:
            for index in range(done, last + 1):
                mutation = work.mutations[index]
                after = Mark(offset=offset, done=0 if index == last else index + 1)
                write = Write(
                    statement=mutation.mutation.cypher.statement,
                    params=mutation.params,
                    returns=mutation.mutation.cypher.returns,
                    before=before,
                    after=after,
                )
                writes.append(PlannedWrite(write=write, work=work, mutation=mutation))
                before = after
    return writes


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
