"""Events that are not sent are counted, and each reason is logged once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import pytest
from tests.services.virtual_time import VIRTUAL

from graphweft import Client, MemoryClient
from graphweft.adapters.core import Adapter
from graphweft.hooks import GraphInjectionHooks
from graphweft.transport import Outgoing
from graphweft_contracts import ContextReply, ContextRequest, Event, InvalidEvent

FOR_EVER_S = 3600.0
FORBIDDEN = "the gateway answers 403: other-workflow; name a workflow of the token"
IDS = {"app_id": "shop", "chat_id": "c1", "workflow_name": "Sales"}


class Forbidding:
    """A gateway whose token may not send the events."""

    detail = FORBIDDEN

    async def append(self, events: Sequence[Outgoing]) -> list[str]:
        if events:
            raise InvalidEvent(FORBIDDEN)
        return []

    async def request(self, request: ContextRequest) -> ContextReply:
        return ContextReply(id=request.id, reason="invalid_request", detail=self.detail)

    async def aclose(self) -> None:
        pass


def note(number: int, data: Any = None) -> Event:
    return Event.create("note.made", app_id="shop", chat_id="c1", data=data or {}, id=f"n{number}")


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if "not sent" in record.getMessage()]


async def test_equal_refusals_are_one_line_in_a_thousand(caplog: pytest.LogCaptureFixture) -> None:
    async with Client(transport=Forbidding(), clock=VIRTUAL) as client:
        for number in range(1_002):
            assert await client.emit(note(number), wait_s=FOR_EVER_S) is None
        assert client.stats.rejected == 1_002
    assert lines(caplog) == [
        f"event n0 is not sent: {FORBIDDEN}", f"event n1000 is not sent, nor 1000 before it: {FORBIDDEN}"
    ]  # fmt: skip


async def test_events_of_a_closed_client_are_one_line(caplog: pytest.LogCaptureFixture) -> None:
    client = Client(transport=Forbidding(), clock=VIRTUAL)
    await client.aclose()
    for number in range(10):
        await client.emit(note(number))
    assert len(lines(caplog)) == 1


async def test_what_no_json_can_say_is_one_line(caplog: pytest.LogCaptureFixture) -> None:
    async with Client(transport=Forbidding(), clock=VIRTUAL) as client:
        for _ in range(10):
            await client.emit(cast("Event", {"type": "note.made"}))
        assert client.stats.rejected == 10
    assert len(lines(caplog)) == 1


def test_an_adapter_counts_refused_events_and_logs_them_once(caplog: pytest.LogCaptureFixture) -> None:
    adapter = Adapter(Client(transport=Forbidding()), budget_ms=60_000)
    for _ in range(8):
        adapter.start_turn(IDS, "Planner")
        adapter.end_turn(IDS, "Planner")
    assert adapter.flush()
    adapter.close()
    assert (adapter.stats.published, adapter.stats.refused, adapter.stats.errors) == (16, 16, 0)
    assert len(lines(caplog)) == 1


def test_a_refused_memory_of_an_adapter_is_no_failure_of_it() -> None:
    adapter = Adapter(Client(transport=Forbidding()), budget_ms=60_000)

    async def remember(client: Client) -> None:
        await MemoryClient(client, app_id="shop", user_id="ada").remember([{"role": "user", "text": "x"}])

    future = adapter.submit(remember)
    assert future is not None
    assert future.result() is None
    adapter.close()
    assert (adapter.stats.refused, adapter.stats.errors) == (1, 0)


async def test_a_client_counts_refused_events_of_its_turns(caplog: pytest.LogCaptureFixture) -> None:
    async with Client(transport=Forbidding(), clock=VIRTUAL, app_id="shop", workflow="Sales") as client:
        for _ in range(4):
            async with client.turn(agent="Planner", chat="c1"):
                pass
        assert await client.flush(FOR_EVER_S)
        await VIRTUAL.sleep(1)
        assert (client.turns.stats.published, client.turns.stats.refused) == (8, 8)
    assert len(lines(caplog)) == 1


async def test_hooks_log_an_invalid_event_once(caplog: pytest.LogCaptureFixture) -> None:
    hooks = GraphInjectionHooks(Client(transport=Forbidding(), clock=VIRTUAL), app_id="shop", chat_id="c1")
    for _ in range(5):
        await hooks.on_event("tool.call_complete", {}, {})
    await hooks.aclose()
    assert len(lines(caplog)) == 1


def test_a_refused_token_has_one_next_step_that_names_something(caplog: pytest.LogCaptureFixture) -> None:
    bus = Forbidding()
    bus.detail = "the gateway answers 401: no-token; `graphweft token new --app APP` makes a token"
    adapter = Adapter(Client(transport=bus), budget_ms=60_000)
    adapter.start_turn(IDS, "Planner")
    assert adapter.context(IDS, "Planner").reason == "invalid_request"
    adapter.close()
    [line] = [record.getMessage() for record in caplog.records if "no-token" in record.getMessage()]
    assert line.endswith("makes a token)")
