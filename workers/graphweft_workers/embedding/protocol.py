"""The protocol of embedders, and their errors."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Sequence
from typing import Final, Protocol

from graphweft_contracts.errors import Permanent, Transient

MOST_DIMENSIONS: Final = 8_192
"""Limit of numbers in a vector: that of a ``memory.embedded`` event."""


class EmbedderUnavailable(Transient):
    """The embedder is unreachable, busy or misconfigured, or returns invalid vectors.

    The texts are not the cause: try again after ``retry_after_s`` seconds.
    """


class EmbeddingRefused(Permanent):
    """The embedder refuses at least one text for good, or fails on it each time, and accepts others.

    ``vectors`` has one item for each text, in order: its vector, or None for a refused text.
    """

    def __init__(self, model: str, vectors: Sequence[list[float] | None]) -> None:
        refused = sum(vector is None for vector in vectors)
        super().__init__(
            f"the embedder {model!r} refuses {refused} of {len(vectors)} texts or fails on them: usually a text is "
            "empty or longer than the model accepts"
        )
        self.vectors = list(vectors)


class Embedder(Protocol):
    """Turns texts into vectors that are compared by cosine. Belongs to one event loop; calls may run concurrently."""

    @property
    def model(self) -> str:
        """The name that is stored with vectors; only vectors of the same name are compared."""
        ...

    async def embed(self, texts: Sequence[str]) -> list[list[float]]:
        """Return one vector for each text, in order; all have the same number of dimensions.

        The numbers are finite 32-bit floats, and at least one of a vector is not 0. Vectors need not have length 1.
        Raises ``EmbedderUnavailable`` or ``EmbeddingRefused``.
        """
        ...

    async def aclose(self) -> None:
        """Release connections and threads; running calls may fail."""
        ...


def as_vector(numbers: Iterable[float]) -> list[float] | None:
    """Return the numbers rounded to 32 bits; None if there are none or too many, all are 0, or one is not finite."""
    try:
        rounded = array("f", numbers).tolist()
    except OverflowError:
        return None
    if not any(rounded) or len(rounded) > MOST_DIMENSIONS or not all(map(math.isfinite, rounded)):
        return None
    return rounded


async def embed_each(embedder: Embedder, texts: Sequence[str]) -> list[list[float] | None]:
    """Return one item for each text, in order: its vector, or None for a refused text.

    Raises ``EmbedderUnavailable``.
    """
    try:
        return [*await embedder.embed(texts)]
    except EmbeddingRefused as error:
        return error.vectors
