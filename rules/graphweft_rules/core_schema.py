"""The core graph schema of the rule contract, as far as a server has to know it.

Every app's graph gets an index on these properties, and on those by which its rules look nodes up, before the first
write. Labels and relationships themselves need no declaration.
"""

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
"""(label, property) by which nodes of the core schema are found."""
