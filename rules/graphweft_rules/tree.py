"""The values of a rule file as a tree in which every key and every value knows where it stands.

Positions have to live beside the values: findings, dead letters and replies name the line of a rule long after the
file was read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from graphweft_rules.model import Place, Written


@dataclass(frozen=True, slots=True, kw_only=True)
class Scalar:
    """A string, number, boolean or null."""

    value: str | int | float | bool | None
    place: Place
    text: Place | None = None
    """Where the first character of a string stands, when the file has the string letter by letter."""

    def at(self, line: int, column: int) -> Place:
        """Return where line and column of the string (both from 1) stand in the file.

        That is exact for literal blocks and for strings on one line without escapes, else it is the scalar's place.
        """
        return self.written.at(line, column)

    @property
    def written(self) -> Written:
        """Where the string stands, for those who ask without its value."""
        return Written(place=self.place, first=self.text)

    def at_offset(self, offset: int) -> Place:
        """Return where the character behind ``offset`` others stands, as ``at`` does."""
        before = str(self.value)[:offset].split("\n")
        return self.at(len(before), len(before[-1]) + 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Items:
    """A list."""

    items: tuple[Node, ...]
    place: Place


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """The value of a key, and the key's place."""

    key: Place
    value: Node


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A mapping; keys are strings and stand in the file's order."""

    entries: Mapping[str, Entry]
    place: Place


@dataclass(frozen=True, slots=True, kw_only=True)
class Broken:
    """A value that has its finding already: whoever meets it need not complain again."""

    place: Place


Node = Scalar | Items | Table | Broken


def plain(node: Node) -> Any:
    """Return the value without its places: what ``json.dumps`` takes. ``Broken`` becomes None."""
    match node:
        case Scalar():
            return node.value
        case Items():
            return [plain(item) for item in node.items]
        case Table():
            return {key: plain(entry.value) for key, entry in node.entries.items()}
        case Broken():
            return None
