"""Which mutations of which apps are in quarantine: their rows failed one after the other.

A mutation whose rows fail for one user is in quarantine for this user, and for all if they fail for several. Its rows
are dropped together into one dead letter then, and from time to time one row is tried. For rows that run into the time
limit, two users are enough.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from graphweft_contracts import DeadLetter
from graphweft_contracts.bounded_dict import BoundedDict
from graphweft_contracts.clock import Clock
from graphweft_workers.engine.log.read import LoggedEvent
from graphweft_workers.engine.plan.plan import FailedRows, Row
from graphweft_workers.support.lazy_logger import get_logger
from graphweft_workers.support.timing import QuarantineTiming
from graphweft_workers.telemetry.metrics import QUARANTINES

logger = get_logger("graphweft.mutation")

FAILURES_TO_QUARANTINE: Final = 20
"""Failed rows in a row of one mutation in one app. Rows with an invalid value do not count."""
USERS_TO_QUARANTINE: Final = 5
"""Users that these rows must be of at least, or chats where events name no user, so that a mutation is in quarantine
for all: what one user says, in any number of chats, switches it off for no other user."""
TIMEOUTS_TO_QUARANTINE: Final = 2
"""The same for rows that run into the time limit, which cost a graph server seconds each: rows, of as many users."""
_MOST_COUNTED: Final = 10_000
"""Mutations, and users of them, whose failures are counted, and as many in quarantine. The oldest are forgotten."""

type _User = tuple[str, object]
"""A user, or else a chat."""
type _Mutation = tuple[str, str | None, str, str, int]
"""App, workflow, rule, mutation, and the identity of the rules: other rules are tried anew."""
type _Key = tuple[_Mutation, _User | None]
"""A mutation for one user; None: for all."""


@dataclass(slots=True, kw_only=True)
class _Failures:
    """The failures of a mutation in one app, for a user or for all, since it last took effect there."""

    rows: int = 0
    users: set[_User] = field(default_factory=set[_User])
    """Whom these rows are of, up to ``USERS_TO_QUARANTINE``."""
    slow_for: set[_User] = field(default_factory=set[_User])
    """Whom rows are of that ran into the time limit, one after the other, up to ``TIMEOUTS_TO_QUARANTINE``."""
    probe_at: float = 0.0
    probe_after_s: float
    letters: dict[int, DeadLetter] = field(default_factory=dict[int, DeadLetter])
    """By partition: the last dead letter of rows that were dropped in quarantine."""

    def add(self, user: _User, *, timed_out: bool) -> None:
        """Count a row."""
        self.rows += 1
        if len(self.users) < USERS_TO_QUARANTINE:
            self.users.add(user)
        if not timed_out:
            self.slow_for.clear()
        elif len(self.slow_for) < TIMEOUTS_TO_QUARANTINE:
            self.slow_for.add(user)

    def are_enough(self, *, users: int) -> bool:
        """Tell whether they put the mutation in quarantine, if so many users are enough."""
        slow = users > 1 and len(self.slow_for) >= TIMEOUTS_TO_QUARANTINE
        return slow or (self.rows >= FAILURES_TO_QUARANTINE and len(self.users) >= users)


class Quarantine:
    """The failures of mutations, by app. They last as long as the process."""

    def __init__(self, clock: Clock, timing: QuarantineTiming, *, is_off: bool = False) -> None:
        """With ``is_off``, failures are counted, and no mutation is put in quarantine."""
        self._clock = clock
        self._timing = timing
        self._is_off = is_off
        self._counted = BoundedDict[_Key, _Failures](_MOST_COUNTED)
        self._quarantined = BoundedDict[_Key, _Failures](_MOST_COUNTED)

    def __bool__(self) -> bool:
        """Tell whether any failures are counted."""
        return bool(self._counted or self._quarantined)

    @property
    def is_empty(self) -> bool:
        """Whether no mutation is in quarantine."""
        return not self._quarantined

    def failed(self, app_id: str, row: Row, message: str, *, timed_out: bool, rest_s: float) -> None:
        """Count a failed row; ``rest_s`` is for how long the app rests before it is tried again."""
        everybody, own = _keys_of(app_id, row)
        self._failed(everybody, row, message, USERS_TO_QUARANTINE, timed_out=timed_out, rest_s=rest_s)
        self._failed(own, row, message, 1, timed_out=timed_out, rest_s=rest_s)

    def _failed(self, key: _Key, row: Row, message: str, users: int, *, timed_out: bool, rest_s: float) -> None:
        failures = self._quarantined.get(key) or self._counted.get(key)
        if failures is None:
            failures = self._counted[key] = _Failures(probe_after_s=self._timing.first_probe_s)
        failures.add(_user_of(row.event), timed_out=timed_out)
        if self._is_off or not failures.are_enough(users=users):
            return
        if key in self._quarantined:
            failures.probe_after_s = min(failures.probe_after_s * 2, self._timing.last_probe_s)
        else:
            mutation = row.bound.mutation
            QUARANTINES.add()
            logger.error(
                "mutation_quarantined", app_id=key[0][0], rule=mutation.rule, mutation=mutation.id,
                place=str(mutation.place), failures=failures.rows, message=message,
                users="all" if key[1] is None else "one",
                next="fix the rule and run: graphweft rules push; then: graphweft dlq retry --all",
            )  # fmt: skip
            self._counted.pop(key, None)
            self._quarantined[key] = failures
        failures.probe_at = self._clock.monotonic() + rest_s + failures.probe_after_s

    def succeeded(self, app_id: str, rows: Sequence[Row]) -> None:
        """Forget the failures of the mutations of rows that took effect."""
        for row in rows:
            if not self:
                return
            for key in _keys_of(app_id, row):
                self._counted.pop(key, None)
                if self._quarantined.pop(key, None) is not None:
                    mutation = row.bound.mutation
                    logger.info("quarantine_ended", app_id=app_id, rule=mutation.rule, mutation=mutation.id)

    def forget_failures(self, app_id: str, row: Row) -> None:
        """Count the failures of a row's mutation anew, unless it is in quarantine."""
        for key in _keys_of(app_id, row):
            self._counted.pop(key, None)

    def probe(self, app_id: str, rows: Sequence[Row]) -> Row | None:
        """Return the row that tries whether its mutation works again; None without one."""
        for row in rows if not self.is_empty else ():
            if any(key in self._quarantined for key in _keys_of(app_id, row)):
                return row
        return None

    def dropped(self, partition: int, app_id: str, rows: Sequence[Row]) -> list[FailedRows]:
        """Return the rows that are not to be tried now, by mutation, and by user if it is not off for all."""
        found: dict[_Key, list[Row]] = {}
        now = self._clock.monotonic()
        for row in rows if not self.is_empty else ():
            for key in _keys_of(app_id, row):
                failures = self._quarantined.get(key)
                if failures is not None and now < failures.probe_at:
                    found.setdefault(key, []).append(row)
                    break
        return [self._failed_rows(partition, each, self._quarantined[each], some) for each, some in found.items()]

    def remember(self, partition: int, event: LoggedEvent, failed: FailedRows, letter: DeadLetter) -> None:
        """Remember the dead letter that gets the next rows that are dropped."""
        about = event.event
        mutation = about.appid, about.workflow, failed.rule, failed.mutation, id(event.rules)
        for key in ((mutation, None), (mutation, _user_of(event))):
            if (failures := self._quarantined.get(key)) is not None:
                failures.letters[partition] = letter
                return

    @staticmethod
    def _failed_rows(partition: int, key: _Key, failures: _Failures, rows: Sequence[Row]) -> FailedRows:
        mutation = rows[0].bound.mutation
        what = "ran into the time limit" if failures.slow_for else "failed"
        whose, there = ("", "") if key[1] is None else (" of this user", " for this user")
        return FailedRows.of(
            rows,
            "quarantined",
            f"{failures.rows} events in a row{whose} {what}, so the mutation of {mutation.place} is in quarantine"
            f"{there} until it works again: fix the rule, push it, then retry this dead letter",
            extends=letter.id if (letter := failures.letters.get(partition)) else None,
        )


def _keys_of(app_id: str, row: Row) -> tuple[_Key, _Key]:
    """Return the keys of a row's mutation, for all and for its user."""
    mutation = row.bound.mutation
    of = app_id, row.event.plain.workflow, mutation.rule, mutation.id, id(row.event.rules)
    return (of, None), (of, _user_of(row.event))


def _user_of(event: LoggedEvent) -> _User:
    """Return whom an event is about: its user, or else its chat."""
    about = event.plain
    user_id = about.userid or about.data.get("user_id")
    return ("user", user_id) if user_id else ("chat", about.chatid)
