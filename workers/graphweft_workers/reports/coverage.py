"""Counts which events the rules match, and which mutations never match."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from graphweft_contracts import Event

if TYPE_CHECKING:
    from graphweft_rules import RuleSet
    from graphweft_workers.reports.judging import Judged, Missed


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
    """By workflow, rule and mutation: those of the rule sets that were added."""

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

    def add(self, event: Event, judged: Judged, position: str | None = None) -> None:
        """Count one event."""
        self.events += 1
        workflow = event.workflow or ""
        for bound in judged.mutations:
            found = self.mutations.get((workflow, bound.mutation.rule, bound.mutation.id))
            if found is not None:
                found.matched += 1
        missed: tuple[Missed, ...] = (*judged.skipped, *judged.failed)
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
