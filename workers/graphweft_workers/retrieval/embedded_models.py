"""The models whose vectors the memories of an app have: vectors of another one than the embedder's are not compared."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from graphweft_workers.ports.graph_store import GraphStore
from graphweft_workers.retrieval.records import MEMORY_LABEL

MOST_READ: Final = 5_000
"""Memories of an app that are looked at."""
_MODELS: Final = (
    f"MATCH (m:{MEMORY_LABEL}) WITH m LIMIT $limit WITH m.embedding_model AS model WHERE model IS NOT NULL "
    "RETURN model, count(*) AS memories ORDER BY memories DESC, model LIMIT 10"
)


async def other_models(graph: GraphStore, app_id: str, model: str, *, timeout_s: float) -> Mapping[str, int]:
    """Return the other models of the first ``MOST_READ`` memories of an app, with the number of memories of each.

    Raises like ``GraphStore.read``.
    """
    table = await graph.read(app_id, _MODELS, {"limit": MOST_READ}, timeout_s=timeout_s)
    return {str(name): int(count) for name, count in table.rows if name != model}


def models_text(models: Mapping[str, int]) -> str:
    """Return models and their numbers of memories in words."""
    return ", ".join(f"{count:,} by {name!r}" for name, count in models.items())
