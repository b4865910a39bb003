"""What everything that talks to Kafka shares: addresses, topics, records, and errors."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Generator, Mapping, Sequence
from typing import Any, Final
from urllib.parse import urlsplit

from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import KafkaError, TopicAlreadyExistsError, for_code

from graphweft.transport import MAX_CONTEXT_BYTES
from graphweft_contracts import BusUnavailable, InvalidSettings, channels, wire

__all__ = (
    "bus_errors",
    "fields_of",
    "make_context_topics",
    "make_topics",
    "present_partitions",
    "record_of",
    "servers",
)

_REPLICAS: Final = 3
"""Copies of each topic, where there are as many brokers."""
_LOOKS: Final = 100
_LOOK_S: Final = 0.02
_LETTER_BYTES: Final = 8 * 1024**2
"""Largest dead letter. It holds an event of up to 1 MiB, a third larger in base64, and its fields."""
_CONTEXT: Final[Mapping[str, str]] = {
    # Nobody waits for an answer so long; what is older is dropped by whole segments only.
    "retention.ms": "60000",
    "segment.ms": "60000",
    "max.message.bytes": str(MAX_CONTEXT_BYTES + 1024),
}
_TOPICS: Final[Mapping[str, Mapping[str, str]]] = {
    # The log is what a replay reads, so nothing leaves it by itself; the time of an entry is the log's own.
    channels.EVENTS_TOPIC: {
        "retention.ms": "-1",
        "retention.bytes": "-1",
        "message.timestamp.type": "LogAppendTime",
    },
    channels.DEAD_LETTERS_TOPIC: {"cleanup.policy": "compact", "max.message.bytes": str(_LETTER_BYTES)},
    channels.PARTITIONS_TOPIC: {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"},
    channels.CONTEXT_REQUESTS_TOPIC: _CONTEXT,
    channels.CONTEXT_REPLIES_TOPIC: _CONTEXT,
}


def servers(url: str) -> str:
    """Return the brokers that ``kafka://host[:port][,host[:port]…]`` names. Raises ``InvalidSettings``."""
    parts = urlsplit(url)
    hosts = [host for host in parts.netloc.split(",") if host]
    if parts.scheme != "kafka" or not hosts or "@" in parts.netloc or parts.path.strip("/") or parts.query:
        raise InvalidSettings("no Kafka URL: write kafka://host:port, or several brokers as kafka://one:9092,two:9092")
    return ",".join(hosts)


@contextlib.contextmanager
def bus_errors(what: str) -> Generator[None]:
    """Raise what goes wrong with Kafka inside as ``BusUnavailable``; ``what`` says what did not happen."""
    try:
        yield
    except (KafkaError, OSError) as error:  # TimeoutError is an OSError
        named = isinstance(error, KafkaError) and str(error)  # its text begins with its name
        reason = str(error) if named else f"{type(error).__name__} {error}".rstrip()
        raise BusUnavailable(f"{what}: {reason}") from error


async def make_topics(admin: AIOKafkaAdminClient, partitions: int) -> int:
    """Make sure that the topics of events exist and return the number of partitions that events have now.

    Who comes first decides on ``partitions``; later ones follow what the topic says. Keys are mapped to
    ``agreed_partitions`` of them. Raises ``KafkaError``.
    """
    wanted = {channels.EVENTS_TOPIC: partitions, channels.DEAD_LETTERS_TOPIC: 1, channels.PARTITIONS_TOPIC: 1}
    return (await _make(admin, await _there(admin), wanted))[channels.EVENTS_TOPIC]


async def present_partitions(admin: AIOKafkaAdminClient) -> int:
    """Return the number of partitions that events have now, 0 where there is no topic. Raises ``KafkaError``."""
    return (await _there(admin)).get(channels.EVENTS_TOPIC, 0)


async def make_context_topics(admin: AIOKafkaAdminClient, partitions: int) -> int:
    """Make sure that the topics of context requests and their answers exist; otherwise like ``make_topics``.

    New ones get as many partitions as the events have, or ``partitions`` where there are no events yet.
    """
    there = await _there(admin)
    count = there.get(channels.EVENTS_TOPIC) or partitions
    wanted = {channels.CONTEXT_REQUESTS_TOPIC: count, channels.CONTEXT_REPLIES_TOPIC: count}
    return (await _make(admin, there, wanted))[channels.CONTEXT_REQUESTS_TOPIC]


async def _there(admin: AIOKafkaAdminClient) -> Mapping[str, int]:
    described: Sequence[Mapping[str, Any]] = await admin.describe_topics()  # asking for a name could make the topic
    return {topic["topic"]: len(topic["partitions"]) for topic in described}


async def _make(admin: AIOKafkaAdminClient, there: Mapping[str, int], wanted: Mapping[str, int]) -> Mapping[str, int]:
    """Make those of the wanted topics that are not there; return the numbers of partitions of all topics."""
    missing = [name for name in wanted if name not in there]
    if missing:
        brokers = (await admin.describe_cluster())["brokers"]
        replicas = max(1, min(_REPLICAS, len(brokers)))
        new = [NewTopic(name, wanted[name], replicas, topic_configs=_TOPICS[name]) for name in missing]
        response: Any = await admin.create_topics(new)
        for _, code, *rest in response.topic_errors:
            if code and for_code(code) is not TopicAlreadyExistsError:
                raise for_code(code)(*rest)
    for _ in range(_LOOKS):
        # It takes a moment to be known everywhere, and another process may have made it with another number.
        missing = [name for name in wanted if not there.get(name)]
        if not missing:
            return there
        await asyncio.sleep(_LOOK_S)
        there = await _there(admin)
    raise KafkaError(f"the topic {missing[0]} is not there yet")


def record_of(fields: Mapping[bytes, bytes]) -> tuple[bytes | None, list[tuple[str, bytes]]]:
    """Return an entry as value and headers of a record: ``data`` is the value. Header names are UTF-8 in Kafka."""
    headers = [(name.decode(errors="replace"), value) for name, value in fields.items() if name != wire.DATA]
    return fields.get(wire.DATA), headers


def fields_of(value: bytes | None, headers: Sequence[tuple[str, bytes | None]]) -> dict[bytes, bytes]:
    """Return a record as the fields of an entry, whoever wrote it.

    Of headers with one name the last counts, a header without a value is empty, and a record without a value has no
    ``data``; a header of that name is not the event and is left out.
    """
    fields = {name.encode(): content or b"" for name, content in headers}
    fields.pop(wire.DATA, None)
    if value is not None:
        fields[wire.DATA] = value
    return fields
