"""A bus on one Redis server."""

from __future__ import annotations

from graphweft_contracts import Layout, channels
from graphweft_contracts.clock import SYSTEM_CLOCK, Clock
from graphweft_contracts.layout import NEW_LAYOUT
from graphweft_workers.drivers.redis.event_log import RedisEventLog
from graphweft_workers.drivers.redis.letters import RedisLetters
from graphweft_workers.drivers.redis.records import RedisEffects, RedisPurges, RedisRecords
from graphweft_workers.drivers.redis.rules_log import RedisRulesLog
from graphweft_workers.drivers.redis.timing import REDIS_BUS_TIMING, RedisBusTiming
from graphweft_workers.ports.bus import Bus
from graphweft_workers.ports.offsets import OffsetForm


def redis_bus(
    url: str, *, new: Layout = NEW_LAYOUT, group: str = channels.MUTATION_GROUP, clock: Clock = SYSTEM_CLOCK,
    timing: RedisBusTiming = REDIS_BUS_TIMING,
) -> Bus:  # fmt: skip
    """Return the bus at a URL; nothing is connected yet.

    ``new`` is the layout of a new bus. ``group`` names the group of readers, which has positions, leases and live
    workers of its own.
    """
    log = RedisEventLog(url, new=new, group=group, clock=clock, timing=timing)
    return Bus(
        log=log,
        partitions=log,
        leases=log,
        dead_letters=RedisLetters(log.call, log.stream),
        rules=RedisRulesLog(log.call, log.layout, clock=clock),
        purges=RedisPurges(log.call),
        usage=RedisRecords(log.call, channels.USAGE),
        offsets=OffsetForm.PAIR,
        close=log.aclose,
        series=RedisRecords(log.call, channels.SERIES),
        lease_keeper=log.lease_keeper,
        gives_partitions=True,
        effects=RedisEffects(log.call),
        time=log.time,
    )
