"""The rights of each role on the bus, as rules of Redis ACLs. ``graphweft acl redis`` prints them.

A pattern names what a role may read (``%R~``), write (``%W~``) or both (``~``). Commands are allowed one by one.

XADD can also trim, and choose the id of an entry, and no ACL forbids that. So a tenant that may append could remove
events that are not read yet, or end a stream. It can neither read nor forge those of others. A tenant whose app has a
partition of its own may append there only.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from redis.exceptions import ResponseError

from graphweft.transports.redis.layout import stored_layout
from graphweft.transports.redis.refusals import is_of_rights
from graphweft_contracts import channels

_CONNECT: Final = ("+ping", "+client|setinfo", "+client|setname", "+select")
_READ_LAYOUT: Final = (
    *(f"%R~{channels.PARTITION_COUNT}", f"%R~{channels.ORDERS}"),
    *("+get", "+hgetall", "+multi", "+exec", "+discard"),
)
_APPEND: Final = (f"%W~{channels.EVENTS}:*", f"%W~{channels.CONTEXT_REQUESTS}", "+xadd", "+wait")
_APPEND_OWN: Final = (f"%W~{channels.OWN_EVENTS}:*", f"%W~{channels.own_context_requests('*')}")
_SUBSCRIBE: Final = ("+subscribe", "+unsubscribe")
_READ_LOG: Final = (
    *(
        f"%R~{channels.EVENTS}:*",
        f"%R~{channels.OWN_EVENTS}:*",
        f"%R~{channels.RULE_SETS}",
        f"%R~{channels.ACTIVATIONS}",
    ),
    *(f"%R~{channels.PURGES}", f"%R~{channels.PURGED}"),
    *("+xread", "+xrange", "+xrevrange", "+xinfo|stream", "+xinfo|groups", "+eval_ro", "+hget", "+lrange", "+zrange"),
)
_REPORT: Final = (f"~{channels.USAGE}", "+hgetall", "+hset", "+hdel", "+time")
_ANSWER: Final = (
    *(
        f"~{channels.CONTEXT_REQUESTS}",
        f"~{channels.own_context_requests('*')}",
        f"~{channels.RESPONDERS}",
        f"&{channels.CONTEXT_REPLIES}*",
    ),
    *("+xreadgroup", "+xack", "+xdel", "+xpending", "+xclaim", "+xgroup|create", "+xgroup|delconsumer"),
    *("+xinfo|consumers", "+zadd", "+zscore", "+zrem", "+publish", "+time", "+eval", "+evalsha", "+script|load"),
)
_WORK: Final = (
    "~graphweft:*",
    *("+xadd", "+xtrim", "+xgroup|create", "+xgroup|setid", "+eval", "+exists", "+set", "+mget", "+del", "+time"),
    *("+zremrangebyscore", "+zadd", "+zrange", "+zrem", "+pexpire", "+hset", "+hsetnx", "+hmget", "+hdel", "+hlen"),
    *("+hincrby", "+llen", "+rpush", "+client|id", "+client|unblock", "+info", "+config|get", "+xinfo|consumers"),
    "+wait",
)

_RULES: Final[Mapping[str, tuple[str, ...]]] = {
    "tenant": (*_CONNECT, *_READ_LAYOUT, *_APPEND, *_SUBSCRIBE),
    "gateway": (
        *_CONNECT,
        *_READ_LAYOUT,
        *_APPEND,
        *_APPEND_OWN,
        *_SUBSCRIBE,
        f"&{channels.CONTEXT_REPLIES}*",
        *_REPORT,
    ),
    "responder": (*_CONNECT, *_READ_LAYOUT, *_READ_LOG, *_ANSWER, *_REPORT),
    "worker": (*_CONNECT, *_READ_LAYOUT, *_READ_LOG, *_WORK),
}


def rules_of(role: str, app_id: str | None = None, own_partition: int | None = None) -> tuple[str, ...]:
    """Return the rules for a user who has none yet. ``app_id`` is the app of a tenant."""
    rules = _RULES[role]
    if app_id is None:
        return tuple(dict.fromkeys(rules))
    if own_partition is not None:
        append = (
            f"%W~{channels.own_events_stream(own_partition)}", f"%W~{channels.own_context_requests(app_id)}", "+xadd",
            "+wait",
        )  # fmt: skip
        rules = (*_CONNECT, *_READ_LAYOUT, *append, *_SUBSCRIBE)
    return tuple(dict.fromkeys((*rules, f"&{channels.context_replies('*', app_id)}")))


_E: Final = channels.events_stream(0)
_Q: Final = channels.CONTEXT_REQUESTS
_L: Final = channels.DEAD_LETTERS
_SAMPLES: Final[Mapping[str, tuple[str, ...]]] = {
    "+get": (channels.PARTITION_COUNT,),
    "+hgetall": (channels.ORDERS,),
    "+exec": (),
    "+xadd": (_E, "*", "f", "v"),
    "+subscribe": (),
    "+xread": ("STREAMS", _E, "0"),
    "+xrange": (_E, "-", "+"),
    "+xrevrange": (_E, "+", "-"),
    "+xinfo|groups": (_E,),
    "+hget": (channels.RULE_SETS, "x"),
    "+lrange": (channels.ACTIVATIONS, "0", "0"),
    "+xtrim": (_E, "MAXLEN", "1"),
    "+xgroup|setid": (_E, "g", "0"),
    "+set": (channels.PARTITION_COUNT, "1"),
    "+mget": (channels.lease(0),),
    "+pexpire": (channels.lease(0), "1"),
    "+del": (channels.lease(0),),
    "+zadd": (channels.RESPONDERS, "0", "x"),
    "+zrange": (channels.PURGES, "0", "0"),
    "+zrem": (channels.RESPONDERS, "x"),
    "+zremrangebyscore": (channels.WORKERS, "0", "0"),
    "+hset": (channels.USAGE, "x", "y"),
    "+hsetnx": (channels.RULE_SETS, "x", "y"),
    "+hmget": (_L, "x"),
    "+hdel": (channels.USAGE, "x"),
    "+hlen": (_L,),
    "+hincrby": (channels.LETTERS_OF_APPS, "x", "1"),
    "+llen": (channels.ACTIVATIONS,),
    "+rpush": (channels.ACTIVATIONS, "x"),
    "+eval": ("return 1", "0"),
    "+xreadgroup": ("GROUP", "g", "c", "STREAMS", _Q, ">"),
    "+xack": (_Q, "g", "0-1"),
    "+xdel": (_Q, "0-1"),
    "+publish": (channels.context_replies("doctor"), "x"),
    "+time": (),
    "+client|id": (),
    "+client|unblock": ("0",),
    "+ping": (),
    "+wait": ("0", "0"),
    "+unsubscribe": (),
    "+xinfo|stream": (_E,),
    "+xinfo|consumers": (_Q, "g"),
    "+xgroup|create": (_Q, "g", "0"),
    "+xgroup|delconsumer": (_Q, "g", "c"),
    "+xpending": (_Q, "g"),
    "+xclaim": (_Q, "g", "c", "0", "0-1"),
    "+zscore": (channels.RESPONDERS, "x"),
    "+exists": (_E,),
    "+eval_ro": ("return 1", "0"),
    "+evalsha": ("0" * 40, "0"),
    "+script|load": ("return 1",),
    "+info": (),
    "+config|get": ("save",),
}
"""Arguments that are valid for a command. They are queued and discarded, so they have no effect."""


async def own_partition(client: Any, app_id: str | None) -> int | None:
    """Return the partition of its own of an app; None without one, or if this user may not look."""
    try:
        layout = None if app_id is None else await stored_layout(client)
    except ResponseError:
        return None
    own = None if layout is None or app_id is None else layout.own.get(app_id)
    return None if own is None else own.number


async def may_append_to_shared(client: Any) -> bool:
    """Return whether the client's user may append to the streams that apps share. Nothing is appended."""
    connection = await client.connection_pool.get_connection()
    try:
        return not await _refusals(connection, "XADD", *_SAMPLES["+xadd"])
    finally:
        await client.connection_pool.release(connection)


async def missing(client: Any, role: str, app_id: str | None = None) -> list[tuple[str, str]]:
    """Return the rules of a role that the client's user lacks, each with what the server says. Nothing is changed."""
    found: list[tuple[str, str]] = []
    own = await own_partition(client, app_id)
    events = _E if own is None else channels.own_events_stream(own)
    connection = await client.connection_pool.get_connection()
    try:
        for rule in rules_of(role, app_id, own):
            arguments = _SAMPLES.get(rule)
            if rule == "+xadd":
                arguments = (events, "*", "f", "v")
            if rule == "+subscribe":
                arguments = (channels.context_replies("doctor", app_id or "doctor"),)
            if arguments is None:
                continue
            words = rule[1:].upper().split("|")
            for word, error in await _refusals(connection, *words, *arguments):
                if is_of_rights(error):  # others: DISCARD without MULTI, or a command of newer servers
                    found.append((rule if word == words[0] else f"+{word.lower()}", str(error)))
    finally:
        await client.connection_pool.release(connection)
    return found


async def _refusals(connection: Any, *command: str) -> list[tuple[str, ResponseError]]:
    """Return what the server refuses of a command in a transaction that is discarded, by the first word.

    It checks rights when it queues a command, so this has no effect. Without a transaction the command is not sent, and
    a transaction that cannot be discarded ends with the connection.
    """
    try:
        await _answer(connection, "MULTI")
    except ResponseError as error:
        return [("MULTI", error)]
    found: list[tuple[str, ResponseError]] = []
    try:
        await _answer(connection, *command)
    except ResponseError as error:
        found.append((command[0], error))
    try:
        await _answer(connection, "DISCARD")
    except ResponseError as error:
        found.append(("DISCARD", error))
        await connection.disconnect()
    return found


async def _answer(connection: Any, *words: str) -> None:
    await connection.send_command(*words)
    await connection.read_response()
