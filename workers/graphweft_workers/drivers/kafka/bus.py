"""A bus on a Kafka cluster."""

from __future__ import annotations

from functools import partial

from graphweft.transports.kafka.connection import servers
from graphweft_contracts import Layout, channels
from graphweft_contracts.clock import SYSTEM_CLOCK, Clock
from graphweft_contracts.layout import NEW_LAYOUT
from graphweft_workers.drivers.kafka.dead_letters import KafkaLetters
from graphweft_workers.drivers.kafka.event_log import KafkaEventLog
from graphweft_workers.drivers.kafka.records import KafkaEffects, KafkaRecords
from graphweft_workers.drivers.kafka.rules_log import KafkaRulesLog
from graphweft_workers.drivers.kafka.timing import KAFKA_BUS_TIMING, KafkaBusTiming
from graphweft_workers.ports.bus import Bus
from graphweft_workers.ports.offsets import OffsetForm


def kafka_bus(
    url: str,
    *,
    new: Layout = NEW_LAYOUT,
    session_s: float = 10.0,
    barrier_s: float = 20.0,
    instance: str | None = None,
    group: str = channels.MUTATION_GROUP,
    clock: Clock = SYSTEM_CLOCK,
    timing: KafkaBusTiming = KAFKA_BUS_TIMING,
) -> Bus:
    """Return the bus at a URL; nothing is connected yet.

    After ``session_s`` seconds without a heartbeat the group reassigns a worker's partitions. A rebalance waits
    ``barrier_s`` seconds for a worker to finish its batch. ``instance`` makes a static member, which keeps its
    partitions for ``session_s`` when it stops. ``group`` is the consumer group.
    """
    cluster = servers(url)
    log = KafkaEventLog(
        cluster, new=new, session_s=session_s, barrier_s=barrier_s, instance=instance, group=group, clock=clock,
        timing=timing,
    )  # fmt: skip
    letters = KafkaLetters(cluster, log.count, clock=clock, timing=timing)
    rules = KafkaRulesLog(cluster, log.count, log.concerned_by, clock=clock)
    purges = KafkaRecords(cluster, channels.PURGES_TOPIC, log.count, clock=clock, timing=timing)
    usage = KafkaRecords(cluster, channels.USAGE_TOPIC, log.count, clock=clock, timing=timing)
    with_series = partial(log.with_topic, channels.SERIES_TOPIC)
    series = KafkaRecords(cluster, channels.SERIES_TOPIC, with_series, clock=clock, timing=timing)
    effects = KafkaEffects(cluster, partial(log.with_topic, channels.EFFECTS_TOPIC))

    async def close() -> None:
        for each in (log, letters, rules, purges, usage, series, effects):
            await each.aclose()

    # Without a lease keeper: aiokafka sends the heartbeats of the group's session, from the event loop. One that is
    # blocked for longer than the session loses its partitions.
    return Bus(
        log=log,
        partitions=log,
        leases=log,
        dead_letters=letters,
        rules=rules,
        purges=purges,
        usage=usage,
        offsets=OffsetForm.NUMBER,
        close=close,
        series=series,
        effects=effects,
    )
