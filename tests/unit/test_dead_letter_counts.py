"""Causes of dead letters: different reasons of one mutation are told apart, places inside one event are not."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from graphweft_contracts import DeadLetter, DeadLetterReason
from graphweft_workers.engine.failures.dead_letter_counts import count_causes


def letter(number: int, message: str, reason: DeadLetterReason) -> DeadLetter:
    return DeadLetter(
        id=str(number), reason=reason, message=message, position=f"0:{number}", time=datetime(2026, 2, 1, tzinfo=UTC),
        app_id="acme", event_type="episode.add", rule="episode.add", mutation="*", fields={},
    )  # fmt: skip


def causes(reason: DeadLetterReason, *messages: str) -> list[tuple[int, str]]:
    return [
        (cause.events, cause.message)
        for cause in count_causes(letter(number, message, reason) for number, message in enumerate(messages))
    ]


def test_events_that_are_refused_for_different_reasons_have_a_cause_each() -> None:
    unknown, other = "unknown schema_id: use a_v1", "entities[0].type: a_v1 has no type 'Dog': use Cat"
    assert causes("invalid_event", unknown, other, other) == [(2, other), (1, unknown)]


def test_one_fault_at_several_places_is_one_cause() -> None:
    first = "entities[0].type: a_v1 has no type 'Dog'"
    assert causes("invalid_event", first, first.replace("[0]", "[12]")) == [(2, first)]


@pytest.mark.parametrize("reason", ["query_error", "invalid_value"])
def test_what_a_server_says_of_one_event_is_no_cause_of_its_own(reason: DeadLetterReason) -> None:
    assert causes(reason, "for 'a'", "for 'b'") == [(2, "for 'a'")]
