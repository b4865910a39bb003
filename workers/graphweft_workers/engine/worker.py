"""The mutation worker: leases partitions and runs them, see ``partition``."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from typing import Final

from graphweft_contracts import BusUnavailable, Transient, channels
from graphweft_contracts.bounded_dict import BoundedDict
from graphweft_contracts.clock import SYSTEM_CLOCK, Clock
from graphweft_contracts.layout import ALL_APPS
from graphweft_rules import RuleSet
from graphweft_workers.apps import Quotas
from graphweft_workers.engine.apply.older_graph import Obstacle, no_obstacle
from graphweft_workers.engine.apply.worker_state import WorkerState
from graphweft_workers.engine.failures.letters_after_erasures import LettersAfterErasures
from graphweft_workers.engine.failures.returned_rules import ReturnedRules
from graphweft_workers.engine.graph_watch import GraphWatch
from graphweft_workers.engine.log.leases import LEASE_S, Lease, LeaseHolder
from graphweft_workers.engine.log.read import defect_of
from graphweft_workers.engine.log.reading_window import WindowsTogether
from graphweft_workers.engine.opening import PartitionOpening
from graphweft_workers.engine.partition import Partition, PartitionParts
from graphweft_workers.engine.usage.effects import EffectReporter
from graphweft_workers.engine.usage.job_account import JobAccount, WaitKey
from graphweft_workers.engine.usage.letter_quota import LetterQuota
from graphweft_workers.engine.usage.memory_quota import MemoryQuota
from graphweft_workers.engine.usage.name_quota import NameQuota
from graphweft_workers.engine.usage.usage_reporter import MeasuredGraphs, UsageReporter
from graphweft_workers.ports.bus import Bus
from graphweft_workers.ports.dead_letters import DeadLetters
from graphweft_workers.ports.graph_store import GraphStore
from graphweft_workers.rule_sets.active_rules import ActiveRules, FixedRules
from graphweft_workers.support.lazy_logger import get_logger
from graphweft_workers.support.log_limit import LogLimit
from graphweft_workers.support.timing import TIMING, Timing
from graphweft_workers.telemetry.metrics import EVENTS_READ

logger = get_logger("graphweft.mutation")

_OPENS: Final = 8
"""Partitions that are opened at once: each of them asks both servers, by connections that stay open."""


class MutationWorker:
    """Leases as many partitions as no other worker holds, and applies their events until ``stop``."""

    def __init__(
        self,
        bus: Bus,
        graph: GraphStore,
        rules: RuleSet | ActiveRules,
        *,
        name: str,
        batch_events: int = 1_000,
        lease_s: float = LEASE_S,
        index_keys: frozenset[tuple[str, str]] = frozenset(),
        quotas: Callable[[str], Quotas] = lambda _: Quotas(),
        obstacle: Obstacle = no_obstacle,
        older: Obstacle = no_obstacle,
        effects_keep: int = 0,
        clock: Clock = SYSTEM_CLOCK,
        timing: Timing = TIMING,
    ) -> None:
        """``index_keys`` are (label, property) of indexes for every app's graph, beside those for rules.

        ``quotas`` returns the quotas of an app. ``obstacle`` says of an app whose graph is older than the log why the
        log alone does not help, and ``older`` says so of each graph that is opened. ``effects_keep`` is how many
        messages the effects stream keeps; 0: nothing is written to it. The worker closes neither ``bus`` nor ``graph``.
        """
        self.applied_events: int = 0
        self._graph = graph
        self._rules = FixedRules(rules) if isinstance(rules, RuleSet) else rules
        self._timing = timing
        self._account = JobAccount(
            bus.usage, channels.MUTATION_GROUP, name=name, logger=logger, clock=clock, timing=timing.jobs
        )
        self._leases = LeaseHolder(
            bus, name=name, lease_s=lease_s, logger=logger, clock=clock, tell=self._tell_interrupted,
            timing=timing.leases,
        )  # fmt: skip
        self._open_partitions: dict[int, Partition] = {}
        measured = graph if isinstance(graph, MeasuredGraphs) else None
        self._usage = UsageReporter(bus, measured, clock=clock, every_s=timing.usage_s)
        self._returned_rules = ReturnedRules(
            bus, self._rules, self._open_partitions, clock=clock, rescan_s=timing.rules.rescan_s
        )
        self._watch = GraphWatch(bus, graph, self._open_partitions, clock=clock, every_s=timing.graph_look_s)
        self._opening = PartitionOpening(bus, graph, checkpoints_s=timing.checkpoints_s)
        self._opens = asyncio.Semaphore(_OPENS)
        self._warming: asyncio.Task[None] | None = None
        self._effects: EffectReporter | None = None
        self._letters = LettersAfterErasures(bus)
        letters: DeadLetters = self._letters
        if effects_keep and bus.effects is not None:
            self._effects = EffectReporter(
                bus.effects, bus.usage, name=name, keep=effects_keep, clock=clock, timing=timing.effects
            )
            letters = self._effects.counting(letters)
        state = WorkerState(
            log=bus.log,
            partitions=bus.partitions,
            letters=LetterQuota(letters, self._usage, lambda app_id: quotas(app_id).dead_letters),
            effects=self._effects,
            purges=bus.purges,
            graph=graph,
            rules=self._rules,
            batch_events=batch_events,
            index_keys=index_keys,
            names=None if measured is None else NameQuota(measured, lambda app_id: quotas(app_id).property_names),
            memory=None
            if measured is None
            else MemoryQuota(measured, lambda app_id: quotas(app_id).graph_bytes, clock=clock, timing=timing.quota),
            clock=clock,
            timing=timing,
            obstacle=obstacle,
            older=older,
        )
        self._arrangers = state.arrangers
        self._parts = PartitionParts(
            bus=bus,
            graph=graph,
            state=state,
            usage=self._usage,
            returned_rules=self._returned_rules,
            windows=WindowsTogether(),
            warned=BoundedDict(),
            lines=LogLimit(clock=clock),
            applied=self._count,
        )

    @property
    def interrupted(self) -> Collection[int]:
        """See ``LeaseHolder.interrupted``."""
        return self._leases.interrupted

    def stop(self) -> None:
        """Make ``run`` return after the batch in hand is applied and committed."""
        self._leases.stop()

    async def run(self) -> None:
        """Work until ``stop``; while the bus or the graph is unavailable, wait.

        An unexpected error is logged and stops its partition only, which is opened again after 5 s.
        """
        beside = [
            asyncio.create_task(self._returned_rules.run(), name="graphweft-returned-rules"),
            asyncio.create_task(self._usage.run(), name="graphweft-usage"),
            asyncio.create_task(self._watch.run(), name="graphweft-graph"),
        ]
        if self._effects is not None:
            beside.append(asyncio.create_task(self._effects.run(), name="graphweft-effects"))
        try:
            ended = await self._leases.run(self._own)
        finally:
            for task in beside:
                task.cancel()
            await asyncio.gather(*beside, return_exceptions=True)
        if ended:
            logger.info("worker_stopped", worker=self._leases.name, events=self.applied_events)

    async def _tell_interrupted(self, number: int, error: Transient | None, wait_s: float) -> None:
        """Let ``status`` and ``doctor`` say that a partition does not go on; a bus that is away needs no words."""
        key: WaitKey = (number, "events")
        if error is None:
            await self._account.leaves(key)
        elif not isinstance(error, BusUnavailable):
            await self._account.begin()
            await self._account.keep(key, error, wait_s)

    async def _own(self, lease: Lease) -> None:
        try:
            # Opening may outlast the lease: it reads thousands of entries, and entries with vectors are large.
            opened = await lease.finish(self._open_in_turn(lease))
            if opened is not None:
                await self._run(opened.result())
        except Transient:
            raise
        except Exception as error:
            defect = defect_of(error)
            logger.error(
                "partition_failed", partition=lease.number, error=defect.kind, frames=defect.frames,
                next="report it; `graphweft dlq skip` sets aside an event that causes it",
            )  # fmt: skip
            raise Transient(
                f"partition {lease.number} failed: {defect.kind}", retry_after_s=self._timing.defect_s
            ) from error

    async def _open_in_turn(self, lease: Lease) -> Partition:
        async with self._opens:
            return await self._open(lease, await self._graph.check())

    async def _open(self, lease: Lease, run: str) -> Partition:
        await self._letters.begin()
        await self._rules.refresh()
        if self._warming is None or (self._warming.done() and self._warming.exception() is not None):
            self._warming = asyncio.create_task(self._arrangers.warm(ALL_APPS))
        await asyncio.shield(self._warming)
        opening = await self._opening.open(lease.number, run)
        await self._usage.open(lease.number)
        logger.debug("partition_opened", partition=lease.number, position=opening.start.offset)
        return Partition(lease, opening, self._parts)

    async def _run(self, partition: Partition) -> None:
        self._open_partitions[partition.number] = partition
        self._returned_rules.look_soon()
        try:
            await partition.run()
        finally:
            self._open_partitions.pop(partition.number, None)
            await self._usage.close(partition.number)

    def _count(self, entries: int) -> None:
        self.applied_events += entries
        EVENTS_READ.add(entries)
