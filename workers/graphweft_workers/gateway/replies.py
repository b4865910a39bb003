"""What of an answer goes to whoever asks over HTTP: a token may be in anybody's hands."""

from __future__ import annotations

import logging
from typing import Final

from graphweft_contracts import ContextReply, ReasonCode

logger = logging.getLogger("graphweft.gateway")

_SAID: Final[dict[ReasonCode, str]] = {
    "bus_unavailable": "the bus does not answer; ask again later",
    "embedder_unavailable": "the embedder does not answer, so this went by words",
    "graph_unavailable": "the graph server does not answer; ask again later",
    "internal_error": "there is a defect, which the log of the services names",
}
"""Of these reasons the details may name hosts, ports and paths, which the log gets instead."""


def without_addresses(reply: ContextReply) -> ContextReply:
    """Return the answer with details that show nothing of where bus, graph and embedder are; these go to the log."""
    said = [(reply.reason, reply.detail), *((item.reason, item.detail) for item in reply.missing)]
    hidden = dict.fromkeys(detail for reason, detail in said if detail and reason in _SAID)
    if not hidden:
        return reply
    for detail in hidden:
        logger.info("an answer lacks something: %s", detail)
    missing = tuple(item.model_copy(update={"detail": _SAID.get(item.reason, item.detail)}) for item in reply.missing)
    detail = reply.detail if reply.reason is None else _SAID.get(reply.reason, reply.detail)
    return reply.model_copy(update={"missing": missing, "detail": detail})
