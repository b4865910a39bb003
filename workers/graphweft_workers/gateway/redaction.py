"""Removes addresses of servers from replies, because the holder of a token must not learn them."""

from __future__ import annotations

from typing import Final

from graphweft_contracts import ContextReply, ReasonCode
from graphweft_workers.support.lazy_logger import get_logger

logger = get_logger("graphweft.gateway")

_PUBLIC: Final[dict[ReasonCode, str]] = {
    "bus_unavailable": "the bus does not answer; try again later",
    "embedder_unavailable": "the embedder does not answer, so the search went by words",
    "graph_unavailable": "the graph server does not answer; try again later",
    "internal_error": "internal error; the log of the services has the details",
}
"""For these reasons, details may name hosts, ports and paths. They go to the log; the reply gets these texts."""


def without_addresses(reply: ContextReply) -> ContextReply:
    """Return the reply without addresses of the bus, the graph or the embedder; the log gets the full details."""
    details = [(reply.reason, reply.detail), *((item.reason, item.detail) for item in reply.missing)]
    hidden = dict.fromkeys(detail for reason, detail in details if detail and reason in _PUBLIC)
    if not hidden:
        return reply
    for detail in hidden:
        logger.info("reply_incomplete", detail=detail)
    missing = tuple(item.model_copy(update={"detail": _PUBLIC.get(item.reason, item.detail)}) for item in reply.missing)
    detail = reply.detail if reply.reason is None else _PUBLIC.get(reply.reason, reply.detail)
    return reply.model_copy(update={"missing": missing, "detail": detail})
