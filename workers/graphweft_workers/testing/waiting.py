"""Waits of tests: for a state, never for a time. All have one limit, which only a broken program reaches."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final, cast, overload

from graphweft_contracts.clock import SYSTEM_CLOCK

LIMIT_S: Final = 120.0
"""How long what is looked at may stay the same without being what is waited for."""
_POLL_S: Final = 0.02
"""The pause between the first looks; later ones take a tenth of the wait so far, since each look costs what it asks."""
_MOST_POLL_S: Final = 0.2
_SHOWN: Final = 2_000


class NotReached(AssertionError):
    """A state has not come within the limit."""

    def __init__(self, why: str, seen: object) -> None:
        super().__init__(f"{why}: not reached, and nothing new for {LIMIT_S:g} s; last seen: {seen!r:.{_SHOWN}}")


class _Patience:
    """Counts from the last change of what is seen: a slow machine that gets on is no fault."""

    def __init__(self, why: str, look: Callable[[], Any]) -> None:
        self._why = why or getattr(look, "__qualname__", repr(look))
        self._seen: object = self
        self._since = 0.0
        self._began = SYSTEM_CLOCK.monotonic()

    def check(self, seen: object) -> float:
        """Return the pause before the next look. Raises when it has seen the same for too long."""
        now = SYSTEM_CLOCK.monotonic()
        if self._seen is self or seen != self._seen:
            self._seen, self._since = seen, now
        elif now - self._since > LIMIT_S:
            raise NotReached(self._why, seen)
        return min(_MOST_POLL_S, max(_POLL_S, (now - self._began) / 10))


@overload
async def until[Seen](
    look: Callable[[], Awaitable[Seen]],
    fits: Callable[[Seen], Any] = bool,
    *,
    beside: asyncio.Future[Any] | None = None,
    why: str = "",
) -> Seen: ...
@overload
async def until[Seen](
    look: Callable[[], Seen],
    fits: Callable[[Seen], Any] = bool,
    *,
    beside: asyncio.Future[Any] | None = None,
    why: str = "",
) -> Seen: ...
async def until[Seen](
    look: Callable[[], Awaitable[Seen] | Seen],
    fits: Callable[[Seen], Any] = bool,
    *,
    beside: asyncio.Future[Any] | None = None,
    why: str = "",
) -> Seen:
    """Look again and again until what ``look`` returns fits, and return it.

    ``beside`` is a task that must not end meanwhile. ``why`` says what is waited for; by default, the name of ``look``
    does. An error of ``look`` or ``fits`` ends the wait.
    """
    patience = _Patience(why, look)
    while True:
        found = look()
        seen = await cast("Awaitable[Seen]", found) if inspect.isawaitable(found) else found
        if fits(seen):
            return seen
        assert beside is None or not beside.done(), beside
        await asyncio.sleep(patience.check(seen))


async def until_answered[Answer](
    call: Callable[[], Awaitable[Answer]], *away: type[Exception], why: str = ""
) -> Answer:
    """Call again and again until none of these errors is raised, and return the answer."""
    answers: list[Answer] = []

    async def look() -> str:
        try:
            answers.append(await call())
        except away as error:
            return repr(error)
        return ""

    def is_answered(error: str) -> bool:
        return not error

    await until(look, is_answered, why=why or getattr(call, "__qualname__", repr(call)))
    return answers[-1]


def until_sync[Seen](look: Callable[[], Seen], fits: Callable[[Seen], Any] = bool, *, why: str = "") -> Seen:
    """Look like ``until`` where no event loop runs, or none needs to go on meanwhile."""
    patience = _Patience(why, look)
    while not fits(seen := look()):
        time.sleep(patience.check(seen))
    return seen


async def turns(count: int = 1) -> None:
    """Let every task that can go on do so, as often as said."""
    for _ in range(count):
        await asyncio.sleep(0)


async def looks(look: Callable[[], Awaitable[object]], count: int) -> None:
    """Let servers and other processes go on for as long as so many answers take: a pace that keeps step with them."""
    for _ in range(count):
        await look()
