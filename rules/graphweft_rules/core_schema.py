"""The core graph schema of the rule contract, as far as a server has to know it.

Every app's graph gets an index on these properties, and on those by which its rules look nodes up, before the first
write. Labels and relationships themselves need no declaration.
"""

from __future__ import annotations

from typing import Final

__all__ = ("CORE_KEYS", "CORE_RELATIONSHIPS")

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
"""(label, property) by which nodes of the core schema are found."""

CORE_RELATIONSHIPS: Final = (
    ("User", "STARTED", "Journey"),
    ("Journey", "HAS_PHASE", "Phase"),
    ("Journey", "SELECTED", "Pattern"),
    ("Pattern", "USED_IN", "App"),
    ("App", "GENERATED_BY", "Workflow"),
    ("Entity", "RELATED_TO", "Entity"),
)
"""(start label, type, end label)."""
