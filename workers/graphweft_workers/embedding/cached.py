"""An embedder that remembers: a question that is asked again costs no call."""

from __future__ import annotations

import asyncio
from array import array
from collections import OrderedDict
from collections.abc import Sequence
from hashlib import sha256
from typing import Final, override

from graphweft_workers.embedding.protocol import Embedder, EmbedderUnavailable, EmbeddingRefused, embed_each

type _Outcome = array[float] | Exception | None
"""A vector; what went wrong; None for a text that is refused."""

_OVERHEAD: Final = 400
"""Bytes that a kept vector costs beside its numbers: the key, the array, its place in the table; rounded up."""


class CachedEmbedder(Embedder):
    """Keeps the vectors that were asked for last, and asks for a text that is on its way only once.

    It keeps hashes of texts, not the texts. A call that is given up does not end the request that it started: others
    may wait for its vectors, and they are kept for the next one. Refusals and failures are not kept.
    """

    def __init__(self, inner: Embedder, *, max_bytes: int = 64 * 1024**2, max_entries: int = 100_000) -> None:
        """Closes ``inner`` with itself. Both bounds hold; a bound of 0 keeps nothing and still asks once at a time."""
        self._inner = inner
        self._max_bytes = max_bytes
        self._max_entries = max_entries
        self._kept: OrderedDict[bytes, array[float]] = OrderedDict()
        self._flights: dict[bytes, asyncio.Future[_Outcome]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.bytes = 0
        """Memory of what is kept, about."""
        self.hits = 0
        """Texts that were kept."""
        self.misses = 0
        """Texts that the inner embedder was asked for."""

    @property
    @override
    def model(self) -> str:
        return self._inner.model

    def __len__(self) -> int:
        """How many vectors are kept."""
        return len(self._kept)

    @override
    async def embed(self, texts: Sequence[str]) -> list[list[float]]:
        keys = [self._key(text) for text in texts]
        outcomes: dict[bytes, _Outcome] = {}
        flights: dict[bytes, asyncio.Future[_Outcome]] = {}
        wanted: dict[bytes, str] = {}
        for key, text in zip(keys, texts, strict=True):
            if key in outcomes or key in flights:
                continue
            if (kept := self._kept.get(key)) is not None:
                self._kept.move_to_end(key)
                self.hits += 1
                outcomes[key] = kept
            elif (flight := self._flights.get(key)) is not None:
                flights[key] = flight
            else:
                flights[key] = self._flights[key] = asyncio.get_running_loop().create_future()
                wanted[key] = text
        if wanted:
            self.misses += len(wanted)
            task = asyncio.create_task(self._fetch(wanted))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        for key, flight in flights.items():
            outcomes[key] = await asyncio.shield(flight)
        return self._vectors([outcomes[key] for key in keys])

    @override
    async def aclose(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._inner.aclose()

    def _key(self, text: str) -> bytes:
        return sha256(f"{self.model}\0{text}".encode("utf-8", "surrogatepass")).digest()

    def _vectors(self, outcomes: list[_Outcome]) -> list[list[float]]:
        for outcome in outcomes:
            if isinstance(outcome, EmbedderUnavailable):  # one for each caller: raising adds to an exception
                raise EmbedderUnavailable(str(outcome), retry_after_s=outcome.retry_after_s) from outcome
            if isinstance(outcome, Exception):
                raise outcome
        found = [outcome.tolist() if isinstance(outcome, array) else None for outcome in outcomes]
        whole = [vector for vector in found if vector is not None]
        if len(whole) < len(found):
            raise EmbeddingRefused(self.model, found)
        return whole

    async def _fetch(self, wanted: dict[bytes, str]) -> None:
        outcomes: Sequence[_Outcome] = [EmbedderUnavailable("the embedder was closed")] * len(wanted)
        try:
            vectors = await embed_each(self._inner, list(wanted.values()))
            outcomes = [None if vector is None else array("f", vector) for vector in vectors]
        except Exception as error:  # noqa: BLE001 - a defect, too, must reach those who wait
            outcomes = [error] * len(wanted)
        finally:
            for key, outcome in zip(wanted, outcomes, strict=True):
                self._flights.pop(key).set_result(outcome)
                if isinstance(outcome, array):
                    self._keep(key, outcome)

    def _keep(self, key: bytes, vector: array[float]) -> None:
        self._kept[key] = vector
        self.bytes += _size(vector)
        while self._kept and (self.bytes > self._max_bytes or len(self._kept) > self._max_entries):
            _, oldest = self._kept.popitem(last=False)
            self.bytes -= _size(oldest)


def _size(vector: array[float]) -> int:
    return _OVERHEAD + vector.itemsize * len(vector)
