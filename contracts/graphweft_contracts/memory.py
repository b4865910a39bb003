"""Memories of agents: their scope, and the events that create, embed, summarize and delete them.

Every change of memory is an event, including a model's answer, so a replay rebuilds memory without a model. Ids derive
from the event, so a repeated event creates nothing twice.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Annotated, Any, ClassVar, Final, Literal, cast
from uuid import NAMESPACE_URL, uuid5

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SkipValidation,
    Strict,
    StringConstraints,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError
from typing_extensions import Self, override

from graphweft_contracts.events import Name, Payload, register_payloads
from graphweft_contracts.moments import EXPECTED, Moment, Time

MemoryRole = Literal["user", "assistant", "system"]
MEMORY_ROLES: Final[tuple[MemoryRole, ...]] = ("user", "assistant", "system")
SCOPE_PATTERN: Final = r"^[^\x00-\x20\x7f]([^\x00-\x1f\x7f]*[^\x00-\x20\x7f])?$"
"""No control characters, and no blank at either end: the index of a graph server may lose such a value."""
SCOPES: Final = ("application_id", "agent_id", "user_id", "thread_id")
"""The scopes of a memory and of a search for memories; all given scopes must match."""
LONGEST_SCOPE: Final = 256
ScopeName = Annotated[str, StringConstraints(min_length=1, pattern=SCOPE_PATTERN, max_length=LONGEST_SCOPE)]
_NO_SCOPE: Final = "a memory needs a scope: give at least one of application_id, agent_id, user_id, thread_id"
SCOPE_REQUIRED: Final[dict[str, Any]] = {
    "anyOf": [{"required": [name], "properties": {name: {"type": "string"}}} for name in SCOPES]
}
"""The scope requirement, for readers of the JSON Schema."""
_Id = Annotated[str, Field(min_length=1, max_length=256)]
_OTHER_NAMES: Final = {
    **dict.fromkeys(("content", "message", "body"), "text"),
    **dict.fromkeys(("name", "author", "speaker"), "author_name"),
    **dict.fromkeys(("timestamp", "created_at", "date"), "time"),
    **dict.fromkeys(("expiration_date", "expires", "valid_until"), "expires_at"),
    "id": "message_id",
}
"""Names of fields of messages elsewhere, and ours."""
_FIELD_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")
_MOST_MESSAGES: Final = 1_000
_MOST_CHARACTERS: Final = 1_000_000
_MOST_DIMENSIONS: Final = 8_192
MOST_TAGS: Final = 32
"""Tags of a memory, and entries of its metadata."""
Tag = Annotated[str, StringConstraints(min_length=1, max_length=128, pattern=r"^[^\x00-\x1f\x7f]+$")]
"""A tag, or the name of an entry of metadata."""


def _metadata_value(value: Any, check: ValidatorFunctionWrapHandler) -> Any:
    """Check a value of metadata with one error, and not one for each type that it is not."""
    try:
        return check(value)
    except ValidationError:
        expected = "expected a text of at most 1,024 characters, a number, true or false"
        raise PydanticCustomError("metadata_value", expected) from None  # pyright: ignore[reportArgumentType]


MetadataValue = Annotated[
    Annotated[str, StringConstraints(max_length=1_024)]
    | bool
    | Annotated[int, Field(ge=-(2**53), le=2**53)]
    | Annotated[float, Field(allow_inf_nan=False)],
    WrapValidator(_metadata_value),
]
"""A value by which memories are filtered: compared as JSON, and 1.0 equals 1."""
Metadata = Annotated[dict[Tag, MetadataValue], Field(max_length=MOST_TAGS)]


def _as_tuple(value: Any) -> Any:
    if not isinstance(value, list | tuple):
        raise ValueError("expected a list")
    return tuple(cast("Iterable[Any]", value))


AS_TUPLE: Final = BeforeValidator(_as_tuple)
"""Lets a strict model read a list of JSON as a tuple."""
Tags = Annotated[tuple[Tag, ...], Field(max_length=MOST_TAGS), AS_TUPLE]
_LARGEST: Final = 3.4028234663852886e38
_SMALLEST: Final = 1.5e-45
_FLOATS: Final[dict[str, Any]] = {
    "items": {"type": "number", "minimum": -_LARGEST, "maximum": _LARGEST},
    "contains": {"anyOf": [{"minimum": _SMALLEST}, {"maximum": -_SMALLEST}]},
}
"""32-bit numbers that are not all zero, for readers of the JSON Schema."""


class MemoryScope(BaseModel):
    """Whose memories: at least one of the four, and all that are given apply. Without any it raises ``ValueError``."""

    model_config = ConfigDict(defer_build=True, frozen=True, extra="forbid", json_schema_extra=SCOPE_REQUIRED)

    application_id: ScopeName | None = Field(default=None, description="Memories of one application.")
    agent_id: ScopeName | None = Field(default=None, description="Memories of one agent.")
    user_id: ScopeName | None = Field(default=None, description="Memories of one user.")
    thread_id: ScopeName | None = Field(default=None, description="Memories of one conversation thread.")

    @model_validator(mode="after")
    def _limited(self) -> Self:
        if not self.given:
            raise ValueError(_NO_SCOPE)
        return self

    @property
    def given(self) -> dict[str, str]:
        """The scopes that are given, by name, in the order of ``SCOPES``."""
        return {name: value for name in SCOPES if (value := getattr(self, name)) is not None}


def _end(value: Any, check: ValidatorFunctionWrapHandler) -> Any:
    """Check the end of an update with one error, and not one for each type that it is not."""
    try:
        return check(value)
    except ValidationError:
        raise PydanticCustomError("end", f"{EXPECTED}; or 'never'") from None  # pyright: ignore[reportArgumentType]


def check_end(ends: datetime | Literal["never"] | None, said: datetime | None) -> None:
    """Raise ``ValueError`` for an end that is not after the time at which a memory says it; None: that is not known."""
    if isinstance(ends, datetime) and said is not None and ends <= said:
        msg = (
            "expires_at is not after the time at which this is said: give a later end, or, of what was said long ago, "
            "its time, too"
        )
        raise ValueError(msg)


class _Payload(Payload):
    """A payload whose chat becomes a property of memories, by which they are found."""

    chat_pattern: ClassVar[str | None] = SCOPE_PATTERN


class ScopedPayload(_Payload):
    """A payload that belongs to a scope."""

    model_config = ConfigDict(defer_build=True, json_schema_extra=SCOPE_REQUIRED)

    application_id: ScopeName | None = None
    agent_id: ScopeName | None = None
    user_id: ScopeName | None = None
    thread_id: ScopeName | None = None

    @model_validator(mode="after")
    def _limited(self) -> Self:
        if all(getattr(self, name) is None for name in SCOPES):
            raise ValueError(_NO_SCOPE)
        return self

    @property
    def scope(self) -> MemoryScope:
        """The scope of the memory."""
        return MemoryScope(**{name: getattr(self, name) for name in SCOPES})


class MemoryMessage(BaseModel):
    """One message that is to be remembered."""

    model_config = ConfigDict(defer_build=True, frozen=True, extra="forbid")

    role: MemoryRole
    text: Annotated[str, Field(min_length=1, max_length=_MOST_CHARACTERS)]
    time: Time | None = Field(default=None, description="When it was said; without it, the event's time.")
    message_id: Name | None = Field(default=None, description="The runtime's own name of the message.")
    author_name: Name | None = None
    tags: Tags | None = Field(default=None, description="Words by which it is filtered.")
    metadata: Metadata | None = Field(
        default=None, description="Names and values by which it is filtered: texts, numbers, true and false."
    )
    expires_at: Time | None = Field(
        default=None,
        description="Its end, after its time: from then on only searches about the past and `include_ended` find it.",
    )

    @model_validator(mode="after")
    def _ends_later(self) -> Self:
        check_end(self.expires_at, self.time)
        return self

    @model_validator(mode="before")
    @classmethod
    def _known(cls, value: Any) -> Any:
        fields: Any = value
        if isinstance(value, Mapping):
            for name in fields:
                if name not in cls.model_fields:
                    raise PydanticCustomError("unknown_field", "{fault}", {"fault": unknown_field(name)})
        return fields

    @property
    def searched(self) -> str:
        """The text for searches: the author, if known, and the text, because questions name people."""
        return _searched(self.author_name, self.text)


def _searched(author: str | None, text: str) -> str:
    return f"{author}: {text}" if author else text


def with_text(message: Any) -> Any:
    """Return a message that somebody gives with its ``content``, as chat APIs name it, as ``text``."""
    if not isinstance(message, Mapping):
        return message
    fields = cast("Mapping[str, Any]", message)
    if "text" in fields or not isinstance(fields.get("content"), str):
        return fields
    return {"text" if name == "content" else name: value for name, value in fields.items()}


class MemoryAdd(ScopedPayload):
    """``memory.add``: messages are to be remembered, within a scope."""

    messages: Annotated[tuple[MemoryMessage, ...], Field(min_length=1, max_length=_MOST_MESSAGES)]
    metadata: SkipValidation[dict[str, Any] | None] = Field(
        default=None,
        description="What another store kept with an imported memory. Rules read it; memory stores the metadata of "
        "messages only.",
    )

    @override
    def check_at(self, time: datetime) -> None:
        """See ``Payload.check_at``: what has no time of its own has that of the event."""
        for number, message in enumerate(self.messages):
            try:
                check_end(message.expires_at, message.time or time)
            except ValueError as error:
                raise ValueError(f"messages.{number}: {error}") from None

    @classmethod
    @override
    def renamed(cls, data: dict[str, Any]) -> dict[str, Any]:
        """See ``Payload.renamed``: ``content`` of a message is its ``text``, and fields of a message are the only one.

        Without ``messages``, a ``text`` or ``content`` beside the scope is what a user says.
        """
        if "messages" not in data and not data.keys().isdisjoint(("text", "content")):
            own = {*MemoryMessage.model_fields, "content"}
            message = {"role": "user", **{name: value for name, value in data.items() if name in own}}
            data = {**{name: value for name, value in data.items() if name not in own}, "messages": [message]}
        messages: Any = data.get("messages")
        if not isinstance(messages, list | tuple):
            return data
        return {**data, "messages": [with_text(each) for each in cast("list[Any]", messages)]}


class MemoryEmbedded(_Payload):
    """``memory.embedded``: a model has turned the text of a memory into a vector."""

    memory_id: _Id
    model: Name = Field(description="Which model; vectors of different models are never compared.")
    embedding: Annotated[tuple[float, ...], Field(min_length=1, max_length=_MOST_DIMENSIONS)] = Field(
        description="The vector; its values are kept as 32-bit floating point numbers.",
        json_schema_extra=_FLOATS,
    )
    version: Name | None = Field(
        default=None,
        description="The version of the text, as `version_of` names it; without it the text as it was added.",
    )

    @field_validator("embedding")
    @classmethod
    def _usable(cls, value: tuple[float, ...]) -> tuple[float, ...]:
        try:
            rounded = struct.unpack(f"{len(value)}f", struct.pack(f"{len(value)}f", *value))
        except (OverflowError, struct.error) as error:
            msg = "a number does not fit into 32 bits"
            raise ValueError(msg) from error
        if not all(-3.5e38 < number < 3.5e38 for number in rounded):  # False for NaN, too
            msg = "a vector holds finite numbers only"
            raise ValueError(msg)
        if not any(rounded):
            msg = "a vector of zeros has no direction, so nothing can be compared with it"
            raise ValueError(msg)
        return rounded


class ExtractedFact(BaseModel):
    """Something that a conversation says about the world, true from a time on until another fact takes its place.

    Of the facts of one scope with equal ``subject`` and ``predicate`` the later one ends the validity of the earlier.
    """

    model_config = ConfigDict(defer_build=True, frozen=True, extra="forbid")

    subject: Name
    predicate: Name
    object: Name
    text: Annotated[str, Field(max_length=4_096)] = Field(default="", description="The fact as a sentence.")
    valid_from: Moment | None = Field(default=None, description="Without it, the time of the event.")
    memory_ids: tuple[_Id, ...] = Field(default=(), description="The memories that it was taken from.")


class ExtractedPreference(BaseModel):
    """Something that a user likes, wants or avoids."""

    model_config = ConfigDict(defer_build=True, frozen=True, extra="forbid")

    text: Annotated[str, Field(min_length=1, max_length=4_096)]
    stated_at: Moment | None = Field(default=None, description="Without it, the time of the event.")
    memory_ids: tuple[_Id, ...] = Field(default=(), description="The memories that it was taken from.")


class MemorySummarized(ScopedPayload):
    """``memory.summarized``: older memories of a conversation were condensed."""

    summary: Annotated[str, Field(min_length=1, max_length=_MOST_CHARACTERS)]
    memory_ids: Annotated[tuple[_Id, ...], Field(min_length=1, max_length=_MOST_MESSAGES)] = Field(
        description="The memories that the summary stands for; one that has a summary already gets no second one."
    )
    facts: Annotated[tuple[ExtractedFact, ...], Field(max_length=_MOST_MESSAGES)] = ()
    preferences: Annotated[tuple[ExtractedPreference, ...], Field(max_length=_MOST_MESSAGES)] = Field(
        default=(), description="Of the scope's user; without a user they are left out."
    )
    model: Name = Field(description="Who wrote the summary.")


_CHANGE_REQUIRED: Final[dict[str, Any]] = {
    "anyOf": [
        {"required": [name], "properties": {name: {"type": kind}}}
        for name, kind in (
            ("text", "string"),
            ("tags", "array"),
            ("metadata", "object"),
            ("pinned", "boolean"),
            ("expires_at", "string"),
        )
    ]
}
"""That an update changes something, for readers of the JSON Schema."""


class MemoryChanges(BaseModel):
    """What an update changes of a memory. What is not given, or null, stays as it is."""

    model_config = ConfigDict(defer_build=True, frozen=True, extra="forbid")

    text: Annotated[str, Field(min_length=1, max_length=_MOST_CHARACTERS)] | None = Field(
        default=None, description="What the memory says from now on."
    )
    time: Time | None = Field(default=None, description="Since when it says so; without it, the event's time.")
    tags: Tags | None = Field(default=None, description="All tags from now on; empty: none.")
    metadata: Metadata | None = Field(default=None, description="All metadata from now on; empty: none.")
    pinned: Annotated[bool, Strict()] | None = Field(
        default=None, description="Whether it is always shown, never summarized, and never forgotten by age or number."
    )
    expires_at: Annotated[Time | Literal["never"], WrapValidator(_end)] | None = Field(
        default=None, description="Its end from now on, after the time of the update; `never`: it has none."
    )

    @model_validator(mode="after")
    def _changes(self) -> Self:
        if all(each is None for each in (self.text, self.tags, self.metadata, self.pinned, self.expires_at)):
            msg = "it changes nothing: give text, tags, metadata, pinned or expires_at"
            raise ValueError(msg)
        check_end(self.expires_at, self.time)
        return self


class MemoryUpdate(MemoryChanges, _Payload):
    """``memory.update``: a memory says something else, or is tagged or pinned. Said in the chat in which it was added.

    What it said before is kept as a version that has ended. What is not given, or null, stays as it is.
    """

    model_config = ConfigDict(defer_build=True, json_schema_extra=_CHANGE_REQUIRED)

    memory_id: _Id
    author_name: Name | None = Field(default=None, description="Who says so; searches find the text by this name too.")

    @override
    def check_at(self, time: datetime) -> None:
        """See ``Payload.check_at``: without a time of its own, it says so from the event on."""
        check_end(self.expires_at, self.time or time)

    @classmethod
    @override
    def renamed(cls, data: dict[str, Any]) -> dict[str, Any]:
        """See ``Payload.renamed``: ``content`` is its ``text``."""
        return dict(with_text(data))

    @property
    def searched(self) -> str | None:
        """The new text for searches, as that of a message."""
        return None if self.text is None else _searched(self.author_name, self.text)


class MemoryForget(_Payload):
    """``memory.forget``: single memories have outlived their time. Said in the chat in which they were added."""

    memory_ids: Annotated[tuple[_Id, ...], Field(min_length=1, max_length=_MOST_MESSAGES)]
    keep_statements: bool = Field(
        default=False, description="What users stated in them stays, sentence by sentence, and is found in their place."
    )


class MemoryErase(_Payload):
    """``memory.erase``: all that is remembered of a user is erased, and what the log has before stays out for ever."""

    user_id: ScopeName
    before: Moment | None = Field(
        default=None,
        description="Only what the log took up to this time is erased; without it, all that it has before the event.",
    )


Verdict = Literal["same", "ends", "contradicts"]
"""What a model may say of two statements that have to do with each other."""


class StatementJudged(_Payload):
    """``statement.judged``: a model has compared two statements of a user. Said in the chat of the later one.

    It has an effect only while both are as the model saw them, and ``ends`` only where the later one may end the
    earlier by what both are about. The first verdict of a pair counts.
    """

    new: _Id = Field(description="The id of the later statement.")
    old: _Id = Field(description="The id of the earlier statement.")
    verdict: Verdict
    at: Moment = Field(description="When the later one was said.")
    by: Name = Field(description="Which model.")
    reason: Annotated[str, Field(max_length=512)] = Field(default="", description="Why, as the model says.")
    saw: Annotated[dict[_Id, _Id], Field(min_length=2, max_length=2)] = Field(
        description="The digest of each of the two statements, by its id, as the model saw it."
    )
    attempt: Annotated[int, Field(ge=1, le=9)] = Field(
        default=1, description="How often the pair was judged: again if a statement had changed meanwhile."
    )

    @model_validator(mode="after")
    def _of_both(self) -> Self:
        if self.saw.keys() != {self.new, self.old}:
            msg = "saw has the digests of the two statements: of new and of old"
            raise ValueError(msg)
        return self


class StatementUnjudged(_Payload):
    """``statement.unjudged``: a verdict is taken back. Said in the chat of the later statement."""

    new: _Id = Field(description="The id of the later statement.")
    old: _Id = Field(description="The id of the earlier statement.")


MEMORY: Final[Mapping[str, type[Payload]]] = {
    "memory.add": MemoryAdd,
    "memory.embedded": MemoryEmbedded,
    "memory.summarized": MemorySummarized,
    "memory.update": MemoryUpdate,
    "memory.forget": MemoryForget,
    "memory.erase": MemoryErase,
    "statement.judged": StatementJudged,
    "statement.unjudged": StatementUnjudged,
}
"""The payload models of the event types that change memory."""
register_payloads(MEMORY)


def unknown_field(name: Any, *, also: Iterable[str] = ()) -> str:
    """Return the error for a message with the unknown field ``name``; ``also`` holds further allowed names.

    A long name, or one with blanks, may be a misplaced value, so it is not quoted.
    """
    said = f"unknown field {name!r}" if isinstance(name, str) and _FIELD_NAME.fullmatch(name) else "an unknown field"
    allowed = ", ".join((*MemoryMessage.model_fields, *also))
    near = meant_field(name, (*MemoryMessage.model_fields, *also)) if isinstance(name, str) else None
    hint = f"did you mean {near!r}? If not, " if near else ""
    return f"{said}: a message has {allowed}; {hint}remove it, or store it with an event and a rule of your own"


def meant_field(name: str, known: Iterable[str]) -> str | None:
    """Return the field of a message that is probably meant."""
    from graphweft_contracts.nearest import nearest  # most processes never need it

    near = nearest(name[:64].lower(), [*known, *_OTHER_NAMES])
    return None if near is None else _OTHER_NAMES.get(near, near)


def memory_id(source: str, event_id: str, number: int) -> str:
    """Return the id of the memory that message ``number`` (from 0) of a ``memory.add`` event creates."""
    return derived_id(source, event_id, "memory", str(number))


def version_of(source: str, event_id: str, chat_id: str, memory_id: str) -> str:
    """Return the name of the version of a text that a ``memory.update`` event begins, and the id of the one it ends."""
    return derived_id(source, event_id, "version", chat_id, memory_id)


def metadata_terms(metadata: Mapping[str, Any]) -> list[str]:
    """Return a term for each entry, by which memories are filtered: equal entries have equal terms."""
    return [f"{name}={_written(value)}" for name, value in sorted(metadata.items())]


def _written(value: Any) -> str:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return json.dumps(value, ensure_ascii=False)


def derived_id(*parts: Any) -> str:
    """Return the UUID (version 5) of the parts; different parts have different ids. A number equals its text."""
    return str(uuid5(NAMESPACE_URL, "graphweft" + "".join(map(_encoded, parts))))


def _encoded(part: Any) -> str:
    text = str(part)
    # Ids in graphs and logs have this form for an absent part, so the text "None" has another one.
    return "\n4' None" if text == "None" and part is not None else f"\n{len(text)} {text}"
