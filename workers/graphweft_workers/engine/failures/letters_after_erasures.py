"""Keeps what was erased out of the dead letters of a worker, or a command, that stood still meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from typing import override

from graphweft_contracts import DeadLetter
from graphweft_workers.engine.log.known_erasures import KnownErasures
from graphweft_workers.ports.bus import Bus
from graphweft_workers.ports.dead_letters import LettersAround, letter_of_rest
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

    @override
    async def put(self, letters: Sequence[DeadLetter]) -> None:
        await self._erasures.follow()
        known = self._erasures.number
        rests = [await self._rest(each, since=0) for each in letters]
        kept = [each for each in rests if each is not None]
        if kept:
            await super().put(kept)
            await self._look_back(kept, known)

    @override
    async def extend(self, letter: DeadLetter | None, longer: DeadLetter) -> bool:
        """See ``DeadLetters.extend``. If nothing of ``longer`` is left, it counts as written."""
        await self._erasures.follow()
        known = self._erasures.number
        rest = await self._rest(longer, since=0)
        done = rest is None or await super().extend(letter, rest)
        if rest is not None and done:
            await self._look_back([rest], known)
        return done

    async def _look_back(self, letters: Sequence[DeadLetter], known: int) -> None:
        await self._erasures.follow()
        for each in letters:
            rest = await self._rest(each, since=known)
            if rest is not each:
                await super().requeue(each, [], rest)

    async def _rest(self, letter: DeadLetter, *, since: int) -> DeadLetter | None:
        """Return what is left of a letter after erasures later than ``since``; None if nothing is.

        Of an entry that is not on the bus, and in no archive that this process reads, the letter keeps the place alone.
        """
        if letter.reason == "trimmed" or not self._erasures.has_later(letter.app_id, since):
            return letter
        found = {each.offset: each for each in await self._log.entries(letter.partition, letter.entries)}
        rest = [offset for offset in letter.entries if offset not in found or not found[offset].erased]
        if len(rest) == len(letter.entries) and rest[0] in found:
            return letter
        logger.warning(
            "events_left_the_log", position=letter.position, app_id=letter.app_id, reason=letter.reason,
            entries=len(letter.entries), left=len(rest),
            message="the log does not hold all events of a dead letter any more, as after an erasure while this "
            "process stood still: the letter keeps none of them",
        )  # fmt: skip
        return letter_of_rest(letter, rest, found.get(rest[0])) if rest else None
