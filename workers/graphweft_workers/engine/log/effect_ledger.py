"""Which events and rows of a partition have an effect at their place in the log, and why the others have none. Pure.

A live worker passes over the events that an operator has set aside. A rebuild also passes over what had no effect when
the log was lived: the log and the dead letters record it. A row that failed either still has its dead letter, or
somebody has retried or dropped it, which is an entry behind it.

By other rules, each row is tried at its own place, also one that failed when the log was lived. Then a retry has no
effect at its place, because the row has had its own. What an operator has dropped or set aside stays out. A corrected
event takes effect, and the row that it corrects does not. An entry that could not be read as an event stays none; its
retry is the event.

``ledger_reader`` makes ledgers of a bus.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final, Literal, Self

from graphweft_contracts import DeadLetter, DeadLetterReason, InvalidEvent, wire
from graphweft_contracts.dead_letters import UNREAD
from graphweft_rules import MatchResult
from graphweft_workers.ports.event_log import Entry

type Cause = DeadLetterReason | Literal["retried", "corrected", "dropped", "restated"]
"""Why an event or a row has no effect at its place: the reason of its dead letter, or what became of that since.

``restated``: of a retry whose row takes effect at its own place, as the past of the app follows other rules.
"""
type _Row = tuple[str, str, str]
"""Offset, rule, mutation."""
type _Whose = str | frozenset[str]
"""An app, or all apps but some."""
type _Causes = dict[_Whose, Cause]
"""By the apps that an entry or a letter names: the first cause."""
_EVERY_APP: Final = frozenset[str]()
"""All apps but none."""


class EffectLedger:
    """The events and rows of one partition that have no effect at their place, as letters and entries say."""

    def __init__(self, partition: int, is_void: Callable[[str, str], bool] = lambda _app_id, _offset: False) -> None:
        """``is_void`` tells whether a retry has no effect, by its app and offset: its row has it at its own place."""
        self._partition = partition
        self._is_void = is_void
        self._events: dict[str, _Causes] = {}
        """By offset."""
        self._unread: dict[str, _Causes] = {}
        """The same, for entries that could not be read as events when the log was lived."""
        self._rows: dict[_Row, _Causes] = {}
        self._voids: dict[str, tuple[str, str, wire.Retry]] = {}
        """By offset of a void retry: the app, the offset of the row, and what is retried."""

    @classmethod
    def of_set_aside(cls, partition: int, letter: DeadLetter | None) -> Self:
        """Return the ledger of the events that an operator has set aside; ``letter`` lists them."""
        found = cls(partition)
        if letter is not None:
            found.add_letter(letter)
        return found

    # What letters and entries say

    def add_letter(self, letter: DeadLetter) -> None:
        """Add what a dead letter stands for; those of other partitions add nothing."""
        if letter.partition == self._partition and letter.reason != "trimmed":  # its position is not of its events
            whose = _EVERY_APP if letter.reason == "set_aside" or letter.app_id is None else letter.app_id
            self._add(letter.passed_over, whose, (letter.rule, letter.mutation), letter.reason, _is_unread(letter))

    def add_entries(self, entries: Iterable[Entry]) -> None:
        """Add what retries and drops among the entries of the partition took from its place."""
        for entry in entries:
            if wire.RETRY not in entry.fields and wire.DROPPED not in entry.fields:
                continue
            try:
                dropped = entry.dropped()
                if dropped is not None:
                    name = (dropped.rule, dropped.mutation)
                    self._add(dropped.offsets, _whose(dropped, entry), name, "dropped", _is_unread(dropped))
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
                cause: Cause = "corrected" if retried.corrects else "retried"
                self._add(offset, event.appid, (retried.rule, retried.mutation), cause, unread)

    def close(self) -> None:
        """Decide about void retries, once all entries are added."""
        # The last ones first: a retry may be that of a retry, and what is out at the last place is out at the first.
        for place, (app_id, row, retried) in reversed(self._voids.items()):
            cause = self.row(place, app_id, retried.rule, retried.mutation)
            if cause is not None:
                self._add((row,), app_id, (retried.rule, retried.mutation), cause, False)
            self._add((place,), app_id, (None, None), "restated", False)

    def _add(
        self, offsets: Iterable[str], whose: _Whose, name: tuple[str | None, str | None], cause: Cause, unread: bool
    ) -> None:
        rule, mutation = name
        for offset in offsets:
            if unread:
                self._unread.setdefault(offset, {}).setdefault(whose, cause)
            if rule is None or mutation is None or mutation == wire.WHOLE:
                self._events.setdefault(offset, {}).setdefault(whose, cause)
            else:
                self._rows.setdefault((offset, rule, mutation), {}).setdefault(whose, cause)

    # What has no effect

    @property
    def is_empty(self) -> bool:
        """Whether everything has its effect at its place."""
        return not (self._events or self._unread or self._rows)

    def entry(self, offset: str) -> bool:
        """Tell whether an entry that is not a valid event is passed over."""
        return offset in self._events

    def event(self, offset: str, app_id: str) -> Cause | None:
        """Return why a whole event has no effect; None if it may have one."""
        return _cause(self._events.get(offset, _NO_CAUSES), app_id)

    def unread(self, offset: str, app_id: str) -> Cause | None:
        """Return why an event counted as none when the log was lived; then later entries are no copies of it."""
        return _cause(self._unread.get(offset, _NO_CAUSES), app_id)

    def row(self, offset: str, app_id: str, rule: str, mutation: str) -> Cause | None:
        """Return why one mutation of an event has no effect, or why the whole event has none; None if it may."""
        return self.event(offset, app_id) or self._rows.get((offset, rule, mutation), _NO_CAUSES).get(app_id)

    def rest(self, offset: str, app_id: str, matched: MatchResult) -> MatchResult:
        """Return ``matched`` without the mutations that have no effect."""
        if not self._rows:
            return matched

        def stays(rule: str, mutation: str) -> bool:
            return self.row(offset, app_id, rule, mutation) is None

        return MatchResult(
            mutations=tuple(each for each in matched.mutations if stays(each.mutation.rule, each.mutation.id)),
            skipped=tuple(each for each in matched.skipped if stays(each.rule, each.query)),
            failed=tuple(each for each in matched.failed if stays(each.rule, each.query)),
        )

    def of_app(self, app_id: str, counts: Callable[[str], bool]) -> list[tuple[str, ...]]:
        """Return what an app's graph depends on of all this, at offsets that count, in order."""
        events = [("event", at) for at in self._events if counts(at) and self.event(at, app_id)]
        unread = [("unread", at) for at in self._unread if counts(at) and self.unread(at, app_id)]
        rows = [("row", *row) for row, causes in self._rows.items() if counts(row[0]) and app_id in causes]
        return sorted([*events, *unread, *rows])


def is_of_rules(letter: DeadLetter) -> bool:
    """Tell whether other rules may give events of a dead letter an effect.

    They may not if an operator has decided, or if the entry could not be read as an event.
    """
    return letter.reason not in ("set_aside", "trimmed") and not _is_unread(letter)


def _cause(causes: Mapping[_Whose, Cause], app_id: str) -> Cause | None:
    for whose, cause in causes.items():
        if app_id not in whose if isinstance(whose, frozenset) else app_id == whose:
            return cause
    return None


def _whose(dropped: wire.DroppedLetter, entry: Entry) -> _Whose:
    """Return for which apps a drop counts: one that names none for all but those whose events are elsewhere."""
    if dropped.app_id is not None:
        return dropped.app_id
    return _EVERY_APP if entry.place is None else entry.place.apps_elsewhere(entry.received)


def _is_unread(letter: DeadLetter | wire.DroppedLetter) -> bool:
    return letter.rule is None and letter.reason in UNREAD


_NO_CAUSES: Final[_Causes] = {}
NOTHING: Final = EffectLedger(-1)
