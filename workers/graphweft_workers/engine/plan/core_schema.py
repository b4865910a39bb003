"""The indexes of the core graph schema, which every app's graph gets before the first write."""

from __future__ import annotations

from typing import Final

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
"""(label, property) by which rules find nodes of the core schema."""
