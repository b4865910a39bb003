"""The rights of each role on the bus, as rules of Redis ACLs. ``graphweft acl redis`` prints them.

A pattern names what a role may read (``%R~``), write (``%W~``) or both (``~``). Commands are allowed one by one.

XADD can also trim, and choose the id of an entry, and no ACL forbids that. So a tenant that may append could remove
events that are not read yet, or end a stream. It can neither read nor forge those of others.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from graphweft_contracts import channels

_CONNECT: Final = ("+ping", "+client|setinfo", "+client|setname", "+select")
_READ_LAYOUT: Final = (
    *(f"%R~{channels.PARTITION_COUNT}", f"%R~{channels.ORDERS}"),
    *("+get", "+hgetall", "+multi", "+exec", "+discard"),
)
_APPEND: Final = (f"%W~{channels.EVENTS}:*", f"%W~{channels.CONTEXT_REQUESTS}", "+xadd")
_SUBSCRIBE: Final = ("+subscribe", "+unsubscribe")
_READ_LOG: Final = (
    *(f"%R~{channels.EVENTS}:*", f"%R~{channels.RULE_SETS}", f"%R~{channels.ACTIVATIONS}"),
    *("+xread", "+xrange", "+xrevrange", "+xinfo|stream", "+xinfo|groups", "+eval_ro", "+hget", "+lrange"),
)
_ANSWER: Final = (
    *(f"~{channels.CONTEXT_REQUESTS}", f"~{channels.RESPONDERS}", f"&{channels.CONTEXT_REPLIES}*"),
    *("+xreadgroup", "+xack", "+xdel", "+xpending", "+xclaim", "+xgroup|create", "+xgroup|delconsumer"),
    *("+xinfo|consumers", "+zadd", "+zscore", "+zrem", "+publish", "+time", "+eval", "+evalsha", "+script|load"),
)
_WORK: Final = (
    "~graphweft:*",
    *("+xadd", "+xtrim", "+xgroup|create", "+xgroup|setid", "+eval", "+exists", "+set", "+mget", "+del", "+time"),
    *("+zremrangebyscore", "+zadd", "+zrange", "+zrem", "+hset", "+hsetnx", "+hmget", "+hdel", "+hlen"),
    *("+llen", "+rpush", "+client|id", "+client|unblock", "+info", "+config|get", "+xinfo|consumers"),
)

_RULES: Final[Mapping[str, tuple[str, ...]]] = {
    "tenant": (*_CONNECT, *_READ_LAYOUT, *_APPEND, *_SUBSCRIBE),
    "gateway": (*_CONNECT, *_READ_LAYOUT, *_APPEND, *_SUBSCRIBE, f"&{channels.CONTEXT_REPLIES}*"),
    "responder": (*_CONNECT, *_READ_LAYOUT, *_READ_LOG, *_ANSWER),
    "worker": (*_CONNECT, *_READ_LAYOUT, *_READ_LOG, *_WORK),
}


def rules_of(role: str, app_id: str | None = None) -> tuple[str, ...]:
    """Return the rules for a user who has none yet. ``app_id`` is the app of a tenant."""
    own = () if app_id is None else (f"&{channels.context_replies('*', app_id)}",)
    return tuple(dict.fromkeys((*_RULES[role], *own)))
