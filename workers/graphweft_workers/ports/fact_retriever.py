"""The port of fact retrieval: facts of a graph for ``graphrag:`` of injection rules."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, Literal, Protocol

from graphweft_contracts.memory import MemoryScope

TOO_SLOW: Final = "too slow"
"""The ``reason`` of a result that is missing, or incomplete, because time ran out."""


class FactResult(Protocol):
    """The result of a retrieval."""

    @property
    def outcome(self) -> Literal["disabled", "injected", "empty", "unavailable", "failed"]:
        """``injected`` if there are facts."""
        ...

    @property
    def facts(self) -> tuple[str, ...]:
        """Facts, one line each, the best ones first."""
        ...

    @property
    def partial(self) -> bool:
        """Whether facts may be missing, for ``reason``."""
        ...

    @property
    def reason(self) -> str | None:
        """Why facts are missing: ``TOO_SLOW``, or text for a reader."""
        ...


class FactRetriever(Protocol):
    """Finds the facts of an app's graph around seeds and the names in a question. Safe for concurrent calls."""

    @property
    def enabled(self) -> bool:
        """Whether ``retrieve`` reads the graph at all."""
        ...

    def log_unavailable(self, app_id: str) -> None:
        """Log that facts were wanted but the graph was not asked."""
        ...

    def forget(self, app_id: str | None = None, place: tuple[int, str] | None = None) -> None:
        """Forget the texts of earlier retrievals, because some were erased: of an app, at a partition and an offset.

        Those of the app are not kept before its graph has what is at the place.
        """
        ...

    async def warm(self, app_id: str) -> None:
        """Let the graph server plan the queries before the first question. Never raises."""
        ...

    async def retrieve(
        self, app_id: str, query_text: str, seeds: Iterable[Any] | None, timeout_s: float, memory: MemoryScope | None
    ) -> FactResult:
        """Return facts within about ``timeout_s``: of ``memory``, or without it those that belong to nobody.

        Never raises on account of the graph or the arguments.
        """
        ...
