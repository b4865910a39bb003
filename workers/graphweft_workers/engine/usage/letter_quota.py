"""Dead letters of apps that have as many as their quota allows: they keep reason and identity, but not the event.

A retry then reads the event from the log.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, override

from graphweft_contracts import DeadLetter
from graphweft_workers.engine.usage.usage_reporter import UsageReporter
from graphweft_workers.ports.dead_letters import DeadLetters, LettersAround
from graphweft_workers.telemetry.metrics import DEAD_LETTERS_WRITTEN

KEPT_LETTERS: Final = 10_000
"""Dead letters of an app that keep their event without a quota of its own."""
KEPT_BYTES: Final = 32 * 1024**2
"""About the bytes of an app's dead letters from which further ones keep no event."""
_OTHERS: Final = 300


class LetterQuota(LettersAround):
    """``DeadLetters`` that writes letters above the quota of their app without the event."""

    def __init__(self, letters: DeadLetters, usage: UsageReporter, limit: Callable[[str], int | None]) -> None:
        """``limit`` returns the quota of an app; None is no quota but ``KEPT_LETTERS``."""
        super().__init__(letters)
        self._usage = usage
        self._limit = limit

    @override
    async def put(self, letters: Sequence[DeadLetter]) -> None:
        kept = self._within(letters)
        await super().put(kept)
        for letter in kept:
            self._count(letter)

    @override
    async def extend(self, letter: DeadLetter | None, longer: DeadLetter) -> bool:
        if letter is not None:  # it keeps its event
            return await super().extend(letter, longer)
        [kept] = self._within([longer])
        done = await super().extend(None, kept)
        if done:
            self._count(kept)
        return done

    def _within(self, letters: Sequence[DeadLetter]) -> list[DeadLetter]:
        found: list[DeadLetter] = []
        more: dict[str, int] = {}
        more_bytes: dict[str, int] = {}
        for letter in letters:
            app_id, kept = letter.app_id, letter
            if app_id is not None:
                limit = self._limit(app_id) or KEPT_LETTERS
                size = self._usage.letter_bytes_of(app_id) + more_bytes.get(app_id, 0) + _size(letter)
                if self._usage.letters_of(app_id) + more.get(app_id, 0) >= limit or size > KEPT_BYTES:
                    kept = without_event(letter)
                more[app_id] = more.get(app_id, 0) + 1
                more_bytes[app_id] = more_bytes.get(app_id, 0) + _size(kept)
            found.append(kept)
        return found

    def _count(self, letter: DeadLetter) -> None:
        DEAD_LETTERS_WRITTEN.add(1, letter.reason, app=letter.app_id or "")
        if letter.app_id is not None:
            payload = bool(letter.fields) or letter.reason == "trimmed"
            self._usage.add_letter(letter.partition, letter.app_id, size=_size(letter), payload=payload)


def _size(letter: DeadLetter) -> int:
    """Return about the bytes of a letter: those of its event, and of its texts."""
    return sum(len(name) + len(value) for name, value in letter.fields.items()) + len(letter.message) + _OTHERS


def without_event(letter: DeadLetter) -> DeadLetter:
    """Return a letter that refers to its events in the log and keeps none; one of lost events stays as it is."""
    if letter.reason == "trimmed" or not letter.fields:
        return letter
    return letter.model_copy(update={"fields": {}}) if letter.offsets else letter.without_event()
