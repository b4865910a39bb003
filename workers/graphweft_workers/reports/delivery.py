"""Sending many events to the bus, and their outcome. Outages are waited for; no event is lost or applied twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

from graphweft.transport import Outgoing, Transport
from graphweft_contracts import BusUnavailable, DeadLetter, Event, MissingRight, wire
from graphweft_contracts.clock import SYSTEM_CLOCK, Clock
from graphweft_contracts.plurals import counted
from graphweft_workers.engine.failures.dead_letter_counts import SKIPS, DeadLetterCause, count_causes
from graphweft_workers.engine.log.duplicates import WINDOW
from graphweft_workers.engine.log.series import AppRecord
from graphweft_workers.ports.bus import Bus
from graphweft_workers.ports.dead_letters import all_letters
from graphweft_workers.ports.offsets import is_after
from graphweft_workers.ports.partitions import PartitionStatus
from graphweft_workers.ports.position_note import PositionNote
from graphweft_workers.reports.report import Part
from graphweft_workers.reports.without_rule import EventKinds, WithoutRule
from graphweft_workers.support.printable import printable

_BATCH: Final = 500
_BATCH_BYTES: Final = 8 * 1024**2
"""With this many bytes of events, a batch has no room for another one."""
POLL_S: Final = 0.05
_RETRY_S: Final = 0.5
MOST_UNATTENDED_POLLS: Final = 100
"""Polls in a row without a worker, after which that is said: about five seconds. A new worker claims within less."""
_STUCK: Final = {
    "rules_lost": "a rule set that the bus has lost",
    "unavailable": "its graph, which does not answer",
    "slow_writes": "the end of its rest after slow writes",
    "other_graph": "its graph: the one under its name is another app's",
    "needs_rebuild": "a rebuild of its graph, which does not fit the log",
}
"""For what an app waits, by the reason for which it is parked."""
_AFTER_A_FIX: Final = "a corrected event needs a new id; after a fix of a rule, run `graphweft dlq retry --all`"
_MOST_CAUSES: Final = 20
_UNKNOWN: Final[tuple[PartitionStatus, ...]] = ()


@dataclass(slots=True)
class SentEvents:
    """The events that the bus has taken, with the last offset and the number of events of each partition."""

    events: int = 0
    last: dict[int, str] = field(default_factory=dict[int, str])
    counts: Counter[int] = field(default_factory=Counter[int])
    apps: set[str] = field(default_factory=set[str])
    positions: set[str] | None = None
    """`partition:offset` of every event; None unless the outcome is needed."""
    kinds: EventKinds | None = None
    """The kinds of these events; None unless the outcome is needed."""
    harmless: bool = False
    """Whether a second copy of these events changes nothing, whenever it comes."""
    without_outcome: bool = False
    """Whether the outcome was waited for and cannot be known."""
    marks: Mapping[int, Sequence[AppRecord]] | None = None
    """By partition: the marks of numbered events before these; None: not known."""

    @property
    def repeatable(self) -> bool:
        """Whether all events can be sent again now without effect, because workers still remember the first copies."""
        return self.harmless or max(self.counts.values(), default=0) <= WINDOW


async def send(
    transport: Transport,
    events: Iterable[Event],
    *,
    sent: SentEvents | None = None,
    give_up_s: float | None = None,
    on_progress: Callable[[int], None] = lambda _: None,
    on_outage: Callable[[BusUnavailable], None] = lambda _: None,
    clock: Clock = SYSTEM_CLOCK,
) -> SentEvents:
    """Append all events in order. A batch without a confirmation is appended again; workers drop second copies.

    ``sent`` continues the count of an earlier call. During an outage it keeps trying; raises ``BusUnavailable`` when
    the outage lasts longer than ``give_up_s``, and ``MissingRight`` at once.
    """
    sent = sent or SentEvents()
    for batch, outgoing in _batches(events):
        unavailable_since: float | None = None
        while True:
            try:
                positions = await transport.append(outgoing)
                break
            except MissingRight as error:
                raise MissingRight(_in_part(error, sent)) from error
            except BusUnavailable as error:
                now = clock.monotonic()
                if unavailable_since is None:
                    unavailable_since = now
                    on_outage(error)
                if give_up_s is not None and now - unavailable_since >= give_up_s:
                    raise BusUnavailable(_in_part(error, sent)) from error
                await clock.sleep(_RETRY_S)
        sent.apps.update(event.appid for event in batch)
        if sent.kinds is not None:
            for event in batch:
                sent.kinds.add(event)
        if sent.positions is not None:
            sent.positions.update(positions)
        for position in positions:
            partition, _, offset = position.partition(":")
            sent.last[int(partition)] = offset
            sent.counts[int(partition)] += 1
        sent.events += len(batch)
        on_progress(len(batch))
    return sent


def _in_part(error: BusUnavailable, sent: SentEvents) -> str:
    return f"{error} (sent before: {counted(sent.events, 'event')}; {how_to_go_on(sent)})"


@dataclass(slots=True)
class _Patience:
    """Bears outages that last no longer than ``give_up_s``. That a user lacks a right is no outage."""

    give_up_s: float | None
    clock: Clock
    on_outage: Callable[[BusUnavailable], None]
    """Called once for each outage: one that only an operator can end looks like any other."""
    _since: float | None = None

    def bear(self, error: BusUnavailable) -> None:
        """Raise the error if waiting does not help, or has taken too long."""
        now = self.clock.monotonic()
        began = self._since is None
        self._since = now if self._since is None else self._since
        if isinstance(error, MissingRight) or (self.give_up_s is not None and now - self._since >= self.give_up_s):
            raise error
        if began:
            self.on_outage(error)

    def renew(self) -> None:
        """Forget an outage that is over."""
        self._since = None


def _batches(events: Iterable[Event]) -> Iterator[tuple[list[Event], list[Outgoing]]]:
    batch: list[Event] = []
    outgoing: list[Outgoing] = []
    size = 0
    for event in events:
        batch.append(event)
        outgoing.append(Outgoing(key=event.key, fields=wire.encode(event)))
        size += len(outgoing[-1].fields[wire.DATA])
        if len(batch) == _BATCH or size >= _BATCH_BYTES:
            yield batch, outgoing
            batch, outgoing, size = [], [], 0
    if batch:
        yield batch, outgoing


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryOutcome:
    """The outcome of events. Each event counts once, by the worst outcome of its mutations."""

    applied: int
    """The graph holds every effect that the rules define for the event, which may be none by their conditions."""
    skipped: int
    """At least one mutation lacked a value or its rules."""
    dead_lettered: int
    """At least one mutation failed, or the event as a whole. Skipped events are dead letters too."""
    repeated: int = 0
    """The bus had them before, so they have no effect again, whatever the outcome of the first copies."""
    causes: Sequence[DeadLetterCause] = ()
    without_rule: Sequence[WithoutRule] = ()
    """Kinds of events that no rule is for."""
    unmatched: int = 0
    """How many events these are. A misspelt type is among them, so they do not count as applied."""

    def with_unmatched(self, kinds: Sequence[WithoutRule]) -> DeliveryOutcome:
        """Return the outcome with the kinds of events that no rule is for."""
        unmatched = min(self.applied, sum(kind.events for kind in kinds))
        return replace(self, applied=self.applied - unmatched, without_rule=kinds, unmatched=unmatched)

    @property
    def complete(self) -> bool:
        """Whether all new events were applied."""
        return not self.skipped and not self.dead_lettered

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain values, for JSON."""
        return asdict(self)

    def parts(self) -> Iterator[Part]:
        """Yield it for people."""
        unmatched = f"{self.unmatched:,} without a rule, " if self.unmatched else ""
        yield f"{self.applied:,} applied, {unmatched}{self.skipped:,} skipped, {self.dead_lettered:,} failed"
        if self.repeated:
            one = "was on the bus before and has no effect again"
            many = "were on the bus before and have no effect again"
            yield f"{self.repeated:,} {one if self.repeated == 1 else many}: {_AFTER_A_FIX}"
        for kind in self.without_rule[:_MOST_CAUSES]:
            yield printable(f"  {kind.events:,} x without effect: workflow {kind.workflow!r}: {kind.reason}")
        if (more := len(self.without_rule) - _MOST_CAUSES) > 0:
            yield f"  and {counted(more, 'other type')} without a rule: `graphweft coverage` counts them all"
        for cause in self.causes[:_MOST_CAUSES]:
            place = f" at {cause.place}" if cause.place else ""
            yield f"  {cause.events:,} x {cause.reason}: {cause.name}{place}: {cause.message}"
        if not self.complete:
            yield (
                "events that were skipped or failed are dead letters (graphweft dlq list); after a fix run: graphweft "
                "rules push, graphweft dlq retry --all"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishReport:
    """What the bus has taken of events from elsewhere, and their outcome if it was waited for."""

    sent: SentEvents
    outcome: DeliveryOutcome | None
    refused: int | None = None
    """Invalid lines; None where there are no lines."""
    left_out: Mapping[str, int] = field(default_factory=dict[str, int])
    """Parts of messages that no event has."""

    @property
    def exit_code(self) -> int | None:
        """The exit code of a command: 2 if lines were refused, 1 unless all events are known to be applied."""
        if self.refused:
            return 2
        return 1 if self.sent.without_outcome or (self.outcome is not None and not self.outcome.complete) else None

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain values, for JSON."""
        found: dict[str, Any] = {"sent": self.sent.events, "last": {str(p): o for p, o in self.sent.last.items()}}
        if self.refused is not None:
            found["refused"] = self.refused
        if self.left_out:
            found["left_out"] = dict(self.left_out)
        return found if self.outcome is None else found | self.outcome.to_dict()

    def parts(self) -> Iterator[Part]:
        """Yield it for people."""
        yield f"{counted(self.sent.events, 'event')} sent" + (
            f", {counted(self.refused, 'line')} refused" if self.refused else ""
        )
        if self.outcome is not None:
            yield from self.outcome.parts()


async def outcome_of(
    bus: Bus,
    sent: SentEvents,
    *,
    give_up_s: float | None = None,
    on_outage: Callable[[BusUnavailable], None] = lambda _: None,
    clock: Clock = SYSTEM_CLOCK,
) -> DeliveryOutcome:
    """Return the outcome of events that the workers have processed, from the dead letters.

    Waits through outages of less than ``give_up_s``, each of which calls ``on_outage`` once; raises ``BusUnavailable``
    after longer ones, and ``MissingRight``.
    """
    patience = _Patience(give_up_s, clock, on_outage)
    while True:
        try:
            return await _outcome_of(bus, sent)
        except BusUnavailable as error:
            patience.bear(error)
            await clock.sleep(POLL_S)


async def _outcome_of(bus: Bus, sent: SentEvents) -> DeliveryOutcome:
    assert sent.positions is not None
    skipped: set[str] = set()
    failed: set[str] = set()
    mine: list[DeadLetter] = []
    for letter in await all_letters(bus.dead_letters):
        if letter.reason == "trimmed":  # its offset lies before the events that it stands for
            continue
        offsets = letter.entries
        hit = [place for offset in offsets if (place := f"{letter.partition}:{offset}") in sent.positions]
        if hit:
            (skipped if letter.reason in SKIPS else failed).update(hit)
            only = tuple(place.partition(":")[2] for place in hit)
            mine.append(letter.of_entries(only) if letter.offsets else letter)
    skipped -= failed
    repeated = await _repeated(bus, sent) - skipped - failed
    return DeliveryOutcome(
        applied=sent.events - len(skipped) - len(failed) - len(repeated),
        skipped=len(skipped),
        dead_lettered=len(failed),
        repeated=len(repeated),
        causes=count_causes(mine),
    )


async def _repeated(bus: Bus, sent: SentEvents) -> set[str]:
    """Return the positions of events that the workers skip as second copies."""
    from graphweft_workers.engine.log.history import copies

    assert sent.positions is not None
    mine: dict[int, list[str]] = {}
    for place in sent.positions:
        name, _, at = place.partition(":")
        mine.setdefault(int(name), []).append(at)
    found: set[str] = set()
    for partition, offsets in mine.items():
        first = last = offsets[0]
        for offset in offsets:
            first = offset if is_after(first, offset) else first
            last = offset if is_after(offset, last) else last
        only = next(iter(sent.apps)) if len(sent.apps) == 1 else None
        records = None if sent.marks is None else sent.marks.get(partition, ())
        later = copies(bus.log, partition, first, last, only=only, records=records)
        found.update([f"{partition}:{offset}" async for offset in later])
    return found & sent.positions


async def wait_until_applied(
    bus: Bus,
    last: dict[int, str],
    *,
    apps: Iterable[str] | None = None,
    timeout_s: float | None = None,
    give_up_s: float | None = None,
    on_lag: Callable[[int], None] = lambda _: None,
    on_unattended: Callable[[Sequence[int]], None] = lambda _: None,
    on_stuck: Callable[[str, str], None] = lambda _app, _why: None,
    on_outage: Callable[[BusUnavailable], None] = lambda _: None,
    clock: Clock = SYSTEM_CLOCK,
    poll_s: float = POLL_S,
) -> bool:
    """Wait until every partition is committed up to ``last``. Return False after ``timeout_s``.

    Waits through outages of less than ``give_up_s``, each of which calls ``on_outage`` once; raises ``BusUnavailable``
    after longer ones, and ``MissingRight``. ``apps`` are the apps of the events. Parked events of other apps are not
    waited for. ``on_unattended`` is called once with partitions that are behind and have had no worker for a while,
    ``on_stuck`` once for each of the apps that waits for its graph or its rules, with the reason.
    """
    own_apps = None if apps is None else frozenset(apps)
    until = None if timeout_s is None else clock.monotonic() + timeout_s
    patience = _Patience(give_up_s, clock, on_outage)
    unattended = 0
    stuck: set[str] = set()
    while True:
        try:
            status = await bus.partitions.status()
            patience.renew()
        except BusUnavailable as error:
            patience.bear(error)
            status = _UNKNOWN
        if status:
            on_lag(sum(partition.lag for partition in status))
            mine = (part for part in status if part.id in last)
            behind = [
                part for part in mine
                if is_after(last[part.id], PositionNote.decode(part.note).applied(part.position, own_apps))
            ]  # fmt: skip
            if not behind:
                return True
            for app, why in _stuck(behind, own_apps):
                if app not in stuck:
                    stuck.add(app)
                    on_stuck(app, why)
            alone = [part.id for part in behind if part.owner is None]
            unattended = unattended + 1 if alone else 0
            if unattended == MOST_UNATTENDED_POLLS:
                on_unattended(alone)
        if until is not None and clock.monotonic() > until:
            return False
        await clock.sleep(poll_s)


def _stuck(partitions: Iterable[PartitionStatus], apps: Set[str] | None) -> Iterator[tuple[str, str]]:
    for part in partitions:
        for app, parked in PositionNote.decode(part.note).parked.items():
            if parked.why in _STUCK and (apps is None or app in apps):
                yield app, _STUCK[parked.why]


def how_to_go_on(sent: SentEvents) -> str:
    """Return what to do after events were sent in part."""
    if sent.harmless or not sent.events:
        return "it is safe to run again: give the same command again, and the copies have no effect"
    if sent.repeatable:
        return f"it is safe to run again until an app of these events has sent {WINDOW:,} newer ones"
    return f"send only the rest: an event with {WINDOW:,} newer ones of its app would take effect twice"
