"""Which driver a bus URL means. The only place of the client where one is chosen."""

from __future__ import annotations

from typing import Final

from graphweft.redis_transport import RedisTransport
from graphweft.transport import DEFAULT_PARTITIONS, Transport
from graphweft_contracts import InvalidSettings

__all__ = ("KAFKA", "make_transport")

KAFKA: Final = "kafka://"
"""How the URL of a Kafka bus begins."""


def make_transport(url: str, *, partitions: int = DEFAULT_PARTITIONS) -> Transport:
    """Return the transport to a Redis or Kafka bus; nothing is connected yet.

    ``partitions`` counts for a new bus only. Raises ``InvalidSettings``, which names the extra to install, when the
    driver is not there, and that or ``ValueError`` for what is no URL.
    """
    if not url.startswith(KAFKA):
        return RedisTransport(url, partitions=partitions)
    try:
        from graphweft.kafka_transport import KafkaTransport
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "aiokafka":
            raise
        raise InvalidSettings(
            "a bus on Kafka needs the Python package 'aiokafka', which is not installed: pip install 'graphweft[kafka]'"
        ) from error
    return KafkaTransport(url, partitions=partitions)
