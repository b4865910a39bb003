"""What a memory client keeps of a message, whatever form it has."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import UTC, datetime
from enum import Enum
from types import SimpleNamespace
from typing import Any

import pytest

from graphweft import Client, MemoryClient
from graphweft.transport import Outgoing
from graphweft_contracts import ContextReply, ContextRequest, wire


class Bus:
    """Keeps the memories that are sent."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []

    async def append(self, events: Sequence[Outgoing]) -> list[str]:
        self.messages += [message for event in events for message in wire.decode(event.fields).data["messages"]]
        return ["0:1"] * len(events)

    async def request(self, request: ContextRequest) -> ContextReply:
        return ContextReply(id=request.id)

    async def aclose(self) -> None:
        pass


class Role(str, Enum):  # noqa: UP042 - the form of LlamaIndex
    USER = "user"


async def remembered(*messages: Any, **settings: Any) -> list[tuple[str, str]]:
    """Return the roles and texts of what is remembered of these messages."""
    bus = Bus()
    client = Client("redis://127.0.0.1:1", transport=bus)
    await MemoryClient(client, app_id="shop", user_id="u1", **settings).remember(messages)
    await client.aclose()
    return [(message["role"], message["text"]) for message in bus.messages]


async def test_reasoning_of_the_assistant_is_not_remembered_unless_it_is_kept() -> None:
    message = {"role": "assistant", "content": "<think>They want tea.</think>Tea."}
    assert await remembered(message) == [("assistant", "Tea.")]
    assert await remembered(message, keep_reasoning=True) == [("assistant", message["content"])]
    assert await remembered({"role": "assistant", "content": "<think>cut off"}) == []


@pytest.mark.parametrize(
    ("message", "call", "fault"),
    [
        ({"expires_at": "2020-01-01"}, {}, "messages: expires_at is not after the time at which this is said"),
        ({"expires_at": "2026-01-01", "time": "2026-01-01"}, {}, "expires_at is not after the time"),
        ({}, {"expires_at": "2020-01-01"}, "messages: expires_at is not after the time at which this is said"),
        ({"expires_at": "Friday"}, {}, "messages: expires_at: .*expected a time such as 2026-02-01T10:00:00Z"),
        ({}, {"expires_at": "Friday"}, "expires_at: .*expected a time such as 2026-02-01T10:00:00Z"),
        ({"expiration_date": "2999-01-01"}, {}, "unknown field 'expiration_date'.*did you mean 'expires_at'"),
    ],
)
async def test_an_end_that_is_none_is_refused_and_not_left_out(
    message: dict[str, Any], call: dict[str, Any], fault: str
) -> None:
    client = Client("redis://127.0.0.1:1", transport=(bus := Bus()))
    memories = MemoryClient(client, app_id="shop", user_id="u1")
    with pytest.raises(ValueError, match=fault):
        await memories.remember([{"role": "user", "text": "The code is 4471."} | message], **call)
    await client.aclose()
    assert bus.messages == []


async def test_a_message_has_its_own_end_or_that_of_the_call() -> None:
    client = Client("redis://127.0.0.1:1", transport=(bus := Bus()))
    code = {"role": "user", "text": "The code is 4471."}
    long_ago = datetime(2020, 1, 1, tzinfo=UTC)
    for messages, call in (
        ([code, code | {"expires_at": "2999-02-01"}], {"expires_at": "2999-01-01"}),
        ([code], {"time": long_ago, "expires_at": "2020-02-01"}),
    ):
        await MemoryClient(client, app_id="shop", user_id="u1").remember(messages, **call)
    await client.aclose()
    ends = [message["expires_at"][:10] for message in bus.messages]
    assert ends == ["2999-01-01", "2999-02-01", "2020-02-01"]


async def test_a_user_may_write_marks_of_reasoning() -> None:
    assert await remembered({"role": "user", "text": "<think>Why</think> tea?"}) == [
        ("user", "<think>Why</think> tea?")
    ]


async def test_parts_of_a_content_are_read_as_in_chats(caplog: pytest.LogCaptureFixture) -> None:
    picture = {"type": "image_url", "image_url": {"url": "data:"}}
    with caplog.at_level(logging.WARNING, "graphweft.memory"):
        found = await remembered(
            {"role": "user", "content": [{"type": "text", "text": "Which cake?"}, picture, picture]},
            {
                "role": "assistant",
                "content": [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "This."}],
            },
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", "content": "secret"}]},
            {"role": "user", "content": [picture]},
        )
    assert found == [("user", "Which cake?"), ("assistant", "This.")]
    assert [record.getMessage() for record in caplog.records] == [
        "parts of messages of the form image_url are not remembered: only text is"
    ]


@pytest.mark.parametrize(
    ("role", "kept"),
    [
        ("human", "user"), ("model", "assistant"), ("ai", "assistant"), ("developer", "system"), (Role.USER, "user"),
        ("tool", None), ("narrator", None), (None, None), (7, None),
    ],
)  # fmt: skip
async def test_roles_have_the_names_of_all_forms_of_chats(role: Any, kept: str | None) -> None:
    message = SimpleNamespace(role=role, content="Tea?")
    found = await remembered(message, memory_roles=("user", "assistant", "system"))
    assert found == ([] if kept is None else [(kept, "Tea?")])
