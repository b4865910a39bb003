"""The order in which a search shows its hits: what tells something first, and equal texts once."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, Final

from graphweft_workers.retrieval.empty_turns import tells_nothing
from graphweft_workers.retrieval.periods import Period
from graphweft_workers.retrieval.ranking import Hit

_MEMORY: Final = "memory"

type Row = tuple[Any, ...]
type Shown = tuple[Hit, Row]


class Arrangement:
    """The hits of a search with their rows, in the order of their scores until they are arranged."""

    def __init__(
        self, columns: Sequence[str], most: int, periods: Sequence[Period] = (), shown: Iterable[str] = ()
    ) -> None:
        """``columns`` are those of the rows; at most ``most`` hits are shown, and no memory with a text of ``shown``.

        ``periods`` are the days that the question names: equal texts of these days are not one with those of others.
        """
        places = {name: place for place, name in enumerate(columns)}
        self._kind, self._text, self._role, self._author, self._time, self._times = map(
            places.get, ("kind", "text", "role", "author_name", "timestamp", "times")
        )
        self._most = most
        self._periods = periods
        self._before = frozenset(map(plain_text, shown))
        self._telling: list[Shown] = []
        self._others: list[Shown] = []
        self._known: dict[tuple[object, ...], tuple[list[Shown], int]] = {}
        """The author, the text and the fit of the day of each memory -> where its hit is."""

    @property
    def full(self) -> bool:
        """Whether no later hit would be shown."""
        return len(self._telling) >= self._most

    @property
    def shown(self) -> list[Shown]:
        """The hits to show. Their scores do not rise, and a turn that tells nothing has 0."""
        shown: list[Shown] = []
        least = math.inf
        for place, (hit, row) in enumerate([*self._telling, *self._others][: self._most]):
            least = min(least, hit.score) if place < len(self._telling) else 0.0
            shown.append((hit._replace(score=least), row))
        return shown

    def add(self, found: Iterable[Shown]) -> None:
        """Add the next hits. A memory with the text of an earlier one takes its place if it is later.

        If the question names days, this holds among the memories of these days, and among the others. The column
        ``times`` of the one that stays counts them.
        """
        for hit, row in found:
            text = _of(row, self._text)
            if _of(row, self._kind) != _MEMORY or not isinstance(text, str):
                self._telling.append((hit, row))
                continue
            plain = plain_text(text)
            if plain in self._before:
                continue
            role, time = _of(row, self._role), str(_of(row, self._time))
            hits = self._others if tells_nothing(text, role) else self._telling
            fit = max((period.fit(time[:10]) for period in self._periods), default=0.0)
            said = role, _of(row, self._author), plain, fit
            if (known := self._known.get(said)) is None:
                self._known[said] = (hits, len(hits))
                hits.append((hit, row))
                continue
            same, place = known
            earlier, its_row = same[place]
            count = (_of(its_row, self._times) or 1) + 1
            if time > str(_of(its_row, self._time)):
                earlier, its_row = hit._replace(score=earlier.score), row
            if self._times is not None:
                its_row = (*its_row[: self._times], count, *its_row[self._times + 1 :])
            same[place] = (earlier, its_row)


def _of(row: Row, place: int | None) -> Any:
    """Return the value of a column of a row; None without the column."""
    return None if place is None else row[place]


def plain_text(text: str) -> str:
    """Return a text in the form that is equal for texts that say the same."""
    return " ".join(text.casefold().split())
