"""The mark by which a graph knows the log that it was made from: the place and the time of one of its entries.

An offset that is only a number is in every log, so a log that began anew under a present graph holds other entries at
the same offsets. An offset with a time in it is in one log only and needs no mark.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple, cast

from graphweft_workers.ports.event_log import Entry

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)
_RENEWED_MS: Final = 10_000
"""A mark is renewed by an entry that is so much later in the log: a plan of one write then stores a note."""


class EntryMark(NamedTuple):
    """The offset of an entry, and when the log took it."""

    offset: str
    ms: int

    @classmethod
    def of(cls, entry: Entry) -> EntryMark | None:
        """Return the mark of an entry; None if its offset says the time itself."""
        return None if "-" in entry.offset else cls(entry.offset, (entry.received - _EPOCH) // _MILLISECOND)

    @classmethod
    def of_note(cls, note: Mapping[str, Any]) -> EntryMark | None:
        """Return the mark that ``in_note`` wrote; None if there is none, as in the notes of earlier versions."""
        found: object = note.get("entry")
        if not isinstance(found, list) or len(cast("list[object]", found)) != 2:
            return None
        offset, ms = cast("list[object]", found)
        return cls(offset, ms) if isinstance(offset, str) and isinstance(ms, int) else None

    def is_due(self, noted: EntryMark | None) -> bool:
        """Tell whether to store this mark in the place of the one that is noted."""
        return noted is None or not 0 <= self.ms - noted.ms < _RENEWED_MS


def in_note(mark: EntryMark | None) -> dict[str, Any]:
    """Return what a note says of a mark. Earlier versions pass over it."""
    return {} if mark is None else {"entry": list(mark)}
