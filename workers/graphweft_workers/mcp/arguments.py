"""What the tools take. Nothing here names an app, an application, an agent of memories or a user."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints

from graphweft_contracts.memory import ScopeName

MOST_CHARACTERS: Final = 4_096
"""Of what is to be remembered: an answer of the usual 2,000 tokens has room for it, and a search for its words finds it
rather than what else it is about."""
_LONGEST_QUERY: Final = 100_000
"""Characters: a turn's message may be a pasted file. Written as JSON it is below what the bus takes, whatever its
letters are."""
_MOST_RESULTS: Final = 50


def _without_nul(text: str) -> str:
    return text.replace("\0", "")  # no graph keeps it


def _some(text: str) -> str:
    if not text.strip():
        msg = "the text is empty: say what is to be remembered"
        raise ValueError(msg)
    if len(text) > MOST_CHARACTERS:
        msg = (
            f"it has {len(text)} characters, and at most {MOST_CHARACTERS} are taken: remember it in parts, each of "
            "which can be understood by itself"
        )
        raise ValueError(msg)
    return text


_Query = Annotated[str, StringConstraints(max_length=_LONGEST_QUERY), AfterValidator(_without_nul)]
_Tokens = Annotated[
    int | None, Field(ge=1, description="Most tokens of the answer; the server's own limit holds besides.")
]


class _Arguments(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class MemorySearchArguments(_Arguments):
    """Of ``memory_search``."""

    query: _Query = Field(default="", description="What is searched for; empty: the latest.")
    of: Literal["all", "memories", "facts", "preferences", "summaries"] = Field(
        default="all",
        description="memories: what was said; facts: what holds now; preferences: what users want; summaries: of older "
        "conversations; all: these four together.",
    )
    top_k: int = Field(default=5, ge=1, le=_MOST_RESULTS, description="Most results.")
    thread_id: ScopeName | None = Field(
        default=None, description="Only memories of this conversation thread, of those that are in reach."
    )
    max_tokens: _Tokens = None


class MemoryAddArguments(_Arguments):
    """Of ``memory_add``."""

    text: Annotated[str, AfterValidator(_without_nul), AfterValidator(_some)] = Field(
        description="What is to be remembered, as a sentence.", json_schema_extra={"maxLength": MOST_CHARACTERS}
    )
    role: Literal["user", "assistant"] = Field(default="user", description="Who said it.")
    message_id: Annotated[str, StringConstraints(pattern=r"^[^\x00-\x1f\x7f]+$", max_length=256)] | None = Field(
        default=None,
        description="A name for it: the same text with the same name, added again, is remembered once. Without one, "
        "each call makes a memory.",
    )


class ContextArguments(_Arguments):
    """Of ``get_context``."""

    agent: str | None = Field(default=None, description="Whose next turn it is; may be left out where there is one.")
    query: _Query | None = Field(
        default=None, description="What the turn is about: rules read it as the last message of the conversation."
    )
    max_tokens: _Tokens = None
