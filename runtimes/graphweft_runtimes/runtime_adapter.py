"""The base class of the adapters of all runtimes."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, TypeVar

from typing_extensions import Self

from graphweft.adapters.context_place import DEFAULT_PLACE, Attempt, ContextPlace, check_place
from graphweft.adapters.core import Adapter

R = TypeVar("R")


class RuntimeAdapter:
    """Emits events and provides context through its ``core``, an ``Adapter`` with these ``settings``.

    Use it as a context manager, asynchronous or not, or call ``close`` at the end. After that the runtime continues
    without events and context.
    """

    def __init__(
        self,
        adapter: Adapter | None,
        source: str,
        settings: Mapping[str, Any],
        *,
        context_place: ContextPlace = DEFAULT_PLACE,
    ) -> None:
        check_place(context_place)
        if adapter is not None and settings:
            raise TypeError(
                f"unexpected settings with an adapter: {', '.join(sorted(settings))}; set them on the adapter"
            )
        mine: dict[str, Any] = {"source": source, **settings}
        self.core = adapter or Adapter(**mine)
        self.place: ContextPlace = context_place
        self._fixed_key = tuple(str(settings.get(name) or "") for name in ("app_id", "chat_id"))

    def attempt(self, plain: R, request: R, variables: Mapping[str, Any], agent: str, *, run: str = "") -> Attempt[R]:
        """Return a model call in the agent's turn, with and without context. See ``Attempt``."""
        return Attempt(plain, request, refused=partial(self.core.refuse_context, variables, agent, run=run))

    def chat_key(self, variables: Mapping[str, Any]) -> tuple[str, str]:
        """Return the app and the chat that the settings or the context variables name; "" for an unknown one."""
        app_id, chat_id = self._fixed_key
        return app_id or str(variables.get("app_id") or ""), chat_id or str(variables.get("chat_id") or "")

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Return the adapter itself: a copied agent, or its copied settings, reports to the same adapter."""
        return self

    def __enter__(self) -> Self:
        """Return the adapter itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the adapter."""
        self.close()

    async def __aenter__(self) -> Self:
        """Return the adapter itself."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close the adapter."""
        await self.aclose()

    def close(self, drain_s: float = 2.0) -> None:
        """See ``Adapter.close``."""
        self.core.close(drain_s)

    async def aclose(self, drain_s: float = 2.0) -> None:
        """See ``Adapter.aclose``."""
        await self.core.aclose(drain_s)
