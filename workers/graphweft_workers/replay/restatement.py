"""Records in the log that the past of an app follows other rules, and keeps the dead letters true.

The log comes first, as always: when the restatement is recorded, a rebuild makes the restated graph, whether the graphs
were swapped or not. Dead letters of events before it become those of the restated graph, for a retry of a row that the
restatement has applied would apply it twice.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from graphweft_contracts import BusUnavailable, DeadLetter, InvalidEvent, wire
from graphweft_contracts.rules_log import Activation, StoredRules, restated_scope
from graphweft_rules import RuleSet
from graphweft_workers.engine.failures.letters_after_erasures import LettersAfterErasures
from graphweft_workers.engine.failures.skips import MOST_OFFSETS, letter_of_skips
from graphweft_workers.engine.log.effect_ledger import is_of_rules
from graphweft_workers.engine.log.ledger_reader import ledger_by_other_rules
from graphweft_workers.engine.log.read import EXTRACT, Skip
from graphweft_workers.ports.dead_letters import all_letters, letter_with, put_letters
from graphweft_workers.ports.offsets import is_after
from graphweft_workers.replay.app_log import AppLog
from graphweft_workers.replay.matched_log import matched_log
from graphweft_workers.rule_sets.active_rules import FixedRules

_ATTEMPTS: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class LetterCounts:
    """How the dead letters of the past changed."""

    removed: int
    """Letters whose events the restated graph holds, or other letters name now."""
    written: int
    """Letters of what failed or was skipped by the new rules."""


class Restatement:
    """Restates the past of one app by a rule set. The creator closes the bus."""

    def __init__(self, log: AppLog, rules: RuleSet) -> None:
        self._log = log
        self._app_id = log.app_id
        self._rules = rules

    async def record(self) -> Activation:
        """Store the rules and record the restatement. Raises ``BusUnavailable``."""
        rules = self._rules
        await self._log.bus.rules.store(rules.digest, StoredRules(files=rules.files, summary=rules.summary.to_json()))
        return await self._log.bus.rules.activate(restated_scope(self._app_id), rules.digest)

    async def settle(self, until: Mapping[int, str], failed: Iterable[DeadLetter]) -> LetterCounts:
        """Replace the dead letters of events before ``until`` by those of the restated graph; idempotent.

        ``until`` holds partitions with an offset; workers must have read past them. ``failed`` are the letters of rows
        that failed by the new rules. What an operator has set aside, what could not be read and episodes that wait for
        a model keep their letters. Raises ``BusUnavailable``.
        """
        bus = self._log.bus
        new = {letter.id: letter for letter in failed if self._is_before(letter.offset, letter.partition, until)}
        for partition, offset in until.items():
            new |= {letter.id: letter for letter in await self._skips(partition, offset)}
        old = [letter for letter in await all_letters(bus.dead_letters) if self._is_judged(letter)]
        await put_letters(LettersAfterErasures(bus), new.values())
        removed = 0
        for letter in old:
            if letter.id not in new:
                removed += await self._shrink(letter, until)
        return LetterCounts(removed=removed, written=len(new))

    async def has_stray_retries(self, until: Mapping[int, str]) -> bool:
        """Tell whether the log holds retries after ``until`` of rows before it: somebody retried an old letter."""
        for partition, offset in until.items():
            async for page in self._log.pages(partition, offset):
                for entry in page:
                    if wire.RETRY not in entry.fields:
                        continue
                    try:
                        retried, event = wire.retry_of(entry.fields), entry.event()
                    except InvalidEvent:
                        continue
                    if retried is None or event.appid != self._app_id or (retried.rule, retried.mutation) == EXTRACT:
                        continue
                    if self._is_earlier(retried.letter, partition, until):
                        return True
        return False

    def _is_earlier(self, letter_id: str, partition: int, until: Mapping[int, str]) -> bool:
        number, _, rest = letter_id.partition(":")
        try:
            return number == str(partition) and self._is_before(rest.partition(":")[0], partition, until)
        except ValueError:
            return False  # anybody may write a retry

    def _is_before(self, offset: str, partition: int, until: Mapping[int, str]) -> bool:
        return is_after(until.get(partition, ""), offset)

    def _is_judged(self, letter: DeadLetter) -> bool:
        return letter.app_id == self._app_id and is_of_rules(letter) and (letter.rule, letter.mutation) != EXTRACT

    async def _skips(self, partition: int, until: str) -> list[DeadLetter]:
        """Return the letters of what the new rules skip up to an offset."""
        causes: dict[tuple[str | None, ...], list[tuple[Skip, list[str]]]] = {}  # the first, and all offsets
        matcher = (FixedRules(self._rules), ledger_by_other_rules)
        async for (read,) in matched_log(self._log, [matcher], partition, to=until):
            for skip in read.skips:
                cause = (skip.event.workflow, skip.rule, skip.mutation, skip.message)
                parts = causes.setdefault(cause, [])
                if not parts or len(parts[-1][1]) == MOST_OFFSETS:
                    parts.append((skip, []))
                parts[-1][1].append(skip.entry.offset)
        found: list[DeadLetter] = []
        for named, parts in causes.items():
            name = hashlib.blake2s(repr((self._app_id, *named)).encode(), digest_size=8).hexdigest()
            for number, (first, offsets) in enumerate(parts):
                # Not the id that a worker gives it: the worker goes on with its own letter.
                letter = letter_of_skips(partition, f"{partition}:restated:{name}:{until}:{number}", [first])
                found.append(letter.of_entries(tuple(offsets)))
        return found

    async def _shrink(self, letter: DeadLetter, until: Mapping[int, str]) -> bool:
        """Leave the events after ``until`` in a letter, or delete it; return whether it changed."""
        # With its event: only a letter as it is stored is replaced.
        found = await letter_with(self._log.bus.dead_letters, letter.id)
        for _ in range(_ATTEMPTS):
            if found is None:
                return False
            offsets = found.entries
            later = tuple(each for each in offsets if not self._is_before(each, found.partition, until))
            if len(later) == len(offsets):
                return False
            if await self._log.bus.dead_letters.requeue(found, [], found.of_entries(later) if later else None):
                return True
            found = await letter_with(self._log.bus.dead_letters, letter.id)  # a worker has extended it
        raise BusUnavailable(f"the dead letter {letter.id!r} kept changing: run the same command with --resume")
