"""Names of everything that graphweft keeps on a bus. No other module spells one."""

from __future__ import annotations

import zlib
from typing import Final

EVENTS: Final = "graphweft:events"
"""Prefix of the Redis streams, one a partition."""
EVENTS_TOPIC: Final = "graphweft.events"
"""Kafka topic; its partitions are ours."""
PARTITION_COUNT: Final = "graphweft:partitions"
"""Number of event streams, written once by whoever comes first, so that all producers hash alike."""
PARTITIONS_TOPIC: Final = "graphweft.partitions"
"""Kafka topic of one partition for the same: the first record ``{"partitions": N}`` counts, though topics may grow."""
MUTATION_GROUP: Final = "graphweft-mutation"
MEMORY_GROUP: Final = "graphweft-memory"
"""Of the workers that turn memories into vectors."""
CONSOLIDATION_GROUP: Final = "graphweft-consolidation"
"""Of the workers that condense memories."""
EPISODES_GROUP: Final = "graphweft-episodes"
"""Of the workers that have models read episodes."""
WORKERS: Final = "graphweft:workers"
"""Sorted set: name of a mutation worker by the time in ms until which it counts as alive."""
CONTEXT_REQUESTS: Final = "graphweft:context:requests"
CONTEXT_REQUESTS_TOPIC: Final = "graphweft.context.requests"
CONTEXT_REPLIES_TOPIC: Final = "graphweft.context.replies"
CONTEXT_GROUP: Final = "graphweft-injection"
RESPONDERS: Final = "graphweft:responders"
"""Sorted set: name of an injection responder that has requests in hand by the time in ms until which it is alive."""
DEAD_LETTERS: Final = "graphweft:deadletters"
"""Hash: dead letter id -> JSON."""
DEAD_LETTER_ORDER: Final = "graphweft:deadletters:order"
"""Sorted set: dead letter id by the time of its writing."""
DEAD_LETTERS_TOPIC: Final = "graphweft.dead_letters"
"""Compacted Kafka topic: dead letter id -> JSON, or null when it is gone."""
REQUEUE_TRANSACTION: Final = "graphweft-requeue"
"""Kafka's name of the producer that puts dead letters back: one at a time, a newer one fences off the older."""

DURABLE: Final = "graphweft:durable"
"""Key on the graph server that is written so that one can wait for the disk behind it."""

GRAPH_CHECK: Final = "graphweft::check::"
"""Empty graph on a FalkorDB server, in which it is asked whether it takes the queries of rules."""


def events_stream(partition: int) -> str:
    """Return the Redis stream of a partition."""
    return f"{EVENTS}:{partition}"


def context_replies(client: str) -> str:
    """Return the channel on which one client process reads its answers."""
    return f"graphweft:context:replies:{client}"


def context_replies_partition(partition: int) -> str:
    """Return the name of a partition of the Kafka topic of answers, as requests have it in ``reply_to``."""
    return f"{CONTEXT_REPLIES_TOPIC}:{partition}"


def lease(partition: int, group: str = MUTATION_GROUP) -> str:
    """Return the key that says which worker of a group reads a partition."""
    return f"graphweft:lease:{partition}" if group == MUTATION_GROUP else f"graphweft:lease:{group}:{partition}"


def workers(group: str = MUTATION_GROUP) -> str:
    """Return the key of the sorted set of a group's workers that live; ``WORKERS`` is that of the mutation workers."""
    return WORKERS if group == MUTATION_GROUP else f"{WORKERS}:{group}"


def notes(group: str = MUTATION_GROUP) -> str:
    """Return the Redis hash of what a group's readers keep with their positions: partition -> text."""
    return f"graphweft:notes:{group}"


def partition_of(key: str, partitions: int) -> int:
    """Return the partition of an ordering key; stable across processes and versions (CRC-32 of the UTF-8 bytes)."""
    return zlib.crc32(key.encode()) % partitions


def graph_name(app_id: str, template: str = "mozaiks_{app_id}") -> str:
    """Return the graph of an app. The default template is the rule contract's."""
    return template.format(app_id=app_id)
