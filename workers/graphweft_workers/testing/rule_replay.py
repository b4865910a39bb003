"""What rules make of a recorded log, without a server: the same reading and matching as a worker's."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from os import PathLike
from pathlib import Path
from typing import Any

from graphweft_contracts import DeadLetterReason, Event
from graphweft_rules import RuleSet
from graphweft_rules.matching.explain import UnmatchedRule, unmatched, why_nothing
from graphweft_workers.engine.log.duplicates import RecentEvents
from graphweft_workers.engine.log.read import Range, read_range
from graphweft_workers.reports.rule_dicts import mutation_dict, unmatched_dict
from graphweft_workers.rule_sets.active_rules import FixedRules
from graphweft_workers.settings.settings import Settings
from graphweft_workers.testing.recorded_log import Log, RecordedEntry, recorded_entries
from graphweft_workers.wiring.rules import load_given_rules


@dataclass(frozen=True, slots=True, kw_only=True)
class EventMutation:
    """A mutation that a worker would apply for an event."""

    rule: str
    mutation: str
    place: str
    statement: str
    params: Mapping[str, Any]

    @property
    def name(self) -> str:
        """``rule/mutation``."""
        return f"{self.rule}/{self.mutation}"


@dataclass(frozen=True, slots=True, kw_only=True)
class EventSkip:
    """A mutation whose rule matched an event, but which lacks a value of it."""

    rule: str
    mutation: str
    place: str
    reason: str

    @property
    def name(self) -> str:
        """``rule/mutation``."""
        return f"{self.rule}/{self.mutation}"


@dataclass(frozen=True, slots=True, kw_only=True)
class EventFault:
    """Why an event, or one mutation of it, would become a dead letter: it is invalid, has no rules, or a rule fails."""

    reason: DeadLetterReason
    message: str
    rule: str | None = None
    """None for a fault of the whole event."""
    mutation: str | None = None
    place: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EventReplay:
    """What the rules make of one event."""

    number: int
    """The line of the event in the file, or its number among the events of an export or in memory, from 1."""
    id: str | None
    """None for an event that cannot be decoded."""
    type: str | None
    mutations: tuple[EventMutation, ...] = ()
    skipped: tuple[EventSkip, ...] = ()
    unmatched: tuple[UnmatchedRule, ...] = ()
    """Other rules for the type of the event."""
    faults: tuple[EventFault, ...] = ()
    copy: bool = False
    """Whether it is a copy of an earlier event, which has no effect."""
    reason: str = ""
    """Why nothing matches; empty if something does."""

    def to_dict(self) -> dict[str, Any]:
        """Return a mapping for JSON."""
        return {
            "number": self.number,
            "id": self.id,
            "type": self.type,
            "mutations": [asdict(each) for each in self.mutations],
            "skipped": [asdict(each) for each in self.skipped],
            "unmatched": [unmatched_dict(each) for each in self.unmatched],
            "faults": [asdict(each) for each in self.faults],
            "copy": self.copy,
            "reason": self.reason,
        }

    def has_effect_of(self, other: EventReplay) -> bool:
        """Tell whether both make the same of the event, wherever their rules are written."""
        return self._effect == other._effect

    @property
    def _effect(self) -> tuple[Any, ...]:
        return (
            self.id, self.copy, [(each.name, each.statement, each.params) for each in self.mutations],
            [(each.name, each.reason) for each in self.skipped],
            [(each.reason, each.rule, each.mutation) for each in self.faults],
        )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class EventDifference:
    """An event of which two rule sets make something else."""

    before: EventReplay
    after: EventReplay


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleReplay:
    """What a rule set makes of a log, in log order."""

    rules: str
    """The digest of the rule set; empty for rules without files."""
    events: tuple[EventReplay, ...]

    @property
    def mutations(self) -> tuple[EventMutation, ...]:
        """The mutations of all events."""
        return tuple(each for event in self.events for each in event.mutations)

    @property
    def skipped(self) -> tuple[EventSkip, ...]:
        """The skips of all events."""
        return tuple(each for event in self.events for each in event.skipped)

    @property
    def faults(self) -> tuple[EventFault, ...]:
        """The faults of all events."""
        return tuple(each for event in self.events for each in event.faults)

    def diff(self, after: RuleReplay) -> tuple[EventDifference, ...]:
        """Return the events of which the rules of ``after`` make something else, of the same log."""
        pairs = zip(self.events, after.events, strict=True)
        return tuple(EventDifference(before=one, after=other) for one, other in pairs if not one.has_effect_of(other))

    def to_dict(self) -> dict[str, Any]:
        """Return a mapping for JSON."""
        return {"rules": self.rules, "events": [each.to_dict() for each in self.events]}


def replay(log: Log, rules: str | PathLike[str] | RuleSet) -> RuleReplay:
    """Return what rules make of recorded events; no server is asked and nothing is written.

    ``log`` is a file with one event on each line, as ``graphweft emit`` reads it or ``graphweft events tail --json``
    prints it, a file of ``graphweft export``, or the events themselves. ``rules`` is a folder of workflows, whose
    ontologies and built-in mutations are those of the settings, as for ``graphweft try``; or a rule set, which is taken
    as it is.

    Raises ``RulesError`` if the rules have errors, ``InvalidSettings`` if the folder holds none or an export is
    damaged, and ``InvalidEvent`` if the file cannot be read. An invalid event in it is a fault of the result.
    """
    if not isinstance(rules, RuleSet):
        rules = load_given_rules(Settings.load(), Path(rules))
    recent: defaultdict[int, RecentEvents] = defaultdict(RecentEvents)
    found = (_event(rules, each, recent[each.partition]) for each in recorded_entries(log))
    # An entry that is neither an event nor a dead letter only looks like an activation.
    return RuleReplay(rules=rules.digest, events=tuple(each for each in found if each.type is not None or each.faults))


def _event(rules: RuleSet, recorded: RecordedEntry, recent: RecentEvents) -> EventReplay:
    read = read_range(recorded.partition, [recorded.entry], FixedRules(rules), recent)
    event = _decoded(recorded)
    mutations = tuple(
        EventMutation(**mutation_dict(bound))
        for matched in read.apps.values()
        for each in matched
        for bound in each.mutations
    )
    skipped = tuple(
        EventSkip(rule=skip.rule or "", mutation=skip.mutation or "", place=skip.place or "", reason=skip.message)
        for skip in read.skips
        if skip.reason == "skipped"
    )
    faults = _faults(read)
    reason = ""
    if read.copies:
        reason = "it is a copy of an earlier event"
    elif not (mutations or skipped):
        whole = next((fault.message for fault in faults if fault.reason != "no_rules"), None)
        reason = whole or ("" if event is None else why_nothing(rules, event))
    return EventReplay(
        number=recorded.number,
        id=None if event is None else event.id,
        type=None if event is None else event.type,
        mutations=mutations,
        skipped=skipped,
        unmatched=() if event is None or faults or read.copies else tuple(unmatched(rules, event)),
        faults=faults,
        copy=bool(read.copies),
        reason=reason,
    )


def _faults(read: Range) -> tuple[EventFault, ...]:
    letters = [
        EventFault(
            reason=letter.reason, message=letter.message, rule=letter.rule, mutation=letter.mutation, place=letter.place
        )
        for letter in read.letters
    ]
    return (
        *letters,
        *(EventFault(reason=skip.reason, message=skip.message) for skip in read.skips if skip.reason == "no_rules"),
    )


def _decoded(recorded: RecordedEntry) -> Event | None:
    try:
        return recorded.entry.event()
    except Exception:  # noqa: BLE001 - reading the entry says what is wrong
        return None
