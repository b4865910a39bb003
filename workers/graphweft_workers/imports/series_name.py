"""Numbers the events of a file, so that workers know a copy of it however long it is; see ``engine.series``."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from typing import Final

from pydantic_core import to_json

from graphweft_contracts import Event

_PREFIX: Final = "file-"
_DIGEST: Final = 12


class SeriesName:
    """The series of all events of a file.

    Its name is a digest of the identities of the events in their order. So a number in it stands for one event, and a
    file with other events has other numbers.
    """

    def __init__(self) -> None:
        self._digest = hashlib.blake2b(digest_size=_DIGEST)

    def add(self, events: Iterable[Event]) -> int:
        """Read all events in their order; return how many there are."""
        number = 0
        for event in events:
            number += 1
            self._digest.update(to_json([event.appid, *event.identity]))
        return number

    def numbered(self, events: Iterable[Event]) -> Iterator[Event]:
        """Yield the same events in the same order with their numbers. A number of another kind stays."""
        name = f"{_PREFIX}{self._digest.hexdigest()}"
        for number, event in enumerate(events, start=1):
            if event.sequence is None or event.sequence.startswith(_PREFIX):  # that of a file it was part of before
                yield event.model_copy(update={"sequence": f"{name}/{number:010}"})
            else:
                yield event
