"""The values of a rule file as a tree, with the place of every key and value.

Findings, dead letters and replies name these places long after the file was read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from graphweft_rules.files.model import Place, TextPlace


@dataclass(frozen=True, slots=True, kw_only=True)
class Scalar:
    """A string, number, boolean or null."""

    value: str | int | float | bool | None
    place: Place
    text: Place | None = None
    """The place of the first character of a string, if the file has the string literally."""
    joined: tuple[str, ...] = ()
    """The lines of the file that YAML joined to this string; empty if it joined none."""

    def swallowed(self, comment: str) -> bool:
        """Tell whether a comment of the string, up to the end of its line, has text of later lines of the file."""
        return bool(self.joined) and not any(line.endswith(comment.rstrip()) for line in self.joined)

    def at(self, line: int, column: int) -> Place:
        """Return the place of a line and column of the string: see ``TextPlace.at``."""
        return self.written.at(line, column)

    @property
    def written(self) -> TextPlace:
        """The place of the string, without its value."""
        return TextPlace(place=self.place, first=self.text)

    def at_offset(self, offset: int) -> Place:
        """Return the place of the character at ``offset``, as ``at`` does."""
        before = str(self.value)[:offset].split("\n")
        return self.at(len(before), len(before[-1]) + 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Items:
    """A list."""

    items: tuple[Node, ...]
    place: Place


@dataclass(frozen=True, slots=True, kw_only=True)
class TableEntry:
    """The value of a key, and the key's place."""

    key: Place
    value: Node


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyTable:
    """A mapping; its keys are strings in the file's order."""

    entries: Mapping[str, TableEntry]
    place: Place


@dataclass(frozen=True, slots=True, kw_only=True)
class Broken:
    """A value with a finding, which needs no further report."""

    place: Place


Node = Scalar | Items | KeyTable | Broken


def plain(node: Node) -> Any:
    """Return the value without places, for ``json.dumps``. ``Broken`` becomes None."""
    match node:
        case Scalar():
            return node.value
        case Items():
            return [plain(item) for item in node.items]
        case KeyTable():
            return {key: plain(entry.value) for key, entry in node.entries.items()}
        case Broken():
            return None
