"""A mutation is put in quarantine for what several users say, never for what one user says in many chats."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

import pytest
from tests.services.rules import rules_of_parts
from tests.services.virtual_time import VIRTUAL

from graphweft_contracts import Event, wire
from graphweft_rules import RuleSet
from graphweft_workers.engine.failures.quarantine import (
    FAILURES_TO_QUARANTINE,
    TIMEOUTS_TO_QUARANTINE,
    USERS_TO_QUARANTINE,
    Quarantine,
)
from graphweft_workers.engine.log.duplicates import RecentEvents
from graphweft_workers.engine.log.read import read_range
from graphweft_workers.engine.plan.plan import Row
from graphweft_workers.ports.event_log import Entry
from graphweft_workers.rule_sets.active_rules import FixedRules
from graphweft_workers.support.timing import TIMING

NOW = datetime(2026, 2, 1, tzinfo=UTC)


@pytest.fixture
def rules(tmp_path: Path) -> RuleSet:
    return rules_of_parts(tmp_path, {"see": "MERGE (s:Session {id: $s}) SET s.seen = $v"})


def rows_of(rules: RuleSet, authors: Iterable[tuple[str | None, str]]) -> list[Row]:
    """Return a row for each user, if any, and chat."""
    entries = [
        Entry(
            offset=f"{number:05}",
            fields=wire.encode(
                Event.create(
                    "x.y",
                    app_id="app",
                    chat_id=chat,
                    user_id=user,
                    workflow="W",
                    id=f"e{number}",
                    data={"s": "s", "v": 1},
                )
            ),
            received=NOW,
        )
        for number, (user, chat) in enumerate(authors, start=1)
    ]
    events = read_range(0, entries, FixedRules(rules), RecentEvents()).apps["app"]
    return [
        Row(event=event, bound=bound, number=number) for number, event in enumerate(events) for bound in event.mutations
    ]


def is_quarantined(rows: Iterable[Row], *, timed_out: bool) -> bool:
    quarantine = Quarantine(VIRTUAL, TIMING.quarantine)
    for row in rows:
        quarantine.failed("app", row, "no", timed_out=timed_out, rest_s=0.0)
    return not quarantine.is_empty


@pytest.mark.parametrize("timed_out", [False, True])
def test_one_user_switches_no_mutation_off_in_any_number_of_chats(rules: RuleSet, timed_out: bool) -> None:
    authors = [("mallory", f"c{number}") for number in range(5 * FAILURES_TO_QUARANTINE)]
    assert not is_quarantined(rows_of(rules, authors), timed_out=timed_out)


@pytest.mark.parametrize(("timed_out", "least"), [(False, USERS_TO_QUARANTINE), (True, TIMEOUTS_TO_QUARANTINE)])
@pytest.mark.parametrize("names_users", [True, False])
def test_several_users_or_chats_do(rules: RuleSet, timed_out: bool, least: int, names_users: bool) -> None:
    def rows(count: int) -> list[Row]:
        numbers = [number % count for number in range(FAILURES_TO_QUARANTINE)]
        return rows_of(rules, [(f"u{each}", "c") if names_users else (None, f"c{each}") for each in numbers])

    assert is_quarantined(rows(least), timed_out=timed_out)
    assert not is_quarantined(rows(least - 1), timed_out=timed_out)
