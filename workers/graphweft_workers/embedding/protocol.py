"""What an embedder promises, and how it fails."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Sequence
from typing import Final, Protocol

from graphweft_contracts.errors import Permanent, Transient

MOST_DIMENSIONS: Final = 8_192
"""Numbers of a vector: ``memory.embedded`` events take no more."""


class EmbedderUnavailable(Transient):
    """The embedder cannot be asked, is busy, is set up wrongly, or answers with what is no embedding.

    It says nothing about the texts: the same ones may be taken after ``retry_after_s`` seconds.
    """


class EmbeddingRefused(Permanent):
    """The embedder takes other texts, but at least one of these never.

    ``vectors`` has one item for each text that was asked for, in their order: its vector, or None for a text that is
    refused. So the other texts need not be asked for again.
    """

    def __init__(self, model: str, vectors: Sequence[list[float] | None]) -> None:
        refused = sum(vector is None for vector in vectors)
        super().__init__(
            f"the embedder {model!r} gives no vector for {refused} of {len(vectors)} texts: as a rule a text that is "
            "empty, or longer than the model takes"
        )
        self.vectors = list(vectors)


class Embedder(Protocol):
    """Turns texts into vectors whose directions can be compared. Belongs to one event loop; calls may run at once."""

    @property
    def model(self) -> str:
        """The name that is recorded beside vectors; vectors of different names are never compared."""
        ...

    async def embed(self, texts: Sequence[str]) -> list[list[float]]:
        """Return one vector for each text, in their order; all have the same length.

        The numbers are 32-bit floats, so they come out of JSON as they went in. They are finite, and at least one of
        a vector is not 0; its length need not be 1. Raises ``EmbedderUnavailable`` or ``EmbeddingRefused``.
        """
        ...

    async def aclose(self) -> None:
        """Let go of connections and threads; calls that are running may fail."""
        ...


def as_vector(numbers: Iterable[float]) -> list[float] | None:
    """Return the numbers rounded to 32 bits, or None if they are no vector: not finite, all 0, none or too many."""
    try:
        rounded = array("f", numbers).tolist()
    except OverflowError:
        return None
    if not any(rounded) or len(rounded) > MOST_DIMENSIONS or not all(map(math.isfinite, rounded)):
        return None
    return rounded


async def embed_each(embedder: Embedder, texts: Sequence[str]) -> list[list[float] | None]:
    """Return one item for each text, in their order: its vector, or None for a text that the embedder never takes.

    Raises ``EmbedderUnavailable``.
    """
    try:
        return [*await embedder.embed(texts)]
    except EmbeddingRefused as error:
        return error.vectors
