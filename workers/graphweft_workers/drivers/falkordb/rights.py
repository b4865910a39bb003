"""The rights of each role on FalkorDB, as rules of Redis ACLs. ``graphweft acl falkordb`` prints them.

FalkorDB asks for the right to read and write the key for every command of graphs, so only the commands tell a reader
from a writer: GRAPH.RO_QUERY writes nothing.
"""

from __future__ import annotations

from typing import Final

from graphweft_contracts import channels

_CONNECT: Final = ("+ping", "+client|setinfo", "+client|setname", "+select", "+info")
_READ: Final = ("+graph.ro_query", "+graph.list", "+graph.config", "+module|list")
_TURNS: Final = ("+time", "+zadd", "+zrem", "+zscore", "+zrangebyscore", "+zremrangebyscore")
_WRITE: Final = (
    *("+graph.query", "+graph.explain", "+graph.delete", "+graph.memory", "+incr", "+waitaof", "+get", "+set", "+del"),
    *("+watch", "+unwatch", "+multi", "+exec", "+discard", "+rename", "+exists", "+config|get"),
)


def rules_of(role: str, graph_template: str) -> tuple[str, ...]:
    """Return the rules for a user who has none yet."""
    graphs = graph_template.format(app_id="*")
    if role == "responder":
        return (*_CONNECT, *_READ, *_TURNS, f"~{graphs}", f"~{channels.SLOW}:*")
    keys = (graphs, f"{channels.SLOW}:*", channels.GRAPH_CHECK, channels.DURABLE, f"{channels.GRAPH_INDEXES}:*")
    return (*_CONNECT, *_READ, *_TURNS, *_WRITE, *(f"~{key}" for key in keys))
