"""An embedder without a model, for laptops, demos and tests."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Sequence
from hashlib import blake2b
from typing import Final, override

from graphweft_rules.terms import STOP_WORDS, terms
from graphweft_workers.embedding.protocol import MOST_DIMENSIONS, Embedder, as_vector

_STOPPED: Final = frozenset(term for word in STOP_WORDS for term in terms(word))


class HashingEmbedder(Embedder):
    """Finds words, not meaning: texts are near each other as far as they share words, as in fulltext search.

    Each term of a text adds to one of the dimensions, which its hash chooses along with the sign; terms that are
    repeated count by their logarithm, stop words only where there is nothing else, and the vector has length 1. Terms
    that fall on the same dimension cannot be told apart: with 256 dimensions texts that share no word mostly have a
    cosine within 0.2 of 0. The vectors are the same on every machine.
    """

    def __init__(self, dimensions: int) -> None:
        """Raises ``ValueError`` unless there are 8 to 8,192 ``dimensions``."""
        if not 8 <= dimensions <= MOST_DIMENSIONS:
            message = f"a hashing embedder has 8 to {MOST_DIMENSIONS} dimensions"
            raise ValueError(message)
        self._dimensions = dimensions

    @property
    @override
    def model(self) -> str:
        return f"hash:{self._dimensions}"

    @override
    async def embed(self, texts: Sequence[str]) -> list[list[float]]:
        vectors: list[list[float]] = []
        for text in texts:
            vectors.append(self._vector(text))
            await asyncio.sleep(0)  # a text may be long, and others wait for the loop
        return vectors

    @override
    async def aclose(self) -> None:
        """Nothing is held."""

    def _vector(self, text: str) -> list[float]:
        found = terms(text)
        counts = Counter(term for term in found if term not in _STOPPED) or Counter(found)
        numbers = [0.0] * self._dimensions
        for term, count in counts.items():
            at, sign = self._place(term)
            numbers[at] += sign * (1 + math.log(count))
        length = math.sqrt(math.fsum(number * number for number in numbers))
        vector = as_vector(number / length for number in numbers) if length else None
        if vector is None:
            # No words, or words that cancel each other out: the text is found by itself.
            at, sign = self._place("\0" + text)
            vector = [sign if number == at else 0.0 for number in range(self._dimensions)]
        return vector

    def _place(self, term: str) -> tuple[int, float]:
        number = int.from_bytes(blake2b(term.encode("utf-8", "surrogatepass"), digest_size=8).digest())
        return (number >> 1) % self._dimensions, 1.0 if number & 1 else -1.0
