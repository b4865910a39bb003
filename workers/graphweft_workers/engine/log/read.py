"""Decodes and matches a range of the log: pure, without bus or graph.

Copies are dropped, and the rules select the mutations of each event. An unexpected error on one event becomes its dead
letter; the other events continue.
"""

from __future__ import annotations

import traceback
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Final, Literal

from graphweft_contracts import DeadLetter, DeadLetterReason, Event, InvalidEvent, RefusedEvent, wire
from graphweft_contracts.clock import SYSTEM_CLOCK, Clock
from graphweft_contracts.errors import UnreadableEvent
from graphweft_contracts.plurals import counted
from graphweft_contracts.rules_log import announced, only_announces
from graphweft_contracts.wire import WHOLE
from graphweft_rules import BoundMutation, MatchResult, RulesError, RuleSet, SkippedQuery
from graphweft_rules.files.findings import errors
from graphweft_rules.matching.pack import LogTime
from graphweft_rules.matching.rule_set import FailedMutation, InvalidValue
from graphweft_workers.engine.log.duplicates import Identity, RecentEvents, identity_of
from graphweft_workers.engine.log.passed_over import NOTHING, PassedOver
from graphweft_workers.engine.log.series import SeriesPlace, number_of
from graphweft_workers.ports.event_log import Entry
from graphweft_workers.rule_sets.active_rules import RulesCursor
from graphweft_workers.rule_sets.lost_rules import MissingRules, RulesLost
from graphweft_workers.support.lazy_logger import get_logger

logger = get_logger("graphweft.mutation")

_NOTHING: Final = MatchResult()
EXTRACT: Final = ("graphweft:extract", "extract")
"""Rule and mutation in the dead letter of an episode that no model could read: the memory workers retry it."""


@dataclass(slots=True, eq=False)  # frozen would double the cost, and there is one per event
class MatchedEvent:
    """One event with the mutations that it matches, in rule order, at least one."""

    entry: Entry
    event: Event
    mutations: tuple[BoundMutation, ...]
    rules: RuleSet
    """The rules that were active at the event."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Skip:
    """A mutation that lacked a value of an event, or an event whose workflow has no rules."""

    entry: Entry
    event: Event
    reason: Literal["skipped", "no_rules"]
    rule: str | None = None
    mutation: str | None = None
    message: str
    place: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Defect:
    """An unexpected error, without its text, which may quote an event."""

    kind: str
    frames: str


@dataclass(slots=True, kw_only=True)
class Range:
    """The content of a contiguous range of one partition."""

    apps: dict[str, list[MatchedEvent]] = field(default_factory=dict[str, list[MatchedEvent]])
    letters: list[DeadLetter] = field(default_factory=list[DeadLetter])
    skips: list[Skip] = field(default_factory=list[Skip])
    defects: list[Defect] = field(default_factory=list[Defect])
    """The defects of the dead letters with the reason ``internal_error``, in their order."""
    copied: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    """The app and the offset of each copy."""
    entries: int = 0
    """Entries that were matched."""
    lost: dict[str, str] = field(default_factory=dict[str, str])
    """By app: the digest of a lost rule set that an event of it needs. The app waits; what else is here of it, too."""

    dear: set[str] = field(default_factory=set[str])
    """Apps whose events took or may take too much of the worker's time: not all are matched. They are to be parked."""

    @property
    def copies(self) -> int:
        """The number of copies."""
        return len(self.copied)

    def check_rules(self, app_id: str) -> None:
        """Raise ``RulesLost`` if an event of the app needs a lost rule set."""
        if app_id in self.lost:
            raise RulesLost(self.lost[app_id])


@dataclass(slots=True, eq=False)
class ReadEntry:
    """An entry of a range, decoded."""

    entry: Entry
    size: int
    """Bytes of the entry's fields."""
    event: Event | None = None
    """None if the entry holds no event, or an invalid one."""
    rules: RuleSet | None = None
    """The rules that are active at the event."""
    retried: wire.Retry | None = None
    identity: Identity | None = None
    number: SeriesPlace | None = None
    error: Exception | None = None
    steps: int = 0
    """Of its conditions, about, at most; 0 before that is looked up."""


def decode_range(entries: Iterable[Entry], rules: RulesCursor) -> list[ReadEntry]:
    """Decode entries, in order. Never raises on content."""
    found: list[ReadEntry] = []
    for entry in entries:
        fields = entry.fields
        decoded = ReadEntry(entry, sum(map(len, fields.values())))
        found.append(decoded)
        if entry.erased:
            continue
        if wire.ACTIVATION in fields and (only_announces(fields) or rules.knows(announced(fields))):
            continue  # those without a record are counted where the rules are read
        try:
            if wire.DROPPED in fields and entry.dropped() is not None:
                continue
            event = entry.event()
            if wire.RETRY in fields:
                decoded.retried = wire.retry_of(fields)
            decoded.identity = identity_of(entry, event)
            if event.sequence is not None:
                decoded.number = number_of(entry, event)
            decoded.rules = rules.at(event.appid, entry.offset)
            decoded.event = event
        except Exception as error:  # noqa: BLE001 - one entry must not stop the others
            decoded.error = error
    return found


def read_range(
    partition: int,
    entries: Iterable[Entry],
    rules: RulesCursor,
    recent: RecentEvents,
    *,
    only: str | None = None,
    without: Collection[str] = (),
    passed_over: PassedOver = NOTHING,
) -> Range:
    """Decode and match entries in order; see ``match_range``. Workflows are compiled when an event needs them."""
    decoded = decode_range(entries, rules)
    return match_range(partition, decoded, recent, only=only, without=without, passed_over=passed_over)


def match_range(
    partition: int,
    entries: Iterable[ReadEntry],
    recent: RecentEvents,
    *,
    only: str | None = None,
    without: Collection[str] = (),
    passed_over: PassedOver = NOTHING,
    into: Range | None = None,
) -> Range:
    """Match entries in order; an entry that could not be decoded becomes a dead letter of the range.

    With ``only``, just that app's events are matched; events of the apps in ``without`` and what is ``passed_over`` are
    not. All entries are added to ``recent``.
    """
    result = Range() if into is None else into
    nothing = passed_over.is_empty
    for decoded in entries:
        result.entries += 1
        entry, event, active, error = decoded.entry, decoded.event, decoded.rules, decoded.error
        if event is None or active is None:
            recent.is_copy(None)
            if error is None or passed_over.entry(entry.offset):
                continue
            if isinstance(error, RefusedEvent):
                result.letters.append(letter_for(partition, entry, error.reason, str(error)))
            elif isinstance(error, UnreadableEvent):
                result.letters.append(letter_for(partition, entry, "unreadable", str(error)))
            elif isinstance(error, InvalidEvent):
                result.letters.append(letter_for(partition, entry, "invalid_event", str(error)))
            else:
                result.letters.append(letter_for(partition, entry, "internal_error", internal_error(error)))
                result.defects.append(defect_of(error))
            continue
        if not nothing and passed_over.unread(entry.offset, event.appid):
            recent.is_copy(None)
            continue
        copy = recent.is_copy(decoded.identity, decoded.number, entry.offset)
        if copy and not _retries_only_copy(decoded, recent):
            result.copied.append((event.appid, entry.offset))
            continue
        if event.appid in without or (only is not None and event.appid != only):
            continue
        if not nothing and passed_over.event(entry.offset, event.appid):
            continue
        if isinstance(active, MissingRules):
            result.lost.setdefault(event.appid, active.digest)
            continue
        try:
            _read_event(result, partition, entry, event, rules=active, retried=decoded.retried, passed_over=passed_over)
        except Exception as error:  # noqa: BLE001
            message = internal_error(error)
            result.letters.append(
                letter_for(partition, entry, "internal_error", message, event=event, rule=event.type, mutation=WHOLE)
            )
            result.defects.append(defect_of(error))
    return result


def _read_event(
    result: Range,
    partition: int,
    entry: Entry,
    event: Event,
    *,
    rules: RuleSet,
    retried: wire.Retry | None,
    passed_over: PassedOver,
) -> None:
    """Add one event to the result; on an error nothing of the event is added."""
    if retried is not None and (retried.rule, retried.mutation) == EXTRACT:
        return
    logged: LogTime | None = None
    if retried is not None:  # it is as old as the event, so it has no place among the entries around it
        logged = LogTime(wire.recorded_at(entry.fields, entry.received))
    elif rules.is_of_packs(event.type):
        logged = LogTime(entry.received, partition)
    one = None if retried is None or retried.mutation == WHOLE else retried
    if one is not None and passed_over.row(entry.offset, event.appid, one.rule, one.mutation):
        return
    packed: tuple[BoundMutation, ...] = ()
    if logged is not None and (one is None or rules.is_packed(one.rule, one.mutation)):
        refusal = rules.refusal(event)
        if refusal is not None:
            letter = letter_for(
                partition, entry, "invalid_event", refusal, event=event, rule=event.type, mutation=WHOLE
            )
            result.letters.append(letter)
            return
        if one is not None:
            packed = rules.packed_from(event, one.rule, one.mutation, logged)
    matched = MatchResult(mutations=packed) if packed else _NOTHING
    letters: list[DeadLetter] = []
    skips: list[Skip] = []
    if one is None:
        matched = rules.match_event(event, logged)
        if not matched.mutations and not rules.knows(event):
            skips.append(
                Skip(entry=entry, event=event, reason="no_rules", message=_without_rules(rules, event.workflow))
            )
    elif not packed:
        matched = _matched_one(rules, event, one)
        if rules.find_mutation(event.workflow or "", one.rule, one.mutation) is None:
            broken = rules.problem(event.workflow)
            message = (
                _broken(event.workflow, broken) + ", then retry this dead letter"
                if broken is not None
                else (
                    f"the rule {one.rule!r} of workflow {event.workflow!r} no longer has a mutation {one.mutation!r}: "
                    "restore it, then retry this dead letter"
                )
            )
            letters.append(
                letter_for(partition, entry, "missing_rule", message, event=event, rule=one.rule, mutation=one.mutation)
            )
    matched = passed_over.rest(entry.offset, event.appid, matched)
    if letters or skips or matched.skipped or matched.failed:
        skips += [
            Skip(
                entry=entry,
                event=event,
                reason="skipped",
                rule=skipped.rule,
                mutation=skipped.query,
                message=skipped.detail,
                place=str(skipped.place),
            )
            for skipped in matched.skipped
        ]
        for number, failed in enumerate(matched.failed):
            reason, message = failure_of(failed.error)
            letter = letter_for(
                partition, entry, reason, message, event=event, rule=failed.rule, mutation=failed.query,
                place=str(failed.place),
            )  # fmt: skip
            letters.append(letter.without_event() if number else letter)
        defects = [defect_of(each.error) for each in matched.failed if not isinstance(each.error, InvalidValue)]
        result.letters += letters
        result.skips += skips
        result.defects += defects
    if matched.mutations:
        found = MatchedEvent(entry, event, matched.mutations, rules)
        events = result.apps.get(event.appid)
        if events is None:
            result.apps[event.appid] = [found]
        else:
            events.append(found)


def _matched_one(rules: RuleSet, event: Event, retried: wire.Retry) -> MatchResult:
    """Return the result of one mutation for an event; an empty one if the mutation is not about the event."""
    if not retried.asks:
        try:
            bound = rules.bind_one(event, retried.rule, retried.mutation)
        except InvalidValue as error:
            return MatchResult(failed=(_failed(rules, event, retried, error),))
        if isinstance(bound, SkippedQuery):
            return MatchResult(skipped=(bound,))
        return MatchResult(mutations=(bound,)) if bound is not None else MatchResult()
    matched = rules.match_event(event)
    name = (retried.rule, retried.mutation)
    return MatchResult(
        mutations=tuple(each for each in matched.mutations if (each.mutation.rule, each.mutation.id) == name),
        skipped=tuple(each for each in matched.skipped if (each.rule, each.query) == name),
        failed=tuple(each for each in matched.failed if (each.rule, each.query) == name),
    )


def _failed(rules: RuleSet, event: Event, retried: wire.Retry, error: InvalidValue) -> FailedMutation:
    found = rules.find_mutation(event.workflow or "", retried.rule, retried.mutation)
    assert found is not None
    return FailedMutation(rule=found.rule, query=found.id, error=error, place=found.place)


def failure_of(error: Exception) -> tuple[DeadLetterReason, str]:
    """Return reason and message of the dead letter of a mutation whose matching raised an error."""
    if isinstance(error, InvalidValue):
        return "invalid_value", str(error)
    return "internal_error", internal_error(error)


def _broken(workflow: str | None, problem: RulesError) -> str:
    first, *more = errors(problem.findings) or problem.findings
    others = f", and {len(more)} more findings" if more else ""
    return (
        f"the rules of the workflow {workflow!r} do not compile with this version of graphweft ({first}{others}): "
        "correct them and push them"
    )


def _without_rules(rules: RuleSet, workflow: str | None) -> str:
    problem = rules.problem(workflow)
    if problem is not None:
        return f"{_broken(workflow, problem)}; then these events are applied"
    if workflow is None:
        return (
            "the event has no workflow, so no rules apply to it: set `workflow` where you emit the event, emit it "
            "again with another id, and drop this dead letter"
        )
    return (
        f"no rules are active for the workflow {workflow!r}: add its rules or correct the name of their folder, and "
        "push them; then these events are applied"
    )


def internal_error(error: Exception) -> str:
    """Return the message of a dead letter for an unexpected error; it quotes nothing of the event."""
    return (
        f"graphweft failed on this event ({type(error).__name__}): report the traceback in the worker's log; after an "
        "update, retry this dead letter"
    )


def defect_of(error: BaseException) -> Defect:
    """Return the type of an error and where it was raised, for the log; not its text."""
    return Defect(kind=type(error).__name__, frames="".join(traceback.format_tb(error.__traceback__)))


def log_defect(error: BaseException, app_id: str) -> None:
    """Log an unexpected error, without its text."""
    defect = defect_of(error)
    logger.error("defect", app_id=app_id, error=defect.kind, frames=defect.frames)


def row_id(partition: int, offset: str, rule: str | None, mutation: str | None) -> str:
    """Return the id of the dead letter of an entry, or of one mutation of it; a retry has the same id."""
    return f"{partition}:{offset}" if rule is None else f"{partition}:{offset}:{rule}/{mutation}"


def letter_of_lost(
    partition: int, after: str, events: int, before: str | None, *, app_id: str | None = None, again: bool = False,
    clock: Clock = SYSTEM_CLOCK,
) -> DeadLetter:  # fmt: skip
    """Return the dead letter of events that the bus trimmed before they were read; with ``app_id`` for that app.

    With ``again``, they are to take effect again, in a graph that is older than the log.
    """
    until = f"before {before}" if before else "up to the end of the partition"
    gone, whose = counted(events, "event"), f"graph of {app_id!r}" if app_id else "graph server"
    said = (
        f"the {whose} is older than the log, and {gone} after this position, {until}, are neither on the bus nor in an "
        "archive: what they wrote may be missing. Put back a newer copy of the graph server, or what the archive "
        "lacks, and run `graphweft rebuild --app APP --swap` for each app; or drop this letter to accept the loss"
        if again
        else f"the bus trimmed {gone} after this position, {until}, before they were read: their effects are missing. "
        "Keep more of the log, or add workers; emit the events again if you have them"
    )
    return DeadLetter(
        id=f"{partition}:{after or '0'}:trimmed" + (f":{app_id}" if app_id else ""),
        reason="trimmed",
        message=said,
        position=f"{partition}:{after or '0'}",
        count=events,
        time=clock.now(),
        app_id=app_id,
        fields={},
    )


def _retries_only_copy(decoded: ReadEntry, recent: RecentEvents) -> bool:
    """Tell whether an entry that counts as a copy retries the only entry that it is a copy of, which was refused."""
    retried, identity = decoded.retried, decoded.identity
    if retried is None or retried.rule != wire.WHOLE or identity is None:
        return False
    _, _, rest = retried.letter.partition(":")
    return recent.is_only_its_own_copy(identity, rest.split(":", 1)[0])


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
    clock: Clock = SYSTEM_CLOCK,
) -> DeadLetter:
    """Return the dead letter of an entry, or of one mutation of it.

    Its fields say when the log took the entry, so that a retry is as old. Without an event it is of the app that owns
    the partition, if one does.
    """
    kept = {name: value for name, value in entry.fields.items() if rule is None or name != wire.RETRY}
    return DeadLetter(
        id=row_id(partition, entry.offset, rule, mutation),
        reason=reason,
        message=_writable(message),
        position=f"{partition}:{entry.offset}",
        time=clock.now(),
        app_id=event.appid if event else entry.owner,
        event_id=_writable(event.id) if event else None,
        event_type=_writable(event.type) if event else None,
        workflow=_writable(event.workflow) if event and event.workflow is not None else None,
        rule=rule,
        mutation=mutation,
        place=place,
        fields=wire.pack({**kept, **wire.recording(entry.fields, entry.received)}),
    )


def _writable(text: str) -> str:
    """Return text that is valid in JSON: half of a surrogate pair becomes a question mark."""
    return text.encode(errors="replace").decode()
