"""A cache in front of an embedder: the same text is embedded once."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Sequence
from hashlib import sha256
from typing import Final, override

from graphweft_workers.embedding.protocol import Embedder, EmbedderUnavailable, EmbeddingRefused, embed_each
from graphweft_workers.support.app_shares import AppShares
from graphweft_workers.support.tasks import end_tasks

type _Key = tuple[str, bytes]
"""An app, and the hash of a text."""
type _Outcome = array[float] | Exception | None
"""A vector, an error, or None for a refused text."""

_OVERHEAD: Final = 400
"""Bytes of an entry beside its numbers: key, array and table slot; rounded up."""


class CachedEmbedder(Embedder):
    """Caches the most recently used vectors, and merges concurrent requests for the same text.

    Keys are hashes of texts. Each app has a share, see ``of_app``: its texts push out no other app's, and how long a
    search takes says nothing of what others ask. A cancelled call does not cancel its request: other callers may wait
    for it, and its vectors are cached. Refusals and failures are not cached.
    """

    def __init__(self, inner: Embedder, *, max_bytes: int = 64 * 1024**2) -> None:
        """Closes ``inner`` with itself. With a limit of 0 it caches nothing, and still merges concurrent requests."""
        self._inner = inner
        self._kept: AppShares[bytes, array[float]] = AppShares(max_bytes)
        self._flights: dict[_Key, asyncio.Future[_Outcome]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.hits = 0
        """Texts that were in the cache."""
        self.misses = 0
        """Texts that ``inner`` was asked for."""

    @property
    @override
    def model(self) -> str:
        return self._inner.model

    def __len__(self) -> int:
        """Number of cached vectors."""
        return len(self._kept)

    @property
    def bytes(self) -> int:
        """Approximate memory of the cache."""
        return self._kept.size

    def of_app(self, app_id: str) -> Embedder:
        """Return the embedder for an app. Closing it does nothing."""
        return _AppEmbedder(self, app_id)

    @override
    async def embed(self, texts: Sequence[str]) -> list[list[float]]:
        return await self.embed_of("", texts)

    async def embed_of(self, app_id: str, texts: Sequence[str]) -> list[list[float]]:
        """See ``Embedder.embed``: the texts are of an app, or of none if it is empty."""
        keys = [(app_id, _hash(self.model, text)) for text in texts]
        outcomes: dict[_Key, _Outcome] = {}
        flights: dict[_Key, asyncio.Future[_Outcome]] = {}
        wanted: dict[_Key, str] = {}
        for key, text in zip(keys, texts, strict=True):
            if key in outcomes or key in flights:
                continue
            if (kept := self._kept.get(*key)) is not None:
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
        await end_tasks(*tasks)
        await self._inner.aclose()

    def _vectors(self, outcomes: list[_Outcome]) -> list[list[float]]:
        for outcome in outcomes:
            if isinstance(outcome, EmbedderUnavailable):  # one for each caller: raising changes an exception
                raise EmbedderUnavailable(str(outcome), retry_after_s=outcome.retry_after_s) from outcome
            if isinstance(outcome, Exception):
                raise outcome
        found = [outcome.tolist() if isinstance(outcome, array) else None for outcome in outcomes]
        whole = [vector for vector in found if vector is not None]
        if len(whole) < len(found):
            raise EmbeddingRefused(self.model, found)
        return whole

    async def _fetch(self, wanted: dict[_Key, str]) -> None:
        outcomes: Sequence[_Outcome] = [EmbedderUnavailable("the embedder was closed")] * len(wanted)
        try:
            vectors = await embed_each(self._inner, list(wanted.values()))
            outcomes = [None if vector is None else array("f", vector) for vector in vectors]
        except Exception as error:  # noqa: BLE001 - any error must reach the waiting callers
            outcomes = [error] * len(wanted)
        finally:
            for key, outcome in zip(wanted, outcomes, strict=True):
                self._flights.pop(key).set_result(outcome)
                if isinstance(outcome, array):
                    self._kept.put(*key, outcome, _OVERHEAD + outcome.itemsize * len(outcome))


class _AppEmbedder(Embedder):
    """The part of a cache that one app uses."""

    def __init__(self, cache: CachedEmbedder, app_id: str) -> None:
        self._cache = cache
        self._app_id = app_id

    @property
    @override
    def model(self) -> str:
        return self._cache.model

    @override
    async def embed(self, texts: Sequence[str]) -> list[list[float]]:
        return await self._cache.embed_of(self._app_id, texts)

    @override
    async def aclose(self) -> None:
        pass


def of_app[Given: Embedder | None](embedder: Given, app_id: str) -> Given | Embedder:
    """Return an embedder for the texts of an app: the app's share if it caches."""
    return embedder.of_app(app_id) if isinstance(embedder, CachedEmbedder) else embedder


def _hash(model: str, text: str) -> bytes:
    return sha256(f"{model}\0{text}".encode("utf-8", "surrogatepass")).digest()
