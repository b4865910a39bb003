"""What rules do with an event: the mutations, the skips, and why other rules do not match. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import override

from graphweft_contracts import DeadLetter, Event
from graphweft_contracts.wire import WHOLE
from graphweft_rules import BoundMutation, RuleSet
from graphweft_rules.matching.explain import UnmatchedRule, unmatched, why_nothing
from graphweft_workers.engine.log.duplicates import RecentEvents
from graphweft_workers.engine.log.read import EXTRACT, Skip, failure_of, read_range
from graphweft_workers.reports.entries import DecodedEntry
from graphweft_workers.rule_sets.active_rules import FixedRules


@dataclass(frozen=True, slots=True, kw_only=True)
class MissedMutation:
    """A mutation whose rule matches but lacks a value, or that graphweft could not match."""

    rule: str
    mutation: str
    place: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """What a rule set does with one event."""

    mutations: tuple[BoundMutation, ...] = ()
    skipped: tuple[MissedMutation, ...] = ()
    failed: tuple[MissedMutation, ...] = ()
    unmatched: Sequence[UnmatchedRule] = ()
    """Other rules for the event's type."""
    reason: str = ""
    """Why no rule applies; empty if one does."""


def judge_event(rules: RuleSet, event: Event, *, explain: bool = True) -> Judgement:
    """Return what rules do with an event. Without ``explain``, rules that do not match are not listed."""
    refusal = rules.refusal(event)
    if refusal is not None:
        return Judgement(reason=refusal)
    matched = rules.match_event(event)
    skipped = tuple(
        MissedMutation(rule=each.rule, mutation=each.query, place=str(each.place), reason=each.detail)
        for each in matched.skipped
    )
    failed = tuple(
        MissedMutation(rule=each.rule, mutation=each.query, place=str(each.place), reason=failure_of(each.error)[1])
        for each in matched.failed
    )
    return Judgement(
        mutations=matched.mutations,
        skipped=skipped,
        failed=failed,
        unmatched=unmatched(rules, event) if explain else (),
        reason="" if matched.mutations or skipped or failed else why_nothing(rules, event),
    )


def judge(seen: DecodedEntry, rules: RuleSet) -> Judgement:
    """Return what rules do with an entry that holds an event; a retry runs only the mutation that it names."""
    assert seen.event is not None
    if seen.retry is None or seen.retry.mutation == WHOLE:
        return judge_event(rules, seen.event)
    if (seen.retry.rule, seen.retry.mutation) == EXTRACT:
        return Judgement(reason="the memory workers read this episode again; it has no mutation")
    found = read_range(seen.partition, [seen.entry], _Only(rules), RecentEvents())
    return Judgement(
        mutations=tuple(bound for events in found.apps.values() for each in events for bound in each.mutations),
        skipped=tuple(map(_missed, found.skips)),
        failed=tuple(map(_missed, found.letters)),
        reason="" if found.apps or found.skips or found.letters else "the mutation is not about the event",
    )


class _Only(FixedRules):
    """For an entry that is no activation."""

    @override
    def knows(self, number: int | None) -> bool:
        return False


def _missed(found: Skip | DeadLetter) -> MissedMutation:
    return MissedMutation(
        rule=found.rule or "", mutation=found.mutation or "", place=found.place or "", reason=found.message
    )
