"""Dead letters of apps that have as many as their quota allows: they keep reason and identity, but not the event.

A retry then reads the event from the log.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from graphweft_contracts import DeadLetter
from graphweft_workers.engine.usage_reporter import UsageReporter
from graphweft_workers.ports.dead_letters import DeadLetters


class LetterQuota:
    """``DeadLetters`` that writes letters above the quota of their app without the event. All else is the bus's."""

    def __init__(self, letters: DeadLetters, usage: UsageReporter, limit: Callable[[str], int | None]) -> None:
        """``limit`` returns the quota of an app; None is no quota."""
        self._letters = letters
        self._usage = usage
        self._limit = limit

    async def put_dead_letters(self, letters: Sequence[DeadLetter]) -> None:
        """See ``DeadLetters.put_dead_letters``."""
        kept = self._within(letters)
        await self._letters.put_dead_letters(kept)
        for letter in kept:
            self._count(letter)

    async def extend(self, letter: DeadLetter | None, longer: DeadLetter) -> bool:
        """See ``DeadLetters.extend``. A letter that is there keeps its event."""
        if letter is not None:
            return await self._letters.extend(letter, longer)
        [kept] = self._within([longer])
        done = await self._letters.extend(None, kept)
        if done:
            self._count(kept)
        return done

    async def dead_letter_count(self) -> int:
        """See ``DeadLetters.dead_letter_count``."""
        return await self._letters.dead_letter_count()

    async def dead_letters(
        self, *, limit: int, app_id: str | None = None, size: int | None = None, whole: bool = True
    ) -> Sequence[DeadLetter]:
        """See ``DeadLetters.dead_letters``."""
        return await self._letters.dead_letters(limit=limit, app_id=app_id, size=size, whole=whole)

    async def dead_letter(self, letter_id: str) -> DeadLetter | None:
        """See ``DeadLetters.dead_letter``."""
        return await self._letters.dead_letter(letter_id)

    async def requeue(
        self, letter: DeadLetter, entries: Sequence[Mapping[bytes, bytes]], rest: DeadLetter | None = None
    ) -> bool:
        """See ``DeadLetters.requeue``."""
        return await self._letters.requeue(letter, entries, rest)

    def _within(self, letters: Sequence[DeadLetter]) -> list[DeadLetter]:
        found: list[DeadLetter] = []
        more: dict[str, int] = {}
        for letter in letters:
            app_id, kept = letter.app_id, letter
            limit = None if app_id is None else self._limit(app_id)
            if app_id is not None and limit is not None:
                if self._usage.letters_of(app_id) + more.get(app_id, 0) >= limit:
                    kept = without_event(letter)
                more[app_id] = more.get(app_id, 0) + 1
            found.append(kept)
        return found

    def _count(self, letter: DeadLetter) -> None:
        if letter.app_id is not None:
            payload = bool(letter.fields) or letter.reason == "trimmed"
            self._usage.add_letter(letter.partition, letter.app_id, payload=payload)


def without_event(letter: DeadLetter) -> DeadLetter:
    """Return a letter that refers to its events in the log and keeps none; one of lost events stays as it is."""
    if letter.reason == "trimmed" or not letter.fields:
        return letter
    return letter.model_copy(update={"fields": {}}) if letter.offsets else letter.without_event()
