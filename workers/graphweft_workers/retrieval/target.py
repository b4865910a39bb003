"""What a search goes over: a label, and the properties and indexes by which it is searched."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal

from graphweft_contracts.search import Searched
from graphweft_rules.packs.episodes import ENTITY, EPISODE, RELATION
from graphweft_rules.packs.memory import FACT, MEMORY_LABEL, PREFERENCE, SUMMARY

Similarity = Literal["cosine", "euclidean"]
_NONE: Final[Mapping[str, str]] = MappingProxyType({})
_FACT_COLUMNS: Final = ("subject", "predicate", "object", "valid_at", "invalid_at", "created_at", "id")


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
    kind: str | None = None
    """What a row of it is called in the column ``kind``; None: there is no such column."""
    key: str | None = None
    time: str | None = None
    """The property by which the latest come first; text or number."""
    shown: tuple[str, ...] = ()
    """Columns that a row has behind text, score and kind: properties, or names in ``expressions``."""
    expressions: Mapping[str, str] = _NONE
    """What the columns are that are no properties of ``node``, over what ``joined`` binds."""
    joined: str = ""
    """Cypher that goes on from ``node`` and ``__gw_hit``, with one row for each."""
    says: str = "text"
    """The property that is shown as text, if a node has it."""
    known_by: str | None = None
    """A property that all of these nodes have; others with the label are somebody's own, and not searched."""
    scope: Mapping[str, str] = _NONE
    """Whose nodes: what they must have as properties, by name."""
    origin: str = ""
    """The pattern from a node ``{node}`` to one that says where it was said, whose properties are ``{scope}``."""
    origin_scope: Mapping[str, str] = _NONE
    """What one of these origins must have, all of it."""
    valid_at: str | None = None
    """Only what holds at this time (UTC, ``utc_text``) by ``validity``; None: everything."""
    validity: tuple[str, str] = ("valid_at", "invalid_at")
    """The properties that say since when a node holds and until when; null is no limit."""
    text: TextSide | None = None
    vector: VectorSide | None = None

    @property
    def texts(self) -> tuple[str, ...]:
        """The properties of which the first that a node has is shown as its text."""
        others = self.text.properties if self.text and not self.text.terms else ()
        return tuple(dict.fromkeys((self.says, *others)))


def scoped(of: Searched, scope: Mapping[str, str], *, now: str, memory_label: str = MEMORY_LABEL) -> tuple[Target, ...]:
    """Return what is searched within a scope. Of facts it is those that hold at ``now`` (UTC, ``utc_text``).

    Asked for by name, facts are known beyond the thread in which they were said, and so are entities: beside another
    scope ``thread_id`` does not limit them. Facts of conversations are known beyond it to their user only. In ``all``
    every kind is limited as memories are.
    """
    wide = {name: value for name, value in scope.items() if name != "thread_id"} or scope
    match of:
        case "all":
            return (
                memories(scope, memory_label),
                _facts(scope, now),
                _stated_facts(scope, now, in_thread=True),
                _preferences(scope),
                _summaries(scope),
            )
        case "memories":
            return (memories(scope, memory_label),)
        case "facts":
            return _facts(wide if "user_id" in scope else scope, now), _stated_facts(wide, now, in_thread=False)
        case "preferences":
            return (_preferences(scope),)
        case "summaries":
            return (_summaries(scope),)
        case "entities":
            return (
                Target(
                    labels=(ENTITY,),
                    kind="entity",
                    key="id",
                    time="stated",
                    says="name",
                    shown=("type", "id"),
                    scope=wide,
                    text=_own_terms(ENTITY, "name"),
                    known_by="scopes",
                ),
            )
        case "episodes":
            return (
                Target(
                    labels=(EPISODE,),
                    kind="episode",
                    key="id",
                    time="reference_time",
                    says="content",
                    shown=("name", "episode_type", "reference_time", "id"),
                    scope=scope,
                    text=_own_terms(EPISODE, "content"),
                    known_by="scopes",
                ),
            )


def memories(scope: Mapping[str, str] = _NONE, label: str = MEMORY_LABEL) -> Target:
    """Return the memories that ``MemoryPack`` keeps under a label. They have no vector index: scopes come first."""
    return Target(
        labels=(label,),
        kind="memory",
        key="id",
        time="timestamp",
        shown=("role", "timestamp", "author_name", "id"),
        scope=scope,
        text=_own_terms(label, "text"),
        vector=VectorSide(property="embedding", model="embedding_model"),
    )


def _facts(scope: Mapping[str, str], now: str) -> Target:
    """Return the facts of conversations, of the thread in which they were said."""
    return Target(
        labels=(FACT,),
        kind="fact",
        key="id",
        time="valid_from",
        shown=_FACT_COLUMNS,
        joined=(
            f"OPTIONAL MATCH (node)-[:EXTRACTED_FROM]->(__gw_summary:{SUMMARY}) "
            "WITH node, __gw_hit, min(__gw_summary.recorded) AS __gw_recorded"
        ),
        expressions={
            "valid_at": "node.valid_from",
            "invalid_at": f"node.{(until := 'thread_valid_to' if 'thread_id' in scope else 'valid_to')}",
            "created_at": "__gw_recorded",
        },
        known_by="scopes",
        scope=scope,
        valid_at=now,
        validity=("valid_from", until),
        text=_own_terms(FACT, "text"),
    )


def _stated_facts(scope: Mapping[str, str], now: str, *, in_thread: bool) -> Target:
    """Return the facts of episodes; ``in_thread``: those that an episode of the scope's thread states."""
    own, origin = _split(scope, ("application_id", "agent_id", "user_id")) if in_thread else (scope, {})
    return Target(
        labels=(RELATION,),
        kind="fact",
        key="id",
        time="stated",
        says="fact",
        shown=_FACT_COLUMNS,
        joined=(
            f"OPTIONAL MATCH (__gw_source:{ENTITY} {{id: node.source_id}}) "
            f"OPTIONAL MATCH (__gw_target:{ENTITY} {{id: node.target_id}}) "
            f"OPTIONAL MATCH (__gw_episode:{EPISODE})-[:STATES]->(node) "
            "WITH node, __gw_hit, __gw_source, __gw_target, min(__gw_episode.recorded) AS __gw_recorded"
        ),
        expressions={
            "subject": "__gw_source.name",
            "predicate": "node.name",
            "object": "__gw_target.name",
            "created_at": "__gw_recorded",
        },
        known_by="scopes",
        scope=own,
        origin=f"({{node}})<-[:STATES]-(:{EPISODE} {{scope}})",
        origin_scope=origin,
        valid_at=now,
        text=_own_terms(RELATION, "fact"),
    )


def _preferences(scope: Mapping[str, str]) -> Target:
    """Return the preferences that were stated within a scope: a node is its user's, wherever that was."""
    own, origin = _split(scope, ("user_id",))
    return Target(
        labels=(PREFERENCE,),
        kind="preference",
        key="id",
        time="stated_at",
        shown=("timestamp", "id"),
        expressions={"timestamp": "node.stated_at"},
        known_by="scopes",
        scope=own,
        origin=f"({{node}})-[:EXTRACTED_FROM]->(:{SUMMARY} {{scope}})",
        origin_scope=origin,
        text=_own_terms(PREFERENCE, "text"),
    )


def _summaries(scope: Mapping[str, str]) -> Target:
    return Target(
        labels=(SUMMARY,),
        kind="summary",
        key="id",
        time="timestamp",
        shown=("timestamp", "id"),
        known_by="scopes",
        scope=scope,
        text=_own_terms(SUMMARY, "text"),
    )


def _split(scope: Mapping[str, str], own: Collection[str]) -> tuple[dict[str, str], dict[str, str]]:
    """Return the part of a scope that is properties of the nodes themselves, and, if that is not all, all of it."""
    held = {name: value for name, value in scope.items() if name in own}
    return held, {} if len(held) == len(scope) else dict(scope)


def _own_terms(label: str, property: str) -> TextSide:
    return TextSide(
        index=f"graphweft_{label}_terms",
        properties=(property,),
        terms="terms",
        length="length",
        scopes="scopes",
    )
