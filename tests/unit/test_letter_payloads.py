"""The event of a dead letter: in the letter, in the log, or in a letter of another mutation of the same event."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, override

from tests.chaos.memory_bus import MemoryLetters, memory_bus

from graphweft_contracts import DeadLetter, wire
from graphweft_workers.engine.failures.letter_payloads import payload_of
from graphweft_workers.engine.failures.retries import retry


def letter(mutation: str, position: str = "0:1", **fields: str) -> DeadLetter:
    return DeadLetter(
        id=f"{position}:r/{mutation}",
        reason="timeout",
        message="x",
        position=position,
        time=datetime(2026, 1, 1, tzinfo=UTC),
        app_id="a",
        rule="r",
        mutation=mutation,
        fields=fields,
    )


class Counting(MemoryLetters):
    """Counts the letters that it returns with their events."""

    whole = 0

    @override
    async def read(self, *, limit: int, whole: bool = True, **more: Any) -> Sequence[DeadLetter]:
        found = await super().read(limit=limit, whole=whole, **more)
        self.whole += len(found) if whole else 0
        return found


async def test_the_event_of_a_trimmed_log_is_found_beside_without_reading_those_of_all_letters() -> None:
    letters = Counting()
    bus = memory_bus([()], letters=letters)
    kept = letter("keeper", data="event")
    empty = letter("one").without_event()
    others = [letter("one", f"0:{number}", data="another") for number in range(2, 100)]
    await bus.dead_letters.put([*others, empty, letter("two").without_event(), kept])
    assert await payload_of(bus, empty) == {"data": "event"}
    assert letters.whole <= 3
    assert await payload_of(bus, letter("one", "0:200").without_event()) == {}


class Requeueing(MemoryLetters):
    """Takes what is retried."""

    taken: list[Mapping[bytes, bytes]]

    @override
    async def requeue(
        self, letter: DeadLetter, entries: Sequence[Mapping[bytes, bytes]], rest: DeadLetter | None = None
    ) -> bool:
        self.taken = [*entries]
        return True


async def test_a_letter_of_several_events_is_not_retried_by_the_one_that_lies_beside() -> None:
    letters = Requeueing()
    bus = memory_bus([()], letters=letters)
    kept = letter("keeper", **wire.pack({wire.DATA: b"x"}))
    several = letter("one").of_entries(("1", "2"))
    await bus.dead_letters.put([kept, several])
    done = await retry(bus, several)
    assert (done.events, "no longer holds 2 of its 2 events" in (done.kept or "")) == (0, True)


async def test_a_skip_that_lies_beside_is_retried_by_the_name_of_its_row() -> None:
    letters = Requeueing()
    bus = memory_bus([()], letters=letters)
    kept = letter("keeper", **wire.pack({wire.DATA: b"x"}))
    skip = letter("one").without_event().model_copy(update={"id": "0:skipped:x", "reason": "skipped"})
    await bus.dead_letters.put([kept, skip])
    assert (await retry(bus, skip)).events == 1
    assert wire.retry_of(letters.taken[0]) == wire.Retry("0:1:r/one", "r", "one", asks=True)
