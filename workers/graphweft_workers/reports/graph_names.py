"""The names that an app's graph has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

from graphweft_workers.ports.graph_store import INTERNAL_PREFIX, GraphStore

type Kind = Literal["labels", "types"]
_STATEMENTS: Final[Mapping[Kind, str]] = {
    "labels": "CALL db.labels() YIELD label RETURN label",
    "types": "CALL db.relationshipTypes() YIELD relationshipType AS type RETURN type",
}


async def names_of(graph: GraphStore, app_id: str, kind: Kind, timeout_s: float) -> list[str]:
    """Return the labels, or the types of relationships, by name and without our own.

    Raises ``QueryFailed`` and ``GraphUnavailable`` as ``GraphStore.read`` does.
    """
    rows = (await graph.read(app_id, _STATEMENTS[kind], {}, timeout_s=timeout_s)).rows
    return sorted(name for row in rows if not (name := str(row[0])).startswith(INTERNAL_PREFIX))
