"""The skips of a partition, kept in dead letters: one for each app, rule and cause.

The graph's checkpoint does not cover skips. So their dead letters are written before the position is committed, and
the position's note says up to which offset.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from graphweft_contracts import DeadLetter
from graphweft_workers.engine.log.read import Skip, letter_for
from graphweft_workers.ports.dead_letters import DeadLetters, letter_with
from graphweft_workers.ports.offsets import is_after
from graphweft_workers.telemetry.metrics import WITHOUT_EFFECT

MOST_OFFSETS: Final = 1_000
"""Events of one dead letter; the next event of the cause begins a new one."""
_MOST_CAUSES: Final = 10_000
"""Causes whose last dead letter stays in memory."""

type _Cause = tuple[str, str | None, str | None, str | None, str]
"""App, workflow, rule, mutation, message."""


@dataclass(slots=True)
class _Account:
    """One cause: its dead letter as last written, and the skips to add to it."""

    letter: DeadLetter | None = None
    skips: list[Skip] = field(default_factory=list[Skip])
    last: str = ""
    """Offset of the last counted event."""


class Skips:
    """Counts the skips of one partition (``add``) and writes their dead letters (``write``), as its only writer."""

    def __init__(self, partition: int) -> None:
        self._partition = partition
        self._accounts: OrderedDict[_Cause, _Account] = OrderedDict()
        self._changed: dict[_Cause, _Account] = {}
        self.pending: int = 0
        """Skips that are counted but not written."""
        self._without_rules: set[tuple[str, str]] = set()

    def add(self, skip: Skip) -> None:
        """Count a skip, unless it was counted before its event was read again."""
        cause = (skip.event.appid, skip.event.workflow, skip.rule, skip.mutation, skip.message)
        account = self._accounts.setdefault(cause, _Account())
        self._accounts.move_to_end(cause)
        if not is_after(skip.entry.offset, account.last):
            return
        account.last = skip.entry.offset
        account.skips.append(skip)
        WITHOUT_EFFECT.add(1, skip.reason)
        self.pending += 1
        self._changed[cause] = account

    async def write(self, letters: DeadLetters) -> None:
        """Write all counted skips to dead letters. Raises ``BusUnavailable``; then call it again."""
        while self._changed:
            cause, account = next(iter(self._changed.items()))
            count = len(account.skips)
            await self._write(letters, cause, account, account.skips[:count])
            app_id, workflow, *_ = cause
            if account.skips[0].reason == "no_rules" and workflow is not None:
                self._without_rules.add((app_id, workflow))
            del account.skips[:count]
            self.pending -= count
            if not account.skips:  # ``add`` may have been called during the write
                del self._changed[cause]
        while len(self._accounts) > _MOST_CAUSES:
            self._accounts.popitem(last=False)

    def take_without_rules(self) -> set[tuple[str, str]]:
        """Return app and workflow of the events without rules that were written since the last call."""
        taken, self._without_rules = self._without_rules, set()
        return taken

    async def _write(self, letters: DeadLetters, cause: _Cause, account: _Account, skips: list[Skip]) -> None:
        name = f"{self._partition}:skipped:{hashlib.blake2s(repr(cause).encode(), digest_size=8).hexdigest()}"
        while skips:
            letter = account.letter or await letter_with(letters, name)
            if letter is None:
                first = letter_of_skips(self._partition, name, skips[:MOST_OFFSETS])
                if await letters.extend(None, first):  # else another owner was quicker: read its dead letter
                    account.letter, skips = first, skips[MOST_OFFSETS:]
                continue
            # An owner that stopped before its commit has counted the events up to the last offset.
            skips = [skip for skip in skips if is_after(skip.entry.offset, letter.offsets[-1])]
            if skips and len(letter.offsets) >= MOST_OFFSETS:
                # Rename the full dead letter to free its id for the next one.
                await letters.requeue(letter, [], letter.model_copy(update={"id": f"{name}:{letter.offset}"}))
                account.letter = None
            elif skips:
                some = skips[: MOST_OFFSETS - len(letter.offsets)]
                longer = letter.of_entries((*letter.offsets, *(skip.entry.offset for skip in some)))
                if await letters.extend(letter, longer):
                    account.letter, skips = longer, skips[len(some) :]
                else:
                    account.letter = None  # it was retried or dropped: read it again


def letter_of_skips(partition: int, name: str, skips: Sequence[Skip]) -> DeadLetter:
    """Return the dead letter with the id ``name`` of skips of one cause, in log order."""
    first = skips[0]
    letter = letter_for(
        partition, first.entry, first.reason, first.message,
        event=first.event, rule=first.rule, mutation=first.mutation, place=first.place,
    )  # fmt: skip
    return letter.model_copy(update={"id": name}).of_entries(tuple(skip.entry.offset for skip in skips))
