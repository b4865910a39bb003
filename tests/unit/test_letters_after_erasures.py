"""A worker that stood still while something was erased writes no dead letter that holds it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import cast, override

import pytest
from tests.chaos.memory_bus import MemoryLetters, memory_bus
from tests.services.rules import rule_set
from tests.services.virtual_time import VIRTUAL

from graphweft_contracts import DeadLetter, Event, wire
from graphweft_workers.drivers.falkordb.dialect import FALKORDB
from graphweft_workers.engine.log.read import letter_for
from graphweft_workers.engine.worker import MutationWorker
from graphweft_workers.ports.bus import Bus
from graphweft_workers.ports.event_log import Entry
from graphweft_workers.ports.graph_store import GraphStore
from graphweft_workers.ports.purges import Purge, put_purge

SECRET = "the-word-of-ada"


class Letters(MemoryLetters):
    """Letters in front of which something may happen."""

    def __init__(self) -> None:
        super().__init__()
        self.before: Callable[[], Awaitable[object]] | None = None

    @override
    async def put(self, letters: Sequence[DeadLetter]) -> None:
        await self._happen()
        await super().put(letters)

    @override
    async def extend(self, letter: DeadLetter | None, longer: DeadLetter) -> bool:
        await self._happen()
        return await super().extend(letter, longer)

    @override
    async def requeue(
        self, letter: DeadLetter, entries: Sequence[Mapping[bytes, bytes]], rest: DeadLetter | None = None
    ) -> bool:
        if self.found.get(letter.id) != letter:
            return False
        del self.found[letter.id]
        if rest is not None:
            self.found[rest.id] = rest
        return True

    async def _happen(self) -> None:
        if (before := self.before) is not None:
            self.before = None
            await before()


class Shop:
    """A log in which ada and bob talk, and the letters of a worker that has read it."""

    def __init__(self) -> None:
        self.log = [self._entry(1, "ada", SECRET), self._entry(2, "bob", "hello"), self._entry(3, "ada", SECRET)]
        self.letters = Letters()
        self.bus: Bus = memory_bus([self.log], letters=self.letters)
        graph = cast(GraphStore, SimpleNamespace(dialect=FALKORDB))
        worker = MutationWorker(self.bus, graph, rule_set(), name="w", clock=VIRTUAL)
        self.begin = worker._letters.begin
        self.written = worker._parts.state.letters
        self.read = list(self.log)

    def _entry(self, number: int, user: str, text: str) -> Entry:
        event = Event.create(
            "a.b", app_id="shop", chat_id="c", id=f"e{number}", source="/t", user_id=user, data={"text": text}
        )
        return Entry(offset=str(number), fields=wire.encode(event), received=VIRTUAL.now())

    def letter(self, *numbers: int) -> DeadLetter:
        first = self.read[numbers[0] - 1]
        letter = letter_for(0, first, "query_error", "no", event=first.event(), rule=f"r{numbers}", mutation="m")
        return letter.of_entries(tuple(str(each) for each in numbers)) if len(numbers) > 1 else letter

    async def erase(self) -> None:
        """Erase ada, as ``graphweft erase`` does: log, letters, announcement."""
        self.log[:] = [
            replace(each, fields={}, erased=True) if each.offset in {"1", "3"} else each for each in self.log
        ]
        await put_purge(self.bus.purges, Purge(app_id="shop", erasure="1"))

    @property
    def kept(self) -> dict[str, tuple[str, ...]]:
        assert SECRET not in repr(self.letters.found)
        return {each.id: each.entries for each in self.letters.found.values()}


@pytest.mark.parametrize("way", ["put", "extend"])
@pytest.mark.parametrize("when", ["before the write", "during the write"])
async def test_a_letter_holds_no_event_that_was_erased_meanwhile(way: str, when: str) -> None:
    shop = Shop()
    one, several, bobs = shop.letter(1), shop.letter(1, 2), shop.letter(2)
    if when == "before the write":
        await shop.erase()
    for each in (one, several, bobs):
        if when == "during the write" and each is one:
            shop.letters.before = shop.erase
        if way == "put":
            await shop.written.put([each])
        else:
            assert await shop.written.extend(None, each)
    assert shop.kept == {several.id: ("2",), bobs.id: ("2",)}
    assert wire.unpack(shop.letters.found[several.id].fields) == shop.log[1].fields


async def test_letters_of_other_apps_and_without_an_erasure_stay_as_they_are() -> None:
    shop = Shop()
    letters = [shop.letter(1), shop.letter(2)]
    await put_purge(shop.bus.purges, Purge(app_id="other", erasure="1"))
    await put_purge(shop.bus.purges, Purge(app_id="shop"))  # of `memory.erase`, whose events the log keeps
    await shop.written.put(letters)
    assert list(shop.letters.found.values()) == letters


async def test_what_was_read_after_an_erasure_costs_no_look_at_the_log() -> None:
    shop = Shop()
    await shop.erase()
    letter = shop.letter(1)
    await shop.begin()
    await shop.written.put([letter])
    assert list(shop.letters.found.values()) == [letter]  # nobody reads it again, as its event is of later


@pytest.mark.parametrize("erased", [False, True])
async def test_a_letter_that_gets_longer_keeps_its_first_event(*, erased: bool) -> None:
    shop = Shop()
    letter, longer = shop.letter(2), shop.letter(2, 3)
    longer = longer.model_copy(update={"id": letter.id})
    await shop.written.put([letter])
    await put_purge(shop.bus.purges, Purge(app_id="shop", erasure="0"))
    if erased:
        await shop.erase()
    assert await shop.written.extend(letter, longer)
    assert shop.letters.found[letter.id].entries == (("2",) if erased else ("2", "3"))
    assert shop.letters.found[letter.id].fields == letter.fields


async def test_a_letter_that_no_event_of_an_app_can_be_read_of_may_be_of_the_erased_one() -> None:
    shop = Shop()
    letter = shop.letter(1).model_copy(update={"app_id": None})
    await shop.erase()
    await shop.written.put([letter])
    assert shop.kept == {}


async def test_a_letter_refers_to_what_only_an_archive_may_hold() -> None:
    shop = Shop()
    letter = shop.letter(2, 3)
    await shop.erase()
    await shop.bus.partitions.trim(0, "3")
    await shop.written.put([letter])
    assert shop.kept == {letter.id: ("2", "3")}
    assert shop.letters.found[letter.id].fields == {}
