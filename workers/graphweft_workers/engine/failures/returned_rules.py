"""Events that had no rules: they are published again once their workflow has some."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Container
from typing import Final

from graphweft_contracts import Transient
from graphweft_contracts.clock import Clock
from graphweft_workers.engine.failures.retries import retry
from graphweft_workers.ports.bus import Bus
from graphweft_workers.ports.dead_letters import letter_count, letter_with
from graphweft_workers.rule_sets.active_rules import ActiveRules
from graphweft_workers.support.lazy_logger import get_logger

logger = get_logger("graphweft.mutation")

_MOST_LETTERS: Final = 10_000


class ReturnedRules:
    """Retries the dead letters with the reason ``no_rules`` in the partitions that a worker holds."""

    def __init__(
        self, bus: Bus, rules: ActiveRules, partitions: Container[int], *, clock: Clock, rescan_s: float
    ) -> None:
        """``partitions`` are those that the worker holds now; ``rescan_s``: see ``RulesTiming``."""
        self._bus = bus
        self._rules = rules
        self._partitions = partitions
        self._clock = clock
        self._rescan_s = rescan_s
        self._known = 0
        """How many rule sets were known at the last look; a lost one that is found again counts, too."""
        self._changed = asyncio.Event()

    def look(self) -> None:
        """Look for events without rules soon, if rules have changed."""
        if self._rules.known != self._known:
            self._known = self._rules.known
            self.look_soon()

    def look_soon(self) -> None:
        """Look for events without rules soon."""
        self._changed.set()

    def are_there(self, app_id: str, workflow: str) -> bool:
        """Tell whether a workflow has rules now; those that are not compiled yet may turn out to be faulty."""
        rules = self._rules.current(app_id)
        return workflow in rules.workflows and (not rules.is_compiled(workflow) or rules.problem(workflow) is None)

    async def run(self) -> None:
        """Publish the events until it is cancelled."""
        if not self._rules.change:
            return
        while True:
            await self._changed.wait()
            self._changed.clear()
            await self._clock.sleep(self._rescan_s)  # all partitions pass an activation at about the same time
            with contextlib.suppress(Transient):
                await self.publish()

    async def publish(self) -> None:
        """Publish the events whose workflow has rules now."""
        if not await letter_count(self._bus.dead_letters):
            return
        # Without the events, which may be gigabytes: only that of a letter that is published is read.
        for bare in await self._bus.dead_letters.read(limit=_MOST_LETTERS, whole=False):
            app_id, workflow = bare.app_id, bare.workflow
            if bare.reason != "no_rules" or app_id is None or bare.partition not in self._partitions:
                continue
            rules = self._rules.current(app_id)
            if workflow is None or workflow not in rules.workflows:
                continue
            if not rules.is_compiled(workflow):
                await asyncio.to_thread(rules.compile, [workflow])
            if rules.problem(workflow) is None:
                letter = await letter_with(self._bus.dead_letters, bare.id)
                if letter is None:  # retried or dropped meanwhile
                    continue
                retried = await retry(self._bus, letter, partial=True, without_keys=True)
                logger.info(
                    "parked_events_published", app_id=app_id, workflow=workflow, events=retried.events,
                    kept=retried.kept,
                )  # fmt: skip
