"""Tries the rights of a role on a Kafka cluster, without any effect."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from aiokafka.client import AIOKafkaClient
from aiokafka.conn import create_conn  # pyright: ignore[reportUnknownVariableType]
from aiokafka.errors import AuthenticationFailedError, KafkaError, SaslAuthenticationFailed
from aiokafka.protocol.fetch import FetchRequest
from aiokafka.protocol.group import HeartbeatRequest
from aiokafka.protocol.produce import ProduceRequest

from graphweft.transports.kafka.connection import Servers
from graphweft_contracts import channels
from graphweft_workers.drivers.kafka.rights import rights_of

_NOWHERE: Final = 2**30
"""A partition that no topic has: the broker checks the right before it looks for it."""
_REFUSED: Final = frozenset({29, 30})
"""The codes of TOPIC_AUTHORIZATION_FAILED and GROUP_AUTHORIZATION_FAILED."""
_TOPICS: Final = (
    *(channels.EVENTS_TOPIC, channels.DEAD_LETTERS_TOPIC, channels.PARTITIONS_TOPIC, channels.RULE_SETS_TOPIC),
    channels.PURGES_TOPIC,
    *(channels.CONTEXT_REQUESTS_TOPIC, channels.CONTEXT_REPLIES_TOPIC),
)


async def missing(servers: Servers, role: str, app_id: str | None) -> list[str]:
    """Return the rights to read and write that this user lacks, as options of ``kafka-acls.sh``.

    Raises ``KafkaError``.
    """
    client: Any = AIOKafkaClient(**servers.options)
    found: list[str] = []
    try:
        await client.bootstrap()
        node = client.get_random_node()
        for operation, topic in _of_topics(role, app_id):
            if operation == "Write":
                request: Any = ProduceRequest(None, 1, 1_000, [(topic, [(_NOWHERE, b"")])])
            else:
                request = FetchRequest(1, 0, 1, 0, [(topic, [(_NOWHERE, 0, 1)])])
            response = await client.send(node, request)
            if response.topics[0][1][0][1] in _REFUSED:
                found.append(f"--operation {operation} --topic {topic}")
        for group in _groups(role):
            coordinator = await _coordinator(client, group)
            if (
                coordinator is None
                or (await client.send(coordinator, HeartbeatRequest(group, 0, ""))).error_code in _REFUSED
            ):
                found.append(f"--operation Read --group {group}")
    finally:
        await client.close()
    return found


async def why_not(servers: Servers) -> tuple[str, bool]:
    """Return why no broker can be used, and whether it refuses the login; empty if one can. aiokafka only logs that."""
    why, is_login = "", False
    for address in servers.bootstrap.split(","):
        host, _, port = address.partition(":")
        options = {name: value for name, value in servers.options.items() if name != "bootstrap_servers"}
        try:
            connection: Any = await create_conn(host, int(port or 9092), request_timeout_ms=5_000, **options)
        except (KafkaError, OSError) as error:
            why = f"{address}: {error or type(error).__name__}"
            is_login = isinstance(error, (AuthenticationFailedError, SaslAuthenticationFailed))
        else:
            connection.close()
            return "", False
    return why, is_login


async def _coordinator(client: Any, group: str) -> Any:
    try:
        return await client.coordinator_lookup(0, group)
    except KafkaError as error:
        if getattr(error, "errno", None) in _REFUSED:
            return None
        raise


def _of_topics(role: str, app_id: str | None) -> Iterator[tuple[str, str]]:
    for right in rights_of(role, app_id):
        for name in right.topics:
            for topic in [each for each in _TOPICS if each.startswith(name)] if right.prefixed else [name]:
                yield from ((operation, topic) for operation in right.operations if operation in ("Read", "Write"))


def _groups(role: str) -> list[str]:
    return {"worker": [channels.MUTATION_GROUP, channels.MEMORY_GROUP], "responder": [channels.CONTEXT_GROUP]}.get(
        role, []
    )
