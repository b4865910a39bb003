"""Counts which events the rules match, and which mutations never match."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final

from graphweft_contracts import Event
from graphweft_contracts.plurals import counted
from graphweft_workers.ports.bus import Bus
from graphweft_workers.ports.pages import forwards
from graphweft_workers.reports.report import Part, TextTable
from graphweft_workers.reports.rules_at import RulesAt, activation_at
from graphweft_workers.reports.scan import Decoder, ScanLimits, ends, newest_first
from graphweft_workers.reports.short_texts import short
from graphweft_workers.support.printable import printable

if TYPE_CHECKING:
    from graphweft_contracts.rules_log import StoredRules
    from graphweft_rules import RuleSet
    from graphweft_workers.reports.judging import Judgement, MissedMutation

_MOST: Final = 50
_CELL: Final = 400


@dataclass(slots=True, kw_only=True)
class UncoveredEvents:
    """Events of one type and workflow for which no mutation runs."""

    type: str
    workflow: str | None
    events: int = 0
    example: str
    """The id of one of the events."""
    position: str | None
    """Its position on the bus."""
    reason: str


@dataclass(slots=True, kw_only=True)
class MutationCount:
    """How many events a mutation ran for."""

    workflow: str
    rule: str
    mutation: str
    place: str
    matched: int = 0
    skipped: int = 0
    reasons: Counter[str] = field(default_factory=Counter[str])
    """Why it was skipped."""


@dataclass(slots=True, kw_only=True)
class Coverage:
    """The counts of a log."""

    events: int = 0
    matched: int = 0
    """Events for which at least one mutation runs."""
    skipped: int = 0
    """Events for which all mutations of the rules that match lack a value."""
    copies: int = 0
    retries: int = 0
    invalid: int = 0
    invalid_example: str | None = None
    unmatched: dict[tuple[str | None, str], UncoveredEvents] = field(
        default_factory=dict[tuple[str | None, str], UncoveredEvents]
    )
    mutations: dict[tuple[str, str, str], MutationCount] = field(
        default_factory=dict[tuple[str, str, str], MutationCount]
    )
    """By workflow, rule and mutation: all of the rule sets that were added."""

    @property
    def percent(self) -> float | None:
        """The share of events for which a mutation runs; None without events."""
        return 100 * self.matched / self.events if self.events else None

    @property
    def never(self) -> list[MutationCount]:
        """The mutations that neither ran nor were skipped."""
        return [each for each in self.mutations.values() if not each.matched and not each.skipped]

    def add_rules(self, rules: RuleSet) -> None:
        """Count the mutations of a rule set from now on."""
        for name, workflow in rules.workflows.items():
            for rule in workflow.mutation_rules:
                for part in rule.parts:
                    key = (name, part.rule, part.id)
                    self.mutations.setdefault(
                        key, MutationCount(workflow=name, rule=part.rule, mutation=part.id, place=str(part.place))
                    )

    def add(self, event: Event, judged: Judgement, position: str | None = None) -> None:
        """Count one event."""
        self.events += 1
        workflow = event.workflow or ""
        for bound in judged.mutations:
            found = self.mutations.get((workflow, bound.mutation.rule, bound.mutation.id))
            if found is not None:
                found.matched += 1
        missed: tuple[MissedMutation, ...] = (*judged.skipped, *judged.failed)
        for each in missed:
            found = self.mutations.get((workflow, each.rule, each.mutation))
            if found is not None:
                found.skipped += 1
                found.reasons[each.reason] += 1
        if judged.mutations:
            self.matched += 1
        elif missed:
            self.skipped += 1
        else:
            key = (event.workflow, event.type)
            group = self.unmatched.get(key) or self.unmatched.setdefault(
                key,
                UncoveredEvents(
                    type=event.type, workflow=event.workflow, example=event.id, position=position, reason=judged.reason
                ),
            )
            group.events += 1

    def add_invalid(self, position: str) -> None:
        """Count an entry that cannot be decoded."""
        self.invalid += 1
        self.invalid_example = self.invalid_example or position

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain values, for JSON."""
        return {
            "events": self.events,
            "matched": self.matched,
            "skipped": self.skipped,
            "percent": self.percent,
            "copies": self.copies,
            "retries": self.retries,
            "invalid": self.invalid,
            "invalid_example": self.invalid_example,
            "unmatched": [asdict(each) for each in sorted(self.unmatched.values(), key=lambda each: -each.events)],
            "mutations": [
                {
                    "workflow": each.workflow,
                    "rule": each.rule,
                    "mutation": each.mutation,
                    "place": each.place,
                    "matched": each.matched,
                    "skipped": each.skipped,
                    "reasons": dict(each.reasons),
                }
                for each in self.mutations.values()
            ],
        }

    def parts(self) -> Iterator[Part]:
        """Yield it for people."""
        if self.unmatched:
            groups = sorted(self.unmatched.values(), key=lambda each: -each.events)
            yield TextTable(
                ("type", "workflow", "events", "example", "reason"),
                [
                    (g.type, _cell(g.workflow or "none"), g.events, _cell(g.position or g.example), _cell(g.reason))
                    for g in groups[:_MOST]
                ],
                title="Events without a rule",
            )
            yield from _more(len(groups))
        if self.never:
            yield TextTable(
                ("workflow", "mutation", "place"),
                [(m.workflow, f"{m.rule}/{m.mutation}", m.place) for m in self.never[:_MOST]],
                title="Mutations that never match",
            )
            yield from _more(len(self.never))
        skipped = [each for each in self.mutations.values() if each.skipped]
        if skipped:
            yield TextTable(
                ("workflow", "mutation", "matched", "skipped", "reason"),
                [
                    (m.workflow, f"{m.rule}/{m.mutation}", m.matched, m.skipped, _cell(m.reasons.most_common(1)[0][0]))
                    for m in sorted(skipped, key=lambda each: -each.skipped)[:_MOST]
                ],
                title="Skips",
            )
            yield from _more(len(skipped))
        others = [("copies", self.copies), ("retries", self.retries), ("invalid entries", self.invalid)]
        rest = "".join(f", {count:,} {name}" for name, count in others if count)
        share = "" if self.percent is None else f" ({self.percent:.1f}%)"
        match = "matches" if self.matched == 1 else "match"
        of = f"{self.matched:,} of {counted(self.events, 'event')} {match} a rule{share}"
        yield f"{of}, {self.skipped:,} only with skips{rest}"


def _more(count: int) -> Iterator[Part]:
    if count > _MOST:
        yield f"and {count - _MOST} others: run `graphweft coverage --json`"


def _cell(text: str) -> str:
    return printable(short(text, _CELL))


def coverage_of_events(events: Iterable[Event], rules: RuleSet, app: str | None) -> Coverage:
    """Count events, each by its first copy; with ``app``, of one app."""
    from graphweft_workers.reports.judging import judge_event

    found = Coverage()
    found.add_rules(rules)
    known: set[tuple[str, ...]] = set()
    for event in events:
        if app is not None and event.appid != app:
            continue
        identity = (event.appid, *event.identity)
        if identity in known:
            found.copies += 1
            continue
        known.add(identity)
        found.add(event, judge_event(rules, event, explain=False))
    return found


async def coverage_of_log(
    bus: Bus, app: str | None, limits: ScanLimits, *, given: RuleSet | None, make: Callable[[StoredRules], RuleSet]
) -> Coverage:
    """Count the newest events of the log: by ``given`` rules, or by those that were active at their place.

    Copies and retries are not counted as events. ``make`` makes a rule set. Raises ``InvalidSettings`` if the bus has
    lost one, and ``BusUnavailable``.
    """
    from graphweft_workers.engine.log.duplicates import RecentEvents, identity_of
    from graphweft_workers.engine.log.series import number_of
    from graphweft_workers.reports.judging import judge_event

    decoder = await Decoder.of(bus)
    active = RulesAt(bus, make)
    found = Coverage()
    for each in [given] if given is not None else await active.current(decoder.activations, app):
        found.add_rules(each)
    partitions = None if app is None else (await bus.partitions.layout()).partitions_of(app)
    known = await ends(bus, partitions)
    first: dict[int, str] = {}
    async for partition, entry in limits.within(newest_first(bus.log, known)):
        first[partition] = entry.offset
    for partition, offset in first.items():
        recent = RecentEvents()
        before = [entry.offset for entry in await bus.log.before(partition, offset, limit=2) if entry.offset != offset]
        async for entry in forwards(bus.log, partition, before[-1] if before else "", known[partition]):
            seen = await decoder.see(partition, entry)
            event = None if seen.kind == "activation" else seen.event
            identity = None if event is None else identity_of(entry, event)
            if recent.is_copy(identity, None if event is None else number_of(entry, event), entry.offset):
                found.copies += app in (None, seen.app_id)
            elif seen.kind == "invalid" and app is None:
                found.add_invalid(seen.position)
            elif event is not None and app in (None, event.appid):
                if seen.retry is not None:
                    found.retries += 1
                    continue
                rules = given
                if rules is None:
                    place = (event.appid, partition, entry.offset)
                    rules = await active.rules(activation_at(decoder.activations, *place))
                found.add(event, judge_event(rules, event, explain=False), seen.position)
    return found
