"""The indexes of the core graph schema, which an app's graph gets before the first write."""

from __future__ import annotations

from typing import Final

from graphweft_workers.retrieval.records import EPISODE, MEMORY_LABEL

CORE_KEYS: Final = frozenset(
    {
        ("User", "id"),
        ("Journey", "id"),
        ("Phase", "journey_id"),
        ("Phase", "name"),
        ("Pattern", "name"),
        ("Entity", "id"),
        ("Tool", "name"),
        ("App", "id"),
        ("Workflow", "name"),
    }
)
"""(label, property) by which rules find nodes of the core schema: of every app."""
FACT_KEYS: Final = frozenset(
    {
        ("Entity", "id"),
        ("Entity", "name"),
        ("Entity", "name_key"),
        ("Document", "id"),
        ("Document", "name"),
        ("Chunk", "id"),
        (EPISODE, "id"),
        (MEMORY_LABEL, "id"),
    }
)
"""(label, property) by which `graphrag` finds nodes: of apps with rules that ask for facts."""
