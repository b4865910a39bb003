"""Search queries, and the search text of a conversation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any, Final, Literal, cast

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, field_validator, model_validator
from pydantic.json_schema import SkipJsonSchema
from typing_extensions import Self, TypedDict

from graphweft_contracts.events import Name
from graphweft_contracts.memory import AS_TUPLE, SCOPES, MemoryScope, Metadata, MetadataValue, Tags
from graphweft_contracts.moments import Time

IndexType = Literal["vector", "fulltext", "hybrid"]
WithoutEmbedder = Literal["latest"]
Fill = Literal["latest"]
INDEX_TYPES: Final[tuple[IndexType, ...]] = ("vector", "fulltext", "hybrid")
Searched = Literal["all", "memories", "facts", "preferences", "summaries", "entities", "episodes", "profile"]
SEARCHED: Final[tuple[Searched, ...]] = (
    "all", "memories", "facts", "preferences", "summaries", "entities", "episodes", "profile",
)  # fmt: skip
EMBEDDED: Final[frozenset[Searched]] = frozenset({"all", "memories"})
"""The kinds that include memories, which can be searched by vector."""
MOST_RESULTS: Final = 1_000
MOST_SCOPES: Final = 8
_RecordId = Annotated[str, StringConstraints(min_length=1, max_length=256, pattern=r"^[^\x00-\x1f\x7f]+$")]
_NAMED: Final[dict[Searched, str]] = {"all": "memories"}
"""The plural in errors."""
REMEMBERED: Final[frozenset[Searched]] = frozenset({"all", "memories", "facts", "preferences", "summaries", "profile"})
"""The kinds that a block shows by day, in the format ``memory``."""
READ: Final[frozenset[Searched]] = frozenset({"profile"})
"""The kinds that are read as a whole: there is nothing to search for."""
_ParameterName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,127}$")]
_LONGEST: Final = 200_000
_ASKED_ROLES: Final = frozenset({"user", "assistant"})
_TEXT: Final = {"type": "string"}
_NULL: Final = {"type": "null"}
_EMBEDDED: Final = {"enum": ["all", "memories"]}
_WITHIN: Final = {"memory": {"type": "object"}, "index_name": _NULL, "fulltext_index_name": _NULL}
_UNFILTERED: Final[dict[str, Any]] = {
    "any_of": {"maxItems": 0},
    **dict.fromkeys(("ids", "tags", "metadata", "since", "until", "as_of"), _NULL),
    "include_ended": {"const": False},
}
_INDEX: Final = {"memory": _NULL, "of": _EMBEDDED, "without_embedder": _NULL, "fill": _NULL, **_UNFILTERED}
_PROFILE: Final[dict[str, Any]] = {
    **{name: value for name, value in _UNFILTERED.items() if name != "as_of"},
    "memory": {"type": "object", "required": ["user_id"], "properties": {"user_id": _TEXT}},
    "text": {"maxLength": 0},
    **dict.fromkeys(("index_type", "fill", "min_score", "retrieval_query", "without_embedder"), _NULL),
}
_WORKS: Final[dict[str, Any]] = {
    "anyOf": [
        {
            "required": ["memory"],
            "properties": {**_WITHIN, "of": _EMBEDDED},
        },
        {
            "required": ["memory"],
            "properties": {
                **_WITHIN,
                "of": {"not": {"const": "profile"}},
                "index_type": {"enum": ["fulltext", None]},
                "without_embedder": _NULL,
            },
        },
        {
            "required": ["memory", "of"],
            "properties": {**_WITHIN, "of": {"const": "profile"}, **_PROFILE},
        },
        {
            "properties": {**_INDEX, "index_type": {"enum": ["vector", "fulltext", None]}},
        },
        {
            "required": ["fulltext_index_name"],
            "properties": {**_INDEX, "fulltext_index_name": _TEXT},
        },
    ]
}
"""The valid combinations of fields, for readers of the JSON Schema."""


Kind = Annotated[
    Searched,
    Field(
        description="What to find in the scope. memories: messages; facts: current facts; preferences: wishes of "
        "users; summaries: of older conversations; all: these four together; profile: what the user claims about "
        "themselves that holds, without a text; entities, episodes: of documents and records."
    ),
]
MinScore = Annotated[
    Annotated[float, Field(ge=0, le=1)] | None,
    Field(
        description="By the default ranking or `hybrid`: only rows with at least this score, from 0 to 1. Below 0.2 "
        "one hardly fits the text."
    ),
]


class SearchOptions(TypedDict, total=False):
    """How to search: fields of ``SearchQuery`` that say nothing of what is asked, and of whom."""

    of: Searched
    index_type: IndexType | None
    without_embedder: WithoutEmbedder | None
    fill: Fill | None
    index_name: str | None
    fulltext_index_name: str | None
    top_k: int
    filter_stop_words: bool


class MemoryFilters(TypedDict, total=False):
    """Which records of a scope a search may find: fields of ``SearchQuery``, of the types that callers give."""

    ids: Sequence[str] | None
    tags: Sequence[str] | None
    metadata: Mapping[str, MetadataValue] | None
    since: datetime | str | None
    until: datetime | str | None
    as_of: datetime | str | None
    min_score: float | None
    any_of: Sequence[MemoryScope]
    include_ended: bool


class MemorySelection(BaseModel):
    """Which memories of a scope are meant. What lists, searches or forgets takes these fields, in each language."""

    model_config = ConfigDict(defer_build=True, frozen=True, extra="forbid")

    ids: Annotated[tuple[_RecordId, ...], Field(max_length=MOST_RESULTS), AS_TUPLE] | None = Field(
        default=None, description="Only records with one of these ids, which then have their `chat_id`; empty: none."
    )
    tags: Annotated[Tags, Field(json_schema_extra={"minItems": 1})] | None = Field(
        default=None, description="Only memories with all of these tags, at least one."
    )
    metadata: Annotated[Metadata, Field(json_schema_extra={"minProperties": 1})] | None = Field(
        default=None, description="Only memories whose metadata has all of these values, at least one."
    )
    since: Time | None = Field(
        default=None, description="Only what was said, or of facts what holds, from this time on."
    )
    until: Time | None = Field(
        default=None, description="Only what was said, or of facts began to hold, before this time."
    )


class RecordFilters(MemorySelection):
    """Which records of a scope a list or a search may find. They apply before the limit of results."""

    as_of: Time | None = Field(
        default=None,
        description="As at this time: what was said later is not found, and what has ended since is.",
    )
    include_ended: bool = Field(
        default=False,
        description="Also what has ended, memories by their `expires_at` and facts by later ones, each with its end in "
        "`invalid_at`. Searches by `ids` find it without.",
    )


class SearchQuery(RecordFilters):
    """One search: in an index of the graph, or in what is remembered within a scope. Filters are for a scope.

    With ``memory`` it searches what ``of`` says: ``all`` are memories, facts, preferences and summaries in one ranking.
    Without an ``index_type`` it goes by all signals, where the responder has an embedder by vector, too (hybrid). Only
    ``memories`` have vectors; ``facts`` (of conversations and of episodes), ``preferences``, ``summaries``,
    ``entities`` and ``episodes`` are searched by words. Without a text the latest come, without a score. Without
    ``memory``, ``index_name`` names the index, whose type is ``vector`` unless it is said; without it, the index is
    meant that the responder's settings name.
    Raises ``ValueError`` (pydantic's) for what cannot work.
    """

    model_config = ConfigDict(defer_build=True, frozen=True, extra="forbid", json_schema_extra=_WORKS)

    text: str = Field(
        default="", description="What is searched for, see `query_text`; of a longer text the last 200,000 characters."
    )
    memory: MemoryScope | None = Field(default=None, description="Whose memories; None: an index is searched.")
    of: Kind = "all"
    index_type: IndexType | None = Field(
        default=None,
        description="`vector` searches by meaning, `fulltext` by words, `hybrid` by both. Default: `vector` for an "
        "index; for a scope all signals, with vectors if there is an embedder.",
    )
    without_embedder: WithoutEmbedder | None = Field(
        default=None,
        description="Where the responder has no embedder and `index_type` is not `fulltext`: the latest memories come, "
        "whatever the text is; with `of: all` in turns with what the text finds by words of facts, preferences and "
        "summaries. Without it memories are searched by words too, or, where `index_type` asks for vectors, the search "
        "fails.",
    )
    fill: Fill | None = Field(
        default=None,
        description="Within a scope: `latest` shows the latest rows behind those that fit the text, up to `top_k`; "
        "facts and preferences come first, in up to half of `top_k`. So a small scope is shown whole.",
    )
    index_name: Name | None = Field(
        default=None,
        description="The index to search if there is no `memory`, by its name or as `Label.property`: a vector index, "
        "or for `fulltext` a fulltext index.",
    )
    fulltext_index_name: Name | None = Field(default=None, description="The fulltext index of a hybrid search.")
    top_k: int = Field(
        default=5,
        description="The limit of results.",
        json_schema_extra={"minimum": 1, "maximum": MOST_RESULTS},
    )
    retrieval_query: str | None = Field(
        default=None,
        description="Cypher that continues from `node` and `score` and returns at least `text` and `score`. End it "
        "with `ORDER BY score DESC`. Its values come from `params`.",
    )
    params: dict[_ParameterName, Any] = Field(
        default_factory=dict,
        description="Values of the parameters of `retrieval_query`.",
        json_schema_extra={"additionalProperties": False},
    )
    min_score: MinScore = None
    any_of: Annotated[tuple[MemoryScope, ...], Field(max_length=MOST_SCOPES), AS_TUPLE] = Field(
        default=(),
        description="Further scopes beside `memory`, such as that of a team: a record of any of them is found.",
    )
    shown: SkipJsonSchema[tuple[str, ...]] = Field(
        default=(),
        exclude=True,
        description="Texts that the reader has already: memories with one of them are left out. Rules set it.",
    )
    filter_stop_words: bool = Field(default=True, description='Whether a search by words ignores words such as "the".')

    @field_validator("text")
    @classmethod
    def _end(cls, value: str) -> str:
        value = value[-_LONGEST:]
        if any("\ud800" <= character <= "\udfff" for character in value):
            msg = "it holds half a character (a lone surrogate)"
            raise ValueError(msg)
        return value

    @model_validator(mode="after")
    def _works(self) -> Self:
        if not 1 <= self.top_k <= MOST_RESULTS:
            msg = f"top_k must be at least 1, and at most {MOST_RESULTS}"
            raise ValueError(msg)
        if self.memory is not None:
            if self.index_name is not None or self.fulltext_index_name is not None:
                named = _NAMED.get(self.of, self.of)
                msg = f"{named} have indexes of their own: leave index_name and fulltext_index_name out"
                raise ValueError(msg)
            if self.of not in EMBEDDED and self.index_type not in {None, "fulltext"}:
                msg = f"{self.of} have no vectors: leave index_type={self.index_type!r} out, or write 'fulltext'"
                raise ValueError(msg)
            if self.of not in EMBEDDED and self.without_embedder is not None:
                msg = f"without_embedder is for memories, and {self.of} are always searched by words: leave it out"
                raise ValueError(msg)
            self._check_read()
            return self._check_filters()
        if filters := [name for name in MemoryFilters.__annotations__ if self._is_given(name)]:
            msg = f"{filters[0]} is for what is remembered: give a scope as memory, or leave it out"
            raise ValueError(msg)
        if self.without_embedder is not None:
            msg = "without_embedder is for memories: leave it out where an index is searched"
            raise ValueError(msg)
        if self.fill is not None:
            msg = "fill is for what is remembered: leave it out where an index is searched"
            raise ValueError(msg)
        if self.of not in EMBEDDED:
            msg = f"{self.of} are searched within a scope only: give memory at least one of {', '.join(SCOPES)}"
            raise ValueError(msg)
        if self.index_type == "hybrid" and self.fulltext_index_name is None:
            msg = "fulltext_index_name is required when index_type='hybrid'"
            raise ValueError(msg)
        return self

    def _check_read(self) -> None:
        """Raise ``ValueError`` for what a kind that is read as a whole cannot have."""
        if self.of not in READ:
            return
        if self.memory is None or self.memory.user_id is None:
            msg = f"a {self.of} is of one user: give memory a user_id"
            raise ValueError(msg)
        others = ("index_type", "fill", "retrieval_query", *(each for each in MemoryFilters.__annotations__))
        for name in ("text", *others):
            if name != "as_of" and (self.text.strip() if name == "text" else self._is_given(name)):
                msg = f"a {self.of} is read as a whole: leave {name} out"
                raise ValueError(msg)

    def _check_filters(self) -> Self:
        """Raise ``ValueError`` for filters that nothing can pass, or that would let everything pass."""
        for name in ("tags", "metadata"):
            if (value := getattr(self, name)) is not None and not value:
                msg = f"{name} is empty, which limits nothing: name at least one, or leave {name} out"
                raise ValueError(msg)
        if (self.tags or self.metadata) and self.of not in EMBEDDED:
            msg = f"{self.of} have no tags and no metadata: leave tags and metadata out, or search memories"
            raise ValueError(msg)
        if self.since is not None and self.until is not None and self.since >= self.until:
            msg = "since must be before until"
            raise ValueError(msg)
        if self.min_score is not None and (self.index_type in {"fulltext", "vector"} or self.of not in REMEMBERED):
            msg = "min_score is for the scores of the default ranking: leave index_type out, or min_score"
            raise ValueError(msg)
        return self

    @property
    def scopes(self) -> tuple[dict[str, str], ...]:
        """The given ids of each scope by name; none for the search of an index."""
        scopes = () if self.memory is None else (self.memory, *self.any_of)
        return tuple(dict(pairs) for pairs in dict.fromkeys(tuple(each.given.items()) for each in scopes))

    def _is_given(self, name: str) -> bool:
        """Return whether a filter is given: an empty selection of ids is."""
        return bool(getattr(self, name) != type(self).model_fields[name].default)

    @property
    def sent(self) -> dict[str, Any]:
        """The fields to send: without filters that are not given, which an earlier responder would refuse."""
        filters = MemoryFilters.__annotations__
        return {name: value for name, value in vars(self).items() if name not in filters or self._is_given(name)}

    @property
    def finds_memory(self) -> bool:
        """Whether it finds what is remembered, in the columns of memory: without a retrieval query."""
        return finds_memory(self.memory is not None, self.of, self.retrieval_query)


def finds_memory(scoped: bool, of: Searched, retrieval_query: str | None) -> bool:
    """Return whether such a search finds what is remembered, in the columns of memory."""
    return scoped and of in REMEMBERED and retrieval_query is None


def query_text(messages: Iterable[Any], history: int = 10) -> str:
    """Return the search text: the last ``history`` messages of user and assistant, joined by line ends.

    A message is a map or an object with ``role`` and ``text`` (or ``content``, also of parts). Messages of other
    roles, and those without text, do not count. Raises ``ValueError`` if ``history`` is below 1.
    """
    if history < 1:
        msg = "message_history_count must be at least 1"
        raise ValueError(msg)
    return "\n".join(texts_of(messages)[-history:])


def texts_of(messages: Iterable[Any]) -> list[str]:
    """Return the texts of the messages of user and assistant: see ``query_text``."""
    kept: list[str] = []
    for message in messages:
        role = getattr(_of(message, "role"), "value", _of(message, "role"))
        text = _text_of(_of(message, "text") or _of(message, "content"))
        if role in _ASKED_ROLES and isinstance(text, str) and text.strip():
            kept.append(text)
    return kept


def _text_of(content: Any) -> Any:
    """Return the text of a content that is a list of parts, as chat APIs have it; any other content as it is."""
    if not isinstance(content, list | tuple):
        return content
    parts = [each if isinstance(each, str) else _of(each, "text") for each in cast("Sequence[Any]", content)]
    return "\n".join(each for each in parts if isinstance(each, str))


def _of(message: Any, name: str) -> Any:
    if isinstance(message, Mapping):
        return message.get(name)  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    return getattr(message, name, None)
