"""What is remembered, as text for an agent: facts and preferences first, then turns by day, the oldest first. Pure.

A row is one line, so no text can look like another row or a day. What a model does not need (scores, ids, seconds) is
left out: it is in the values of a search.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from functools import lru_cache
from typing import Any, Final

from graphweft_rules.output.look_alikes import plain

_KNOWN: Final = frozenset({"fact", "preference"})
_SAID: Final = frozenset({"memory", ""})
_COMMANDING: Final = frozenset({"system", "developer"})
"""A model obeys messages of these roles, and anybody can store one."""
_ROLES: Final = frozenset({
    "user", "assistant", "system", "developer", "tool", "function", "model", "ai", "human", "fact", "preference",
    "summary", "memory", "quoted",
})  # fmt: skip
"""Words before a text that say what it is. An author may have any of them as a name."""
_NO_LETTERS: Final = re.compile(r"[\W\d_]+")
_NUMBERS: Final = frozenset({int, float})
_DAYS: Final = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_LONGEST_NAME: Final = 60
_LONGEST_REASON: Final = 200
_EMPTY: Final = 0.0
"""The score of a turn that tells nothing: a question, or an answer that only says that something is unknown."""
_PASSED: Final = ((14, 1, "day"), (60, 7, "week"))
"""Days up to which a time is counted in a unit, and the days of the unit. Of a day that is further away the date says
enough beside today's, and each heading would take the tokens of a few words from the turns."""
NOTHING_CLOSE: Final = "None of this is close to the words of the question."
_LINE: Final = 4
"""Characters of a line beside its text: a dash, blanks and a line break."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryRow:
    """A row of the block. Dates and times are texts that begin with ``2026-11-28``; empty without one."""

    text: str
    kind: str = ""
    who: str = ""
    """The author of a turn."""
    time: str = ""
    since: str = ""
    until: str = ""
    doubted: str = ""
    """The date since which it is in doubt, because what it depends on ended."""
    because: str = ""
    """What ended then."""
    times: int = 1
    """How often the author said it."""
    is_empty: bool = False
    """Whether it tells nothing, and is shown with an answer behind it only."""
    score: float | None = None

    @property
    def size(self) -> int:
        """The approximate number of characters of its line."""
        because = len(self.because) if self.kind in _KNOWN else 0
        return len(self.text) + len(self.who) + because + _LINE if self.text else 0


class MemoryRowReader:
    """Reads rows by the names of their columns."""

    __slots__ = ("_cut", "_places", "_width")

    def __init__(self, names: Sequence[str], cut: Callable[[str], str] | None) -> None:
        places: dict[str, int] = {}
        for place, name in enumerate(names):
            places.setdefault(name.rpartition(".")[2], place)
        self._places = places
        self._width = len(names)
        self._cut = cut

    def read(self, cells: Sequence[Any], line: Callable[[Any], str]) -> MemoryRow:
        """Return a row; ``line`` writes a cell on one line. Raises ``ValueError`` for another number of cells."""
        if len(cells) != self._width:
            raise ValueError(f"a row of {len(cells)} cells for {self._width} columns")

        def of(name: str) -> Any:
            place = self._places.get(name)
            return None if place is None else cells[place]

        text = of("text")
        if self._cut is not None and type(text) is str:
            text = self._cut(text)
        kind, role, score, times = line(of("kind")), line(of("role")), of("score"), of("times")
        return MemoryRow(
            text=line(text),
            kind=kind,
            who=_who(line(of("author_name")), role),
            time=line(of("timestamp")),
            since=line(of("valid_at") if kind == "fact" else of("timestamp"))[:10],
            until=line(of("invalid_at") or (of("expires_at") if kind == "memory" else None))[:10],
            doubted=line(of("doubted_at"))[:10],
            because=line(of("doubted_because")),
            times=times if type(times) is int else 1,
            is_empty=kind in _SAID and type(score) in _NUMBERS and score <= _EMPTY,
            score=score if type(score) in _NUMBERS else None,
        )


def memory_text(
    rows: Sequence[MemoryRow], today: date | None, floor: float | None = None, *, bare: bool = False
) -> str:
    """Return the rows, which are in the order of their rank, as the lines of a block; empty without one that shows.

    ``today`` says how long ago a day of the last weeks was; without it the text says nothing of that. If no score
    reaches ``floor``, the block says that none is close. With ``bare``, there is no heading and no day.
    """
    rows = [row for row in rows if row.text]
    known = [row for row in rows if row.kind in _KNOWN]
    said = _with_answers(sorted((row for row in rows if row.kind not in _KNOWN), key=lambda row: row.time))
    lines = [_known_line(row) for row in known]
    days: dict[str, list[str]] = {}
    for row in said:
        days.setdefault("" if bare else _day_heading(row.time[:10], today), []).append(_said_line(row))
    if not lines and not days:
        return ""
    if lines and days and not bare:
        lines.insert(0, "Known:")
    for day, of_day in days.items():
        lines += of_day if bare else [f"{day}:", *of_day]
    if today is not None and not bare:
        lines.insert(0, f"Today is {_named(today)}.")
    if floor is not None and all(row.score is not None and row.score < floor for row in (*known, *said)):
        lines.append(NOTHING_CLOSE)
    return "\n".join(lines)


def _with_answers(rows: Sequence[MemoryRow]) -> list[MemoryRow]:
    """Return the rows, without turns that tell nothing unless the next row is somebody's answer on the same day."""
    kept: list[MemoryRow] = []
    for place, row in enumerate(rows):
        answer = rows[place + 1] if place + 1 < len(rows) else None
        if row.is_empty and (
            answer is None or answer.is_empty or answer.who == row.who or answer.time[:10] != row.time[:10]
        ):
            continue
        kept.append(row)
    return kept


def _known_line(row: MemoryRow) -> str:
    named = (("since", row.since), ("until", row.until), ("in doubt since", row.doubted))
    times = ", ".join(f"{word} {at}" for word, at in named if at)
    if row.doubted and row.because:
        times += f', because "{row.because[:_LONGEST_REASON]}" ended'
    return f"- {row.text} ({times})" if times else f"- {row.text}"


def _said_line(row: MemoryRow) -> str:
    who = f"{row.who}: " if row.who else f"{row.kind}: " if row.kind not in _SAID else ""
    again = f" ({row.times} times, last on this day)" if row.times > 1 else ""
    until = f" (until {row.until})" if row.until else ""
    doubted = f" (in doubt since {row.doubted})" if row.doubted else ""
    return f"- {who}{row.text}{again}{until}{doubted}"


def _who(name: str, role: str) -> str:
    """Return the author's name, or the role; neither may look like the beginning of a text.

    A name with the word of a role or kind in it is quoted behind the role.
    """
    if role.lower() in _COMMANDING:
        return f"quoted {role}"
    role = role.replace(":", " ")
    name = " ".join(name.replace(":", " ").split())[:_LONGEST_NAME]
    if not name or name == role:
        return role
    if _has_role(name):
        return f'{role} "{name.replace(chr(34), chr(39))}"'.lstrip()
    return name


@lru_cache(maxsize=1024)
def _has_role(name: str) -> bool:
    """Tell whether a word of a name is that of a role or kind, or looks like it."""
    shown = "".join(map(plain, name)).casefold()
    words = [word for word in _NO_LETTERS.split(shown) if word]
    return not _ROLES.isdisjoint({*words, "".join(words)})


def _day_heading(day: str, today: date | None) -> str:
    try:
        at = date.fromisoformat(day)
    except ValueError:
        return "Without a date"
    passed = "" if today is None else _passed((today - at).days)
    return f"{_named(at)}, {passed}" if passed else _named(at)


def _named(day: date) -> str:
    return f"{_DAYS[day.weekday()]} {day.isoformat()}"


def _passed(days: int) -> str:
    """Return how long ago a day was; empty for one that is far away."""
    if days in _NEAR:
        return _NEAR[days]
    size = abs(days)
    count, unit = next(((size // each, unit) for most, each, unit in _PASSED if size < most), (0, ""))
    if not count:
        return ""
    text = f"{count} {unit}{'s' if count > 1 else ''}"
    return f"{text} ago" if days > 0 else f"in {text}"


_NEAR: Final[Mapping[int, str]] = {0: "today", 1: "yesterday", -1: "tomorrow"}
