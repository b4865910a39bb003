"""What a search goes over: a label, and the properties and indexes by which it is searched."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal

from graphweft_contracts.search import Searched
from graphweft_rules.packs.episodes import ENTITY, EPISODE, RELATION
from graphweft_rules.packs.memory import MEMORY_LABEL

__all__ = ("Similarity", "Target", "TextSide", "VectorSide", "memories", "scoped")

Similarity = Literal["cosine", "euclidean"]
_NONE: Final[Mapping[str, str]] = MappingProxyType({})


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
    """Columns that a row has behind text and score: properties, or names in ``expressions``."""
    expressions: Mapping[str, str] = _NONE
    """What the columns are that are no properties of ``node``, over what ``joined`` binds."""
    joined: str = ""
    """Cypher that goes on from ``node`` and ``__gw_hit``, with one row for each."""
    says: str = "text"
    """The property that is shown as text, if a node has it."""
    known_by: str | None = None
    """A property that all of these nodes have; others with the label are somebody's own, and not searched."""
    valid_at: str | None = None
    """Only what holds at this time (UTC, ``utc_text``) by its ``valid_at`` and ``invalid_at``; None: everything."""
    text: TextSide | None = None
    vector: VectorSide | None = None

    @property
    def texts(self) -> tuple[str, ...]:
        """The properties of which the first that a node has is shown as its text."""
        others = self.text.properties if self.text and not self.text.terms else ()
        return tuple(dict.fromkeys((self.says, *others)))


def memories(label: str = MEMORY_LABEL) -> Target:
    """Return the memories that ``MemoryPack`` keeps under a label. They have no vector index: scopes come first."""
    return Target(
        labels=(label,),
        key="id",
        time="timestamp",
        shown=("role", "timestamp", "author_name", "id"),
        text=_own_terms(label, "text"),
        vector=VectorSide(property="embedding", model="embedding_model"),
    )


def scoped(of: Searched, *, now: str, memory_label: str = MEMORY_LABEL) -> Target:
    """Return what is searched within a scope. Of facts it is those that hold at ``now`` (UTC, ``utc_text``)."""
    match of:
        case "memories":
            return memories(memory_label)
        case "facts":
            return Target(
                labels=(RELATION,),
                key="id",
                time="stated",
                says="fact",
                shown=("name", "source", "target", "valid_at", "invalid_at", "created_at", "id"),
                joined=(
                    f"OPTIONAL MATCH (__gw_source:{ENTITY} {{id: node.source_id}}) "
                    f"OPTIONAL MATCH (__gw_target:{ENTITY} {{id: node.target_id}}) "
                    f"OPTIONAL MATCH (__gw_episode:{EPISODE})-[:STATES]->(node) "
                    "WITH node, __gw_hit, __gw_source, __gw_target, min(__gw_episode.recorded) AS __gw_recorded"
                ),
                expressions={
                    "source": "__gw_source.name",
                    "target": "__gw_target.name",
                    "created_at": "__gw_recorded",
                },
                text=_own_terms(RELATION, "fact"),
                known_by="scopes",
                valid_at=now,
            )
        case "entities":
            return Target(
                labels=(ENTITY,),
                key="id",
                time="stated",
                says="name",
                shown=("type", "id"),
                text=_own_terms(ENTITY, "name"),
                known_by="scopes",
            )
        case "episodes":
            return Target(
                labels=(EPISODE,),
                key="id",
                time="reference_time",
                says="content",
                shown=("name", "episode_type", "reference_time", "id"),
                text=_own_terms(EPISODE, "content"),
                known_by="scopes",
            )


def _own_terms(label: str, property: str) -> TextSide:
    return TextSide(
        index=f"graphweft_{label}_terms",
        properties=(property,),
        terms="terms",
        length="length",
        scopes="scopes",
    )
