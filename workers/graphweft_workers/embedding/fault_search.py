"""Tells a text that an embedder cannot take from an embedder that is out of order.

A request that fails, however it fails, is halved until each text at fault is found. That the embedder works is known
from a test text that it answers. A text that the embedder refuses is at fault if a test text is answered. A text that
fails in another way (an error of the server, no answer, no valid vector) is asked twice, and a test text after each
failure: the text is at fault if both test texts are answered. If a test text fails too, it is an outage.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from secrets import token_hex
from typing import Any, Final

from graphweft_contracts.clock import SYSTEM_CLOCK, Clock
from graphweft_workers.embedding.protocol import EmbedderUnavailable, EmbeddingRefused
from graphweft_workers.support.timing import TIMING

type Vectors = list[list[float] | None]
"""A vector for each text, in order; None where it is zero or not finite, or the text is refused."""
type Ask = Callable[[Sequence[str], bool], Awaitable[Vectors]]
"""Sends texts in one request; True: they are a test text, and a vector that cannot be used is an outage.

Raises ``RequestFailure``, or ``EmbedderUnavailable`` if the texts cannot be the cause.
"""

_MOST_REFUSED: Final = 10_000
"""Texts that are known to be at fault: about 2 MB."""


class RequestFailure(Exception):
    """A request failed, and its texts may be the cause.

    ``outage`` is what to raise if a test text fails too; ``refused`` says that the embedder blames the texts.
    """

    def __init__(self, outage: EmbedderUnavailable, *, refused: bool = False) -> None:
        super().__init__(str(outage))
        self.outage = outage
        self.refused = refused


@dataclass(slots=True)
class _Call:
    """State of one call of ``embed``."""

    taken: bool = False
    """Whether a vector that can be used has come."""
    answers: int = 0


class FaultSearch:
    """Asks for vectors, and finds the texts at fault. These are not asked again for some minutes."""

    def __init__(self, ask: Ask, *, in_turn: bool, clock: Clock = SYSTEM_CLOCK) -> None:
        """``in_turn``: one request after the other. Otherwise ``ask`` limits how many run at a time."""
        self._ask = ask
        self._in_turn = in_turn
        self._clock = clock
        self._refused: OrderedDict[bytes, float] = OrderedDict()
        """Until when a text is not asked again, on the monotonic clock; by its digest."""

    async def embed(
        self, model: str, texts: Sequence[str], batches: Callable[[Sequence[str]], Iterable[Sequence[str]]]
    ) -> list[list[float]]:
        """Return one vector for each text; ``batches`` divides texts into requests. See ``Embedder.embed``."""
        known = [self._is_refused(text) for text in texts]
        wanted = [text for text, refused in zip(texts, known, strict=True) if not refused]
        call = _Call()
        found = iter(await self._together(self._part(batch, call) for batch in batches(wanted)))
        vectors = [None if refused else next(found) for refused in known]
        whole = [vector for vector in vectors if vector is not None]
        lengths = sorted({len(vector) for vector in whole})
        if len(lengths) > 1:
            message = f"the embedder {model!r} returned vectors of {lengths[0]} and of {lengths[-1]} numbers"
            raise EmbedderUnavailable(message, retry_after_s=TIMING.models.malformed_s)
        if len(whole) < len(vectors):
            raise EmbeddingRefused(model, vectors)
        return whole

    async def _together(self, parts: Iterable[Coroutine[Any, Any, Vectors]]) -> Vectors:
        if self._in_turn:
            return [vector for part in parts for vector in await part]
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(part) for part in parts]
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None
        return [vector for task in tasks for vector in task.result()]

    async def _part(self, texts: Sequence[str], call: _Call) -> Vectors:
        before = call.answers
        vectors: Vectors = [None]
        try:
            vectors = await self._ask(texts, False)
        except RequestFailure as error:
            # That an answer came meanwhile is enough to halve a batch, but says little of a single text.
            works = call.taken and (error.refused or (len(texts) > 1 and call.answers > before))
            if not works:
                await self._test(call, error)
            if len(texts) > 1:
                half = len(texts) // 2
                return await self._together(self._part(some, call) for some in (texts[:half], texts[half:]))
            if not error.refused:
                vectors = await self._again(texts, call)
        else:
            call.answers += 1
            if any(vectors):
                call.taken = True
            elif not call.taken:
                await self._test(call, None)
        for text, vector in zip(texts, vectors, strict=True):
            if vector is None:
                self._note_refused(text)
        return vectors

    async def _again(self, texts: Sequence[str], call: _Call) -> Vectors:
        """Ask for a single text that failed before a test text was answered."""
        try:
            return await self._ask(texts, False)
        except RequestFailure as error:
            await self._test(call, error)
            return [None]

    async def _test(self, call: _Call, cause: RequestFailure | None) -> None:
        """Raise ``EmbedderUnavailable`` if the embedder fails for a text that every model accepts."""
        try:
            # Not the same text each time: a cache in front of the embedder would answer in an outage.
            await self._ask([f"graphweft {token_hex(4)}"], True)
        except RequestFailure as error:
            told = error if cause is None or (cause.refused and not error.refused) else cause
            wait_s = max(told.outage.retry_after_s, error.outage.retry_after_s)
            raise EmbedderUnavailable(str(told.outage), retry_after_s=wait_s) from None
        call.taken = True
        call.answers += 1

    def _is_refused(self, text: str) -> bool:
        return self._refused.get(_digest(text), 0.0) > self._clock.monotonic()

    def _note_refused(self, text: str) -> None:
        digest = _digest(text)
        self._refused[digest] = self._clock.monotonic() + TIMING.models.refused_s
        self._refused.move_to_end(digest)
        if len(self._refused) > _MOST_REFUSED:
            self._refused.popitem(last=False)


def _digest(text: str) -> bytes:
    return sha256(text.encode("utf-8", "surrogatepass")).digest()
