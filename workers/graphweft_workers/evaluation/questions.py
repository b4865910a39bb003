"""Questions to a memory, and the evidence that answers them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from graphweft_contracts.memory import MemoryScope
from graphweft_rules.files.model import Place

_LETTER: Final = "[a-z0-9\u00df-\u024f]"
"""Of scripts with blanks between words: there, a word is found as a whole only."""
_LEAST_PASSAGE: Final = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedMessage:
    """A message that answers a question: the id that its sender gave it, or the id of its memory."""

    id: str
    place: Place


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryQuestion:
    """A question, whose memory is asked, and what answers it: messages, words, or nothing."""

    text: str
    scope: MemoryScope
    place: Place
    expect: tuple[ExpectedMessage, ...] = ()
    contains: tuple[str, ...] = ()
    stale: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()

    @property
    def nothing(self) -> bool:
        """Whether the memory does not know the answer."""
        return not (self.expect or self.contains)


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundRow:
    """A row of a search."""

    id: str
    text: str


type _Finds = Callable[[FoundRow], bool]


class Evidence:
    """What answers a question: its items are numbers from 0 on."""

    def __init__(self, items: Sequence[_Finds], texts: Sequence[str] = ()) -> None:
        """``texts`` are those of the messages, for finding passages of them; by item."""
        self._items = items
        self._texts = [one_line(text) for text in texts]
        self.all: Final = frozenset(range(len(items)))

    @classmethod
    def of_messages(cls, texts: Mapping[str, str]) -> Evidence:
        """Return the evidence of messages: the texts of memories by id."""
        items = [_is_message(id, one_line(text)) for id, text in texts.items()]
        return cls(items, list(texts.values()))

    @classmethod
    def of_words(cls, words: Sequence[str]) -> Evidence:
        """Return the evidence of words, each of which a row may have."""
        return cls([_has_word(word) for word in words])

    def in_row(self, row: FoundRow) -> frozenset[int]:
        """Return the items that a row of a search has."""
        return frozenset(number for number, finds in enumerate(self._items) if finds(row))

    def in_line(self, line: str) -> frozenset[int]:
        """Return the items that a line of a text for agents has: also a passage of a long message counts."""
        found = self.in_row(FoundRow(id="", text=line))
        return found | {number for number, text in enumerate(self._texts) if shows(line, text)}


def has_any(words: Sequence[str]) -> Callable[[str], bool]:
    """Return whether a text has one of some words or phrases."""
    finders = [_has_word(word) for word in words]
    return lambda text: any(finds(FoundRow(id="", text=text)) for finds in finders)


def one_line(text: str) -> str:
    """Return a text with single blanks."""
    return " ".join(text.split())


def shows(line: str, text: str) -> bool:
    """Tell whether a line of a block shows a text, or at least 20 characters of it: ``Ann: …the middle of it…``."""
    _, _, behind_name = line.partition(": ")
    parts = [part.strip("… ") for part in (line, behind_name)]
    return (
        text in parts
        or (len(text) >= _LEAST_PASSAGE and text in line)
        or any(len(part) >= _LEAST_PASSAGE and part in text for part in parts)
    )


def _is_message(id: str, text: str) -> _Finds:
    return lambda row: row.id == id or one_line(row.text) == text


def _has_word(word: str) -> _Finds:
    folded = one_line(word).casefold()
    before = f"(?<!{_LETTER})" if re.match(_LETTER, folded) else ""
    behind = f"(?!{_LETTER})" if re.match(_LETTER, folded[-1:]) else ""
    pattern = re.compile(f"{before}{re.escape(folded)}{behind}")
    return lambda row: pattern.search(one_line(row.text).casefold()) is not None
