"""What was skipped on a partition, kept in dead letters: one for each app, rule and cause.

A skip is no failure: nothing of it is in the graph's checkpoint. So the letters are written before the position is
committed, and the position's note says up to where that was done; see ``worker``.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from graphweft_contracts import DeadLetter
from graphweft_workers.bus.log import Bus
from graphweft_workers.mutation.reading import Missed, letter_for

MOST_OFFSETS: Final = 1_000
"""Events of one letter; then the next letter of the same cause begins."""
_REMEMBERED: Final = 10_000
"""Causes whose last letter is kept in mind."""

type _Cause = tuple[str, str | None, str | None, str | None, str]
"""App, workflow, rule, mutation, message."""


@dataclass(slots=True)
class _Account:
    """The skips of one cause: the letter as it was last written, and what is to be added to it."""

    letter: DeadLetter | None = None
    missed: list[Missed] = field(default_factory=list[Missed])
    last: str = ""
    """Offset of the last event that is counted."""


class Skips:
    """The skips of one partition: ``add`` counts one, ``write`` keeps all that were counted.

    Only the owner of the partition writes these letters.
    """

    def __init__(self, partition: int, is_after: Callable[[str, str], bool]) -> None:
        self._partition = partition
        self._is_after = is_after
        self._accounts: OrderedDict[_Cause, _Account] = OrderedDict()
        self._changed: dict[_Cause, _Account] = {}
        self.pending: int = 0
        """Skips that are counted and not kept yet."""

    def add(self, missed: Missed) -> None:
        """Count a skip. One that is counted already, because its event is read again, changes nothing."""
        cause = (missed.event.appid, missed.event.workflow, missed.rule, missed.mutation, missed.message)
        account = self._accounts.setdefault(cause, _Account())
        self._accounts.move_to_end(cause)
        if not self._is_after(missed.entry.offset, account.last):
            return
        account.last = missed.entry.offset
        account.missed.append(missed)
        self.pending += 1
        self._changed[cause] = account

    async def write(self, bus: Bus) -> None:
        """Keep everything that was counted so far in dead letters. Raises ``BusUnavailable``; then call it again."""
        while self._changed:
            cause, account = next(iter(self._changed.items()))
            count = len(account.missed)
            await self._write(bus, cause, account, account.missed[:count])
            del account.missed[:count]
            self.pending -= count
            if not account.missed:  # some may have been added meanwhile
                del self._changed[cause]
        while len(self._accounts) > _REMEMBERED:
            self._accounts.popitem(last=False)

    async def _write(self, bus: Bus, cause: _Cause, account: _Account, missed: list[Missed]) -> None:
        name = f"{self._partition}:skipped:{hashlib.blake2s(repr(cause).encode(), digest_size=8).hexdigest()}"
        while missed:
            letter = account.letter or await bus.dead_letter(name)
            if letter is None:
                some, missed = missed[:MOST_OFFSETS], missed[MOST_OFFSETS:]
                first = _first(self._partition, name, some)
                if await bus.extend(None, first):
                    account.letter = first
                else:
                    missed = [*some, *missed]  # another owner was quicker: look again
                continue
            # What it holds already was counted by an owner that was stopped in front of its commit.
            missed = [each for each in missed if self._is_after(each.entry.offset, letter.offsets[-1])]
            if missed and len(letter.offsets) >= MOST_OFFSETS:
                # It moves out of the way, so that its name is free for the next one.
                await bus.requeue(letter, [], letter.model_copy(update={"id": f"{name}:{letter.offset}"}))
                account.letter = None
            elif missed:
                some = missed[: MOST_OFFSETS - len(letter.offsets)]
                longer = letter.of_entries((*letter.offsets, *(each.entry.offset for each in some)))
                if await bus.extend(letter, longer):
                    account.letter, missed = longer, missed[len(some) :]
                else:
                    account.letter = None  # somebody retried or dropped it meanwhile: look again


def _first(partition: int, name: str, missed: list[Missed]) -> DeadLetter:
    first = missed[0]
    letter = letter_for(
        partition, first.entry, first.reason, first.message,
        event=first.event, rule=first.rule, mutation=first.mutation, place=first.place,
    )  # fmt: skip
    return letter.model_copy(update={"id": name}).of_entries(tuple(each.entry.offset for each in missed))
