"""Producers of large records and transactions, and the wait until a committed record can be read."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Iterable, Sequence
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

    async def write(self, records: Iterable[tuple[bytes, bytes | None, Sequence[tuple[str, bytes]]]]) -> list[Any]:
        """Write keys, values and headers, and return what the broker says of each. Raises ``BusUnavailable``."""
        async with self._sending:
            with bus_errors(self._failure):
                if self._producer is None:
                    self._producer = await started_producer(self._servers)
                try:
                    sent = [
                        await self._producer.send(self._topic, value, key=key, partition=0, headers=headers)
                        for key, value, headers in records
                    ]
                    return list(await asyncio.gather(*sent))
                except BaseException:
                    await self.aclose()
                    raise

    async def aclose(self) -> None:
        """Close the connection."""
        producer, self._producer = self._producer, None
        await stop_producer(producer)


@contextlib.asynccontextmanager
async def fencing_producer(servers: Servers, transaction: str, *, fenced: str, failure: str) -> AsyncGenerator[Any]:
    """Lend a producer with the id ``transaction``, which fences an older one. Raises ``BusUnavailable``.

    ``failure`` begins the error; ``fenced`` is that where another one fenced this producer between two calls: it has no
    transaction then, and aiokafka does not raise a ``KafkaError``.
    """
    producer: Any = None
    try:
        with bus_errors(failure):
            producer = await started_producer(servers, transaction=transaction)
            yield producer
    except IllegalOperation as error:
        raise BusUnavailable(fenced) from error
    finally:
        await stop_producer(producer)


@contextlib.asynccontextmanager
async def begun_transaction(producer: Any) -> AsyncGenerator[None]:
    """Begin a transaction, which an error in the block aborts."""
    await producer.begin_transaction()
    try:
        yield
    except BaseException:
        # aiokafka asserts that a fenced producer has nothing to abort.
        with contextlib.suppress(KafkaError, OSError, AssertionError, IllegalOperation):
            await producer.abort_transaction()
        raise


async def until_visible(reader: RangeReader, partition: Any, offset: int) -> None:
    """Wait until a committed record can be read: Kafka acknowledges the commit before that."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(REQUEST_MS / 1000):
            while (await reader.bounds_of(partition))[1] <= offset:  # noqa: ASYNC110 - the broker's
                await asyncio.sleep(_STEP_S)
