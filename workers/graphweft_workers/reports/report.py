"""A report: what an ability found, as one value. An edge shows it as JSON, or its parts in order."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class TextTable:
    """A table for people. Numbers and times are values, and whoever shows them formats them."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    title: str | None = None


@dataclass(frozen=True, slots=True)
class Notice:
    """A warning or a hint beside the result, or an error. On the command line it goes to standard error."""

    text: str
    is_error: bool = False


type Part = str | TextTable | Notice
"""What people read: some lines, a table, or a notice. Text of others is escaped where it is shown."""


class Report(Protocol):
    """What an ability found."""

    def to_dict(self) -> Any:
        """Return it as plain values, for JSON."""
        ...

    def parts(self) -> Iterable[Part]:
        """Yield it for people."""
        ...


@dataclass(frozen=True, slots=True)
class PlainReport:
    """The report of an ability whose plain values say all of it."""

    data: Any
    text: Iterable[Part]

    def to_dict(self) -> Any:
        """Return it as plain values, for JSON."""
        return self.data

    def parts(self) -> Iterable[Part]:
        """Yield it for people."""
        return self.text
