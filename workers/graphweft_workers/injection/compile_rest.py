"""Compiles the workflows of a responder in the background, so that their first requests need not wait."""

from __future__ import annotations

import asyncio
from typing import Final

from graphweft_contracts.clock import SYSTEM_CLOCK, Clock
from graphweft_workers.rule_sets.active_rules import LoggedRules
from graphweft_workers.support.lazy_logger import get_logger
from graphweft_workers.support.timing import TIMING

logger = get_logger("graphweft.rules")

_SHARE: Final = 1.0
"""Rest after each workflow, in the time that it took: requests share the processor with it."""


async def compile_rest(
    active: LoggedRules, *, clock: Clock = SYSTEM_CLOCK, look_s: float = TIMING.context.compile_look_s
) -> None:
    """Compile the workflows of all active rules, one at a time, and those of later rules, until cancelled."""
    while True:
        for rules in active.in_use():
            for name in rules.workflows:
                if rules.is_compiled(name):
                    continue
                began = clock.monotonic()
                await asyncio.to_thread(rules.compile, [name])
                if (problem := rules.problem(name)) is not None:
                    logger.error("workflow_broken", workflow=name, rules=rules.digest[:12], findings=str(problem))
                await clock.sleep((clock.monotonic() - began) * _SHARE)
        await clock.sleep(look_s)
