"""A service that begins once the graph server has checked the queries of its rules."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import TYPE_CHECKING, Final

from graphweft_contracts import BusUnavailable, GraphUnavailable, InvalidRules
from graphweft_rules import RuleSet
from graphweft_workers.ports.bus import Bus
from graphweft_workers.ports.graph_store import GraphStore
from graphweft_workers.processes.service import Service
from graphweft_workers.settings.settings import Settings
from graphweft_workers.support.backoff import backoff_s
from graphweft_workers.support.garbage_collection import leave_out_the_start
from graphweft_workers.support.lazy_logger import get_logger
from graphweft_workers.wiring.rule_faults import keep_faults
from graphweft_workers.wiring.rules import load_new_rules, load_usable_rules, push_if_new

if TYPE_CHECKING:
    from graphweft_rules.matching.mutation import CompiledMutation
    from graphweft_rules.matching.workflow import CompiledInjection

logger = get_logger("graphweft.hosting")

_FIRST_WAIT_S: Final = 0.1
CHECK_S: Final = 5.0
"""How long a responder waits for the active rules, and for the check of its queries: unanswered requests get no
context."""


async def folder_rules(settings: Settings, bus: Bus) -> RuleSet | InvalidRules | None:
    """Return the rules of the folder, or their errors; None if they are active already."""
    try:
        return await load_new_rules(settings, bus)
    except InvalidRules as error:
        return error


class CheckedService:
    """A service whose folder of rules the graph server checks, and which pushes them then if they are new.

    Workflows with errors, or with a query that the server refuses, keep the rules that are active; the log and
    ``status`` name the errors. ``run`` raises ``RulesError`` only if there would be no rules at all. While the server
    or the bus is unavailable, a service with ``waits`` does not begin. Any other begins, and ends if nothing can be
    used later.
    """

    def __init__(
        self,
        service: Service,
        graph: GraphStore,
        bus: Bus,
        rules: RuleSet | InvalidRules | None,
        settings: Settings,
        *,
        waits: bool,
    ) -> None:
        """``rules`` are those of the folder; None if they are active, so that the server checked them before."""
        self._service = service
        self._graph = graph
        self._bus = bus
        self._rules = rules
        self._settings = settings
        self._waits = waits
        self._begin = asyncio.Event()
        self._stopping = False

    async def run(self) -> None:
        """Check the rules, and run the service: after the check, or beside it."""
        checking = asyncio.create_task(self._check())
        begin = asyncio.create_task(self._begin.wait())
        working: asyncio.Task[None] | None = None
        try:
            limit_s = None if self._waits else CHECK_S
            await asyncio.wait([checking, begin], timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
            if checking.done():
                checking.result()
            if self._stopping:
                return
            working = asyncio.create_task(self._service.run())
            await asyncio.wait([checking, working], return_when=asyncio.FIRST_COMPLETED)
            if not working.done() and checking.exception() is not None:
                self._service.stop()
            await working
            if checking.done():
                checking.result()
        finally:
            for task in (checking, begin, working):
                if task is not None:
                    task.cancel()
            await asyncio.gather(checking, begin, return_exceptions=True)

    @property
    def interrupted(self) -> Collection[int]:
        """See ``Service.interrupted``."""
        return self._service.interrupted

    def stop(self) -> None:
        """End the service, or do not begin it."""
        self._stopping = True
        self._begin.set()
        self._service.stop()

    async def _check(self) -> None:
        attempt = 0
        while True:
            try:
                await self._push()
                leave_out_the_start()
                return
            except (GraphUnavailable, BusUnavailable) as error:
                attempt += 1
                if attempt == 1:
                    held = "no event is read until then" if self._waits else "requests are answered meanwhile"
                    is_graph = isinstance(error, GraphUnavailable)
                    server, variable = ("graph server", "GRAPH_URL") if is_graph else ("bus", "BUS_URL")
                    named = self._settings.graph_url if is_graph else self._settings.bus_url
                    here = f"unless `graphweft up` runs in this folder, start it, or set GRAPHWEFT_{variable}"
                    step = f"start the {server} that GRAPHWEFT_{variable} names" if named else here
                    logger.warning(
                        "query_check_waits",
                        error=str(error),
                        next=f"{step}; this process goes on when the {server} answers; {held}",
                    )
                if not self._waits:
                    self._begin.set()
                await asyncio.sleep(backoff_s(_FIRST_WAIT_S, attempt))

    async def _push(self) -> None:
        from graphweft_workers.wiring.query_check import refuse_wrong_queries

        rules, folder = self._rules, self._settings.rules
        if rules is None:
            await keep_faults(self._bus, str(folder), "")
            return
        try:
            if isinstance(rules, InvalidRules):
                raise rules
            every: list[CompiledMutation | CompiledInjection] = [*rules.mutations, *rules.injections]
            if parts := [part for part in every if part.cypher is not None]:
                await self._graph.check()
                await refuse_wrong_queries(self._graph, parts, folder)
            await push_if_new(self._bus, rules, folder)
            if rules.workflows:  # a process without a folder says nothing about that of another one
                await keep_faults(self._bus, str(folder), "")
        except InvalidRules as error:
            await self._graph.check()
            found = await load_usable_rules(self._settings, self._bus, self._graph, error)
            if found.rules is not None:
                await push_if_new(self._bus, found.rules, folder)
            for line in found.faults.splitlines():
                logger.error("rules_have_errors", error=line)
            await keep_faults(self._bus, str(folder), found.faults)
