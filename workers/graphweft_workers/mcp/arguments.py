"""The arguments of the tools. None of them names an app, an application, an agent of memories or a user."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints

from graphweft_contracts.episodes import EpisodeType
from graphweft_contracts.events import Name
from graphweft_contracts.memory import Metadata, ScopeName, Tags
from graphweft_contracts.moments import Time
from graphweft_contracts.search import Searched

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


class _Filters(_Arguments):
    tags: Tags | None = Field(default=None, description="Only memories with all of these tags.")
    metadata: Metadata | None = Field(default=None, description="Only memories whose metadata has all of these values.")
    since: Time | None = Field(default=None, description="Only what was said from this time on.")
    until: Time | None = Field(default=None, description="Only what was said before this time.")


class MemorySearchArguments(_Filters):
    """Arguments of ``memory_search``."""

    query: _Query = Field(default="", description="Text to search for; empty: the latest memories.")
    of: Searched = Field(
        default="all",
        description="memories: messages; facts: current facts; preferences: wishes of users; summaries: of older "
        "conversations; all: these four together; profile: what the user claims about themselves that holds, whatever "
        "the query is; entities, episodes: of documents and records.",
    )
    top_k: int = Field(default=5, ge=1, le=_MAX_RESULTS, description="Maximum number of results.")
    thread_id: ScopeName | None = Field(default=None, description="Only memories of this conversation thread.")
    as_of: Time | None = Field(
        default=None, description="Search as at this time: what was said later is not found, what has ended since is."
    )
    min_score: Annotated[float, Field(ge=0, le=1)] | None = Field(
        default=None, description="Only results with at least this score: below 0.2 one hardly fits the query."
    )
    max_tokens: _Tokens = None


class MemoryListArguments(_Filters):
    """Arguments of ``memory_list``."""

    limit: int = Field(default=20, ge=1, le=_MAX_RESULTS, description="Maximum number of memories.")


class MemoryGetArguments(_Arguments):
    """Arguments of ``memory_get``."""

    id: _MemoryId = Field(description="The id of a memory, from memory_search or memory_list.")


class MemoryUpdateArguments(_Arguments):
    """Arguments of ``memory_update``."""

    id: _MemoryId = Field(description="The id of a memory, from memory_search or memory_list.")
    text: _Text | None = Field(default=None, description="What it says from now on, as a sentence.")
    tags: Tags | None = Field(default=None, description="All tags from now on; empty: none.")
    metadata: Metadata | None = Field(default=None, description="All metadata from now on; empty: none.")
    pinned: bool | None = Field(default=None, description="Whether it is always shown at the beginning of a turn.")
    expires_at: Time | Literal["never"] | None = Field(
        default=None, description="When it ends: a time, or a day in UTC, after now. never: it has no end."
    )


class MemoryForgetArguments(_Arguments):
    """Arguments of ``memory_forget``."""

    ids: Annotated[list[_MemoryId], Field(min_length=1, max_length=_MAX_RESULTS)] = Field(
        description="The ids of the memories, from memory_search or memory_list."
    )


class MemoryAddArguments(_Arguments):
    """Arguments of ``memory_add``."""

    text: _Text = Field(
        description="The text to remember, as a sentence.", json_schema_extra={"maxLength": MAX_CHARACTERS}
    )
    role: Literal["user", "assistant"] = Field(default="user", description="The speaker.")
    message_id: Annotated[str, StringConstraints(pattern=r"^[^\x00-\x1f\x7f]+$", max_length=256)] | None = Field(
        default=None,
        description="A name for the text: the same text with the same name is remembered once. Without a name, each "
        "call makes a new memory.",
    )
    tags: Tags = Field(default=(), description="Words by which it is found again, such as a topic.")
    metadata: Metadata | None = Field(
        default=None, description="Values by which it is found again, such as the number of an order."
    )
    expires_at: Time | None = Field(
        default=None,
        description="When it ends, such as a code, an offer or a trip: a time, or a day in UTC, after now. From then "
        "on memory_search finds it only for questions about the past.",
    )


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
