"""Search as one would write it by hand, to stand beside ours.

``InMemory`` looks at every text in this process: exact, and so the measure of what may be found. ``ByHand`` asks
FalkorDB by its own driver, as anybody would who knows the server.
"""

from __future__ import annotations

import asyncio
import heapq
import math
import re
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

import redis.asyncio as redis

from graphweft_workers.embedding.protocol import Embedder
from graphweft_workers.text.terms import query_terms, scope_term

_K1: Final = 1.2
_B: Final = 0.75
_RANK: Final = 60
"""What is added to each rank before it is turned over; the number of whoever thought of it first, and of everybody."""


class InMemory:
    """Texts by id, each with a vector, looked at one by one."""

    def __init__(
        self, texts: Mapping[str, str], vectors: Mapping[str, Sequence[float]], words: Callable[[str], list[str]]
    ) -> None:
        """``words`` cuts a text into what counts as its words."""
        self._counts = {id: Counter(words(text)) for id, text in texts.items()}
        self._lengths = {id: counts.total() for id, counts in self._counts.items()}
        self._mean = sum(self._lengths.values()) / max(1, len(texts))
        self._holding = Counter(word for counts in self._counts.values() for word in counts)
        self._vectors = {id: (vector, math.hypot(*vector)) for id, vector in vectors.items()}

    def by_words(self, wanted: Iterable[str], k: int) -> list[str]:
        """Return the ids of the ``k`` best texts by BM25, those that hold one of the words at least."""
        scores: dict[str, float] = {}
        for word in set(wanted):
            for id, counts in self._counts.items():
                if count := counts[word]:
                    part = _bm25(count, self._lengths[id] / self._mean, self._holding[word], len(self._counts))
                    scores[id] = scores.get(id, 0.0) + part
        return _best(scores, k)

    def by_vector(self, vector: Sequence[float], k: int) -> list[str]:
        """Return the ids of the ``k`` nearest texts by cosine."""
        length = math.hypot(*vector)
        near = {id: math.sumprod(vector, other) / (length * size) for id, (other, size) in self._vectors.items()}
        return _best(near, k)


def plain_words(text: str) -> list[str]:
    """Return the words of a text in lower case, all of them."""
    return re.findall(r"\w+", text.lower())


def by_ranks(rankings: Iterable[Sequence[str]], k: int) -> list[str]:
    """Return the ``k`` best of several rankings by the sum of their reciprocal ranks."""
    scores: dict[str, float] = {}
    for ranking in rankings:
        for rank, id in enumerate(ranking, 1):
            scores[id] = scores.get(id, 0.0) + 1 / (_RANK + rank)
    return _best(scores, k)


def _bm25(count: int, length: float, holding: int, total: int) -> float:
    """Return what a word that is ``count`` times in a text adds to its score; ``length`` is of the mean one."""
    idf = math.log(1 + (total - holding + 0.5) / (holding + 0.5))
    return idf * count / (count + _K1 * (1 - _B + _B * length))


def _best(scores: Mapping[str, float], k: int) -> list[str]:
    return heapq.nsmallest(k, scores, key=lambda id: (-scores[id], id))


_LOOKED_AT: Final = 100
"""How many of each half are fused."""
_NEAREST: Final = (
    "MATCH (m:Memory {user_id: $user_id}) WITH m, vec.cosineDistance(m.embedding, vecf32($vector)) AS distance "
    "ORDER BY distance, m.id LIMIT $k RETURN m.id, 1 - distance / 2"
)
_HOLDING: Final = (
    "CALL db.idx.fulltext.queryNodes('Memory', $words) YIELD node AS m WHERE m.user_id = $user_id "
    "RETURN m.id, m.length, m.terms"
)
_LENGTHS: Final = "MATCH (m:Memory {user_id: $user_id}) RETURN count(m), avg(m.length)"
_ROW: Final = "m.id, m.text, m.role, m.timestamp, m.author_name"
_ROWS: Final = f"UNWIND $ids AS id MATCH (m:Memory {{id: id}}) RETURN {_ROW}"
_NEAREST_ROWS: Final = (
    "MATCH (m:Memory {user_id: $user_id}) WITH m, vec.cosineDistance(m.embedding, vecf32($vector)) AS distance "
    f"ORDER BY distance LIMIT $k RETURN {_ROW}"
)
_BEST_BY_WORDS: Final = (
    "CALL db.idx.fulltext.queryNodes('Memory', $words) YIELD node AS m, score WHERE m.user_id = $user_id "
    f"WITH m, score ORDER BY score DESC LIMIT $k RETURN {_ROW}"
)

type Row = list[Any]
"""Id, text, role, time and author of a memory."""


class ByHand:
    """Hybrid searches of a user's memories by FalkorDB's own driver.

    There is no deadline, no retrieval query, no limit to what is weighed, and no answer when the embedder is away.
    """

    def __init__(self, client: Any, graph_name: str, embedder: Embedder) -> None:
        self._client = client
        self._graph_name = graph_name
        self._embedder = embedder

    async def best(self, text: str, user_id: str, k: int) -> list[Row]:
        """Weigh words by BM25 and find the nearest vectors, as our search does; return the ``k`` best rows."""
        near, words = await asyncio.gather(self._nearest(text, user_id), self._by_words(text, user_id))
        scores = {id: (near.get(id, 0.0) + words.get(id, 0.0)) / 2 for id in {**near, **words}}
        ids = _best(scores, k)
        rows = {row[0]: row for row in await self._rows(_ROWS, {"ids": ids})}
        return [rows[id] for id in ids]

    async def simple(self, text: str, user_id: str, k: int) -> list[Row]:
        """Let the server weigh the words, take the ``k`` best of each half, and fuse by ranks; nothing is fetched."""
        [vector] = await self._embedder.embed([text])
        halves = await asyncio.gather(
            self._rows(_NEAREST_ROWS, {"user_id": user_id, "vector": vector, "k": k}),
            self._rows(_BEST_BY_WORDS, {"user_id": user_id, "words": _asked(text, user_id), "k": k}),
        )
        by_id = {row[0]: row for half in halves for row in half}
        return [by_id[id] for id in by_ranks(([row[0] for row in half] for half in halves), k)]

    async def _nearest(self, text: str, user_id: str) -> dict[str, float]:
        [vector] = await self._embedder.embed([text])
        found = await self._rows(_NEAREST, {"user_id": user_id, "vector": vector, "k": _LOOKED_AT})
        return _from_0_to_1({row[0]: row[1] for row in found})

    async def _by_words(self, text: str, user_id: str) -> dict[str, float]:
        [[total, mean]], found = await asyncio.gather(
            self._rows(_LENGTHS, {"user_id": user_id}),
            self._rows(_HOLDING, {"user_id": user_id, "words": _asked(text, user_id)}),
        )
        held = [(id, length, words.split(" ")) for id, length, words in found]
        scores: dict[str, float] = {}
        for word in query_terms(text):
            counts = [(id, length, count) for id, length, words in held if (count := words.count(word))]
            for id, length, count in counts:
                scores[id] = scores.get(id, 0.0) + _bm25(count, length / mean, len(counts), total)
        return _from_0_to_1({id: scores[id] for id in _best(scores, _LOOKED_AT)})

    async def _rows(self, statement: str, params: dict[str, Any]) -> list[Row]:
        from falkordb.asyncio.graph import AsyncGraph

        graph: Any = AsyncGraph(self._client, self._graph_name)
        found: list[Row] = (await graph.ro_query(statement, params)).result_set
        return found


@asynccontextmanager
async def by_hand(url: str, graph_name: str, embedder: Embedder) -> AsyncGenerator[ByHand]:
    """Lend what searches a graph by hand."""
    client: Any = redis.Redis.from_url(url, decode_responses=True, protocol=2)
    try:
        yield ByHand(client, graph_name, embedder)
    finally:
        await client.aclose()


def _asked(text: str, user_id: str) -> str:
    words = "|".join(f'"{word}"' for word in query_terms(text))
    return f"@terms:({words}) @scopes:({scope_term('user_id', user_id)})"


def _from_0_to_1(scores: Mapping[str, float]) -> dict[str, float]:
    low, high = min(scores.values(), default=0.0), max(scores.values(), default=0.0)
    return {id: (score - low) / (high - low) if high > low else 1.0 for id, score in scores.items()}
