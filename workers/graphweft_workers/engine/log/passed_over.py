"""Events and rows of a partition that have no effect at their place in the log.

A live worker passes over the events that an operator has set aside. A rebuild also passes over what had no effect when
the log was lived: the log and the dead letters record it. A row that failed either still has its dead letter, or
somebody has retried or dropped it, which is an entry behind it.

By other rules, each row is tried at its own place, also one that failed when the log was lived. Then a retry has no
effect at its place, because the row has had its own. What an operator has dropped or set aside stays out. A corrected
event takes effect, and the row that it corrects does not. An entry that could not be read as an event stays none; its
retry is the event.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Final, Self

from graphweft_contracts import DeadLetter, InvalidEvent, wire
from graphweft_contracts.dead_letters import UNREAD
from graphweft_rules import MatchResult
from graphweft_workers.ports.bus import Bus
from graphweft_workers.ports.event_log import CommittedPosition, Entry
from graphweft_workers.ports.offsets import is_after
from graphweft_workers.ports.pages import pages, what_is_there

_MOST_LETTERS: Final = 1_000_000

type _Row = tuple[str, str, str]
"""Offset, rule, mutation."""
type _Whose = str | frozenset[str]
"""An app, or all apps but some."""
_EVERY_APP: Final = frozenset[str]()
"""All apps but none."""


class PassedOver:
    """The events and rows of one partition that have no effect at their place."""

    def __init__(self, partition: int) -> None:
        self._partition = partition
        self._events: dict[str, set[_Whose]] = {}
        """By offset: apps of the entries that say so."""
        self._unread: dict[str, set[_Whose]] = {}
        """The same, for entries that could not be read as events when the log was lived."""
        self._rows: dict[_Row, set[_Whose]] = {}
        self._is_void: Callable[[str, str], bool] = _never
        """Whether a retry has no effect, by its app and offset: its row takes effect at its own place."""
        self._voids: dict[str, tuple[str, str, wire.Retry]] = {}
        """By offset of such a retry: the app, the offset of the row, and what is retried."""

    @classmethod
    def of_set_aside(cls, partition: int, letter: DeadLetter | None) -> Self:
        """Return the events that an operator has set aside; ``letter`` lists them."""
        found = cls(partition)
        if letter is not None:
            found.add_letter(letter)
        return found

    @classmethod
    async def as_lived(
        cls,
        bus: Bus,
        partition: int,
        *,
        after: CommittedPosition | None = None,
        watch: Callable[[Sequence[Entry]], None] = lambda _: None,
    ) -> Self:
        """Return what had no effect in a partition up to now. Reads it to its end. Raises ``BusUnavailable``.

        With ``after``, only what is behind that position, as far as it is there; without it, no entry may be missing.
        ``watch`` gets the entries that are read, in order.

        Retries before the place up to which an app's past is restated have none: the restatement included their rows.
        """
        found = cls(partition)
        until = {
            app_id: activation.positions.get(partition, "")
            for activation in await bus.rules.activations()
            if (app_id := activation.restates) is not None
        }
        found._is_void = lambda app_id, offset: app_id in until and is_after(until[app_id], offset)
        # Letters first: one that is retried meanwhile has an entry that is read below.
        for letter in await bus.dead_letters.read(limit=_MOST_LETTERS, whole=False):
            found.add_letter(letter)
        await found._read(bus, watch, after)
        return found

    @classmethod
    async def by_other_rules(cls, bus: Bus, partition: int) -> Self:
        """Return what has no effect in a partition by other rules than those it was lived with; like ``as_lived``."""
        found = cls(partition)
        found._is_void = _always
        for letter in await bus.dead_letters.read(limit=_MOST_LETTERS, whole=False):
            if is_of_operator(letter) or _is_unread(letter.reason, letter.rule):
                found.add_letter(letter)
        await found._read(bus)
        return found

    async def _read(
        self,
        bus: Bus,
        watch: Callable[[Sequence[Entry]], None] = lambda _: None,
        after: CommittedPosition | None = None,
    ) -> None:
        number = self._partition
        async for page in pages(bus.log, number) if after is None else what_is_there(bus.log, number, after):
            self.add_entries(page)
            watch(page)
        # The last ones first: a retry may be that of a retry, and what is out at the last place is out at the first.
        for place, (app_id, row, retried) in reversed(self._voids.items()):
            if self.event(place, app_id) or self.row(place, app_id, retried.rule, retried.mutation):
                self._add((row,), app_id, retried.rule, retried.mutation, unread=False)
            self._add((place,), app_id, None, None, unread=False)

    def add_letter(self, letter: DeadLetter) -> None:
        """Add what a dead letter stands for; those of other partitions add nothing."""
        if letter.partition == self._partition and letter.reason != "trimmed":  # its position is not of its events
            whose = _EVERY_APP if letter.reason == "set_aside" or letter.app_id is None else letter.app_id
            offsets = letter.passed_over
            self._add(offsets, whose, letter.rule, letter.mutation, unread=_is_unread(letter.reason, letter.rule))

    def add_entries(self, entries: Iterable[Entry]) -> None:
        """Add what retries and drops among the entries of the partition took from its place."""
        for entry in entries:
            if wire.RETRY not in entry.fields and wire.DROPPED not in entry.fields:
                continue
            try:
                dropped = entry.dropped()
                if dropped is not None:
                    unread = _is_unread(dropped.reason, dropped.rule)
                    self._add(dropped.offsets, _whose(dropped, entry), dropped.rule, dropped.mutation, unread=unread)
                    continue
                retried = wire.retry_of(entry.fields)
                event = entry.event()
            except InvalidEvent:
                continue
            if retried is not None:
                offset = retried.letter.split(":", 2)[1:2]
                unread = retried.rule == wire.WHOLE
                moved = unread or retried.corrects  # its own place holds none, or another event
                if offset and not moved and self._is_void(event.appid, entry.offset):
                    self._voids[entry.offset] = (event.appid, offset[0], retried)
                    continue
                self._add(offset, event.appid, retried.rule, retried.mutation, unread=unread)

    def of_app(self, app_id: str, counts: Callable[[str], bool]) -> list[tuple[str, ...]]:
        """Return what an app's graph depends on of all this, at offsets that count, in order."""
        events = [("event", at) for at, apps in self._events.items() if counts(at) and _names(apps, app_id)]
        unread = [("unread", at) for at, apps in self._unread.items() if counts(at) and _names(apps, app_id)]
        rows = [("row", *row) for row, apps in self._rows.items() if counts(row[0]) and app_id in apps]
        return sorted([*events, *unread, *rows])

    def _add(
        self, offsets: Iterable[str], whose: _Whose, rule: str | None, mutation: str | None, *, unread: bool
    ) -> None:
        for offset in offsets:
            if unread:
                self._unread.setdefault(offset, set()).add(whose)
            if rule is None or mutation is None or mutation == wire.WHOLE:
                self._events.setdefault(offset, set()).add(whose)
            else:
                self._rows.setdefault((offset, rule, mutation), set()).add(whose)

    @property
    def is_empty(self) -> bool:
        """Whether everything has its effect at its place."""
        return not (self._events or self._unread or self._rows)

    def entry(self, offset: str) -> bool:
        """Return whether an entry that is not a valid event is passed over."""
        return offset in self._events

    def event(self, offset: str, app_id: str) -> bool:
        """Return whether a whole event is passed over."""
        return _names(self._events.get(offset), app_id)

    def unread(self, offset: str, app_id: str) -> bool:
        """Return whether an event counted as none when the log was lived: later entries are no copies of it."""
        return _names(self._unread.get(offset), app_id)

    def row(self, offset: str, app_id: str, rule: str, mutation: str) -> bool:
        """Return whether one mutation of an event is passed over."""
        apps = self._rows.get((offset, rule, mutation))
        return apps is not None and app_id in apps

    def rest(self, offset: str, app_id: str, matched: MatchResult) -> MatchResult:
        """Return ``matched`` without the mutations that are passed over."""
        if not self._rows:
            return matched

        def stays(rule: str, mutation: str) -> bool:
            return not self.row(offset, app_id, rule, mutation)

        return MatchResult(
            mutations=tuple(each for each in matched.mutations if stays(each.mutation.rule, each.mutation.id)),
            skipped=tuple(each for each in matched.skipped if stays(each.rule, each.query)),
            failed=tuple(each for each in matched.failed if stays(each.rule, each.query)),
        )


def is_of_operator(letter: DeadLetter) -> bool:
    """Tell whether a dead letter says what an operator decided, whatever the rules are."""
    return letter.reason == "set_aside"


def is_of_rules(letter: DeadLetter) -> bool:
    """Tell whether other rules may give events of a dead letter an effect."""
    return not is_of_operator(letter) and letter.reason != "trimmed" and not _is_unread(letter.reason, letter.rule)


def _never(app_id: str, offset: str) -> bool:
    return False


def _always(app_id: str, offset: str) -> bool:
    return True


def _names(named: Collection[_Whose] | None, app_id: str) -> bool:
    if named is None:
        return False
    return any(app_id not in each if isinstance(each, frozenset) else app_id == each for each in named)


def _whose(dropped: wire.DroppedLetter, entry: Entry) -> _Whose:
    """Return for which apps a drop counts: one that names none for all but those whose events are elsewhere."""
    if dropped.app_id is not None:
        return dropped.app_id
    return _EVERY_APP if entry.place is None else entry.place.apps_elsewhere(entry.received)


def _is_unread(reason: str, rule: str | None) -> bool:
    return rule is None and reason in UNREAD


NOTHING: Final = PassedOver(-1)
