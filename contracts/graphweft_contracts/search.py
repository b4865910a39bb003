"""What is searched for, and what of a conversation the search goes by."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, field_validator, model_validator

from graphweft_contracts.events import Name
from graphweft_contracts.memory import SCOPES, MemoryScope

__all__ = ("INDEX_TYPES", "MOST_RESULTS", "SEARCHED", "IndexType", "SearchQuery", "Searched", "query_text")

IndexType = Literal["vector", "fulltext", "hybrid"]
INDEX_TYPES: Final[tuple[IndexType, ...]] = ("vector", "fulltext", "hybrid")
Searched = Literal["memories", "facts", "entities", "episodes"]
SEARCHED: Final[tuple[Searched, ...]] = ("memories", "facts", "entities", "episodes")
MOST_RESULTS: Final = 1_000
_ParameterName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,127}$")]
_LONGEST: Final = 200_000
_ASKED_ROLES: Final = frozenset({"user", "assistant"})
_TEXT: Final = {"type": "string"}
_NULL: Final = {"type": "null"}
_MEMORIES: Final = {"const": "memories"}
_WITHIN: Final = {"memory": {"type": "object"}, "index_name": _NULL, "fulltext_index_name": _NULL}
_WORKS: Final[dict[str, Any]] = {
    "anyOf": [
        {
            "required": ["memory"],
            "properties": {**_WITHIN, "of": _MEMORIES},
        },
        {
            "required": ["memory"],
            "properties": {**_WITHIN, "index_type": {"enum": ["fulltext", None]}},
        },
        {
            "properties": {"memory": _NULL, "of": _MEMORIES, "index_type": {"enum": ["vector", "fulltext", None]}},
        },
        {
            "required": ["fulltext_index_name"],
            "properties": {"memory": _NULL, "of": _MEMORIES, "fulltext_index_name": _TEXT},
        },
    ]
}
"""What goes together, for readers of the JSON Schema."""


class SearchQuery(BaseModel):
    """One search: in an index of the graph, or in what is remembered within a scope.

    With ``memory`` it searches what ``of`` says: memories, by ``index_type`` or, without it, by vector where there is
    an embedder and by recency where there is none; or what episodes say (``facts``, ``entities``) or are
    (``episodes``), which have no vectors: by words where there is a text, otherwise by recency. Without ``memory``,
    ``index_name`` names the index, whose type is ``vector`` unless it is said; without it, the index is meant that the
    responder's settings name.
    Raises ``ValueError`` (pydantic's) for what cannot work.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", json_schema_extra=_WORKS)

    text: str = Field(
        default="", description="What is searched for, see `query_text`; of a longer text the last 200,000 characters."
    )
    memory: MemoryScope | None = Field(default=None, description="Whose memories; None: an index is searched.")
    of: Searched = Field(
        default="memories", description="What of the scope: memories, or facts, entities or episodes of `episode.add`."
    )
    index_type: IndexType | None = Field(default=None, description="How: by vector, by words, or both.")
    index_name: Name | None = Field(
        default=None, description="Vector index (for `fulltext`: fulltext index) by name, or as `Label.property`."
    )
    fulltext_index_name: Name | None = Field(default=None, description="The fulltext index of a hybrid search.")
    top_k: int = Field(
        default=5,
        description="Most results; at least 1.",
        json_schema_extra={"minimum": 1, "maximum": MOST_RESULTS},
    )
    retrieval_query: str | None = Field(
        default=None,
        description="Cypher that goes on from `node` and `score` and returns at least `text` and `score`, best first.",
    )
    params: dict[_ParameterName, Any] = Field(
        default_factory=dict,
        description="Values of the parameters of `retrieval_query`.",
        json_schema_extra={"additionalProperties": False},
    )
    filter_stop_words: bool = Field(default=True, description="Leave words out that say nothing, from the fulltext.")

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
                msg = f"{self.of} have indexes of their own: leave index_name and fulltext_index_name out"
                raise ValueError(msg)
            if self.of != "memories" and self.index_type not in {None, "fulltext"}:
                msg = f"{self.of} have no vectors: leave index_type={self.index_type!r} out, or write 'fulltext'"
                raise ValueError(msg)
            return self
        if self.of != "memories":
            msg = f"{self.of} are searched within a scope only: give memory at least one of {', '.join(SCOPES)}"
            raise ValueError(msg)
        if self.index_type == "hybrid" and self.fulltext_index_name is None:
            msg = "fulltext_index_name is required when index_type='hybrid'"
            raise ValueError(msg)
        return self

    @property
    def scope(self) -> dict[str, str]:
        """What a node must have to be found, by name; empty where an index is searched.

        Facts and entities are known beyond the thread in which they were said, unless nothing else says whose they are:
        beside another scope the thread does not limit them.
        """
        given = self.memory.given if self.memory else {}
        if self.of in {"facts", "entities"} and len(given) > 1:
            given.pop("thread_id", None)
        return given


def query_text(messages: Iterable[Any], history: int = 10) -> str:
    """Return the text to search by: of the last ``history`` messages of user and assistant, joined by line ends.

    A message is a map or an object with ``role`` and ``text`` (or ``content``); others, and those without text, do not
    count. No words are picked out: the whole text is searched for. Raises ``ValueError`` when ``history`` is below 1.
    """
    if history < 1:
        msg = "message_history_count must be at least 1"
        raise ValueError(msg)
    kept: list[str] = []
    for message in messages:
        role = getattr(_of(message, "role"), "value", _of(message, "role"))
        text = _of(message, "text") or _of(message, "content")
        if role in _ASKED_ROLES and isinstance(text, str) and text.strip():
            kept.append(text)
    return "\n".join(kept[-history:])


def _of(message: Any, name: str) -> Any:
    if isinstance(message, Mapping):
        return message.get(name)  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    return getattr(message, name, None)
