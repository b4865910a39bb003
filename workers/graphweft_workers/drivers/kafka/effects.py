"""The effects stream on Kafka: a topic with one partition, which expires by its size."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from graphweft.transports.kafka.connection import Servers
from graphweft_contracts import channels
from graphweft_contracts.effects import Effects
from graphweft_workers.drivers.kafka.producer import RecordWriter


class KafkaEffects:
    """``EffectStream`` on a topic; it connects at its first use, and again after an error."""

    def __init__(self, servers: Servers, ready: Callable[[], Awaitable[object]]) -> None:
        """``ready`` makes the topic."""
        self._ready = ready
        self._writer = RecordWriter(servers, channels.EFFECTS_TOPIC, "the effects were not written")

    async def append(self, messages: Sequence[Effects], *, keep: int) -> None:
        """See ``EffectStream.append``. The topic trims by its size, whatever ``keep`` says."""
        await self._ready()
        await self._writer.write((each.app_id.encode(), each.model_dump_json().encode()) for each in messages)

    async def aclose(self) -> None:
        """Close the connection."""
        await self._writer.aclose()
