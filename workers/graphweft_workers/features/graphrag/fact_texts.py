"""Finished facts, kept over retrievals: questions find the same entities again, and redaction is what a fact costs."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

_MOST_CHARS: Final = 2_000_000
"""Limit of characters, about 8,000 facts."""


class FactTexts:
    """Facts by the texts that they are made of, at most some characters; those that were not used for longest go first.

    A fact depends on these texts alone: its redaction has no settings. A text of the graph that changes is another key.
    """

    def __init__(self, most_chars: int = _MOST_CHARS) -> None:
        self._most_chars = most_chars
        self._facts: OrderedDict[tuple[str, ...], str] = OrderedDict()
        self.chars: int = 0

    def get(self, texts: tuple[str, ...]) -> str | None:
        """Return the fact, or None if it is not kept."""
        fact = self._facts.get(texts)
        if fact is not None:
            self._facts.move_to_end(texts)
        return fact

    def keep(self, texts: tuple[str, ...], fact: str) -> None:
        """Keep a fact that is not kept yet."""
        self._facts[texts] = fact
        self.chars += _chars(texts, fact)
        while self.chars > self._most_chars:
            self.chars -= _chars(*self._facts.popitem(last=False))


def _chars(texts: tuple[str, ...], fact: str) -> int:
    return sum(map(len, texts)) + len(fact)
