"""The base class of the adapters of all runtimes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from typing_extensions import Self

from graphweft.adapters.context_place import DEFAULT_PLACE, Attempt, ContextPlace, check_place
from graphweft.adapters.core import Adapter
from graphweft.adapters.values import about_model
from graphweft_contracts.clock import SYSTEM_CLOCK

R = TypeVar("R")


@dataclass(slots=True, eq=False)
class ModelCall:
    """The model call of a turn, while one is open."""

    model: Any = None
    started_s: float | None = None

    @property
    def is_open(self) -> bool:
        """Whether it has started and not ended."""
        return self.started_s is not None

    def start(self, model: Any = None) -> None:
        """Start it, or start it again if it has not ended."""
        self.model, self.started_s = model, SYSTEM_CLOCK.monotonic()


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

    def end_model_call(
        self, call: ModelCall, variables: Mapping[str, Any], agent: str, *, run: str,
        error: BaseException | None = None, **about: Any,
    ) -> None:  # fmt: skip
        """Report the end of the model call, if it is open. ``about``: further arguments of ``about_model``."""
        if call.is_open:
            data = about_model(call.started_s, error=error, **{"model": call.model, **about})
            call.started_s = None
            self.core.model_call(variables, agent, run=run, success=error is None, about=data)

    def fail_turn(
        self, call: ModelCall, variables: Mapping[str, Any], agent: str, error: BaseException, *, run: str,
        reported: bool = False,
    ) -> None:  # fmt: skip
        """Fail the agent's turn, and before it its model call, if that is open."""
        self.end_model_call(call, variables, agent, run=run, error=error)
        self.core.fail_turn(variables, agent, error, run=run, reported=reported)

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
