"""The rights of each role on a Kafka cluster, as entries of its ACLs. ``graphweft acl kafka`` prints them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from graphweft.transports.kafka.connection import CONTEXT_SETTINGS
from graphweft_contracts import channels

_PREFIX: Final = "graphweft."
_GROUPS: Final = channels.GROUP_PREFIX


@dataclass(frozen=True, slots=True, kw_only=True)
class Right:
    """Operations on resources of one kind, each by its name or, if ``prefixed``, by the begin of its name."""

    operations: tuple[str, ...]
    topics: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    transactions: tuple[str, ...] = ()
    cluster: bool = False
    prefixed: bool = False


_READ_LOG: Final = (
    Right(
        operations=("Read",),
        topics=(channels.EVENTS_TOPIC, channels.PARTITIONS_TOPIC, channels.RULE_SETS_TOPIC, channels.PURGES_TOPIC),
    ),
    Right(operations=("Describe",), topics=(channels.DEAD_LETTERS_TOPIC, channels.USAGE_TOPIC)),
    Right(operations=("Describe",), groups=(_GROUPS,), prefixed=True),
)


def rights_of(role: str, app_id: str | None = None) -> tuple[Right, ...]:
    """Return the rights of a role; ``app_id`` is the app of a tenant."""
    write = Right(operations=("Write",), topics=(channels.EVENTS_TOPIC, channels.CONTEXT_REQUESTS_TOPIC))
    match role:
        case "tenant":
            assert app_id is not None
            return write, Right(
                operations=("Read",), topics=(channels.PARTITIONS_TOPIC, channels.context_replies_topic(app_id))
            )
        case "gateway":
            return (
                write,
                Right(operations=("Read",), topics=(channels.PARTITIONS_TOPIC, channels.CONTEXT_REPLIES_TOPIC)),
                Right(operations=("Read", "Write"), topics=(channels.USAGE_TOPIC,)),
                Right(
                    operations=("Describe",),
                    topics=(channels.DEAD_LETTERS_TOPIC, channels.RULE_SETS_TOPIC, channels.PURGES_TOPIC),
                ),
            )
        case "responder":
            return (
                *_READ_LOG,
                Right(operations=("Read", "Create"), topics=(channels.CONTEXT_REQUESTS_TOPIC,)),
                Right(operations=("Read",), groups=(channels.CONTEXT_GROUP,)),
                Right(operations=("Write", "Create"), topics=(channels.CONTEXT_REPLIES_TOPIC,), prefixed=True),
                Right(operations=("Read", "Write"), topics=(channels.USAGE_TOPIC,)),
                Right(operations=("Describe",), cluster=True),
            )
        case _:
            return (
                Right(
                    operations=("Read", "Write", "Create", "Delete", "Describe", "DescribeConfigs"),
                    topics=(_PREFIX,),
                    prefixed=True,
                ),
                Right(operations=("Read", "Describe"), groups=(_GROUPS,), prefixed=True),
                Right(
                    operations=("Write", "Describe"),
                    transactions=(channels.REQUEUE_TRANSACTION, channels.RULES_TRANSACTION),
                ),
                Right(operations=("Describe",), cluster=True),
            )


def commands(role: str, user: str, app_id: str | None = None) -> list[str]:
    """Return the commands of Kafka's own tools, without the options that say how to connect."""
    topic: list[str] = []
    if app_id is not None:
        settings = " ".join(f"--config {name}={value}" for name, value in CONTEXT_SETTINGS.items())
        topic = [
            f"kafka-topics.sh --create --if-not-exists --topic {channels.context_replies_topic(app_id)} --partitions 1 "
            + settings
        ]
    return [*topic, *(_command(user, right) for right in rights_of(role, app_id))]


def _command(user: str, right: Right) -> str:
    return " ".join(
        [
            f"kafka-acls.sh --add --allow-principal User:{user}",
            *_named("operation", right.operations),
            *_named("topic", right.topics),
            *_named("group", right.groups),
            *_named("transactional-id", right.transactions),
            *(["--cluster"] if right.cluster else []),
            *(["--resource-pattern-type prefixed"] if right.prefixed else []),
        ]
    )


def _named(option: str, values: Sequence[str]) -> list[str]:
    return [f"--{option} {value}" for value in values]
