"""Keeps what was erased out of the dead letters of a worker, or a command, that stood still meanwhile."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import compress
from typing import override

from graphweft_contracts import DeadLetter
from graphweft_workers.engine.log.history import in_order
from graphweft_workers.engine.log.known_erasures import KnownErasures
from graphweft_workers.ports.bus import Bus
from graphweft_workers.ports.dead_letters import LettersAround, letter_of_rest
from graphweft_workers.ports.event_log import Entry
from graphweft_workers.support.lazy_logger import get_logger

logger = get_logger("graphweft.mutation")


class LettersAfterErasures(LettersAround):
    """Dead letters that hold no event that the log does not hold any more, in apps that something was erased from.

    An erasure removes letters, announces itself, and looks at the letters again. So a letter is compared with the log
    before it is written, and once more if an erasure of its app was announced while it was written. If the process is
    killed between the two, the same erasure, given again, removes it.
    """

    def __init__(self, bus: Bus) -> None:
        super().__init__(bus.dead_letters)
        self._log = bus.log
        self._erasures = KnownErasures(bus.purges)
        self._begun: int | None = None
        """The last erasure that was known before any event of the letters was read; None: any may be."""

    async def begin(self) -> None:
        """Take it that events are read from now on: they hold nothing of the erasures before. Later calls do nothing.

        Without it, letters of each app that something was ever erased from are compared. Raises ``BusUnavailable``.
        """
        if self._begun is None:
            await self._erasures.follow()
            self._begun = self._erasures.number

    @override
    async def put(self, letters: Sequence[DeadLetter]) -> None:
        await self._erasures.follow()
        known = self._erasures.number
        rests = await self._rests(letters, since=self._begun or 0)
        kept = [each for each in rests if each is not None]
        if kept:
            await super().put(kept)
            await self._look_back(kept, known)

    @override
    async def extend(self, letter: DeadLetter | None, longer: DeadLetter) -> bool:
        """See ``DeadLetters.extend``. If nothing of ``longer`` is left, it counts as written."""
        await self._erasures.follow()
        known = self._erasures.number
        there = () if letter is None else letter.entries  # an erasure would have changed the stored letter
        [rest] = await self._rests([longer], since=self._begun or 0, there=there)
        done = rest is None or await super().extend(letter, rest)
        if rest is not None and done:
            await self._look_back([rest], known)
        return done

    async def _look_back(self, letters: Sequence[DeadLetter], known: int) -> None:
        await self._erasures.follow()
        for each, rest in zip(letters, await self._rests(letters, since=known), strict=True):
            if rest is not each:
                await super().requeue(each, [], rest)

    async def _rests(
        self, letters: Sequence[DeadLetter], *, since: int, there: Collection[str] = ()
    ) -> list[DeadLetter | None]:
        """Return what is left of each letter after erasures later than ``since``; None if nothing is.

        Of an entry that is not on the bus, and in no archive that this process reads, a letter keeps the place alone.
        Entries at the offsets ``there`` are known to be there.
        """
        changes = [each.reason != "trimmed" and self._erasures.has_later(each.app_id, since) for each in letters]
        found: dict[tuple[int, str], Entry] = {}
        for partition in {each.partition for each in compress(letters, changes)}:
            offsets = {at for each in compress(letters, changes) if each.partition == partition for at in each.entries}
            for entry in await self._log.entries(partition, in_order(offsets.difference(there))):
                found[partition, entry.offset] = entry
        return [
            _rest(each, found, there) if may_change else each for each, may_change in zip(letters, changes, strict=True)
        ]


def _rest(letter: DeadLetter, found: Mapping[tuple[int, str], Entry], there: Collection[str]) -> DeadLetter | None:
    entries = {offset: found.get((letter.partition, offset)) for offset in letter.entries}
    rest = [offset for offset, entry in entries.items() if entry is None or not entry.erased]
    if len(rest) == len(entries) and (rest[0] in there or entries[rest[0]] is not None):
        return letter
    logger.warning(
        "events_left_the_log", position=letter.position, app_id=letter.app_id, reason=letter.reason,
        entries=len(entries), left=len(rest),
        message="the log does not hold all events of a dead letter any more, as after an erasure while this "
        "process stood still: the letter keeps none of them",
    )  # fmt: skip
    if rest and rest[0] in there:
        return letter.of_entries(tuple(rest))
    return letter_of_rest(letter, rest, entries[rest[0]]) if rest else None
