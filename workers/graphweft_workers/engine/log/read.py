"""Decodes and matches a range of the log: pure, without bus or graph.

Copies are dropped, and the rules select the mutations of each event. An unexpected error on one event becomes its dead
letter; the other events continue.
"""

from __future__ import annotations

import traceback
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import ClassVar, Final, Literal

from msgspec import Struct

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
from graphweft_rules.matching.workflow import Candidates
from graphweft_workers.engine.log.duplicates import RecentEvents, identity_of
from graphweft_workers.engine.log.effect_ledger import NOTHING, EffectLedger
from graphweft_workers.engine.log.series import SeriesPlace, number_of
from graphweft_workers.ports.event_decoder import PlainEvent, whole
from graphweft_workers.ports.event_log import Entry
from graphweft_workers.rule_sets.active_rules import RulesCursor
from graphweft_workers.rule_sets.lost_rules import MissingRules, RulesLost
from graphweft_workers.support.lazy_logger import get_logger

logger = get_logger("graphweft.mutation")

_RARE: Final = frozenset({wire.ACTIVATION, wire.DROPPED, wire.RETRY})
"""The fields of entries that are not ordinary events."""
EXTRACT: Final = ("graphweft:extract", "extract")
"""Rule and mutation in the dead letter of an episode that no model could read: the memory workers retry it."""


class LoggedEvent(Struct, eq=False, gc=False):  # a dataclass would triple the cost, and there is one per event
    """One event of the log, and what is found out about it on its way to the graph."""

    entry: Entry
    plain: Event | PlainEvent
    """The event as it was read; see ``event``."""
    rules: RuleSet
    """The rules that are active at the event."""
    size: int = 0
    """Bytes of the entry's fields."""
    retried: wire.Retry | None = None
    number: SeriesPlace | None = None
    candidates: Candidates | None = None
    """The rules among which those for the event are; None before they are looked up."""
    steps: int = 0
    """Of its conditions, about, at most; 0 before that is looked up."""
    mutations: tuple[BoundMutation, ...] = ()
    """The mutations that it matches, in rule order; none before it is matched."""

    @property
    def event(self) -> Event:
        """The event. That of a plain one is made when it is asked for, which ordinary events never do."""
        self.plain = event = whole(self.plain)
        return event


@dataclass(slots=True, eq=False)
class VoidEntry:
    """An entry of the log that holds no event, or an invalid one."""

    steps: ClassVar[int] = 0
    entry: Entry
    size: int
    """Bytes of the entry's fields."""
    error: Exception | None = None


type ReadEntry = LoggedEvent | VoidEntry
"""An entry of a range, decoded."""


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

    apps: dict[str, list[LoggedEvent]] = field(default_factory=dict[str, list[LoggedEvent]])
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


def decode_range(entries: Iterable[Entry], rules: RulesCursor) -> list[ReadEntry]:
    """Decode entries, in order. Never raises on content."""
    found: list[ReadEntry] = []
    for entry in entries:
        fields = entry.fields
        size = sum(map(len, fields.values()))
        is_rare = not _RARE.isdisjoint(fields)
        try:
            if entry.erased or (is_rare and _is_void(entry, rules)):
                found.append(VoidEntry(entry, size))
                continue
            event = entry.read()
            decoded = LoggedEvent(entry, event, rules.at(event.appid, entry.offset), size)
            if is_rare:
                decoded.retried = wire.retry_of(fields)
            if event.sequence is not None:
                decoded.number = number_of(entry, event)
            found.append(decoded)
        except Exception as error:  # noqa: BLE001 - one entry must not stop the others
            found.append(VoidEntry(entry, size, error))
    return found


def _is_void(entry: Entry, rules: RulesCursor) -> bool:
    """Tell whether an entry only activates rules, or only records that a dead letter was dropped."""
    fields = entry.fields
    if wire.ACTIVATION in fields and (only_announces(fields) or rules.knows(announced(fields))):
        return True  # those without a record are counted where the rules are read
    return wire.DROPPED in fields and entry.dropped() is not None


def read_range(
    partition: int,
    entries: Iterable[Entry],
    rules: RulesCursor,
    recent: RecentEvents,
    *,
    only: str | None = None,
    without: Collection[str] = (),
    passed_over: EffectLedger = NOTHING,
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
    passed_over: EffectLedger = NOTHING,
    into: Range | None = None,
) -> Range:
    """Match entries in order; an entry that could not be decoded becomes a dead letter of the range.

    With ``only``, just that app's events are matched; events of the apps in ``without`` and what is ``passed_over`` are
    not. All entries are added to ``recent``.
    """
    result = Range() if into is None else into
    nothing = passed_over.is_empty
    for each in entries:
        result.entries += 1
        if isinstance(each, VoidEntry):
            recent.is_copy(None)
            _add_void(result, partition, each, passed_over)
            continue
        entry, event = each.entry, each.plain
        offset, app_id = entry.offset, event.appid
        if not nothing and passed_over.unread(offset, app_id):
            recent.is_copy(None)
            continue
        copy = recent.is_copy(identity_of(entry, event), each.number, offset)
        if copy and not _retries_only_copy(each, recent):
            result.copied.append((app_id, offset))
            continue
        if app_id in without or (only is not None and app_id != only):
            continue
        if not nothing and passed_over.event(offset, app_id):
            continue
        if isinstance(each.rules, MissingRules):
            result.lost.setdefault(app_id, each.rules.digest)
            continue
        try:
            _match_event(result, partition, each, passed_over)
        except Exception as error:  # noqa: BLE001
            message = internal_error(error)
            result.letters.append(
                letter_for(
                    partition, entry, "internal_error", message, event=each.event, rule=event.type, mutation=WHOLE
                )
            )
            result.defects.append(defect_of(error))
    return result


def _add_void(result: Range, partition: int, each: VoidEntry, passed_over: EffectLedger) -> None:
    """Add the dead letter of an entry that could not be decoded."""
    entry, error = each.entry, each.error
    if error is None or passed_over.entry(entry.offset):
        return
    reason: DeadLetterReason = "internal_error"
    if isinstance(error, RefusedEvent):
        reason = error.reason
    elif isinstance(error, InvalidEvent):
        reason = "unreadable" if isinstance(error, UnreadableEvent) else "invalid_event"
    is_defect = reason == "internal_error"
    result.letters.append(letter_for(partition, entry, reason, internal_error(error) if is_defect else str(error)))
    if is_defect:
        result.defects.append(defect_of(error))


def _match_event(result: Range, partition: int, each: LoggedEvent, passed_over: EffectLedger) -> None:
    """Match one event, and add what becomes of it; on an error nothing of the event is added."""
    entry, event, rules, retried = each.entry, each.plain, each.rules, each.retried
    matched: MatchResult | DeadLetter | None
    if retried is None and not rules.is_of_packs(event.type):
        matched = rules.match_rules(event, each.candidates)
    else:
        matched = _match_logged(partition, each, passed_over)
    if matched is None:
        return
    if isinstance(matched, DeadLetter):
        result.letters.append(matched)
        return
    skips: list[Skip] = []
    if not matched.mutations and (retried is None or retried.mutation == WHOLE) and not rules.knows(event):
        message = _without_rules(rules, event.workflow)
        skips.append(Skip(entry=entry, event=each.event, reason="no_rules", message=message))
    if not passed_over.is_empty:
        matched = passed_over.rest(entry.offset, event.appid, matched)
    if skips or matched.skipped or matched.failed:
        skips += [
            Skip(
                entry=entry,
                event=each.event,
                reason="skipped",
                rule=skipped.rule,
                mutation=skipped.query,
                message=skipped.detail,
                place=str(skipped.place),
            )
            for skipped in matched.skipped
        ]
        letters: list[DeadLetter] = []
        for number, failed in enumerate(matched.failed):
            reason, message = failure_of(failed.error)
            letter = letter_for(
                partition, entry, reason, message, event=each.event, rule=failed.rule, mutation=failed.query,
                place=str(failed.place),
            )  # fmt: skip
            letters.append(letter.without_event() if number else letter)
        defects = [defect_of(failed.error) for failed in matched.failed if not isinstance(failed.error, InvalidValue)]
        result.letters += letters
        result.skips += skips
        result.defects += defects
    if matched.mutations:
        each.mutations = matched.mutations
        events = result.apps.get(event.appid)
        if events is None:
            result.apps[event.appid] = [each]
        else:
            events.append(each)


def _match_logged(partition: int, each: LoggedEvent, passed_over: EffectLedger) -> MatchResult | DeadLetter | None:
    """Match an event of a pack, or a retry, for which it counts when the log took the event.

    Return its dead letter if it is refused or its mutation is gone, and None if it has no effect.
    """
    entry, event, rules, retried = each.entry, each.event, each.rules, each.retried
    if retried is None:
        logged = LogTime(entry.received, partition)
    elif (retried.rule, retried.mutation) == EXTRACT:
        return None
    else:  # it is as old as the event, so it has no place among the entries around it
        logged = LogTime(wire.recorded_at(entry.fields, entry.received))
    one = None if retried is None or retried.mutation == WHOLE else retried
    if one is not None and passed_over.row(entry.offset, event.appid, one.rule, one.mutation):
        return None
    if one is None or rules.is_packed(one.rule, one.mutation):
        refusal = rules.refusal(event)
        if refusal is not None:
            return letter_for(
                partition, entry, "invalid_event", refusal, event=event, rule=event.type, mutation=WHOLE
            )  # fmt: skip
        if one is not None and (packed := rules.packed_from(event, one.rule, one.mutation, logged)):
            return MatchResult(mutations=packed)
    if one is None:
        return rules.match_event(event, logged, each.candidates)
    if rules.find_mutation(event.workflow or "", one.rule, one.mutation) is not None:
        return _matched_one(rules, event, one)
    broken = rules.problem(event.workflow)
    message = (
        _broken(event.workflow, broken) + ", then retry this dead letter"
        if broken is not None
        else (
            f"the rule {one.rule!r} of workflow {event.workflow!r} no longer has a mutation {one.mutation!r}: "
            "restore it, then retry this dead letter"
        )
    )
    return letter_for(partition, entry, "missing_rule", message, event=event, rule=one.rule, mutation=one.mutation)


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
        f"no rules are active for the workflow {workflow!r}{_same_word(workflow, rules)}: add its rules or correct the "
        "name of their folder, and push them; then these events are applied. If the event names the wrong workflow, "
        "correct it where you emit the event, and emit it again with another id"
    )


def _same_word(workflow: str, rules: RuleSet) -> str:
    """Return a hint at a workflow whose name differs in upper and lower case only: more would cost too much."""
    same = next((name for name in rules.workflows if name.casefold() == workflow.casefold()), None)
    return "" if same is None else f" (did you mean {same!r}?)"


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
        "Keep more of the log, or add workers; emit the events again if you have them; to accept the loss, drop this "
        "letter"
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


def letter_of_new_log(
    partition: int, after: str, missing: int, *, exact: bool, clock: Clock = SYSTEM_CLOCK
) -> DeadLetter:
    """Return the dead letter of a log that lacks ``missing`` entries up to ``after``, where graphs were.

    If that is not ``exact``, it lacks at least so many: some that are there may be others.
    """
    return DeadLetter(
        id=f"{partition}:{after}:recreated",
        reason="trimmed",
        message=f"the log of this partition was recreated or lost its end: graphs were at this position, and "
        f"{'' if exact else 'at least '}{counted(missing, 'entry')} up to it {'was' if missing == 1 else 'were'} never "
        "written to the log that is there. Events that waited for an "
        "effect are lost, and a rebuild lacks all others. Restore the log, or emit the events again if you have them; "
        "drop this letter to accept the loss",
        position=f"{partition}:{after}",
        count=missing,
        time=clock.now(),
        fields={},
    )


def _retries_only_copy(each: LoggedEvent, recent: RecentEvents) -> bool:
    """Tell whether an entry that counts as a copy retries the only entry that it is a copy of, which was refused."""
    retried = each.retried
    if retried is None or retried.rule != wire.WHOLE:
        return False
    _, _, rest = retried.letter.partition(":")
    return recent.is_only_its_own_copy(identity_of(each.entry, each.plain), rest.split(":", 1)[0])


def letter_of_gap(partition: int, offset: str, app_id: str, *, clock: Clock = SYSTEM_CLOCK) -> DeadLetter:
    """Return the dead letter of an entry whose effects the graph of an app has, and which the log no longer has."""
    return DeadLetter(
        id=f"{partition}:{offset}:gap:{app_id}",
        reason="trimmed",
        message=f"the graph of {app_id!r} has the effects of the event at this position, which is neither on the bus "
        "nor in an archive: somebody removed it. The graph goes on, but a rebuild would lack them. `graphweft archive "
        "verify` lists what the archive lacks: put it back, or drop this letter to accept the loss",
        position=f"{partition}:{offset}",
        count=1,
        time=clock.now(),
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
