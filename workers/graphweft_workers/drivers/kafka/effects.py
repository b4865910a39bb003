"""The effects stream on Kafka: a topic with one partition, which expires by its size."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from graphweft.transports.kafka.connection import Servers, bus_errors
from graphweft_contracts import channels
from graphweft_contracts.effects import Effects
from graphweft_workers.drivers.kafka.producer import started_producer, stop_producer


class KafkaEffects:
    """``EffectStream`` on a topic; it connects at its first use, and again after an error."""

    def __init__(self, servers: Servers, ready: Callable[[], Awaitable[object]]) -> None:
        """``ready`` makes the topic."""
        self._servers = servers
        self._ready = ready
        self._producer: Any = None
        self._sending = asyncio.Lock()

    async def append(self, messages: Sequence[Effects], *, keep: int) -> None:
        """See ``EffectStream.append``. The topic trims by its size, whatever ``keep`` says."""
        await self._ready()
        async with self._sending:
            with bus_errors("the effects were not written"):
                if self._producer is None:
                    self._producer = await started_producer(self._servers)
                try:
                    sent: list[Any] = []
                    for each in messages:
                        body, key = each.model_dump_json().encode(), each.app_id.encode()
                        sent.append(await self._producer.send(channels.EFFECTS_TOPIC, body, key=key, partition=0))
                    await asyncio.gather(*sent)
                except BaseException:
                    await self.aclose()
                    raise

    async def aclose(self) -> None:
        """Close the connection."""
        producer, self._producer = self._producer, None
        await stop_producer(producer)
