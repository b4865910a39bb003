"""The driver of Redis Streams."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, override

from graphweft_workers.ports.driver import BusDriver, BusOptions

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from graphweft_contracts import Layout
    from graphweft_contracts.layout import OwnPartition
    from graphweft_contracts.rules_log import Activation
    from graphweft_workers.ports.bus import Bus
    from graphweft_workers.ports.check import Check
    from graphweft_workers.ports.event_log import CommittedPosition
    from graphweft_workers.ports.request_queue import RequestQueue


class RedisDriver(BusDriver):
    """Redis Streams as the bus."""

    no_join = ""

    @override
    def check_url(self, url: str) -> None:
        from graphweft_workers.drivers.redis_checks import check_redis_url

        check_redis_url(url)

    @override
    def make_bus(self, url: str, options: BusOptions) -> Bus:
        from graphweft_workers.drivers.redis.bus import redis_bus

        return redis_bus(url, new=options.new, group=options.group)

    @override
    def make_request_queue(self, url: str, *, name: str, partitions: int) -> RequestQueue:
        from graphweft_workers.drivers.redis.requests import RedisRequestQueue

        return RedisRequestQueue(url, consumer=name)

    @override
    def make_broker(self, url: str, *, logger: Any) -> Any:
        from faststream.redis import RedisBroker

        from graphweft.transports.redis.url import split_redis_url

        parts = split_redis_url(url)
        if parts.sentinels:  # FastStream 0.7 knows no master that changes
            return None
        # The URL that documents show: the real one may hold a password in its query too.
        return RedisBroker(parts.server, logger=logger, specification_url="redis://bus")

    @override
    def broker_errors(self) -> tuple[type[Exception], ...]:
        from redis.exceptions import RedisError

        return RedisError, OSError

    @override
    async def examine(self, url: str, advice: str, *, new: Layout, asked: Collection[str]) -> list[Check]:
        from graphweft_workers.drivers.redis import doctor

        return await doctor.examine(url, advice, new=new, asked=asked)

    @override
    async def examine_rights(self, url: str, role: str, *, app_id: str | None, user: str) -> list[Check]:
        from graphweft_workers.drivers.redis import doctor

        return await doctor.examine_rights(url, role, app_id=app_id, user=user)

    @override
    async def responders(self, url: str) -> list[str]:
        from graphweft_workers.drivers.redis import doctor

        return await doctor.responders(url)

    @override
    async def memory_ratio(self, url: str) -> float | None:
        from graphweft_workers.drivers.redis import doctor

        return await doctor.memory_ratio(url)

    @override
    async def write_fault(self, url: str) -> str:
        from graphweft_workers.drivers.redis import doctor

        return await doctor.write_fault(url)

    @override
    async def request_fault(self, url: str) -> str:
        from graphweft_workers.drivers.redis import streams

        return await streams.request_fault(url)

    @override
    async def mend(self, url: str, partition: int | None) -> str:
        from graphweft_workers.drivers.redis import streams

        return await streams.mend(url, partition)

    @override
    async def join(
        self, url: str, partition: int, *, fork: CommittedPosition, end: CommittedPosition, moved: bool
    ) -> None:
        from graphweft_workers.drivers.redis import joins

        await joins.join(url, partition, fork=fork, end=end, moved=moved)

    @override
    async def restore_partitions(self, url: str, own: Mapping[str, OwnPartition]) -> None:
        from graphweft_workers.drivers.redis import own_partitions

        await own_partitions.restore_partitions(url, own)

    @override
    async def replace_activations(self, url: str, there: Sequence[Activation], merged: Sequence[Activation]) -> None:
        from graphweft_workers.drivers.redis import joins

        await joins.replace_activations(url, there, merged)


DRIVER: Final = RedisDriver()
