"""An embedder without a model, for development, demos and tests."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Sequence
from hashlib import blake2b
from typing import Final, override

from graphweft_workers.embedding.protocol import MOST_DIMENSIONS, Embedder, as_vector
from graphweft_workers.text.terms import STOP_WORDS, terms

_LONG: Final = 10_000
"""Characters."""
_STOPPED: Final = frozenset(term for word in STOP_WORDS for term in terms(word))


class HashingEmbedder(Embedder):
    """Embeds words, not meaning: the cosine of two texts grows with the words that they share.

    The hash of each term selects a dimension and a sign (feature hashing). A term that occurs n times weighs
    1 + ln(n); stop words count only in texts of stop words. Vectors have length 1 and are equal on every machine. Terms
    of the same dimension collide: with 256 dimensions, texts without a common word mostly have a cosine within 0.2
    of 0.
    """

    def __init__(self, dimensions: int) -> None:
        """Raises ``ValueError`` unless ``dimensions`` is 8 to 8,192."""
        if not 8 <= dimensions <= MOST_DIMENSIONS:
            message = f"invalid number of dimensions {dimensions}: expected 8 to {MOST_DIMENSIONS}"
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
            if len(text) > _LONG:  # 20,000 words take 0.4 s and must not block the event loop
                vectors.append(await asyncio.to_thread(self._vector, text))
                continue
            vectors.append(self._vector(text))
            await asyncio.sleep(0)
        return vectors

    @override
    async def aclose(self) -> None:
        """Do nothing."""

    def _vector(self, text: str) -> list[float]:
        found = terms(text)
        counts = Counter(term for term in found if term not in _STOPPED) or Counter(found)
        weights: dict[int, float] = {}
        for term, count in counts.items():
            at, sign = self._place(term)
            weights[at] = weights.get(at, 0.0) + sign * (1 + math.log(count))
        length = math.sqrt(math.fsum(weight * weight for weight in weights.values()))
        numbers = [0.0] * self._dimensions
        for at, weight in weights.items():
            numbers[at] = weight / length if length else 0.0
        vector = as_vector(numbers)
        if vector is None:
            # No terms, or terms that cancel out: only the same text is near.
            at, sign = self._place("\0" + text)
            vector = [sign if number == at else 0.0 for number in range(self._dimensions)]
        return vector

    def _place(self, term: str) -> tuple[int, float]:
        number = int.from_bytes(blake2b(term.encode("utf-8", "surrogatepass"), digest_size=8).digest())
        return (number >> 1) % self._dimensions, 1.0 if number & 1 else -1.0
