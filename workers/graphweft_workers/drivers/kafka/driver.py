"""The driver of Kafka."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, override

from graphweft_contracts import InvalidSettings
from graphweft_workers.ports.driver import BusDriver, BusOptions

if TYPE_CHECKING:
    from collections.abc import Collection

    from graphweft.transports.kafka.connection import Servers
    from graphweft_contracts import Layout
    from graphweft_workers.ports.bus import Bus
    from graphweft_workers.ports.check import Check
    from graphweft_workers.ports.request_queue import RequestQueue


class KafkaDriver(BusDriver):
    """Kafka as the bus."""

    package = ("aiokafka", "cramjam", "kafka")
    no_join = (
        "Kafka's brokers give offsets themselves, so what the bus holds cannot follow on what only the archive holds. "
        "Nothing was changed. Keep the archive: `graphweft rebuild --archive-only --into URL` makes the graphs of "
        "before from it. Set GRAPHWEFT_ARCHIVE_URL to an empty folder or bucket, so that the bus has an archive of its "
        "own, and emit again what must take effect of the lost events"
    )

    @override
    def check_url(self, url: str) -> None:
        from graphweft.transports.kafka.url import split_kafka_url

        try:
            split_kafka_url(url)
        except InvalidSettings as error:
            raise ValueError(str(error)) from None

    @override
    def make_bus(self, url: str, options: BusOptions) -> Bus:
        from graphweft_workers.drivers.kafka.bus import kafka_bus

        return kafka_bus(
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

        found = servers(url)
        return KafkaBroker(found.bootstrap.split(","), logger=logger, security=_security(found))

    @override
    def broker_errors(self) -> tuple[type[Exception], ...]:
        from aiokafka.errors import KafkaError

        return KafkaError, OSError

    @override
    async def examine(self, url: str, advice: str, *, new: Layout, asked: Collection[str]) -> list[Check]:
        from graphweft_workers.drivers.kafka import doctor

        return await doctor.examine(url, advice, new=new, asked=asked)

    @override
    async def examine_rights(self, url: str, role: str, *, app_id: str | None, user: str) -> list[Check]:
        from graphweft_workers.drivers.kafka import doctor

        return await doctor.examine_rights(url, role, app_id=app_id, user=user)

    @override
    async def responders(self, url: str) -> list[str]:
        from graphweft_workers.drivers.kafka import doctor

        return await doctor.responders(url)


def _security(servers: Servers) -> Any:
    """Return FastStream's form of how to connect; None: neither TLS nor a login."""
    from faststream.security import BaseSecurity, SASLPlaintext, SASLScram256, SASLScram512

    context = servers.options.get("ssl_context")
    if not servers.user:
        return None if context is None else BaseSecurity(ssl_context=context)
    kinds = {"PLAIN": SASLPlaintext, "SCRAM-SHA-256": SASLScram256, "SCRAM-SHA-512": SASLScram512}
    return kinds[servers.options["sasl_mechanism"]](
        username=servers.user, password=servers.options["sasl_plain_password"], ssl_context=context,
        use_ssl=context is not None,
    )  # fmt: skip


DRIVER: Final = KafkaDriver()
