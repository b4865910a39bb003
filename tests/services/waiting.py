"""Waits of tests: for a state, never for a time. All have one limit, which only a broken program reaches."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final, cast

__all__ = ("LIMIT_S", "NotReached", "turns", "until", "until_sync")

LIMIT_S: Final = 120.0
"""How long what is looked at may stay the same without being what is waited for."""
_POLL_S: Final = 0.02
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

    def check(self, seen: object) -> None:
        """Raise when it has seen the same for too long."""
        now = time.monotonic()
        if self._seen is self or seen != self._seen:
            self._seen, self._since = seen, now
        elif now - self._since > LIMIT_S:
            raise NotReached(self._why, seen)


async def until[Seen](
    look: Callable[[], Awaitable[Seen] | Seen], fits: Callable[[Seen], Any] = bool, *, why: str = ""
) -> Seen:
    """Look again and again until what ``look`` returns fits, and return it.

    ``why`` says what is waited for; by default, the name of ``look`` does. An error of ``look`` or ``fits`` ends the
    wait.
    """
    patience = _Patience(why, look)
    while True:
        found = look()
        seen = await cast("Awaitable[Seen]", found) if inspect.isawaitable(found) else cast("Seen", found)
        if fits(seen):
            return seen
        patience.check(seen)
        await asyncio.sleep(_POLL_S)


def until_sync[Seen](look: Callable[[], Seen], fits: Callable[[Seen], Any] = bool, *, why: str = "") -> Seen:
    """Do the same where no event loop runs, or none needs to go on meanwhile."""
    patience = _Patience(why, look)
    while not fits(seen := look()):
        patience.check(seen)
        time.sleep(_POLL_S)
    return seen


async def turns(count: int = 1) -> None:
    """Let every task that can go on do so, as often as said."""
    for _ in range(count):
        await asyncio.sleep(0)
