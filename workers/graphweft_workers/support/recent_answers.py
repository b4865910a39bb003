"""Answers of servers that count for a while. If somebody is asking for one already, others wait for that answer."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Generator, Hashable

from graphweft_contracts.bounded_dict import BoundedDict
from graphweft_contracts.clock import Clock


class RecentAnswers[Key: Hashable, Answer]:
    """The last answers by key."""

    def __init__(self, *, clock: Clock, fresh_s: float) -> None:
        """``fresh_s`` is for how long an answer counts."""
        self._clock = clock
        self._fresh_s = fresh_s
        self._last: BoundedDict[Key, tuple[float, Answer]] = BoundedDict()
        """With the monotonic time at which it came."""
        self._asked: dict[Key, asyncio.Future[None]] = {}
        """What somebody asks for now."""

    def note(self, key: Key, answer: Answer) -> None:
        """Note an answer, whoever has asked for it."""
        self._last[key] = self._clock.monotonic(), answer

    def forget(self, key: Key) -> None:
        """Let the next one ask."""
        self._last.pop(key, None)

    def last(self, key: Key, within_s: float | None = None) -> Answer | None:
        """Return the last answer, if it is not older than ``within_s``; None: however old."""
        came, answer = self._last.get(key, (0.0, None))
        return answer if within_s is None or self._clock.monotonic() < came + within_s else None

    def is_fresh(self, key: Key) -> bool:
        """Tell whether there is an answer that counts."""
        return self.last(key, self._fresh_s) is not None

    @contextlib.contextmanager
    def asking(self, key: Key) -> Generator[None]:
        """Let others wait for the answer that the block notes, or get its error, instead of asking too."""
        if key in self._asked:
            yield
            return
        asked = self._asked[key] = asyncio.get_running_loop().create_future()
        try:
            yield
        except Exception as error:
            asked.set_exception(error)
            asked.exception()  # nobody may wait for it
            raise
        finally:
            del self._asked[key]
            if not asked.done():
                asked.set_result(None)

    async def get(self, key: Key, ask: Callable[[], Awaitable[object]]) -> Answer | None:
        """Return an answer that counts: after ``ask``, which uses ``asking``, the one that it has noted, if any."""
        while not self.is_fresh(key):
            if (asked := self._asked.get(key)) is None:
                await ask()
                break
            await asyncio.shield(asked)
        return self.last(key)
