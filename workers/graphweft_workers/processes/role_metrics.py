"""What roles know of their work and of the servers, as metrics: read when these are collected, and never otherwise."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Final

from graphweft_contracts.clock import SYSTEM_CLOCK, Clock
from graphweft_contracts.layout import ALL_APPS
from graphweft_contracts.rules_log import newest, own_rules
from graphweft_workers.drivers import bus_driver
from graphweft_workers.ports.bus import Bus
from graphweft_workers.ports.dead_letters import letter_count
from graphweft_workers.ports.partitions import PartitionStatus
from graphweft_workers.ports.position_note import PositionNote
from graphweft_workers.rule_sets.lost_rule_sets import lost_rule_sets
from graphweft_workers.settings.settings import Settings
from graphweft_workers.telemetry import metrics
from graphweft_workers.telemetry.metrics_looks import SeenValues, looking
from graphweft_workers.wiring.archive_state import archive_state

if TYPE_CHECKING:
    from graphweft import Client
    from graphweft_workers.archive.archiver import Archiver
    from graphweft_workers.injection.pipeline import ContextPipeline
    from graphweft_workers.injection.responder import InjectionResponder
    from graphweft_workers.ports.graph_store import GraphStore

_MOST_OLDEST: Final = 64
"""Partitions of which the first entry is read, those with the largest lag."""
_SLOW_S: Final = 60.0
"""How often things are read that take the servers more than a few milliseconds."""


@asynccontextmanager
async def worker_metrics(settings: Settings, bus: Bus, name: str) -> AsyncGenerator[None]:
    """Observe the partitions, dead letters and rules of a deployment, as the worker ``name`` sees them."""
    look = PartitionLook(bus, name)
    partitions = (
        metrics.PARTITION_LAG, metrics.OLDEST_UNAPPLIED, metrics.PARTITIONS_OWNED, metrics.PARTITIONS_UNOWNED,
        metrics.PARTITION_FAULTS, metrics.PARKED_APPS,
    )  # fmt: skip

    async def memory() -> SeenValues:
        ratio = await bus_driver(settings.bus).memory_ratio(settings.bus)
        return {} if ratio is None else {metrics.BUS_MEMORY: {(): ratio}}

    async with AsyncExitStack() as stack:
        for read, observed, every_s in (
            (look.read, partitions, 5.0),
            (look.read_letters, (metrics.DEAD_LETTERS, metrics.DEAD_LETTER_OLDEST), 5.0),
            (look.read_rules, (metrics.RULE_SETS, metrics.RULES_LOST), _SLOW_S),
            (memory, (metrics.BUS_MEMORY,), 15.0),
        ):
            await stack.enter_async_context(looking(read, observed, every_s=every_s))
        yield


class PartitionLook:
    """Reads what a bus says of its partitions, dead letters and rules."""

    def __init__(self, bus: Bus, name: str, clock: Clock = SYSTEM_CLOCK) -> None:
        """``name`` is the worker's, as the owner of partitions."""
        self._bus = bus
        self._name = name
        self._clock = clock

    async def read(self) -> SeenValues:
        """Return how far partitions are, of those that the worker holds and that nobody does."""
        every = await self._bus.partitions.status()
        own = [each for each in every if each.owner in (None, self._name)]
        parked = Counter((app.why,) for each in own for app in PositionNote.decode(each.note).parked.values())
        return {
            metrics.PARTITION_LAG: {(str(each.id),): each.lag for each in own},
            metrics.OLDEST_UNAPPLIED: await self._ages(own),
            metrics.PARTITIONS_OWNED: {(): sum(each.owner is not None for each in own)},
            metrics.PARTITIONS_UNOWNED: {(): sum(each.owner is None for each in own)},
            metrics.PARTITION_FAULTS: {(): sum(bool(each.fault) for each in own)},
            metrics.PARKED_APPS: {reason: float(number) for reason, number in parked.items()},
        }

    async def read_letters(self) -> SeenValues:
        """Return how many dead letters there are, and how old the oldest is."""
        oldest = await self._bus.dead_letters.read(limit=1, whole=False)
        age_s = max((self._now() - each.time.timestamp() for each in oldest), default=0.0)
        return {
            metrics.DEAD_LETTERS: {(): await letter_count(self._bus.dead_letters)},
            metrics.DEAD_LETTER_OLDEST: {(): max(0.0, age_s)},
        }

    async def read_rules(self) -> SeenValues:
        """Return how many rule sets are active, and how many of them the bus has lost."""
        found = await self._bus.rules.activations()
        active = [each for each in (newest(found, ALL_APPS), *own_rules(found).values()) if each is not None]
        lost = await lost_rule_sets(self._bus.rules, active)
        return {
            metrics.RULE_SETS: {(): len({each.digest for each in active})},
            metrics.RULES_LOST: {(): len(lost)},
        }

    async def _ages(self, partitions: Sequence[PartitionStatus]) -> dict[tuple[str, ...], float]:
        ages: dict[tuple[str, ...], float] = {(str(each.id),): 0.0 for each in partitions}
        behind = sorted((each for each in partitions if each.lag), key=lambda each: each.lag, reverse=True)
        for each in behind[:_MOST_OLDEST]:
            for entry in await self._bus.log.after(each.id, each.position, limit=1):
                ages[str(each.id),] = max(0.0, self._now() - entry.received.timestamp())
        for each in behind[_MOST_OLDEST:]:
            del ages[str(each.id),]
        return ages

    def _now(self) -> float:
        return self._clock.now().timestamp()


def responder_metrics(
    responder: InjectionResponder, pipeline: ContextPipeline, graph: GraphStore
) -> AbstractContextManager[None]:
    """Observe a responder, its cache, and the queries that got no turn."""
    cache = pipeline.cache
    return metrics.observing(
        {
            metrics.CONTEXT_WAITING: lambda: {(): responder.waiting},
            metrics.CONTEXT_TAKEN_OVER: lambda: {("taken",): responder.taken_over, ("won",): responder.won},
            metrics.CACHE_REQUESTS: lambda: {("hit",): cache.hits, ("miss",): cache.misses, ("joined",): cache.joined},
            metrics.CACHE_BYTES: lambda: {(): cache.bytes},
            metrics.WITHOUT_TURN: lambda: {(): graph.without_turn.total()},
        }
    )


@asynccontextmanager
async def job_metrics(buses: Mapping[str, Bus], waiting_s: Callable[[], Mapping[str, float]]) -> AsyncGenerator[None]:
    """Observe how many events each job has not handled, and how long it waits, both by group.

    ``buses`` are open for the groups.
    """

    async def read() -> SeenValues:
        lags = {group: await bus.partitions.status() for group, bus in buses.items()}
        return {metrics.JOB_LAG: {(group,): sum(each.lag for each in status) for group, status in lags.items()}}

    with metrics.JOB_WAITING.read_from(lambda: {(group,): seconds for group, seconds in waiting_s().items()}):
        async with looking(read, [metrics.JOB_LAG]):
            yield


@asynccontextmanager
async def archive_metrics(settings: Settings, bus: Bus, archiver: Archiver) -> AsyncGenerator[None]:
    """Observe the archive; ``bus`` is open for its group."""

    async def read() -> SeenValues:
        state = await archive_state(settings, bus, await bus.partitions.status())
        if state.error:
            return {}
        return {metrics.ARCHIVE_BEHIND: {(): state.behind}, metrics.ARCHIVE_LOST: {(): state.lost}}

    with metrics.ARCHIVED.read_from(lambda: {(): archiver.archived}):
        async with looking(read, [metrics.ARCHIVE_BEHIND, metrics.ARCHIVE_LOST], every_s=_SLOW_S):
            yield


def gateway_metrics(client: Client) -> AbstractContextManager[None]:
    """Observe what the gateway's client has sent."""

    def published() -> metrics.LabelledValues:
        stats = client.stats
        return {("sent",): stats.sent, ("dropped",): stats.dropped, ("rejected",): stats.rejected}

    return metrics.observing(
        {metrics.EVENTS_PUBLISHED: published, metrics.CLIENT_BUFFER: lambda: {(): client.stats.buffered}}
    )
