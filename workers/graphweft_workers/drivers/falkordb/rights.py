"""The rights of each role on FalkorDB, as rules of Redis ACLs. ``graphweft acl falkordb`` prints them.

FalkorDB asks for the right to read and write the key for every command of graphs, so only the commands tell a reader
from a writer: GRAPH.RO_QUERY writes nothing. A command with subcommands is allowed by each of them alone: GRAPH.CONFIG
SET would let a reader stop all apps.
"""

from __future__ import annotations

from typing import Final

from graphweft_contracts import channels

_CONNECT: Final = ("+ping", "+client|setinfo", "+client|setname", "+select", "+info")
_READ: Final = ("+graph.ro_query", "+graph.list", "+graph.config|get", "+module|list")
_TURNS: Final = ("+time", "+zadd", "+zrem", "+zscore", "+zrangebyscore", "+zremrangebyscore")
_WRITE: Final = (
    *("+graph.query", "+graph.explain", "+graph.delete", "+graph.memory|usage"),
    *("+incr", "+waitaof", "+get", "+set", "+del", "+watch", "+unwatch", "+multi", "+exec", "+discard"),
    *("+rename", "+exists", "+config|get"),
    *("+eval", "+hget", "+hset", "+hdel", "+hgetall"),
)


def rules_of(role: str, graph_template: str) -> tuple[str, ...]:
    """Return the rules for a user who has none yet."""
    graphs = graph_template.format(app_id="*")
    if role == "responder":
        return (*_CONNECT, *_READ, *_TURNS, f"~{graphs}", f"~{channels.SLOW}:*")
    begins = (channels.SLOW, channels.GRAPH_INDEXES, channels.GRAPH_POSITIONS)
    keys = (graphs, channels.GRAPH_CHECK, channels.DURABLE, *(f"{begin}:*" for begin in begins))
    return (*_CONNECT, *_READ, *_TURNS, *_WRITE, *(f"~{key}" for key in keys))
