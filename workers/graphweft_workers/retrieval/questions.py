"""What a question asks for beside its words: a day, a time, a number, and whose turns. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from itertools import pairwise
from typing import Final

from graphweft_workers.text.terms import STOP_WORDS, query_terms, terms

_MONTHS: Final = (
    "january", "february", "march", "april", "may", "june", "july", "august", "september", "october", "november",
    "december",
)  # fmt: skip
_NUMBER_OF: Final = {name[:length]: number for number, name in enumerate(_MONTHS, 1) for length in (3, len(name))}
_NAME: Final = rf"(?P<month>{'|'.join(_MONTHS)}|(?:jan|feb|mar|apr|jun|jul|aug|sep|sept|oct|nov|dec)\b)"
_DATES: Final = (
    re.compile(r"\b(?P<year>\d{4})-(?P<number>\d{1,2})(?:-(?P<day>\d{1,2}))?\b"),
    re.compile(rf"\b(?P<day>\d{{1,2}})(?:st|nd|rd|th)?(?:\s+of)?\s+{_NAME}(?:,?\s+(?P<year>\d{{4}}))?"),
    re.compile(rf"\b{_NAME}\s+(?P<day>\d{{1,2}})(?:st|nd|rd|th)?\b(?:,?\s+(?P<year>\d{{4}}))?"),
    re.compile(rf"\b{_NAME},?\s+(?P<year>\d{{4}})"),
    re.compile(rf"\b(?:in|of|during|since|last|this)\s+{_NAME}\b"),
    re.compile(r"\b(?:in|of|during|since)\s+(?P<year>(?:19|20)\d\d)\b"),
)
"""The most exact first."""
_AGO: Final = re.compile(
    r"\b(?P<count>\d{1,3}|a|an|one|two|three|four|five|six)\s+(?P<unit>day|week|month|year)s?\s+ago\b"
)
_COUNTS: Final = {"a": 1, "an": 1, "one": 1, "two": 2, "three": 3, "four": 4, "five": 5, "six": 6}
_UNITS: Final = {"day": 1, "week": 7, "month": 30, "year": 365}
_WHEN: Final = re.compile(
    r"\b(?:when|how long|how many (?:days|weeks|months|years)|(?:what|which) (?:day|date|year|month|time))\b"
)
_COUNTED: Final = re.compile(r"\bhow (?:many|much|often|old|long|far|tall|big|high)\b")
_FIRST_PERSON: Final = re.compile(r"\b(?:i|me|my|mine|we|our|us)\b")
_TIME_WORDS: Final = frozenset(
    terms(
        "yesterday today tonight tomorrow ago last next week weekend month year day since recently soon morning "
        "evening monday tuesday wednesday thursday friday saturday sunday spring summer autumn fall winter birthday "
        f"anniversary {' '.join(_MONTHS)}"
    )
)
_NUMBER_WORDS: Final = frozenset(
    terms("two three four five six seven eight nine ten eleven twelve dozen hundred thousand once twice")
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Period:
    """Days that a question names: a part that is None may be any."""

    year: int | None = None
    month: int | None = None
    day: int | None = None
    first: str = ""
    last: str = ""
    """The first and the last day of a relative time such as "last week"."""

    def fit(self, day: str) -> float:
        """Return how well a day such as ``2026-11-28`` fits, from 0 to 1."""
        if self.first:
            return 1.0 if self.first <= day <= self.last else 0.0
        try:
            year, month, of_month = int(day[:4]), int(day[5:7]), int(day[8:10])
        except ValueError:
            return 0.0
        if (self.year is not None and self.year != year) or (self.month is not None and self.month != month):
            return 0.0
        if self.month is None:
            return 0.3
        if self.day is None:
            return 0.7
        return 1.0 if self.day == of_month else 0.4


@dataclass(frozen=True, slots=True, kw_only=True)
class RankedQuestion:
    """A question, as a ranking reads it."""

    terms: tuple[str, ...]
    """The distinct terms, in order."""
    pairs: frozenset[tuple[str, str]]
    """Terms that follow each other."""
    periods: tuple[Period, ...] = ()
    is_when: bool = False
    is_count: bool = False
    is_own: bool = False
    """Whether it is in the first person: it asks about the user's own turns."""


def read_question(text: str, *, today: date, filter_stop_words: bool = True) -> RankedQuestion:
    """Return what a question asks for; relative times such as "last week" count from ``today``."""
    wanted = query_terms(text, filter_stop_words=filter_stop_words)
    # Of a conversation the end asks.
    last = text[-1_000:].casefold()
    return RankedQuestion(
        terms=tuple(wanted),
        pairs=frozenset(pairwise(wanted)),
        periods=tuple(_periods(last, today)),
        is_when=_WHEN.search(last) is not None,
        is_count=_COUNTED.search(last) is not None,
        is_own=_FIRST_PERSON.search(last) is not None,
    )


def has_time(of_text: Sequence[str]) -> bool:
    """Return whether one of the terms of a text tells a time."""
    return not _TIME_WORDS.isdisjoint(of_text) or any(len(term) == 4 and term.isdecimal() for term in of_text)


def has_number(of_text: Sequence[str]) -> bool:
    """Return whether one of the terms of a text is a number."""
    return not _NUMBER_WORDS.isdisjoint(of_text) or any(term.isdecimal() for term in of_text)


def tells_words(of_text: Sequence[str]) -> int:
    """Return how many terms of a text are more than stop words."""
    return sum(term not in STOP_WORDS for term in of_text)


def _periods(text: str, today: date) -> list[Period]:
    found: list[Period] = []
    for pattern in _DATES:
        for match in pattern.finditer(text):
            parts = match.groupdict()
            month = int(parts["number"]) if parts.get("number") else _NUMBER_OF.get((parts.get("month") or "")[:3])
            day, year = parts.get("day"), parts.get("year")
            found.append(Period(year=int(year) if year else None, month=month, day=int(day) if day else None))
        if found:
            break
    for name, first, last in (
        ("today", 0, 0), ("yesterday", 1, 1), ("this week", today.weekday(), 0),
        ("last week", today.weekday() + 7, today.weekday() + 1),
        ("last month", today.day - 1 + (today - timedelta(days=today.day)).day, today.day),
    ):  # fmt: skip
        if re.search(rf"\b{name}\b", text):
            found.append(_between(today, first, last))
    for match in _AGO.finditer(text):
        unit = _UNITS[match["unit"]]
        count = (int(match["count"]) if match["count"].isdecimal() else _COUNTS[match["count"]]) * unit
        found.append(_between(today, count + unit // 2, max(0, count - unit // 2)))
    return found


def _between(today: date, first: int, last: int) -> Period:
    """Return the days from ``first`` days ago to ``last`` days ago."""
    return Period(first=(today - timedelta(days=first)).isoformat(), last=(today - timedelta(days=last)).isoformat())
