"""The arguments of the tools. None of them names an app, an application, an agent of memories or a user."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, override

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints, model_validator

from graphweft_contracts.episodes import EpisodeType
from graphweft_contracts.events import Name
from graphweft_contracts.memory import MemoryChanges, MemoryMessage, ScopeName, with_text
from graphweft_contracts.moments import Time
from graphweft_contracts.search import Kind, MemorySelection, MinScore, RecordFilters

MAX_CHARACTERS: Final = 4_096
"""Of a text to remember. A result of 2,000 tokens, the default, has room for it, and a search finds it by its topic."""
_MAX_QUERY: Final = 100_000
"""Characters. A message may be a pasted file; in JSON, so many characters of any script fit into a request."""
_MAX_RESULTS: Final = 50


def _without_nul(text: str) -> str:
    return text.replace("\0", "")  # no graph stores it


def _check_text(text: str) -> str:
    if not text.strip():
        msg = "the text is empty: give the text to remember"
        raise ValueError(msg)
    if len(text) > MAX_CHARACTERS:
        msg = (
            f"it has {len(text)} characters; the maximum is {MAX_CHARACTERS}: remember it in parts that can each be "
            "understood alone"
        )
        raise ValueError(msg)
    return text


_Query = Annotated[str, StringConstraints(max_length=_MAX_QUERY), AfterValidator(_without_nul)]
_Tokens = Annotated[
    int | None, Field(ge=1, description="Maximum number of tokens in the result. The server's own limit also applies.")
]


class _Arguments(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


_MemoryId = Annotated[str, StringConstraints(min_length=1, max_length=256)]
_Text = Annotated[str, AfterValidator(_without_nul), AfterValidator(_check_text)]


class MemorySearchArguments(RecordFilters):
    """Arguments of ``memory_search``: what a search of the contract has within a scope, and the scope is given."""

    query: _Query = Field(default="", description="Text to search for; empty: the latest memories.")
    of: Kind = "all"
    top_k: int = Field(default=5, ge=1, le=_MAX_RESULTS, description="Maximum number of results.")
    thread_id: ScopeName | None = Field(default=None, description="Only memories of this conversation thread.")
    min_score: MinScore = None
    max_tokens: _Tokens = None


class MemoryListArguments(RecordFilters):
    """Arguments of ``memory_list``."""

    of: Kind = "memories"
    limit: int = Field(default=20, ge=1, le=_MAX_RESULTS, description="Maximum number of records.")


class MemoryGetArguments(_Arguments):
    """Arguments of ``memory_get``."""

    id: _MemoryId = Field(description="The id of a record, from memory_search or memory_list.")


class MemoryUpdateArguments(MemoryChanges):
    """Arguments of ``memory_update``. ``content`` is its ``text``."""

    id: _MemoryId = Field(description="The id of a memory, from memory_search or memory_list.")
    text: _Text | None = Field(default=None, description="What it says from now on, as a sentence.")

    @model_validator(mode="before")
    @classmethod
    def _named(cls, value: Any) -> Any:
        return with_text(value)


class MemoryForgetArguments(MemorySelection):
    """Arguments of ``memory_forget``."""


class MemoryAddArguments(MemoryMessage):
    """Arguments of ``memory_add``: a message of the contract, whose ``content`` is its ``text``."""

    text: _Text = Field(
        description="The text to remember, as a sentence.", json_schema_extra={"maxLength": MAX_CHARACTERS}
    )
    role: Literal["user", "assistant"] = Field(  # pyright: ignore[reportIncompatibleVariableOverride] - it is frozen
        default="user", description="The speaker."
    )
    message_id: Annotated[str, StringConstraints(pattern=r"^[^\x00-\x1f\x7f]+$", max_length=256)] | None = Field(
        default=None,
        description="A name for the text: the same text with the same name is remembered once. Without a name, each "
        "call makes a new memory.",
    )

    @model_validator(mode="before")
    @classmethod
    @override
    def _known(cls, value: Any) -> Any:
        return with_text(value)  # an unknown argument is named as for other tools


class EpisodeAddArguments(_Arguments):
    """Arguments of ``episode_add``. ``EpisodeAdd`` says what goes together."""

    content: Annotated[str, AfterValidator(_without_nul)] | dict[str, Any] = Field(
        description="A text of at most 1,000,000 characters. Of the type json an object, or JSON as text: with "
        "`entities` and `relations`, it needs no model to be read."
    )
    episode_type: EpisodeType = Field(default="text", description="message: of a conversation.")
    schema_id: Name | None = Field(
        default=None, description="The ontology by which entities and relations are read, as the operator named it."
    )
    name: Name | None = Field(default=None, description="A title.")
    reference_time: Time | None = Field(default=None, description="The time that it is about; by default now.")
    source_description: str | None = Field(default=None, description="Where it comes from.")
    episode_id: Name | None = Field(
        default=None, description="A name for it: the same episode with the same name is added once."
    )


class ContextArguments(_Arguments):
    """Arguments of ``get_context``."""

    agent: str | None = Field(default=None, description="The agent whose turn is next; optional if there is only one.")
    query: _Query | None = Field(
        default=None, description="The topic of the turn: rules read it as the last message of the conversation."
    )
    max_tokens: _Tokens = None
