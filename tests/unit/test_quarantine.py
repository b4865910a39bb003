"""A mutation is in quarantine for a user for whom it fails, and for all only if it fails for several users."""

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


def failing(rows: Iterable[Row], *, timed_out: bool) -> Quarantine:
    quarantine = Quarantine(VIRTUAL, TIMING.quarantine)
    for row in rows:
        quarantine.failed("app", row, "no", timed_out=timed_out, rest_s=0.0)
    return quarantine


def is_off(quarantine: Quarantine, rows: Iterable[Row]) -> bool:
    """Tell whether these rows are dropped together."""
    given = list(rows)
    dropped = quarantine.dropped(0, "app", given)
    assert len(dropped) <= 1
    assert [len(each.offsets) for each in dropped] in ([], [len(given)])
    return bool(dropped)


@pytest.mark.parametrize("timed_out", [False, True])
def test_one_user_switches_a_mutation_off_for_that_user_alone(rules: RuleSet, timed_out: bool) -> None:
    authors = [("mallory", f"c{number}") for number in range(FAILURES_TO_QUARANTINE)]
    *some, last = rows_of(rules, authors)
    assert not is_off(failing(some, timed_out=timed_out), [last])
    quarantine = failing([*some, last], timed_out=timed_out)
    assert is_off(quarantine, rows_of(rules, [("mallory", "c1"), ("mallory", "another")]))
    assert not is_off(quarantine, rows_of(rules, [("ada", "c1"), (None, "c2")]))


def test_in_an_app_without_users_a_chat_does_for_itself(rules: RuleSet) -> None:
    quarantine = failing(rows_of(rules, [(None, "c1")] * FAILURES_TO_QUARANTINE), timed_out=False)
    assert is_off(quarantine, rows_of(rules, [(None, "c1")]))
    assert not is_off(quarantine, rows_of(rules, [(None, "c2")]))


def test_what_works_for_one_user_ends_no_quarantine_of_another_one(rules: RuleSet) -> None:
    mallory, ada = rows_of(rules, [("mallory", "c")]), rows_of(rules, [("ada", "c")])
    quarantine = failing(mallory * FAILURES_TO_QUARANTINE, timed_out=False)
    quarantine.succeeded("app", ada)
    assert is_off(quarantine, mallory)
    quarantine.succeeded("app", mallory)
    assert not is_off(quarantine, mallory)
    assert not quarantine


async def test_a_row_of_the_user_is_tried_from_time_to_time(rules: RuleSet) -> None:
    mallory, ada = rows_of(rules, [("mallory", "c")]), rows_of(rules, [("ada", "c")])
    quarantine = failing(mallory * FAILURES_TO_QUARANTINE, timed_out=False)
    await VIRTUAL.sleep(TIMING.quarantine.first_probe_s)
    assert not is_off(quarantine, mallory)
    assert quarantine.probe("app", [*ada, *mallory]) is mallory[0]
    quarantine.failed("app", mallory[0], "no", timed_out=False, rest_s=0.0)
    await VIRTUAL.sleep(TIMING.quarantine.first_probe_s)
    assert is_off(quarantine, mallory)


@pytest.mark.parametrize(("timed_out", "least"), [(False, USERS_TO_QUARANTINE), (True, TIMEOUTS_TO_QUARANTINE)])
@pytest.mark.parametrize("names_users", [True, False])
def test_several_users_or_chats_switch_it_off_for_all(
    rules: RuleSet, timed_out: bool, least: int, names_users: bool
) -> None:
    def rows(count: int) -> list[Row]:
        numbers = [number % count for number in range(FAILURES_TO_QUARANTINE)]
        return rows_of(rules, [(f"u{each}", "c") if names_users else (None, f"c{each}") for each in numbers])

    another = rows_of(rules, [("ada", "c"), (None, "another")])
    assert is_off(failing(rows(least), timed_out=timed_out), another)
    assert not is_off(failing(rows(least - 1), timed_out=timed_out), another)
