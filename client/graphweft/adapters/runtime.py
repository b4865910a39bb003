"""What the adapters of all runtimes have in common: one core, and its end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from graphweft.adapters.core import Adapter

__all__ = ("RuntimeAdapter",)


class RuntimeAdapter:
    """Publishes what agents do and gives them context by its ``core``; ``settings`` are those of ``Adapter``.

    Use it as a context manager, asynchronous or not, or call ``close`` at the end. After that the runtime works on,
    without events and context.
    """

    def __init__(self, adapter: Adapter | None, source: str, settings: Mapping[str, Any]) -> None:
        if adapter is not None and settings:
            raise TypeError(f"settings are the adapter's own where one is given: {', '.join(sorted(settings))}")
        mine: dict[str, Any] = {"source": source, **settings}
        self.core = adapter or Adapter(**mine)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Return the adapter itself: a copy of an agent, or of its settings, tells the same books."""
        return self

    def __enter__(self) -> Self:
        """Return the adapter itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.close()

    async def __aenter__(self) -> Self:
        """Return the adapter itself."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close it."""
        await self.aclose()

    def close(self, drain_s: float = 2.0) -> None:
        """See ``Adapter.close``."""
        self.core.close(drain_s)

    async def aclose(self, drain_s: float = 2.0) -> None:
        """See ``Adapter.aclose``."""
        await self.core.aclose(drain_s)
