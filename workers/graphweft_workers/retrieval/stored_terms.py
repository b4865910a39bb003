"""Terms that an earlier version stored: a search finds their memories by fewer words until they are written anew."""

from __future__ import annotations

import asyncio
from typing import Final

from graphweft_workers.ports.graph_store import GraphStore
from graphweft_workers.retrieval.records import MEMORY_LABEL
from graphweft_workers.text.terms import terms

MOST_READ: Final = 1_000
"""Memories of an app that are looked at: it takes about 0.1 s."""
_LONGEST: Final = 1_000
_TEXTS: Final = (
    f"MATCH (m:{MEMORY_LABEL}) WHERE m.terms IS NOT NULL AND m.unsearched IS NULL AND m.version IS NULL "
    "AND size(m.text) <= $longest WITH m LIMIT $limit RETURN m.text, m.author_name, m.terms"
)


async def outdated_terms(graph: GraphStore, app_id: str, *, timeout_s: float) -> tuple[int, int]:
    """Return how many of the first short memories of an app have other terms than they would get now, and of how many.

    Raises like ``GraphStore.read``.
    """
    table = await graph.read(app_id, _TEXTS, {"limit": MOST_READ, "longest": _LONGEST}, timeout_s=timeout_s)
    outdated = 0
    for number, (text, author, stored) in enumerate(table.rows):
        if isinstance(text, str) and " ".join(terms(f"{author}: {text}" if author else text)) != stored:
            outdated += 1
        if number % 100 == 0:
            await asyncio.sleep(0)
    return outdated, len(table.rows)
