"""How much one retrieval may ask of a graph, and take from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Protocol, Self

from graphweft_workers.support.lazy_logger import get_logger

MOST_HOPS: Final = 2
LIMIT_CAP: Final = 100
RESULTS_CAP: Final = 50
MOST_DOCUMENTS: Final = 20
"""Seeds that count, best first."""
MOST_NAMES: Final = 200
"""Spellings that are looked up."""
MOST_MENTIONS: Final = 1_000
"""Names in the texts of seeds that are looked up: a server takes 10 to 15 ms for so many."""
MOST_NAMESAKES: Final = 5
"""Entities of the same name that count."""
MOST_PINS: Final = 20
"""Entities that an expansion begins with."""

_logger: Any = get_logger("graphweft.graphrag")


class GraphragSettings(Protocol):
    """The settings that this feature reads."""

    @property
    def graphrag_enabled(self) -> bool:
        """Whether the graph is asked at all."""
        ...

    @property
    def graph_expand_max_hops(self) -> int:
        """Relationships that are followed from the pinned entities."""
        ...

    @property
    def graph_expand_limit(self) -> int:
        """Entities of one query."""
        ...

    @property
    def graph_max_results(self) -> int:
        """Facts of one query."""
        ...

    @property
    def graphrag_query_timeout_ms(self) -> int:
        """The server-side limit of each query."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Caps:
    """The bounds of one retrieval. Nothing that is set goes beyond the hard caps: it is cut down to them."""

    hops: int = MOST_HOPS
    """Relationships away from what is pinned; 0 follows none."""
    limit: int = LIMIT_CAP
    """Entities in all, those that are pinned too."""
    results: int = RESULTS_CAP
    """Facts."""
    query_timeout_s: float = 5.0
    """Of each query, enforced by the server."""

    def __post_init__(self) -> None:
        """Cut everything down to what is allowed."""
        object.__setattr__(self, "hops", min(max(self.hops, 0), MOST_HOPS))
        object.__setattr__(self, "limit", min(max(self.limit, 1), LIMIT_CAP))
        object.__setattr__(self, "results", min(max(self.results, 1), RESULTS_CAP))
        object.__setattr__(self, "query_timeout_s", max(self.query_timeout_s, 0.001))

    @classmethod
    def of(cls, settings: GraphragSettings) -> Self:
        """Return what is set, as far as it is allowed; says in the log what was cut down."""
        asked = {
            "graph_expand_max_hops": (settings.graph_expand_max_hops, MOST_HOPS),
            "graph_expand_limit": (settings.graph_expand_limit, LIMIT_CAP),
            "graph_max_results": (settings.graph_max_results, RESULTS_CAP),
        }
        cut = {name: value for name, (value, cap) in asked.items() if value > cap}
        if cut:
            _logger.warning("graphrag_settings_capped", asked=cut, caps={name: asked[name][1] for name in cut})
        return cls(
            hops=settings.graph_expand_max_hops,
            limit=settings.graph_expand_limit,
            results=settings.graph_max_results,
            query_timeout_s=settings.graphrag_query_timeout_ms / 1000,
        )
