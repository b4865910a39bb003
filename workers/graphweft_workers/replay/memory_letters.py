"""Dead letters of a replay."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from graphweft_contracts import DeadLetter
from graphweft_workers.ports.dead_letters import LettersOfApp, counted_by_app, first_letters


class MemoryLetters:
    """Dead letters in memory. Those on the bus belong to the live graph."""

    def __init__(self) -> None:
        self.found: dict[str, DeadLetter] = {}

    async def put(self, letters: Sequence[DeadLetter]) -> None:
        """See ``DeadLetters.put``."""
        self.found.update((letter.id, letter) for letter in letters)

    async def extend(self, letter: DeadLetter | None, longer: DeadLetter) -> bool:
        """See ``DeadLetters.extend``."""
        there = self.found.get(longer.id) == letter
        if there:
            self.found[longer.id] = longer
        return there

    async def read(
        self, *, limit: int, app_id: str | None = None, size: int | None = None, whole: bool = True,
        ids: Collection[str] | None = None,
    ) -> Sequence[DeadLetter]:  # fmt: skip
        """See ``DeadLetters.read``."""
        return first_letters(self.found.values(), limit, app_id, size, whole=whole, ids=ids)

    async def requeue(
        self, letter: DeadLetter, entries: Sequence[Mapping[bytes, bytes]], rest: DeadLetter | None = None
    ) -> bool:
        """See ``DeadLetters.requeue``."""
        return False  # a replay appends nothing to the log

    async def by_app(self) -> Mapping[str, LettersOfApp]:
        """See ``DeadLetters.by_app``."""
        return counted_by_app(self.found.values())
