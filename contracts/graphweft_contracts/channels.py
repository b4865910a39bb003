"""The names of everything that graphweft keeps on a bus, for both kinds of bus. No other module spells one."""

from __future__ import annotations

import zlib
from typing import Final

EVENTS: Final = "graphweft:events"
"""Prefix of the event streams, one for each partition."""
EVENTS_TOPIC: Final = "graphweft.events"
"""Topic of events; its partitions are the event log's partitions."""
PARTITION_COUNT: Final = "graphweft:partitions"
"""Number of event streams. The first process writes it, once, so that all producers hash alike."""
ORDERS: Final = "graphweft:orders"
"""Hash: app id, or ``*`` for all others, -> ``app``, ``chat``, or the partition of its own; see ``Layout``.

Written with the number.
"""
OWN_EVENTS: Final = "graphweft:own"
"""Prefix of the event streams of apps that share none. It is another one, so that whoever may append to all the shared
streams may not append to these.
"""
PARTITIONS_TOPIC: Final = "graphweft.partitions"
"""Topic with one partition. Its first record ``{"partitions": N}`` counts, even if the topic of events grows.

``order`` in that record is the order of all apps. A later record ``{"app": A, "order": O}`` is that of one app.
"""
GROUP_PREFIX: Final = "graphweft-"
"""How the names of graphweft's groups of readers begin."""
MUTATION_GROUP: Final = "graphweft-mutation"
MEMORY_GROUP: Final = "graphweft-memory"
"""Group of the workers that embed memories."""
CONSOLIDATION_GROUP: Final = "graphweft-consolidation"
"""Group of the workers that summarize memories."""
VERDICTS_GROUP: Final = "graphweft-verdicts"
"""Group of the workers that have a model compare statements."""
EPISODES_GROUP: Final = "graphweft-episodes"
"""Group of the workers that extract episodes with a model."""
ARCHIVE_GROUP: Final = "graphweft-archive"
"""Group of the processes that copy the log into the archive."""
WORKERS: Final = "graphweft:workers"
"""Sorted set: name of each mutation worker by the Unix time in ms until which it counts as alive."""
CONTEXT_REQUESTS: Final = "graphweft:context:requests"
CONTEXT_REQUESTS_TOPIC: Final = "graphweft.context.requests"
CONTEXT_REPLIES_TOPIC: Final = "graphweft.context.replies"
CONTEXT_GROUP: Final = "graphweft-injection"
RESPONDERS: Final = "graphweft:responders"
"""Sorted set: name of each responder with pending requests by the Unix time in ms until which it counts as alive."""
DEAD_LETTERS: Final = "graphweft:deadletters"
"""Hash: dead letter id -> JSON."""
DEAD_LETTER_ORDER: Final = "graphweft:deadletters:order"
"""Sorted set: dead letter id by the time of writing."""
DEAD_LETTERS_TOPIC: Final = "graphweft.dead_letters"
"""Compacted topic: dead letter id -> JSON, or null for a removed one."""
REQUEUE_TRANSACTION: Final = "graphweft-requeue"
"""Id of the transactional producer that requeues dead letters: a newer one fences the older one."""

RULE_SETS: Final = "graphweft:rules"
"""Hash: digest of a rule set -> its files, see ``StoredRules``."""
ACTIVATIONS: Final = "graphweft:rules:activations"
"""List of ``Activation``, in order."""
RULE_SETS_TOPIC: Final = "graphweft.rules"
"""Topic with one partition that never expires: key -> rule set (its digest), or activation (its number)."""
RULES_TRANSACTION: Final = "graphweft-rules"
"""Id of the transactional producer that activates rules: a newer one fences the older one."""

PURGES: Final = "graphweft:purges"
"""Sorted set: key of a purge by its number. Responders drop cached rows of an app for which something was erased."""
PURGED: Final = "graphweft:purges:places"
"""Hash: key of a purge -> JSON."""
PURGES_TOPIC: Final = "graphweft.purges"
"""Compacted topic with one partition: key of a purge -> JSON."""

USAGE: Final = "graphweft:usage"
"""Hash: name of a reporter -> what it says about the use of each app, JSON."""
USAGE_TOPIC: Final = "graphweft.usage"
"""Compacted topic with one partition: name of a reporter -> JSON, or null for a removed one."""
SERIES: Final = "graphweft:series"
"""Hash: partition and app -> the marks of the app's series of numbered events, JSON."""
SERIES_TOPIC: Final = "graphweft.series"
"""Compacted topic with one partition: partition and app -> JSON."""
EFFECTS: Final = "graphweft:effects"
"""Stream of what took effect, see ``Effects``; workers write it if the settings say so, and operators read it."""
EFFECTS_TOPIC: Final = "graphweft.effects"
"""Topic with one partition that expires by its size: app -> what took effect."""
COUNTED_LETTERS: Final = "graphweft:deadletters:counted"
"""Hash: dead letter id -> its bytes and its app, as they are counted in ``LETTERS_OF_APPS``."""
LETTERS_OF_APPS: Final = "graphweft:deadletters:apps"
"""Hash: `n:` and app -> its dead letters; `b:` and app -> their bytes. The app is empty for letters of none."""

REPLICATED: Final = "graphweft:replicated"
"""Key that a worker writes behind what it has read, to wait until replicas have that."""
DURABLE: Final = "graphweft:durable"
"""Key on the graph server; a write to it allows waiting until the server has written to disk."""
GRAPH_POSITIONS: Final = "graphweft:positions"
"""Begin of the keys that say up to where the graphs are complete, on the graph server."""
GRAPH_INDEXES: Final = "graphweft:indexes"
"""Begin of the keys that name the run of the server in which the indexes of a graph were made."""

SLOW: Final = "graphweft:slow"
"""Begin of the keys by which slow reads and writes of a graph take turns, on the graph server."""
SLOW_GRAPHS: Final = f"{SLOW}:graphs"
"""Sorted set: graphs with slow reads, by the server's time in milliseconds until which writers heed them."""
SLOW_READS: Final = f"{SLOW}:reads"
"""Sorted set: slow reads that run or wait, by the time at which they end."""
SLOW_WRITES: Final = f"{SLOW}:writes"
"""Sorted set: writes to the graphs in ``SLOW_GRAPHS``, by the time at which they end."""
LONG_WRITES: Final = f"{SLOW}:long"
"""Sorted set: writes of all workers that took long, by the server's time in milliseconds at which they ended."""

GRAPH_CHECK: Final = "graphweft::check::"
"""Empty graph in which the graph server checks the queries of rules."""


def events_stream(partition: int) -> str:
    """Return the event stream of a partition that apps share."""
    return f"{EVENTS}:{partition}"


def own_events_stream(partition: int) -> str:
    """Return the event stream of a partition that takes events of one app only."""
    return f"{OWN_EVENTS}:{partition}"


def own_context_requests(app_id: str) -> str:
    """Return the stream of context requests of an app that shares none."""
    return f"{CONTEXT_REQUESTS}:{app_id}"


def stream_copy(partition: int) -> str:
    """Return where a copy of the stream of a partition is made. Who may write to streams of events may not write it."""
    return f"graphweft:copies:{partition}"


CONTEXT_REPLIES: Final = "graphweft:context:replies:"
"""Prefix of the reply channels."""


def context_replies(client: str, app_id: str = "") -> str:
    """Return the channel on which one client process reads the replies to requests of one app, or of all apps.

    That of one app begins with its id, so that a server can allow an app's own channels only.
    """
    return f"{CONTEXT_REPLIES}{app_id}:{client}" if app_id else f"{CONTEXT_REPLIES}{client}"


def context_replies_topic(app_id: str) -> str:
    """Return the topic of replies of one app. It is used where a process may not read ``CONTEXT_REPLIES_TOPIC``."""
    return f"{CONTEXT_REPLIES_TOPIC}.{app_id}"


def context_replies_partition(partition: int, topic: str = CONTEXT_REPLIES_TOPIC) -> str:
    """Return the ``reply_to`` of requests for a partition of a topic of replies."""
    return f"{topic}:{partition}"


def app_of_replies(reply_to: str) -> str:
    """Return the only app whose requests may be answered on ``reply_to``; empty for a channel of all apps.

    A tenant may read its own channels. An answer about another app must not go there, whoever asks for it.
    """
    if reply_to.startswith(CONTEXT_REPLIES):
        return reply_to[len(CONTEXT_REPLIES) :].rpartition(":")[0]
    if reply_to.startswith(f"{CONTEXT_REPLIES_TOPIC}."):
        return reply_to[len(CONTEXT_REPLIES_TOPIC) + 1 :].rpartition(":")[0]
    return ""


def lease(partition: int, group: str = MUTATION_GROUP) -> str:
    """Return the key of the lease of a partition for a group."""
    return f"graphweft:lease:{partition}" if group == MUTATION_GROUP else f"graphweft:lease:{group}:{partition}"


def workers(group: str = MUTATION_GROUP) -> str:
    """Return the key of the sorted set of a group's live workers; see ``WORKERS``."""
    return WORKERS if group == MUTATION_GROUP else f"{WORKERS}:{group}"


def notes(group: str = MUTATION_GROUP) -> str:
    """Return the hash of the notes that a group keeps with its positions: partition -> text."""
    return f"graphweft:notes:{group}"


def partition_of(key: str, partitions: int) -> int:
    """Return the partition of an ordering key: the CRC-32 of its UTF-8 bytes modulo ``partitions``, in all versions."""
    return zlib.crc32(key.encode()) % partitions


def graph_positions(template: str) -> str:
    """Return the hash of how far the graphs of a template are complete: partition -> offset and count."""
    return f"{GRAPH_POSITIONS}:{template}"


def graphs_reached(template: str, partition: int) -> str:
    """Return the hash of the graphs that hold events of a partition: app -> an offset that its checkpoint has reached.

    The template names a part of the key in braces, so a cluster keeps it beside ``graph_positions``.
    """
    return f"{GRAPH_POSITIONS}:{template}:{partition}"


def graph_indexes(graph: str) -> str:
    """Return the key that names the run of the server in which the indexes of a graph were made."""
    return f"{GRAPH_INDEXES}:{graph}"


def graph_name(app_id: str, template: str = "mozaiks_{app_id}") -> str:
    """Return the graph of an app, by the template of the rule contract unless another is given."""
    return template.format(app_id=app_id)
