"""Which rule set is active at each place of the log.

A rule set applies to the events of its scope after the entry that announces it. Before the first one of a scope, that
first one applies: events may be published before their rules are. Rules of an app precede those of all apps. A
restatement says by which rules the events of an app before it take effect, whatever was active then; the last one of
an app counts.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Collection, Iterable, Set
from typing import Protocol

from graphweft_contracts import wire
from graphweft_contracts.clock import SYSTEM_CLOCK, Clock
from graphweft_contracts.layout import ALL_APPS
from graphweft_contracts.rules_log import (
    SHARED_RULES,
    Activation,
    StoredRules,
    active_for,
    announced,
    newest,
    restated_scope,
)
from graphweft_rules import RuleSet
from graphweft_rules.cypher.mutation_summary import EMPTY, MutationSummary, union
from graphweft_rules.matching.explain import named
from graphweft_workers.ports.event_log import Entry
from graphweft_workers.ports.offsets import is_after
from graphweft_workers.ports.rules_log import RulesLog
from graphweft_workers.rule_sets.lost_rules import MissingRules, RulesLost
from graphweft_workers.support.lazy_logger import get_logger
from graphweft_workers.support.timing import TIMING, RulesTiming

logger = get_logger("graphweft.rules")


def stored_rules(rules: RuleSet) -> StoredRules:
    """Return a rule set as it is stored on the bus."""
    return StoredRules(files=rules.files, summary=rules.summary.to_json())


class RulesCursor(Protocol):
    """Follows one partition and gives the rules for its events, in log order."""

    def at(self, app_id: str, offset: str) -> RuleSet:
        """Return the rules for an event; offsets must not decrease from call to call."""
        ...

    def knows(self, number: int | None) -> bool:
        """Return whether an activation with this number is recorded."""
        ...


class ActiveRules(Protocol):
    """Gives the rules for each place of the log."""

    change: bool
    """Whether there may be other rules later."""

    @property
    def lost(self) -> Collection[str]:
        """Digests of the rule sets that ``refresh`` looks for, because the bus has lost them."""
        ...

    async def refresh(self, entries: Iterable[Entry] | None = None) -> None:
        """Read new activations: always, or only if one of ``entries`` announces an unknown one.

        While rule sets are lost, it reads them once in a while, too.

        Anybody who may append can imitate such an entry. Whatever numbers they claim, each recorded activation among
        ``entries`` is known afterwards. It waits only for the next number, and once for each number.

        Raises ``BusUnavailable``.
        """
        ...

    def cursor(self, partition: int, after: str) -> RulesCursor:
        """Return a cursor for the events of a partition after an offset."""
        ...

    def current(self, app_id: str) -> RuleSet:
        """Return the rules of the newest activation for an app."""
        ...

    def over(self, log: RulesLog) -> ActiveRules:
        """Return the rules of another log, made in the same way."""
        ...

    def restatement(self, app_id: str) -> int:
        """Return the number of the last restatement of an app's past; 0 without one."""
        ...

    @property
    def known(self) -> int:
        """The number of rule sets that have been active, and that were found again: ``summary`` depends on it."""
        ...

    @property
    def summary(self) -> MutationSummary:
        """Of the mutations of all rule sets that have been active: they may have written what the graph holds."""
        ...


class FixedRules:
    """One rule set at all places."""

    change = False

    def __init__(self, rules: RuleSet) -> None:
        self._rules = rules

    @property
    def lost(self) -> Collection[str]:
        """See ``ActiveRules.lost``."""
        return ()

    async def refresh(self, entries: Iterable[Entry] | None = None) -> None:
        """See ``ActiveRules.refresh``."""

    def cursor(self, partition: int, after: str) -> RulesCursor:
        """See ``ActiveRules.cursor``."""
        return self

    def current(self, app_id: str) -> RuleSet:
        """See ``ActiveRules.current``."""
        return self._rules

    def over(self, log: RulesLog) -> ActiveRules:
        """See ``ActiveRules.over``."""
        return self

    def restatement(self, app_id: str) -> int:
        """See ``ActiveRules.restatement``."""
        return 0

    @property
    def known(self) -> int:
        """See ``ActiveRules.known``."""
        return 1

    @property
    def summary(self) -> MutationSummary:
        """See ``ActiveRules.summary``."""
        return self._rules.summary.mutations

    def at(self, app_id: str, offset: str) -> RuleSet:
        """See ``RulesCursor.at``."""
        return self._rules

    def knows(self, number: int | None) -> bool:
        """See ``RulesCursor.knows``."""
        return number is not None


class LoggedRules:
    """The rule sets that the log activates."""

    change = True

    def __init__(
        self,
        log: RulesLog,
        make: Callable[[StoredRules], RuleSet],
        *,
        none: RuleSet | None = None,
        without_lost: bool = False,
        restores: bool = False,
        clock: Clock = SYSTEM_CLOCK,
        timing: RulesTiming = TIMING.rules,
    ) -> None:
        """``make`` makes a rule set of stored files, or of none; it runs in a thread.

        ``none`` applies where the log activates nothing, by default the rule set of no files. ``without_lost`` says
        that events of a lost rule set wait, and others go on: the lost one is a ``MissingRules`` until it is pushed
        again. Otherwise ``refresh`` raises ``RulesLost``. ``restores`` says that what the bus had activated and has
        lost meanwhile is stored and activated again.
        """
        self._log = log
        self._restores = restores
        self._make = make
        self.none = none or make(StoredRules(files={}))
        self.activations: list[Activation] = []
        self._without_lost = without_lost
        self._clock = clock
        self._timing = timing
        self.sets: dict[str, RuleSet] = {}
        """By digest; lost ones are ``MissingRules``."""
        self._lost: set[str] = set()
        self._looked_at = -math.inf
        """When lost rule sets were last looked for."""
        self._recovered = 0
        """Rule sets that were lost, and are there again."""
        self._summary: tuple[int, MutationSummary] = (-1, EMPTY)
        """``known``, and the summary of these rule sets."""
        self._reading = asyncio.Lock()
        self._awaited: tuple[int, float] = (0, 0.0)
        """The last number that was announced before its record was there, and until when all wait for the record."""
        self._imitations = 0
        """Entries since the last warning that announced an activation without a record."""
        self._warned_at = -math.inf

    @property
    def lost(self) -> Collection[str]:
        """See ``ActiveRules.lost``."""
        return self._lost

    async def refresh(self, entries: Iterable[Entry] | None = None) -> None:
        """See ``ActiveRules.refresh``."""
        looked = bool(self._lost) and await self._recover()
        if entries is None or looked:  # who waits for a lost one may be the only one who reads
            await self._read()
        if entries is None:
            return
        numbers = [announced(entry.fields) for entry in entries if wire.ACTIVATION in entry.fields]
        if numbers:
            await self._read_announced({number for number in numbers if number is not None})
            known = len(self.activations)
            self._imitations += sum(number is None or not 0 < number <= known for number in numbers)
        if self._imitations and self._clock.monotonic() - self._warned_at >= self._timing.warn_s:
            logger.warning(
                "unknown_activations", entries=self._imitations,
                next="somebody who may append to the bus wrote entries that only look like activations of rules; they "
                "have no effect. Find them with `graphweft events tail`",
            )  # fmt: skip
            self._imitations, self._warned_at = 0, self._clock.monotonic()

    async def _read_announced(self, numbers: Set[int]) -> None:
        """Read the records once if a number has none yet, and wait for the next number if it is among them.

        Activations are made one after the other, so of those that are recorded, all but the last are visible: a later
        number than the next one is an imitation.
        """
        if max(numbers, default=0) <= len(self.activations):
            return
        await self._read()
        while (number := len(self.activations) + 1) in numbers:
            if self._awaited[0] != number:
                self._awaited = (number, self._clock.monotonic() + self._timing.visible_s)
            if self._clock.monotonic() >= self._awaited[1]:
                return
            await self._clock.sleep(self._timing.step_s)
            await self._read()

    async def _read(self) -> None:
        async with self._reading:
            known = self.activations[-1:]
            found = await self._log.activations(after=len(self.activations) - len(known))
            if list(found[:1]) != known and known:  # the bus was emptied
                logger.warning("rules_of_another_bus", next="the activations are read from the start")
                if self._restores:
                    await self._activate_again()
                self.activations.clear()
                known, found = [], await self._log.activations()
            # At the start, the log may hold one activation for each save of a file.
            latest = None if self.activations else {each.scope: each.number for each in found}
            for activation in found[len(known) :]:
                if activation.digest not in self.sets:
                    self.sets[activation.digest] = await self._rules_of(activation.digest)
                self.activations.append(activation)
                is_news = latest is None or latest[activation.scope] == activation.number
                log = logger.info if is_news else logger.debug
                log(
                    "rules_activated", number=activation.number, scope=activation.scope, rules=activation.digest[:12],
                    workflows=named(self.sets[activation.digest].workflows),
                )  # fmt: skip

    async def _activate_again(self) -> None:
        """Store and activate what was active and is not any more, unless somebody has activated something since."""
        before = [each for each in self.activations if each.restates is None]
        for scope in dict.fromkeys(each.scope for each in before):
            last = newest(before, scope)
            there = newest(await self._log.activations(), scope)
            if last is None or (there is not None and (there not in before or there.digest == last.digest)):
                continue
            rules = self.sets[last.digest]
            if isinstance(rules, MissingRules):
                continue
            await self._log.store(last.digest, stored_rules(rules))
            number = (await self._log.activate(scope, last.digest)).number
            logger.warning(
                "rules_activated_again", number=number, scope=scope, rules=last.digest[:12], before=last.number,
                message="the bus had lost the activation of these rules; events since followed what was left",
            )  # fmt: skip

    async def _rules_of(self, digest: str) -> RuleSet:
        if digest == SHARED_RULES:
            return RuleSet({})
        stored = await self._log.stored(digest)
        if stored is not None:
            return await asyncio.to_thread(self._make, stored)
        lost = RulesLost(digest)
        if not self._without_lost:
            raise lost
        logger.error("rules_lost", rules=digest[:12], message=str(lost))
        self._lost.add(digest)
        return MissingRules(digest)

    async def _recover(self) -> bool:
        """Look for the lost rule sets, seldom: many apps may wait for them. Return False if it is too early."""
        async with self._reading:
            if self._clock.monotonic() - self._looked_at < self._timing.lost_s:
                return False
            self._looked_at = self._clock.monotonic()
            for digest in [*self._lost]:
                stored = await self._log.stored(digest)
                if stored is not None:
                    self.sets[digest] = await asyncio.to_thread(self._make, stored)
                    self._lost.discard(digest)
                    self._recovered += 1
                    logger.info("rules_found_again", rules=digest[:12])
        return True

    def cursor(self, partition: int, after: str) -> RulesCursor:
        """See ``ActiveRules.cursor``."""
        return _Cursor(self, partition, after)

    def current(self, app_id: str) -> RuleSet:
        """See ``ActiveRules.current``."""
        activation = active_for(self.activations, app_id)
        return self.none if activation is None else self.sets[activation.digest]

    def over(self, log: RulesLog) -> LoggedRules:
        """See ``ActiveRules.over``."""
        return LoggedRules(
            log, self._make, none=self.none, without_lost=self._without_lost, restores=self._restores,
            clock=self._clock, timing=self._timing,
        )  # fmt: skip

    def restatement(self, app_id: str) -> int:
        """See ``ActiveRules.restatement``."""
        last = newest(self.activations, restated_scope(app_id))
        return 0 if last is None else last.number

    @property
    def known(self) -> int:
        """See ``ActiveRules.known``."""
        return len(self.sets) + self._recovered

    @property
    def summary(self) -> MutationSummary:
        """See ``ActiveRules.summary``."""
        summarised, found = self._summary
        if summarised != self.known:
            found = union(each.summary.mutations for each in (self.none, *self.sets.values()))
            self._summary = (self.known, found)
        return found

    def in_use(self) -> list[RuleSet]:
        """Return the rule sets that apply to new events and to requests."""
        lasting = (activation for activation in self.activations if activation.restates is None)
        scopes = {activation.scope: activation.digest for activation in lasting}
        return [self.sets[digest] for digest in dict.fromkeys(scopes.values())]

    def first(self, app_id: str) -> RuleSet:
        """Return the rules of the first activation for an app."""
        for activation in self.activations:
            if activation.scope in (app_id, ALL_APPS) and activation.digest != SHARED_RULES:
                return self.sets[activation.digest]
        return self.none


class _Cursor:
    def __init__(self, active: LoggedRules, partition: int, after: str) -> None:
        self._active = active
        self._partition = partition
        self._seen = 0
        """The activations that are in ``_scopes`` or ``_ahead``."""
        self._scopes: dict[str, str] = {}
        """Digests, because a lost rule set may be found again."""
        self._restated: dict[str, tuple[str, str]] = {}
        """By app: the offset before which these rules apply."""
        self._ahead: list[tuple[str, str, str]] = []
        """Offset, scope and digest of the activations that are not reached yet, the next one last."""
        self._pass(after)

    def at(self, app_id: str, offset: str) -> RuleSet:
        """See ``RulesCursor.at``."""
        if self._ahead or self._seen != len(self._active.activations):
            self._pass(offset)
        if self._restated and (restated := self._restated.get(app_id)) is not None:
            until, digest = restated
            if is_after(until, offset):
                return self._active.sets[digest]
        scopes = self._scopes
        found = scopes.get(app_id) or scopes.get(ALL_APPS)
        return self._active.first(app_id) if found is None else self._active.sets[found]

    def knows(self, number: int | None) -> bool:
        """See ``RulesCursor.knows``."""
        return number is not None and 0 < number <= len(self._active.activations)

    def _pass(self, offset: str) -> None:
        """Make the activations up to an offset active."""
        active = self._active
        added = active.activations[self._seen :]
        self._seen = len(active.activations)
        for activation in added:
            position = activation.positions.get(self._partition)
            if position is None:
                continue
            if activation.restates is not None:
                self._restated[activation.restates] = (position, activation.digest)
            else:
                self._ahead.insert(0, (position, activation.scope, activation.digest))
        while self._ahead and not is_after(self._ahead[-1][0], offset):
            _, scope, digest = self._ahead.pop()
            if digest == SHARED_RULES:
                self._scopes.pop(scope, None)
            else:
                self._scopes[scope] = digest
