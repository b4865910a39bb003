"""What type checkers see of the contracts. mypy and basedpyright read this file; nothing runs it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, assert_type

from graphweft_contracts import (
    LIFECYCLE,
    AgentTurnComplete,
    Block,
    ContextReply,
    ContextRequest,
    DeadLetter,
    Event,
    InvalidEvent,
    Payload,
    Permanent,
    Transient,
)
from graphweft_contracts.events import data_of, known
from graphweft_contracts.wire import decode, encode


class OrderEvent(Event):
    """A runtime's own subclass."""


def events(received: datetime, data: Mapping[str, int]) -> None:
    """Events are made, encoded and decoded without a cast."""
    event = Event.create("order.paid", app_id="shop", chat_id="c1", data=data, context={"user": "u1"}, time=received)
    assert_type(event, Event)
    assert_type(OrderEvent.create("order.paid", app_id="shop", chat_id="c1"), OrderEvent)
    assert_type(event.time, datetime)
    assert_type(event.workflow, str | None)
    assert_type(event.agent, str | None)
    assert_type(event.key, str)
    assert_type(event.identity, tuple[str, str])
    assert_type(event.context, dict[str, Any])
    assert_type(event.data, dict[str, Any])
    assert_type(encode(event), dict[bytes, bytes])
    assert_type(decode({b"data": b"{}"}, received=received), Event)
    assert_type(LIFECYCLE, Mapping[str, type[Payload]])
    assert_type(AgentTurnComplete(agent_name="Planner").success, bool | None)
    Event.create("order.paid", "shop", "c1")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    Event.create("order.paid", app_id="shop", chat_id=1)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    event.id = "other"  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]


def context(reply: ContextReply, letter: DeadLetter) -> None:
    """Requests and replies keep their literal types."""
    request = ContextRequest(id="r1", app_id="shop", workflow="Sales", agent="Planner", chat_id="c1", deadline_ms=1)
    assert_type(request.context, dict[str, Any])
    assert_type(reply.injected, dict[str, Any])
    assert_type(reply.blocks, tuple[Block, ...])
    assert_type(reply.text, str)
    assert_type(reply.partial, bool)
    assert_type(letter.fields, dict[str, str])


def data(handed_to: str | None) -> None:
    """The fields of an event's data are those of its payload model; pyright knows their names, too."""
    found = data_of(AgentTurnComplete, agent_name="Planner", outcome="failed", handed_to=known(handed_to))
    assert_type(found, dict[str, Any])
    data_of(AgentTurnComplete, agent_name="Planner", outcom="failed")  # pyright: ignore[reportCallIssue]
    data_of(AgentTurnComplete, agent_name="Planner", outcome="lost")  # pyright: ignore[reportArgumentType]
    data_of(AgentTurnComplete, outcome="failed")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


def errors(permanent: Permanent, transient: Transient) -> None:
    """The first split of the tree says what a caller does."""
    assert_type(transient.retry_after_s, float)
    broken: Permanent = InvalidEvent("no data")
    assert_type(permanent.args + broken.args, tuple[Any, ...])
