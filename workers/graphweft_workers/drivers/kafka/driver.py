"""The driver of Kafka."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, override

from graphweft_workers.ports.driver import BusDriver, BusOptions

if TYPE_CHECKING:
    from collections.abc import Collection

    from graphweft_contracts import Layout
    from graphweft_workers.ports.bus import Bus
    from graphweft_workers.ports.check import Check
    from graphweft_workers.ports.request_queue import RequestQueue

_URL: Final = re.compile(r"kafka://[\w.-]+(:[0-9]{1,5})?(,[\w.-]+(:[0-9]{1,5})?)*/?", re.ASCII)


class KafkaDriver(BusDriver):
    """Kafka as the bus."""

    package = ("aiokafka", "kafka")

    @override
    def check_url(self, url: str) -> None:
        if not _URL.fullmatch(url):
            msg = "invalid Kafka URL: expected kafka://host:port, or several brokers: kafka://one:9092,two:9092"
            raise ValueError(msg)

    @override
    def make_bus(self, url: str, options: BusOptions) -> Bus:
        from graphweft_workers.drivers.kafka.event_log import KafkaEventLog

        return KafkaEventLog(
            url,
            new=options.new,
            session_s=options.lease_s,
            barrier_s=options.own["kafka_barrier_s"],
            instance=options.own["kafka_instance"],
            group=options.group,
        )

    @override
    def make_request_queue(self, url: str, *, name: str, partitions: int) -> RequestQueue:
        from graphweft_workers.drivers.kafka.requests import KafkaRequestQueue

        return KafkaRequestQueue(url, name=name, partitions=partitions)

    @override
    def make_broker(self, url: str, *, logger: Any) -> Any:
        from faststream.kafka import KafkaBroker

        from graphweft.transports.kafka.connection import servers

        return KafkaBroker(servers(url).split(","), logger=logger)

    @override
    def broker_errors(self) -> tuple[type[Exception], ...]:
        from aiokafka.errors import KafkaError

        return KafkaError, OSError

    @override
    async def examine(self, url: str, advice: str, *, new: Layout, asked: Collection[str]) -> list[Check]:
        from graphweft_workers.drivers.kafka import doctor

        return await doctor.examine(url, advice, new=new, asked=asked)

    @override
    async def responders(self, url: str) -> list[str]:
        from graphweft_workers.drivers.kafka import doctor

        return await doctor.responders(url)


DRIVER: Final = KafkaDriver()
