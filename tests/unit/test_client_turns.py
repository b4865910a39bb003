"""Turns of a loop that a caller writes itself: their events, their context, and what cannot go wrong for the caller."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
from tests.adapters.shared.kit import Bus
from tests.declared_fields import check_declared

from graphweft import Client, MemoryScope, SyncClient
from graphweft.transport import BUS_STEP, CLOSED, with_bus_step
from graphweft.turns import Turn

UNREACHABLE = "redis://127.0.0.1:1"


def client_of(bus: Bus, **more: Any) -> Client:
    return Client(UNREACHABLE, app_id="shop", workflow="Sales", transport=bus, **{"budget_ms": 120_000, **more})


def lines(bus: Bus) -> list[str]:
    check_declared(bus.events)
    names = ("agent_name", "turn_number", "tool_name", "success", "outcome", "error_type")
    return [
        " ".join([event.type, *(str(event.data[name]) for name in names if name in event.data)]) for event in bus.events
    ]


async def say(client: Client, **more: Any) -> Turn:
    async with client.turn(agent="Planner", chat="c1", user="ada", **more) as turn:
        turn.tool("weather", arguments={"city": "Oslo"}, result="sunny")
        turn.tool("book", arguments={"room": 7}, error="7 is taken", duration_ms=3.5)
        turn.emit("order.placed", {"order": "o1"})
        turn.answer("Done.")
    return turn


async def test_a_turn_has_one_start_one_end_and_what_happened_between() -> None:
    bus = Bus()
    async with client_of(bus) as client:
        turn = await say(client)
    assert turn.context.text == "## Notes\n- block 1"
    assert lines(bus) == [
        "agent.turn_start Planner 1",
        "tool.call_start Planner 1 weather", "tool.call_complete Planner 1 weather True",
        "tool.call_start Planner 1 book", "tool.call_complete Planner 1 book False",
        "order.placed Planner 1",
        "agent.turn_complete Planner 1 True completed",
    ]  # fmt: skip
    found = [event.data for event in bus.events]
    assert (found[1]["arguments"], found[2]["result"]) == ({"city": "Oslo"}, "sunny")
    assert "duration_ms" not in found[2]
    assert (found[4]["error"], found[4]["duration_ms"]) == ("7 is taken", 3.5)
    assert (found[-1]["response"], found[-1]["context_id"]) == ("Done.", "ctx-1")
    assert {(e.appid, e.chatid, e.workflow, e.userid, e.source) for e in bus.events} == {
        ("shop", "c1", "Sales", "ada", "/graphweft/turns")
    }


async def test_the_context_of_a_turn_reflects_the_turns_before_it_in_the_chat() -> None:
    bus = Bus()
    async with client_of(bus) as client:
        for chat in ("c1", "c2", "c1"):
            async with client.turn(agent="Planner", chat=chat) as turn:
                turn.answer("Hello.")
    assert [request.after for request in bus.requests] == [None, None, "0:1"]


async def test_the_context_of_a_turn_reflects_the_turns_of_its_user_in_other_chats() -> None:
    bus = Bus()
    async with client_of(bus) as client:
        for chat, user in (("c1", "ada"), ("c2", "bob"), ("c3", "ada"), ("c1", None), ("c4", "bob")):
            async with client.turn(agent="Planner", chat=chat, user=user):
                pass
    assert [request.after for request in bus.requests] == [None, None, "0:1", "0:1", "0:3"]


async def test_a_message_is_the_question_and_is_remembered_with_the_answer() -> None:
    bus = Bus()
    async with client_of(bus) as client:
        await say(client, message="Is it sunny?\0", context={"phase": "plan"})
    said = {"last_message": "Is it sunny?\0", "messages": [{"role": "user", "text": "Is it sunny?\0"}]}
    assert bus.requests[0].context == {"phase": "plan", **said}
    memory = bus.events[-1]
    assert (memory.type, memory.data["user_id"], memory.data["thread_id"]) == ("memory.add", "ada", "c1")
    assert [message["text"] for message in memory.data["messages"]] == ["Is it sunny?", "Done."]
    check_declared(bus.events)
    assert all(event.data["context"] == {"phase": "plan"} for event in bus.events)


async def test_an_error_fails_the_turn_and_passes_through() -> None:
    bus = Bus()
    async with client_of(bus) as client:
        with pytest.raises(ZeroDivisionError):
            async with client.turn(agent="Planner", chat="c1", message="divide") as turn:
                turn.answer(str(1 / 0))
    assert lines(bus)[1:] == [
        "agent.turn_complete Planner 1 False failed ZeroDivisionError",
        "workflow.error Planner 1 ZeroDivisionError",
    ]


async def test_a_cancelled_turn_has_failed() -> None:
    bus = Bus()
    async with client_of(bus) as client:
        begun = asyncio.Event()

        async def go() -> None:
            async with client.turn(agent="Planner", chat="c1"):
                begun.set()
                await asyncio.Event().wait()

        task = asyncio.create_task(go())
        await begun.wait()
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
    assert lines(bus)[1] == "agent.turn_complete Planner 1 False failed CancelledError"


async def test_turns_of_one_chat_at_the_same_time_have_their_own_tools() -> None:
    bus = Bus()
    async with (
        client_of(bus) as client,
        client.turn(agent="Planner", chat="c1") as first,
        client.turn(agent="Planner", chat="c1") as second,
    ):
        first.tool("weather")
        second.tool("book")
    assert [line for line in lines(bus) if "complete" in line] == [
        "tool.call_complete Planner 1 weather True", "tool.call_complete Planner 2 book True",
        "agent.turn_complete Planner 2 True completed", "agent.turn_complete Planner 1 True completed",
    ]  # fmt: skip


@pytest.mark.parametrize("way", ["fails", "hangs", "garbage"])
async def test_a_broken_bus_changes_nothing_for_the_caller(way: str, caplog: pytest.LogCaptureFixture) -> None:
    client = client_of(Bus(way), budget_ms=20)
    for _ in range(3):
        turn = await say(client, message="hello")
        assert (turn.context.text, turn.context.blocks) == ("", ())
    await client.aclose(drain_s=0)
    assert client.turns.stats.asked == client.turns.stats.without_context == 3
    assert sum("turns without context" in record.getMessage() for record in caplog.records) == 1


class Odd:
    """A value whose text cannot be had."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


async def test_values_of_every_kind_are_no_error(caplog: pytest.LogCaptureFixture) -> None:
    bus = Bus()
    async with client_of(bus) as client:
        async with client.turn(agent="Planner", chat="c1", context={"odd": object()}) as turn:
            turn.tool("weather", result=object(), arguments=Odd())
            turn.emit("Not A Type", {})
            turn.emit("own.thing", 7)  # type: ignore[arg-type]
            turn.answer(Odd())  # type: ignore[arg-type]
        turn.tool("late")
    assert [event.type for event in bus.events] == [
        "agent.turn_start", "tool.call_start", "tool.call_complete", "agent.turn_complete"
    ]  # fmt: skip
    assert (client.turns.stats.invalid, client.turns.stats.errors) == (1, 1)


async def test_without_an_app_nothing_is_sent_and_the_reason_is_named(caplog: pytest.LogCaptureFixture) -> None:
    bus = Bus()
    async with Client(UNREACHABLE, transport=bus, budget_ms=120_000) as client:
        turn = await say(client)
        await say(client)
    assert (turn.context.reason, turn.context.detail) == ("invalid_request", "app is required")
    assert (bus.events, bus.requests, client.turns.stats.unplaced) == ([], [], 2)
    assert sum("app is required" in record.getMessage() for record in caplog.records) == 1


async def test_a_turn_without_a_workflow_has_that_of_the_default_rules() -> None:
    bus = Bus()
    async with (
        Client(UNREACHABLE, transport=bus, budget_ms=120_000) as client,
        client.turn(agent="a", chat="c", app="shop"),
    ):
        pass
    assert [request.workflow for request in bus.requests] == ["default"]
    assert {event.workflow for event in bus.events} == {"default"}


@pytest.mark.parametrize(("name", "events", "requests"), [("CAPTURE", 0, 1), ("CONTEXT", 7, 0)])
async def test_switches_of_the_environment_hold_for_turns(
    monkeypatch: pytest.MonkeyPatch, name: str, events: int, requests: int
) -> None:
    monkeypatch.setenv(f"GRAPHWEFT_{name}", "off")
    bus = Bus()
    async with client_of(bus) as client:
        await say(client)
    assert (len(bus.events), len(bus.requests)) == (events, requests)


def test_a_synchronous_client_without_a_bus_changes_nothing_for_the_caller(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)
    client = SyncClient(UNREACHABLE, app_id="shop", budget_ms=20)
    with client.turn(agent="Planner", chat="c1") as turn:
        turn.tool("weather")
        turn.answer("Hello.")
    with pytest.raises(ZeroDivisionError), client.turn(agent="Planner", chat="c1"):
        print(1 / 0)
    client.close(drain_s=0)
    assert turn.context.text == ""
    assert client.stats.dropped == 7
    with client.turn(agent="Planner", chat="c1") as closed:
        closed.tool("weather")
    assert (closed.context.reason, closed.context.detail) == ("bus_unavailable", "the client is closed: make a new one")


@pytest.mark.parametrize(
    ("why", "detail"),
    [
        ("the bus is unavailable: Error 111", f"the bus is unavailable: Error 111; {BUS_STEP}"),
        ("No such file or directory.", f"No such file or directory; {BUS_STEP}"),
        ("the bus is full: `graphweft trim`", "the bus is full: `graphweft trim`"),
        (CLOSED, CLOSED),
    ],
)
def test_an_unavailable_bus_has_one_next_step(why: str, detail: str) -> None:
    assert with_bus_step(why) == detail
    assert with_bus_step(detail) == detail


async def test_a_context_without_a_bus_names_the_setting_and_the_command() -> None:
    async with Client(UNREACHABLE) as client:
        reply = await client.search("x", app_id="a", memory=MemoryScope(user_id="u"), budget_ms=5_000)
    assert reply.reason == "bus_unavailable"
    assert "GRAPHWEFT_BUS_URL" in reply.detail
    assert "`graphweft doctor`" in reply.detail
