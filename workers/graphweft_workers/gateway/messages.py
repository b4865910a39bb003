"""``POST /messages``: the messages of a group, as clients of Graphiti's server send them, become episodes."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Final, Literal, cast
from uuid import uuid4

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    Strict,
    StringConstraints,
    ValidationError,
)
from pydantic_core import to_json

from graphweft_contracts import Event
from graphweft_contracts.clock import SYSTEM_CLOCK
from graphweft_contracts.events import Name
from graphweft_contracts.memory import derived_id
from graphweft_workers.gateway.cloud_events import check_fitting
from graphweft_workers.gateway.limits import GatewayLimits, read_json
from graphweft_workers.gateway.patterns import GROUP, LINE, NO_NUL
from graphweft_workers.gateway.problems import MAX_FAULTS, Problem, faults_of, pointer

type Refusal = Callable[[Event], str | None]
"""Returns the reason why an event would have no effect, without quoting it, or None."""

SOURCE: Final = "/graphweft/messages"
"""``source`` of the events."""
_DAY: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt _][0-9]{2}:")
_MAX_CONTENT: Final = 999_000
"""Characters of a content. With the speaker in front, it still fits into an episode."""

_Short = Annotated[str, StringConstraints(max_length=256, pattern=NO_NUL)]
_Line = Annotated[str, StringConstraints(max_length=256, pattern=LINE)]


def _dated(value: Any) -> Any:
    if not isinstance(value, str) or not _DAY.match(value):  # clients of this route send texts
        msg = "expected an ISO 8601 time such as 2026-02-01T10:00:00Z"
        raise ValueError(msg)
    return value


def _zoned(value: datetime) -> datetime:
    return value if value.tzinfo else value.replace(tzinfo=UTC)


class PostedMessage(BaseModel):
    """One message. Unknown members are ignored."""

    model_config = ConfigDict(frozen=True, strict=True)

    content: Annotated[str, StringConstraints(max_length=_MAX_CONTENT, pattern=NO_NUL)]
    role_type: Literal["user", "assistant", "system"]
    role: _Line | None = Field(default=None, description="The speaker: the name of a user or an agent.")
    uuid: _Short | None = Field(
        default=None,
        description="The client's own id of the message. The same message with the same id takes effect once.",
    )
    name: _Line | None = Field(default=None, description="Name of the episode.")
    timestamp: Annotated[datetime, Strict(strict=False), BeforeValidator(_dated), AfterValidator(_zoned)] | None = (
        Field(default=None, description="Time of the message, in UTC unless it has a zone; by default now.")
    )
    source_description: Annotated[str, StringConstraints(max_length=4_096, pattern=NO_NUL)] | None = None

    @property
    def text(self) -> str:
        """The content of the episode, with the speaker in front."""
        return f"{self.role or ''}({self.role_type}): {self.content}"

    def event_id(self, group_id: str, schema_id: str | None) -> str:
        """Return the id of its event. A message with a uuid or a timestamp always has the same id.

        The text is part of the id: a corrected text with the same uuid is another event, and is not dropped.
        """
        said = (group_id, schema_id or "", self.role or "", self.role_type, self.content)
        if self.uuid:
            return derived_id("message", *said, "uuid", self.uuid)
        if self.timestamp is not None:
            return derived_id("message", *said, "timestamp", self.timestamp.isoformat(), self.name or "")
        return str(uuid4())


class MessagesRequest(BaseModel):
    """Messages of one group, in their order. Unknown members are ignored."""

    model_config = ConfigDict(frozen=True, strict=True)

    group_id: Annotated[str, StringConstraints(min_length=1, max_length=256, pattern=GROUP)] = Field(
        description="The group: the scope `user_id` and the chat of the episodes."
    )
    messages: tuple[PostedMessage, ...]
    schema_id: Name | None = Field(
        default=None,
        description="The ontology of the episodes; by default `agent_memory_v1` for contents with `<graphiti_episode`.",
    )


def read_messages(body: bytes, *, app_id: str, limits: GatewayLimits, refusal: Refusal | None) -> list[Event]:
    """Return an ``episode.add`` event of ``app_id`` for each message, in their order.

    Raises ``Problem`` for the whole request when it breaks the contract, or when a message is too large or would have
    no effect.
    """
    raw: Any = read_json(body)
    given: Any = cast("dict[str, Any]", raw).get("messages") if isinstance(raw, dict) else None
    count = len(given) if isinstance(given, list) else 0  # pyright: ignore[reportUnknownArgumentType]
    if count > limits.events:
        detail = f"a request has at most {limits.events} messages, and this one has {count:,}: send smaller requests"
        raise Problem(422, "batch-too-large", detail)
    try:
        request = MessagesRequest.model_validate_json(to_json(raw))
        events = _events(request, app_id)
    except ValidationError as error:
        detail = "the messages break the contract; nothing was taken"
        raise Problem(422, "invalid-messages", detail, faults=faults_of(error)) from None
    places = [pointer("messages", number) for number in range(len(events))]
    check_fitting(events, places)
    if refusal is not None:
        _check_effect(events, places, refusal)
    return events


def _events(request: MessagesRequest, app_id: str) -> list[Event]:
    now = SYSTEM_CLOCK.now()
    made: list[Event] = []
    for number, message in enumerate(request.messages):
        said = {
            "user_id": request.group_id,
            "content": message.text,
            "episode_type": "message",
            "name": message.name or None,
            "schema_id": request.schema_id,
            "reference_time": None if message.timestamp is None else message.timestamp.isoformat(),
            "source_description": message.source_description or None,
            "episode_id": message.uuid or None,
        }
        made.append(
            Event.create(
                "episode.add",
                app_id=app_id,
                chat_id=request.group_id,
                user_id=request.group_id,
                data={name: value for name, value in said.items() if value is not None},
                id=message.event_id(request.group_id, request.schema_id),
                source=SOURCE,
                time=now + timedelta(microseconds=number),  # keeps the order of messages without a time
            )
        )
    return made


def _check_effect(events: Sequence[Event], places: Sequence[str], refusal: Refusal) -> None:
    faults: list[dict[str, str]] = []
    for event, place in zip(events, places, strict=True):
        if (why := refusal(event)) is not None:
            faults.append({"pointer": place, "detail": why})
        if len(faults) == MAX_FAULTS:
            break
    if faults:
        raise Problem(422, "no-effect", "a message would have no effect; nothing was taken", faults=faults)
