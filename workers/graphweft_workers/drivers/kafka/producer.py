"""Producers of large records and transactions, and the wait until a committed record can be read."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Generator, Iterable
from typing import Any, Final

from aiokafka import AIOKafkaProducer
from aiokafka.errors import IllegalOperation, KafkaError

from graphweft.transports.kafka.connection import Servers, bus_errors, started
from graphweft_contracts import BusUnavailable
from graphweft_workers.drivers.kafka.reader import RangeReader

LARGEST: Final = 8 * 1024**2
"""Bytes of the largest record."""
REQUEST_MS: Final = 10_000
_TRANSACTION_MS: Final = 10_000
"""The transaction of a producer that died ends after this time. Until then readers of its partitions wait."""
_STEP_S: Final = 0.01


async def started_producer(servers: Servers, *, transaction: str | None = None) -> Any:
    """Return a started producer; with ``transaction`` it has that id, and fences an older one with it.

    Raises ``KafkaError`` or ``OSError``.
    """
    options: dict[str, Any] = {"enable_idempotence": True}
    if transaction is not None:
        options = {"transactional_id": transaction, "transaction_timeout_ms": _TRANSACTION_MS}
    producer = AIOKafkaProducer(
        **servers.options,
        request_timeout_ms=REQUEST_MS,
        max_batch_size=LARGEST,
        max_request_size=LARGEST,
        **options,
    )
    async with asyncio.timeout(2 * REQUEST_MS / 1000):
        return await started(producer)


async def stop_producer(producer: Any) -> None:
    """Stop a producer, if there is one, and ignore errors."""
    if producer is not None:
        with contextlib.suppress(KafkaError, OSError):
            await producer.stop()


class RecordWriter:
    """Writes records to partition 0 of a topic; it connects at its first use, and again after an error."""

    def __init__(self, servers: Servers, topic: str, failure: str) -> None:
        """``failure`` says what was not done, for the error."""
        self._servers = servers
        self._topic = topic
        self._failure = failure
        self._producer: Any = None
        self._sending = asyncio.Lock()

    async def write(self, records: Iterable[tuple[bytes, bytes | None]]) -> None:
        """Write keys with their values and wait until the broker has them. Raises ``BusUnavailable``."""
        async with self._sending:
            with bus_errors(self._failure):
                if self._producer is None:
                    self._producer = await started_producer(self._servers)
                try:
                    sent = [
                        await self._producer.send(self._topic, value, key=key, partition=0) for key, value in records
                    ]
                    await asyncio.gather(*sent)
                except BaseException:
                    await self.aclose()
                    raise

    async def aclose(self) -> None:
        """Close the connection."""
        producer, self._producer = self._producer, None
        await stop_producer(producer)


async def abort_transaction(producer: Any) -> None:
    """Abort the transaction after an error, and ignore errors."""
    # aiokafka asserts that a fenced producer has nothing to abort.
    with contextlib.suppress(KafkaError, OSError, AssertionError, IllegalOperation):
        await producer.abort_transaction()


@contextlib.contextmanager
def fencing_errors(message: str) -> Generator[None]:
    """Raise ``BusUnavailable`` with ``message`` where a producer was fenced between two calls.

    It has no transaction then, and aiokafka does not raise a ``KafkaError``.
    """
    try:
        yield
    except IllegalOperation as error:
        raise BusUnavailable(message) from error


async def until_visible(reader: RangeReader, partition: Any, offset: int) -> None:
    """Wait until a committed record can be read: Kafka acknowledges the commit before that."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(REQUEST_MS / 1000):
            while (await reader.bounds([partition]))[partition][1] <= offset:  # noqa: ASYNC110 - the broker's
                await asyncio.sleep(_STEP_S)
