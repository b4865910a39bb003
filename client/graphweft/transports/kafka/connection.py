"""Addresses, topics, records and errors of Kafka, for clients and workers."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
from collections.abc import AsyncGenerator, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import (
    ClusterAuthorizationFailedError,
    CorruptRecordException,
    GroupAuthorizationFailedError,
    KafkaError,
    TopicAlreadyExistsError,
    TopicAuthorizationFailedError,
    TransactionalIdAuthorizationFailed,
    UnsupportedCodecError,
    for_code,
)

from graphweft.transport import MAX_CONTEXT_BYTES
from graphweft.transports.access import tls_context
from graphweft.transports.kafka.timing import KAFKA_TIMING, KafkaTiming
from graphweft.transports.kafka.url import split_kafka_url
from graphweft_contracts import BusUnavailable, MissingRight, channels, wire
from graphweft_contracts.clock import SYSTEM_CLOCK, Clock

_REPLICAS: Final = 3
"""Replicas of each topic, if present are enough brokers."""
_OF_RIGHTS: Final = (
    TopicAuthorizationFailedError,
    GroupAuthorizationFailedError,
    ClusterAuthorizationFailedError,
    TransactionalIdAuthorizationFailed,
)
_RIGHTS: Final = "`graphweft acl kafka` prints the rights of each role"
_CONTEXT_PARTITIONS: Final = 16
_LETTER_BYTES: Final = 8 * 1024**2
"""Largest dead letter: an event of up to 1 MiB in base64, a third larger, and its fields. Also the largest rule set."""
CONTEXT_SETTINGS: Final[Mapping[str, str]] = {
    # Of the topics of requests and replies. No request waits this long. Kafka deletes only whole segments.
    "retention.ms": "60000",
    "segment.ms": "60000",
    "max.message.bytes": str(MAX_CONTEXT_BYTES + 1024),
}
_RECORDS: Final[Mapping[str, str]] = {
    # Processes read them from their beginning, so they are compacted often.
    "cleanup.policy": "compact",
    "segment.ms": "600000",
    "segment.bytes": str(4 * 1024**2),
    "min.cleanable.dirty.ratio": "0.1",
}
_TOPICS: Final[Mapping[str, Mapping[str, str]]] = {
    # A replay reads the log, so nothing expires. The time of an entry is that of the append.
    channels.EVENTS_TOPIC: {
        "retention.ms": "-1",
        "retention.bytes": "-1",
        "message.timestamp.type": "LogAppendTime",
    },
    channels.DEAD_LETTERS_TOPIC: {"cleanup.policy": "compact", "max.message.bytes": str(_LETTER_BYTES)},
    channels.PARTITIONS_TOPIC: {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"},
    channels.RULE_SETS_TOPIC: {
        "cleanup.policy": "delete",
        "retention.ms": "-1",
        "retention.bytes": "-1",
        "max.message.bytes": str(_LETTER_BYTES),
    },
    channels.PURGES_TOPIC: {"cleanup.policy": "compact"},
    channels.CONTEXT_REQUESTS_TOPIC: CONTEXT_SETTINGS,
    channels.CONTEXT_REPLIES_TOPIC: CONTEXT_SETTINGS,
    # So roles learn the time of the brokers from their own records.
    channels.USAGE_TOPIC: {**_RECORDS, "message.timestamp.type": "LogAppendTime"},
    channels.SERIES_TOPIC: _RECORDS,
    # Some hundred thousand messages: who reads them later asks the log.
    channels.EFFECTS_TOPIC: {"retention.bytes": str(64 * 1024**2), "segment.bytes": str(16 * 1024**2)},
}
OF_EVENTS: Final = (
    channels.EVENTS_TOPIC,
    channels.DEAD_LETTERS_TOPIC,
    channels.PARTITIONS_TOPIC,
    channels.RULE_SETS_TOPIC,
    channels.PURGES_TOPIC,
    channels.USAGE_TOPIC,
)
"""The topics that ``make_topics`` makes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Copies:
    """The copies of what the topics hold that graphweft makes; see ``KafkaUrl``."""

    replication_factor: int | None = None
    min_insync_replicas: int | None = None

    def replicas(self, brokers: int) -> int:
        """Return the replicas of a new topic."""
        return self.replication_factor or max(1, min(_REPLICAS, brokers))

    @property
    def settings(self) -> Mapping[str, str]:
        """The settings of a new topic."""
        return {} if self.min_insync_replicas is None else {"min.insync.replicas": str(self.min_insync_replicas)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Servers:
    """The brokers of a cluster, and how to connect to them."""

    bootstrap: str
    user: str = ""
    options: Mapping[str, Any] = field(repr=False)
    """The arguments of every client of aiokafka. They hold the password."""
    copies: Copies = Copies()
    rack: str = ""
    """The rack of this process, from whose replicas it reads; empty: it reads from leaders."""


def servers(url: str) -> Servers:
    """Return the brokers of a URL; see ``split_kafka_url``. Raises ``InvalidSettings``, also for certificates."""
    parts = split_kafka_url(url)
    options: dict[str, Any] = {"bootstrap_servers": parts.hosts}
    if parts.tls:
        options["ssl_context"] = tls_context(parts.ca, parts.cert, parts.key)
    if parts.user:
        options["sasl_mechanism"] = parts.sasl
        options["sasl_plain_username"] = parts.user
        options["sasl_plain_password"] = parts.password
    if parts.tls or parts.user:
        options["security_protocol"] = f"{'SASL_' * bool(parts.user)}{'SSL' if parts.tls else 'PLAINTEXT'}"
    copies = Copies(replication_factor=parts.replication_factor, min_insync_replicas=parts.min_insync_replicas)
    return Servers(
        bootstrap=parts.hosts, user=parts.user, options=options, copies=copies, rack=parts.client_rack
    )  # fmt: skip


@contextlib.contextmanager
def bus_errors(what: str) -> Generator[None]:
    """Turn errors of Kafka in the block into those of the bus; see ``unavailable``."""
    try:
        yield
    except (KafkaError, OSError) as error:  # TimeoutError is an OSError
        raise unavailable(error, what) from error


def unavailable(error: KafkaError | OSError, what: str) -> BusUnavailable:
    """Return an error of Kafka as one of the bus; ``what`` begins its text.

    A user without a right gets ``MissingRight``.
    """
    named = isinstance(error, KafkaError) and str(error)  # its text starts with its name
    reason = str(error) if named else f"{type(error).__name__} {error}".rstrip()
    if isinstance(error, _OF_RIGHTS):
        return MissingRight(f"the bus refuses this user a right: {what}: {reason}; {_RIGHTS}")
    if isinstance(error, UnsupportedCodecError):
        reason += ": pip install 'graphweft[kafka]'"
    return BusUnavailable(f"{what}: {reason}")


def is_of_content(error: Exception) -> bool:
    """Tell whether a consumer raised an error because of what a batch holds, and not for want of a broker."""
    if isinstance(error, (CorruptRecordException, UnsupportedCodecError, gzip.BadGzipFile)):
        return True
    return not isinstance(error, (KafkaError, OSError))


def retrieve(future: asyncio.Future[Any]) -> None:
    """Retrieve the exception of a future that is done, so that asyncio does not log it."""
    if not future.cancelled():
        future.exception()


async def start_client(client: Any) -> None:
    """Start a client of aiokafka; the caller stops it if this raises.

    aiokafka 0.14 loses a connection that it is opening when its start is cancelled. So a cancelled start may end first.
    """
    starting = asyncio.create_task(client.start())
    try:
        await asyncio.shield(starting)
    except BaseException:
        try:
            await asyncio.wait([starting], timeout=KAFKA_TIMING.start_s)
        finally:
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)
        raise


async def started(client: Any) -> Any:
    """Return a producer or a consumer, started; one that cannot start, or is cancelled meanwhile, is stopped."""
    try:
        await start_client(client)
    except BaseException:
        with contextlib.suppress(KafkaError, OSError):
            await client.stop()
        raise
    return client


@contextlib.asynccontextmanager
async def admin_client(servers: Servers, request_ms: int) -> AsyncGenerator[AIOKafkaAdminClient]:
    """Lend a connection for topics and groups. Raises ``KafkaError`` or ``OSError``."""
    admin = AIOKafkaAdminClient(**servers.options, request_timeout_ms=request_ms)
    try:
        await start_client(admin)
        yield admin
    finally:
        await admin.close()


async def find_topics(admin: AIOKafkaAdminClient, partitions: int, copies: Copies) -> int:
    """Like ``make_topics``, for a client: nothing is made if the topics that it uses are there.

    A tenant sees no others, and may make none.
    """
    present = await present_topics(admin)
    if channels.EVENTS_TOPIC in present and channels.PARTITIONS_TOPIC in present:
        return present[channels.EVENTS_TOPIC]
    return await make_topics(admin, partitions, copies)


async def make_topics(admin: AIOKafkaAdminClient, partitions: int, copies: Copies) -> int:
    """Make the missing topics of events, and return the current number of partitions of events.

    ``partitions`` applies to a new topic only. ``agreed_layout`` maps keys. Raises ``KafkaError``.
    """
    wanted = {**dict.fromkeys(OF_EVENTS, 1), channels.EVENTS_TOPIC: partitions}
    return (await _make(admin, await present_topics(admin), wanted, copies))[channels.EVENTS_TOPIC]


async def make_workers_topic(admin: AIOKafkaAdminClient, name: str, copies: Copies) -> None:
    """Make a topic that only workers write, if it is missing: others need no right to it. Raises ``KafkaError``."""
    await _make(admin, await present_topics(admin), {name: 1}, copies)


async def present_partitions(admin: AIOKafkaAdminClient) -> int:
    """Return the current number of partitions of events, 0 without the topic. Raises ``KafkaError``."""
    return (await present_topics(admin)).get(channels.EVENTS_TOPIC, 0)


async def make_context_topics(admin: AIOKafkaAdminClient, partitions: int, copies: Copies) -> int:
    """Make the missing topics of context requests and replies, and return their number of partitions.

    New topics get as many partitions as the events have, or ``partitions`` if that topic does not exist, but 16 at
    most: so many responders share the requests. Raises ``KafkaError``.
    """
    present = await present_topics(admin)
    count = min(present.get(channels.EVENTS_TOPIC) or partitions, _CONTEXT_PARTITIONS)
    wanted = {channels.CONTEXT_REQUESTS_TOPIC: count, channels.CONTEXT_REPLIES_TOPIC: count}
    return (await _make(admin, present, wanted, copies))[channels.CONTEXT_REQUESTS_TOPIC]


async def find_replies(admin: AIOKafkaAdminClient, app_id: str) -> int | None:
    """Return the number of partitions of the requests if this user may read no other replies than those of an app.

    Else None. Raises ``KafkaError`` if ``app_id`` is not that app; empty is any.
    """
    present = await present_topics(admin)
    if channels.CONTEXT_REPLIES_TOPIC in present or channels.CONTEXT_REQUESTS_TOPIC not in present:
        return None
    if not any(name.startswith(f"{channels.CONTEXT_REPLIES_TOPIC}.") for name in present):
        return None
    if app_id and channels.context_replies_topic(app_id) not in present:
        raise TopicAuthorizationFailedError(
            f"this user may not read {channels.context_replies_topic(app_id)}, or the topic does not exist"
        )
    return present[channels.CONTEXT_REQUESTS_TOPIC]


async def present_topics(admin: AIOKafkaAdminClient) -> Mapping[str, int]:
    """Return the number of partitions of each topic that there is. Raises ``KafkaError``."""
    described: Sequence[Mapping[str, Any]] = await admin.describe_topics()  # a request by name could create the topic
    return {topic["topic"]: len(topic["partitions"]) for topic in described}


async def _make(
    admin: AIOKafkaAdminClient, present: Mapping[str, int], wanted: Mapping[str, int], copies: Copies, *,
    clock: Clock = SYSTEM_CLOCK, timing: KafkaTiming = KAFKA_TIMING,
) -> Mapping[str, int]:  # fmt: skip
    """Make the missing topics; return the numbers of partitions of all topics."""
    missing = [name for name in wanted if name not in present]
    if missing:
        brokers = (await admin.describe_cluster())["brokers"]
        new = [
            NewTopic(
                name, wanted[name], copies.replicas(len(brokers)), topic_configs={**_TOPICS[name], **copies.settings}
            )
            for name in missing
        ]
        response: Any = await admin.create_topics(new)
        for _, code, *rest in response.topic_errors:
            if code and for_code(code) is TopicAuthorizationFailedError:
                raise TopicAuthorizationFailedError(
                    f"this user may neither use nor make all of the topics {', '.join(missing)}, which workers and "
                    "responders make"
                )
            if code and for_code(code) is not TopicAlreadyExistsError:
                raise for_code(code)(*rest)
    deadline = clock.monotonic() + timing.topic_s
    # Another process may have made a topic with another number of partitions.
    while missing := [name for name in wanted if not present.get(name)]:
        if clock.monotonic() > deadline:
            raise KafkaError(f"the brokers do not know the new topic {missing[0]} after {timing.topic_s:.0f} s")
        await clock.sleep(timing.topic_step_s)
        present = await present_topics(admin)
    return present


def record_of(fields: Mapping[bytes, bytes]) -> tuple[bytes | None, list[tuple[str, bytes]]]:
    """Return the fields of an entry as value (``data``) and headers of a record. Header names are UTF-8."""
    headers = [(name.decode(errors="replace"), value) for name, value in fields.items() if name != wire.DATA]
    return fields.get(wire.DATA), headers


def fields_of(value: bytes | None, headers: Sequence[tuple[str, bytes | None]]) -> dict[bytes, bytes]:
    """Return the fields of an entry from any record.

    The last of several headers with one name counts. A header without a value is empty. A record without a value has no
    ``data``; a header of that name is ignored.
    """
    fields = {name.encode(): content or b"" for name, content in headers}
    fields.pop(wire.DATA, None)
    if value is not None:
        fields[wire.DATA] = value
    return fields
