"""Removes from replies what the holder of a token must not learn: addresses, and messages of the graph server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from graphweft_contracts import ContextReply, ReasonCode
from graphweft_workers.support.lazy_logger import get_logger

logger = get_logger("graphweft.gateway")

_ADDRESSES: Final[dict[ReasonCode, str]] = {
    "bus_unavailable": "the bus does not answer; try again later",
    "embedder_unavailable": "the embedder does not answer, so the search went by words",
    "graph_unavailable": "the graph server does not answer; try again later",
    "internal_error": "internal error; the log of the services has the details",
}
"""For these reasons, details may name hosts, ports and paths. They go to the log; the reply gets these texts."""
_QUERIES: Final[dict[ReasonCode, str]] = {
    "query_error": "a query failed; the log of the services has the details under the id of this request",
}
"""For these, details name files of rules and what the graph server said. Authors of rules see them, clients do not."""


def without_addresses(reply: ContextReply) -> ContextReply:
    """Return the reply without addresses of the bus, the graph or the embedder; the log gets the full details."""
    return _without(reply, _ADDRESSES)


def public(reply: ContextReply) -> ContextReply:
    """Return the reply without addresses and without what the graph server said; the log gets the full details."""
    return _without(reply, _ADDRESSES | _QUERIES)


def _without(reply: ContextReply, texts: Mapping[ReasonCode, str]) -> ContextReply:
    details = [(reply.reason, reply.detail), *((item.reason, item.detail) for item in reply.missing)]
    hidden = dict.fromkeys(detail for reason, detail in details if detail and reason in texts)
    if not hidden:
        return reply
    for detail in hidden:
        logger.info("reply_incomplete", request_id=reply.id, detail=detail)
    missing = tuple(item.model_copy(update={"detail": texts.get(item.reason, item.detail)}) for item in reply.missing)
    detail = reply.detail if reply.reason is None else texts.get(reply.reason, reply.detail)
    return reply.model_copy(update={"missing": missing, "detail": detail})
