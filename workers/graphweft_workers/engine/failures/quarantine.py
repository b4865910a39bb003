"""Which mutations of which apps are in quarantine: their rows failed one after the other.

Rows of a mutation in quarantine are dropped together into one dead letter, and from time to time one row is tried. For
rows that run into the time limit, two are enough.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from graphweft_contracts import DeadLetter
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
"""Users that these rows must be of at least, or chats where events name no user: what one user says, in any number of
chats, switches a mutation off for no other user."""
TIMEOUTS_TO_QUARANTINE: Final = 2
"""The same for rows that run into the time limit, which cost a graph server seconds each: rows, of as many users."""
_MOST_COUNTED: Final = 10_000
"""Mutations whose failures are counted; beyond that only those in quarantine are."""

type _Mutation = tuple[str, str | None, str, str, int]
"""App, workflow, rule, mutation, and the identity of the rules: other rules are tried anew."""


@dataclass(slots=True, kw_only=True)
class _Failures:
    """The failures of a mutation in one app since it last took effect."""

    rows: int = 0
    users: set[tuple[str, object]] = field(default_factory=set[tuple[str, object]])
    """Users, or chats, of these rows, up to ``USERS_TO_QUARANTINE``."""
    quarantined: bool = False
    slow_for: set[tuple[str, object]] = field(default_factory=set[tuple[str, object]])
    """Users, or chats, of rows that ran into the time limit, one after the other, up to ``TIMEOUTS_TO_QUARANTINE``."""
    probe_at: float = 0.0
    probe_after_s: float
    letters: dict[int, DeadLetter] = field(default_factory=dict[int, DeadLetter])
    """By partition: the last dead letter of rows that were dropped in quarantine."""


class Quarantine:
    """The failures of mutations, by app. They last as long as the process."""

    def __init__(self, clock: Clock, timing: QuarantineTiming, *, is_off: bool = False) -> None:
        """With ``is_off``, failures are counted, and no mutation is put in quarantine."""
        self._clock = clock
        self._timing = timing
        self._is_off = is_off
        self._failures: dict[_Mutation, _Failures] = {}

    def __bool__(self) -> bool:
        """Tell whether any failures are counted."""
        return bool(self._failures)

    @property
    def is_empty(self) -> bool:
        """Whether no mutation is in quarantine."""
        return not any(failures.quarantined for failures in self._failures.values())

    def failed(self, app_id: str, row: Row, message: str, *, timed_out: bool, rest_s: float) -> None:
        """Count a failed row; ``rest_s`` is for how long the app rests before it is tried again."""
        if len(self._failures) >= _MOST_COUNTED:
            self._failures = {each: failures for each, failures in self._failures.items() if failures.quarantined}
        failures = self._failures.setdefault(
            _mutation_of(app_id, row), _Failures(probe_after_s=self._timing.first_probe_s)
        )
        failures.rows += 1
        if len(failures.users) < USERS_TO_QUARANTINE:
            failures.users.add(_user_of(row))
        if not timed_out:
            failures.slow_for.clear()
        elif len(failures.slow_for) < TIMEOUTS_TO_QUARANTINE:
            failures.slow_for.add(_user_of(row))
        enough = failures.rows >= FAILURES_TO_QUARANTINE and len(failures.users) >= USERS_TO_QUARANTINE
        slow = len(failures.slow_for) >= TIMEOUTS_TO_QUARANTINE
        if self._is_off or not (enough or slow):
            return
        if failures.quarantined:
            failures.probe_after_s = min(failures.probe_after_s * 2, self._timing.last_probe_s)
        else:
            mutation = row.bound.mutation
            QUARANTINES.add()
            logger.error(
                "mutation_quarantined", app_id=app_id, rule=mutation.rule, mutation=mutation.id,
                place=str(mutation.place), failures=failures.rows, message=message,
                next="fix the rule and run: graphweft rules push; then: graphweft dlq retry --all",
            )  # fmt: skip
        failures.quarantined = True
        failures.probe_at = self._clock.monotonic() + rest_s + failures.probe_after_s

    def succeeded(self, app_id: str, rows: Sequence[Row]) -> None:
        """Forget the failures of the mutations of rows that took effect."""
        for row in rows:
            if not self._failures:
                return
            failures = self._failures.pop(_mutation_of(app_id, row), None)
            if failures is not None and failures.quarantined:
                mutation = row.bound.mutation
                logger.info("quarantine_ended", app_id=app_id, rule=mutation.rule, mutation=mutation.id)

    def forget_failures(self, app_id: str, row: Row) -> None:
        """Count the failures of a row's mutation anew, unless it is in quarantine."""
        mutation = _mutation_of(app_id, row)
        failures = self._failures.get(mutation)
        if failures is not None and not failures.quarantined:
            del self._failures[mutation]

    def probe(self, app_id: str, rows: Sequence[Row]) -> Row | None:
        """Return the row that tries whether its mutation works again; None without one."""
        for row in rows if not self.is_empty else ():
            failures = self._failures.get(_mutation_of(app_id, row))
            if failures is not None and failures.quarantined:
                return row
        return None

    def dropped(self, partition: int, app_id: str, rows: Sequence[Row]) -> list[FailedRows]:
        """Return the rows that are not to be tried now, by mutation."""
        found: dict[_Mutation, list[Row]] = {}
        for row in rows if not self.is_empty else ():
            mutation = _mutation_of(app_id, row)
            failures = self._failures.get(mutation)
            if failures is not None and failures.quarantined and self._clock.monotonic() < failures.probe_at:
                found.setdefault(mutation, []).append(row)
        return [self._failed_rows(partition, self._failures[each], some) for each, some in found.items()]

    def remember(self, partition: int, event: LoggedEvent, failed: FailedRows, letter: DeadLetter) -> None:
        """Remember the dead letter that gets the next rows that are dropped."""
        about = event.event
        failures = self._failures.get((about.appid, about.workflow, failed.rule, failed.mutation, id(event.rules)))
        if failures is not None:
            failures.letters[partition] = letter

    @staticmethod
    def _failed_rows(partition: int, failures: _Failures, rows: Sequence[Row]) -> FailedRows:
        mutation = rows[0].bound.mutation
        what = "ran into the time limit" if failures.slow_for else "failed"
        return FailedRows.of(
            rows,
            "quarantined",
            f"{failures.rows} events in a row {what}, so the mutation of {mutation.place} is in quarantine until it "
            "works again: fix the rule, push it, then retry this dead letter",
            extends=letter.id if (letter := failures.letters.get(partition)) else None,
        )


def _mutation_of(app_id: str, row: Row) -> _Mutation:
    return (app_id, row.event.plain.workflow, row.bound.mutation.rule, row.bound.mutation.id, id(row.event.rules))


def _user_of(row: Row) -> tuple[str, object]:
    """Return whom a row is about: its user, or else its chat."""
    event = row.event.plain
    user_id = event.userid or event.data.get("user_id")
    return ("user", user_id) if user_id else ("chat", event.chatid)
