"""What a search goes over: a label, and the properties and indexes by which it is searched."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from graphweft_rules.packs.memory import MEMORY_LABEL

__all__ = ("Similarity", "Target", "TextSide", "VectorSide", "memories")

Similarity = Literal["cosine", "euclidean"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TextSide:
    """How words are found."""

    index: str
    """The server's name of the fulltext index: on Neo4j its name, on FalkorDB the label."""
    properties: tuple[str, ...]
    """Those that the index holds, as far as they are text."""
    terms: str | None = None
    """The property with our terms (``graphweft_rules.terms``), joined by blanks; None: they come from the text."""
    length: str | None = None
    """The property that says how many terms."""
    scopes: str | None = None
    """The property with a term for each scope."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VectorSide:
    """How vectors are found."""

    property: str
    index: str | None = None
    """Neo4j's name of the vector index; FalkorDB knows it by label and property. None: there is none."""
    model: str | None = None
    """The property that names the model; None: all vectors are of one model."""
    dimensions: int | None = None
    similarity: Similarity = "cosine"


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Nodes that can be searched. With ``key`` nodes are fetched by this property, otherwise by the server's id."""

    labels: tuple[str, ...]
    """One of them a node has; more than one only where a fulltext index of Neo4j has more."""
    key: str | None = None
    time: str | None = None
    """The property by which the latest come first; text or number."""
    shown: tuple[str, ...] = ()
    """Properties that a row gives behind text and score."""
    text: TextSide | None = None
    vector: VectorSide | None = None

    @property
    def texts(self) -> tuple[str, ...]:
        """The properties of which the first that a node has is shown as its text."""
        others = self.text.properties if self.text and not self.text.terms else ()
        return tuple(dict.fromkeys(("text", *others)))


def memories(label: str = MEMORY_LABEL) -> Target:
    """Return the memories that ``MemoryPack`` keeps under a label. They have no vector index: scopes come first."""
    return Target(
        labels=(label,),
        key="id",
        time="timestamp",
        shown=("role", "timestamp", "author_name", "id"),
        text=TextSide(
            index=f"graphweft_{label}_terms",
            properties=("text",),
            terms="terms",
            length="length",
            scopes="scopes",
        ),
        vector=VectorSide(property="embedding", model="embedding_model"),
    )
