"""The order in which a search shows its hits."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from typing import Any

from graphweft_workers.retrieval.arrangement import Arrangement
from graphweft_workers.retrieval.periods import Period
from graphweft_workers.retrieval.questions import read_question
from graphweft_workers.retrieval.ranking import Hit

COLUMNS = ("text", "score", "kind", "role", "timestamp", "author_name", "times", "id")


def arranged(*said: tuple[str, str, float], most: int = 10, periods: Sequence[Period] = ()) -> list[tuple[Any, ...]]:
    """Return text, time, times and score of what is shown."""
    arrangement = Arrangement(COLUMNS, most, periods)
    arrangement.add(
        (Hit(str(place), str(place), score), (text, score, "memory", "user", time, None, None, str(place)))
        for place, (text, time, score) in enumerate(said)
    )
    return [(row[0], row[4], row[6], hit.score) for hit, row in arrangement.shown]


def test_equal_texts_are_one_row_with_their_number_and_the_latest_time() -> None:
    assert arranged(("Tea.", "2", 0.9), ("tea.", "3", 0.8), ("Tea. ", "1", 0.7), ("Milk.", "1", 0.6)) == [
        ("tea.", "3", 3, 0.9), ("Milk.", "1", None, 0.6),
    ]  # fmt: skip


def test_a_question_is_last_and_has_the_score_0() -> None:
    assert [row[::3] for row in arranged(("What is tea?", "2", 0.9), ("Tea.", "1", 0.5))] == [
        ("Tea.", 0.5), ("What is tea?", 0.0),
    ]  # fmt: skip


def days(question: str, *said: str) -> list[tuple[str, int | None]]:
    """Return the days of equal texts that are shown, and how often each text was said."""
    periods = read_question(question, today=date(2026, 11, 28)).periods
    found = arranged(*(("I took my pills.", f"{day}T08:00:00Z", 0.9) for day in said), periods=periods)
    return [(row[1][:10], row[2]) for row in found]


def test_equal_texts_of_the_days_asked_for_stay() -> None:
    said = ("2026-11-28", "2026-11-27", "2026-10-20", "2026-10-02")
    assert days("Did I take my pills yesterday?", *said) == [("2026-11-28", 3), ("2026-11-27", None)]
    assert days("Did I take my pills today?", *said) == [("2026-11-28", None), ("2026-11-27", 3)]
    assert days("How often did I take my pills in October?", *said) == [("2026-11-28", 2), ("2026-10-20", 2)]
    assert days("Did I take my pills last week?", *said) == [("2026-11-28", 4)]
    assert days("Did I take my pills?", *said) == [("2026-11-28", 4)]
