"""What every adapter leans on: one request a turn, a hard budget, nothing raised, nothing sent past the redaction."""

from __future__ import annotations

import asyncio
import copy
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pytest
from tests.declared_fields import check_declared

from graphweft import Client
from graphweft.adapters.core import Adapter
from graphweft.adapters.turn_book import EmittedEvent, TurnBook
from graphweft.transport import Outgoing
from graphweft_contracts import ContextReply, ContextRequest, Event, Missing, wire
from graphweft_runtimes.chat_runs import ChatRuns

IDS = {"app_id": "shop", "chat_id": "c1", "workflow_name": "Sales", "user_id": "u1"}
LONG_S = 10.0
"""Nothing here takes so long, unless something hangs."""


class Bus:
    """A transport that keeps what it is given, and may hang, fail or answer garbage."""

    def __init__(self, *, hang: bool = False, fail: bool = False, answer: Any = "text") -> None:
        self.events: list[Event] = []
        self.requests: list[ContextRequest] = []
        self.hang, self.fail, self.answer = hang, fail, answer
        self._came = threading.Condition()

    async def append(self, events: Sequence[Outgoing]) -> list[str]:
        if self.fail:
            raise RuntimeError("the bus is broken")
        if self.hang:
            await asyncio.Event().wait()
        first = len(self.events)
        with self._came:
            self.events += [wire.decode(event.fields) for event in events]
            self._came.notify_all()
        return [f"0:{first + number}" for number in range(len(events))]

    async def request(self, request: ContextRequest) -> ContextReply:
        self.requests.append(request)
        if self.fail:
            raise RuntimeError("the bus is broken")
        if self.hang:
            await asyncio.Event().wait()
        if self.answer != "text":
            return self.answer  # type: ignore[no-any-return]
        return ContextReply(id=request.id, context_id=f"ctx-{len(self.requests)}", text=f"told {len(self.requests)}")

    async def aclose(self) -> None:
        pass

    @property
    def types(self) -> list[str]:
        return [event.type for event in self.events]

    def wait_for(self, type: str) -> None:
        """Wait for an event from the adapter's thread."""
        with self._came:
            assert self._came.wait_for(lambda: type in self.types, LONG_S)


type Make = Callable[..., tuple[Adapter, Bus]]


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    monkeypatch.delenv("GRAPHWEFT_CONTEXT", raising=False)
    monkeypatch.delenv("GRAPHWEFT_CAPTURE", raising=False)
    made: list[Adapter] = []
    buses: list[Bus] = []

    def adapter(bus: Bus | None = None, **settings: Any) -> tuple[Adapter, Bus]:
        transport = bus or Bus()
        one = Adapter(Client("redis://127.0.0.1:1", transport=transport), **{"budget_ms": 120_000, **settings})
        made.append(one)
        buses.append(transport)
        return one, transport

    yield adapter
    for one in made:
        one.close(0.0)
    check_declared(event for bus in buses for event in bus.events)


def test_a_turn_is_asked_for_context_once_and_tells_which_it_got(make: Make) -> None:
    adapter, bus = make()
    adapter.start_turn(IDS, "Planner")
    first = adapter.context(IDS, "Planner")
    adapter.start_turn(IDS, "Planner")
    second = adapter.context(IDS, "Planner")
    adapter.end_turn(IDS, "Planner", response="done")
    adapter.start_turn(IDS, "Planner")
    third = adapter.context(IDS, "Planner")
    assert adapter.flush()
    assert (first.text, second, third.text) == ("told 1", first, "told 2")
    assert bus.types == ["agent.turn_start", "agent.turn_complete", "agent.turn_start"]
    done = bus.events[1]
    assert done.data["context_id"] == "ctx-1"
    assert (done.appid, done.chatid, done.workflow, done.userid) == ("shop", "c1", "Sales", "u1")
    assert done.context == IDS
    assert (bus.requests[0].agent, bus.requests[0].workflow, bus.requests[0].context) == ("Planner", "Sales", IDS)


def test_who_knows_ids_and_times_says_them(make: Make) -> None:
    adapter, bus = make()
    at = datetime(2024, 1, 2, tzinfo=UTC)

    def stamp(told: list[EmittedEvent]) -> list[EmittedEvent]:
        return [replace(one, id=f"{number}-{one.type}", time=at) for number, one in enumerate(told)]

    def broken(told: list[EmittedEvent]) -> list[EmittedEvent]:
        raise ValueError(told)

    adapter.record(IDS, partial(TurnBook.start_turn, agent="Planner"), stamp)
    adapter.record(IDS, partial(TurnBook.start_tool, tool="search", call_id="t1"), stamp, arguments={"q": object()})
    adapter.record(IDS, partial(TurnBook.model_call, agent="Planner", success=True), broken)
    adapter.record(IDS, partial(TurnBook.end_turn, agent="Planner"), stamp, response="done")
    adapter.record(IDS, partial(TurnBook.emit, type="agent.turn_start"), stamp, data={"agent_name": "Elsewhere"})
    assert adapter.flush()
    assert bus.events.pop().data["agent_name"] == "Elsewhere", "turns that the book does not know are told too"
    assert [event.id for event in bus.events] == [
        "0-agent.turn_start", "0-tool.call_start", "0-tool.call_complete", "1-agent.turn_complete",
    ]  # fmt: skip
    assert {event.time for event in bus.events} == {at}
    assert bus.events[1].data["arguments"] == {"q": "<object>"}
    assert adapter.stats.errors == 1


async def test_asking_asynchronously_shares_the_turn_s_answer_and_leaves_the_loop_free(make: Make) -> None:
    adapter, bus = make(Bus(hang=True), budget_ms=1_000)
    adapter.start_turn(IDS, "Planner")
    asking = [asyncio.create_task(adapter.acontext(IDS, "Planner")) for _ in range(3)]
    while not bus.requests:  # the loop runs on meanwhile  # noqa: ASYNC110
        await asyncio.sleep(0)
    assert not any(task.done() for task in asking)
    replies = await asyncio.gather(*asking)
    assert {reply.reason for reply in replies} == {"timeout"}
    assert len(bus.requests) == 1


async def test_a_cancelled_turn_stays_cancelled(make: Make) -> None:
    adapter, bus = make(Bus(hang=True))
    asking = asyncio.create_task(adapter.acontext(IDS, "Planner"))
    while not bus.requests:  # noqa: ASYNC110
        await asyncio.sleep(0)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking


@pytest.mark.parametrize(
    "bus",
    [
        Bus(hang=True),
        Bus(fail=True),
        Bus(answer=None),
        Bus(answer={"text": "garbage"}),
        Bus(answer=ContextReply.model_construct(text=7)),
    ],
    ids=["hangs", "fails", "says nothing", "says garbage", "says half of it"],
)
def test_a_broken_bus_costs_a_turn_its_context_and_nothing_else(make: Make, bus: Bus) -> None:
    adapter, _ = make(bus, budget_ms=50)
    started_s = time.monotonic()
    for _ in range(3):
        adapter.start_turn(IDS, "Planner")
        for _ in range(50):  # model calls of one turn
            reply = adapter.context(IDS, "Planner")
            assert reply.text == ""
        adapter.end_turn(IDS, "Planner", response="done")
    assert time.monotonic() - started_s < LONG_S
    adapter.flush(0)
    assert adapter.stats.published == 6


LACKING = [
    (ContextReply(id="r", reason="no_rules", detail="no rules for 'Sales'"), "no_rules", "turns without context: "),
    (
        ContextReply(
            id="r", partial=True, text="some", missing=(
                Missing(name="a", rule="a", query="a", reason="missing_param", detail="x.yaml:3:1: $context.user"),
                Missing(name="b", rule="b", query="b", reason="missing_param", detail="another"),
            ),
        ),
        "missing_param",
        "turns with incomplete context: ",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("reply", "reason", "said"), LACKING)
def test_what_turns_lack_is_counted_by_reason_and_said_once_with_what_to_do(
    make: Make, caplog: pytest.LogCaptureFixture, reply: ContextReply, reason: str, said: str
) -> None:
    caplog.set_level("WARNING", "graphweft.adapters")
    for adapter, _ in (make(Bus(answer=reply)), make(Bus(answer=reply))):
        caplog.clear()
        for chat in ("c1", "c2", "c3"):
            ids = {**IDS, "chat_id": chat}
            adapter.start_turn(ids, "Planner")
            for _ in range(3):  # model calls of one turn
                adapter.context(ids, "Planner")
            adapter.end_turn(ids, "Planner", response="done")
        assert adapter.stats.missing_context == {reason: 3}
        assert (adapter.stats.asked, adapter.stats.without_context) == (3, 0 if reply.text else 3)
        [line] = [record.getMessage() for record in caplog.records]
        detail, step = (
            reply.detail or reply.missing[0].detail,
            {"no_rules": "add rules", "missing_param": "add the value"},
        )
        assert line.startswith(f"{said}{reason} ({detail}; {step[reason]}")


async def test_a_bus_that_does_not_answer_is_counted_and_said_once(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    adapter, _ = make(Bus(hang=True), budget_ms=20)
    stuck, free = threading.Event(), threading.Event()

    def redact(type: str, data: dict[str, Any]) -> dict[str, Any]:
        stuck.set()
        free.wait(LONG_S)
        return data

    blocked, _ = make(Bus(), budget_ms=20, redact=redact)
    for one in (adapter, blocked):
        for chat in ("c1", "c2", "c3"):
            ids = {**IDS, "chat_id": chat}
            assert (await one.acontext(ids, "Planner") if chat == "c2" else one.context(ids, "Planner")).text == ""
        assert (one.stats.missing_context, one.stats.without_context) == ({"timeout": 3}, 3)
    free.set()
    said = [record.getMessage() for record in caplog.records]
    assert [line.partition(" (")[0] for line in said] == ["turns without context: timeout"] * 2
    assert all("raise budget_ms" in line for line in said)


def test_a_turn_behind_its_events_is_said_once_with_the_wait_and_the_next_step(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    adapter, _ = make(Bus(answer=ContextReply(id="r", text="old", stale_by=2)), budget_ms=60_000)
    for chat in ("c1", "c2"):
        adapter.context({**IDS, "chat_id": chat}, "Planner")
    [line] = [record.getMessage() for record in caplog.records]
    assert "(2 events behind after " in line
    assert "a budget of 60000 ms" in line
    assert "raise budget_ms" in line
    assert "within the budget" not in line
    assert adapter.stats.stale_context == 2


def test_a_turn_with_nothing_to_tell_lacks_nothing(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    adapter, _ = make(Bus(answer=ContextReply(id="r")))
    adapter.start_turn(IDS, "Planner")
    assert adapter.context(IDS, "Planner").text == ""
    assert (adapter.stats.missing_context, adapter.stats.asked, caplog.records) == ({}, 1, [])


async def test_searches_have_a_reply_each_whatever_happens(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    adapter, bus = make()

    async def half(replies: dict[str, ContextReply], client: Client) -> None:
        replies["a"] = await client.search("x", index_name="a", app_id="shop")
        raise RuntimeError("secret")

    async def late(replies: dict[str, ContextReply], client: Client) -> None:
        replies["a"] = ContextReply(id="r")
        await asyncio.Event().wait()

    for who in ("one", "two", "one"):
        found = await adapter.asearch(["a", "b"], half, who=who, budget_ms=120_000)
        assert (found["a"].reason, found["b"].reason) == (None, "internal_error")
    found = await adapter.asearch(["a", "b"], late, who="one", budget_ms=50)
    assert (found["a"].reason, found["b"].reason) == (None, "timeout")
    assert adapter.stats.missing_results == {"internal_error": 3, "timeout": 1}
    assert (adapter.stats.searches, adapter.stats.errors, len(bus.requests)) == (8, 3, 3)
    said = [record.getMessage().partition(" (")[0] for record in caplog.records if record.levelname == "WARNING"]
    assert sorted(said) == sorted([
        "the adapter failed in submitted work with RuntimeError; the agent continues",
        "searches of b have no answer: internal_error",
        "searches of b have no answer: internal_error",
        "searches of b have no answer: timeout",
    ])  # fmt: skip
    assert "secret" not in str(said)


def test_a_thread_that_does_not_come_back_costs_the_budget_only(make: Make) -> None:
    stuck, free = threading.Event(), threading.Event()

    def redact(type: str, data: dict[str, Any]) -> dict[str, Any]:
        stuck.set()
        free.wait(LONG_S)
        return data

    adapter, _ = make(budget_ms=20, redact=redact, buffer=5)
    adapter.start_turn(IDS, "Planner")
    assert stuck.wait(LONG_S)
    reply = adapter.context(IDS, "Planner")
    for _ in range(10):
        adapter.model_call(IDS, "Planner", success=True)
    adapter.end_turn(IDS, "Planner", response="done")
    assert (reply.reason, adapter.stats.dropped) == ("timeout", 6)  # of 11 events 5 wait
    free.set()
    assert adapter.flush()
    assert adapter.stats.published == 6


def test_nothing_goes_to_the_bus_past_the_redaction(make: Make) -> None:
    def redact(type: str, data: dict[str, Any]) -> dict[str, Any] | None:
        if type == "tool.call_complete":
            raise ValueError(data["result"])
        if type == "model.call_complete":
            return None
        data["context"]["user_id"] = "***"
        if "response" in data:
            data["response"] = "***"
        return data

    adapter, bus = make(redact=redact)
    adapter.start_turn(IDS, "Planner")
    adapter.context(IDS, "Planner")
    adapter.end_tool(IDS, "search", "t1", result="secret", success=True)
    adapter.model_call(IDS, "Planner", success=True)
    adapter.end_turn(IDS, "Planner", response="secret")
    assert adapter.flush()
    assert bus.types == ["agent.turn_start", "agent.turn_complete"]
    assert [event.context["user_id"] for event in bus.events] == ["***", "***"]
    assert bus.events[1].data["response"] == "***"
    assert bus.requests[0].context["user_id"] == "***"
    assert (adapter.stats.redaction_failures, adapter.stats.withheld) == (1, 1)


@pytest.mark.parametrize("answer", [None, "no mapping", ValueError("secret")])
def test_a_request_that_is_not_redacted_is_not_sent(make: Make, answer: Any, caplog: pytest.LogCaptureFixture) -> None:
    def redact(type: str, data: dict[str, Any]) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    adapter, bus = make(redact=redact)
    reply = adapter.context(IDS, "Planner")
    assert adapter.flush()
    assert (reply.text, bus.requests, bus.events) == ("", [], [])
    assert reply.reason == ("disabled" if answer is None else "internal_error")
    assert adapter.stats.redaction_failures + adapter.stats.withheld == 2
    assert "secret" not in caplog.text


@pytest.mark.parametrize(("variable", "events", "requests"), [("CONTEXT", 2, 0), ("CAPTURE", 0, 1)])
def test_asking_and_publishing_can_be_switched_off(
    make: Make, monkeypatch: pytest.MonkeyPatch, variable: str, events: int, requests: int
) -> None:
    monkeypatch.setenv(f"GRAPHWEFT_{variable}", "off")
    adapter, bus = make()
    adapter.start_turn(IDS, "Planner")
    adapter.context(IDS, "Planner")
    adapter.end_turn(IDS, "Planner")
    assert adapter.flush()
    assert (len(bus.events), len(bus.requests), adapter.stats.dropped) == (events, requests, 0)


def test_a_turn_waits_for_what_was_told_before_it_not_for_its_own_start(make: Make) -> None:
    adapter, bus = make()
    adapter.start_turn(IDS, "Planner")
    adapter.context(IDS, "Planner")
    adapter.end_turn(IDS, "Planner")
    adapter.start_turn(IDS, "Writer")
    adapter.context(IDS, "Writer")
    assert [request.after for request in bus.requests] == [None, "0:1"]


def test_a_turn_that_nobody_ends_is_closed_by_the_timer(make: Make) -> None:
    adapter, bus = make(idle_s=0.05)
    adapter.start_turn(IDS, "Planner")
    bus.wait_for("agent.turn_complete")
    assert bus.events[-1].data["outcome"] == "abandoned"


def test_closing_closes_open_turns_and_sends_what_is_left(make: Make) -> None:
    adapter, bus = make()
    adapter.start_turn(IDS, "Planner")
    adapter.close()
    assert [event.data.get("outcome") for event in bus.events] == [None, "abandoned"]
    adapter.start_turn(IDS, "Planner")
    assert adapter.context(IDS, "Writer").reason == "bus_unavailable"
    assert adapter.flush()
    adapter.close()
    assert bus.types == ["agent.turn_start", "agent.turn_complete"]
    assert adapter.stats.dropped == 1


async def test_submitted_work_shares_the_client_and_runs_after_earlier_events(make: Make) -> None:
    adapter, bus = make()
    adapter.start_turn(IDS, "Planner")

    async def emit(client: Client) -> str | None:
        return await client.emit(Event.create("custom.note", app_id="shop", chat_id="c1", data={}))

    first = adapter.submit(emit)
    assert first is not None
    assert await asyncio.wrap_future(first) == "0:1"
    waiting = adapter.submit(emit)
    assert adapter.flush()
    assert waiting is not None
    assert waiting.result(LONG_S) == "0:2"
    assert bus.types == ["agent.turn_start", "custom.note", "custom.note"]


async def test_work_that_fails_gives_nothing_and_other_work_can_be_cancelled(make: Make) -> None:
    adapter, _ = make(budget_ms=20)
    cancelled = threading.Event()

    async def fail(client: Client) -> str:
        raise ValueError("secret")

    async def hang(client: Client) -> str:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()
        return "late"

    failed = adapter.submit(fail)
    assert failed is not None
    assert await asyncio.wrap_future(failed) is None
    assert adapter.stats.errors == 1
    hanging = adapter.submit(hang)
    assert hanging is not None
    with pytest.raises(TimeoutError):
        hanging.result(0.1)
    hanging.cancel()
    assert await asyncio.to_thread(cancelled.wait, LONG_S)
    open_work = adapter.submit(hang)
    assert open_work is not None
    await adapter.aclose(0.0)
    assert open_work.cancelled()
    assert adapter.submit(fail) is None
    assert adapter.stats.errors == 1


def test_what_nobody_waits_for_any_more_is_abandoned(make: Make) -> None:
    adapter, bus = make()
    adapter.start_turn(IDS, "Planner", run="r1")
    adapter.abandon_turn(IDS, "Planner")
    adapter.abandon_turn(IDS, "Planner", run="r1")
    adapter.abandon_turn(IDS, "Planner", run="r1")
    adapter.end_turn(IDS, "Planner", run="r1")
    assert adapter.flush()
    assert bus.types == ["agent.turn_start", "agent.turn_complete"]
    assert (bus.events[1].data["outcome"], bus.events[1].data["success"]) == ("abandoned", False)


class Hostile(dict[str, Any]):
    """Context variables whose own code fails."""

    def get(self, key: Any, default: Any = None) -> Any:
        raise RuntimeError("not readable")


class Unreadable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


def test_a_foreign_object_s_own_code_disturbs_no_turn(make: Make) -> None:
    adapter, bus = make()
    adapter.start_turn(Hostile(), "Planner")
    assert adapter.context(Hostile(), "Planner").text == ""
    assert adapter.stats.errors == 2
    adapter.start_turn({**IDS, "model": object(), "half": "\ud800", 5: float("nan")}, "Planner")  # type: ignore[dict-item]
    adapter.fail_turn(IDS, "Planner", Unreadable())
    adapter.start_turn({"app_id": "shop"}, "Planner")
    adapter.start_turn(IDS, "")  # an agent has a name by the contract
    assert adapter.flush()
    assert bus.types == ["agent.turn_start", "agent.turn_complete", "workflow.error"]
    assert bus.events[0].context == {**IDS, "model": "<object>", "half": "?", "5": None}
    assert bus.events[2].data["error_type"] == "Unreadable"
    assert (adapter.stats.unplaced, adapter.stats.invalid) == (1, 1)


def test_only_the_chosen_variables_go_to_the_bus(make: Make) -> None:
    adapter, bus = make(carried=["phase"])
    adapter.start_turn({**IDS, "phase": "planning", "secret": "x"}, "Planner")
    adapter.context({**IDS, "phase": "planning", "secret": "x"}, "Planner")
    assert adapter.flush()
    assert (bus.events[0].context, bus.requests[0].context) == ({"phase": "planning"}, {"phase": "planning"})
    assert bus.events[0].chatid == "c1"


SAID = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Is it sunny?"}]


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        (SAID, "Is it sunny?"),
        ([*SAID, {"role": "assistant", "content": "Yes."}, {"role": "user", "content": "And now?"}], "And now?"),
        ([{"role": "user", "content": [{"type": "image_url"}, {"type": "text", "text": "Where?"}]}], "Where?"),
        ([*SAID, {"role": "user", "name": "Planner", "content": "Over to you."}], "Is it sunny?"),
        ([{"role": "user", "name": "Planner", "content": "Over to you."}], "Over to you."),
        ([{"role": "user", "content": "long " * 100_000}], ("long " * 100_000)[:100_000]),
        (SAID[:1], None),
        ([{"role": "user", "content": " "}], None),
        ([{"role": "user", "content": [{"type": "image_url"}]}], None),
        ([{"role": "odd"}, None, 7], None),
    ],
)
def test_the_request_has_the_user_s_last_message_and_no_event_has_it(make: Make, messages: Any, message: Any) -> None:
    adapter, bus = make()
    adapter.context(IDS, "Planner", messages=messages)
    assert adapter.flush()
    said = {} if message is None else {"last_message": message, "messages": [{"role": "user", "text": message}]}
    assert bus.requests[0].context == {**IDS, **said}
    assert [event.context for event in bus.events] == [IDS]
    assert adapter.stats.errors == 0


def test_variables_of_the_user_s_own_come_first(make: Make) -> None:
    adapter, bus = make()
    adapter.context({**IDS, "last_message": "mine", "messages": []}, "Planner", messages=SAID)
    assert bus.requests[0].context == {**IDS, "last_message": "mine", "messages": []}


def test_the_messages_are_read_once_a_turn_and_cost_no_context_if_they_cannot_be_read(make: Make) -> None:
    adapter, bus = make()
    iterators = [iter(SAID) for _ in range(3)]
    assert {adapter.context(IDS, "Planner", messages=each).text for each in iterators} == {"told 1"}
    assert [list(each) for each in iterators] == [[], SAID, SAID]
    broken = (1 / number for number in (0,))
    assert adapter.context({**IDS, "chat_id": "c2"}, "Planner", messages=broken).text == "told 2"
    assert (adapter.stats.errors, len(bus.requests)) == (1, 2)


def test_callbacks_of_many_threads_keep_each_chat_in_order(make: Make) -> None:
    adapter, bus = make()

    def work(chat: int) -> None:
        ids = {**IDS, "chat_id": f"c{chat}"}
        for _ in range(20):
            adapter.start_turn(ids, "Planner")
            adapter.context(ids, "Planner")
            adapter.model_call(ids, "Planner", success=True)
            adapter.end_turn(ids, "Planner")

    threads = [threading.Thread(target=work, args=(chat,)) for chat in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert adapter.flush()
    for chat in range(8):
        told = [(event.type, event.data["turn_number"]) for event in bus.events if event.chatid == f"c{chat}"]
        wanted = ("agent.turn_start", "model.call_complete", "agent.turn_complete")
        assert told == [(type, number) for number in range(1, 21) for type in wanted]
    assert len(bus.requests) == 160
    assert (adapter.stats.published, adapter.stats.errors) == (480, 0)


def test_the_workflow_is_the_client_s_where_nobody_names_one() -> None:
    nameless = {name: value for name, value in IDS.items() if name != "workflow_name"}
    transport = Bus()
    named = Adapter(Client("redis://127.0.0.1:1", transport=transport, workflow="Support"), budget_ms=120_000)
    assert named.context(nameless, "Planner").text == "told 1"
    named.close()
    assert ([event.workflow for event in transport.events], transport.requests[0].workflow) == (
        ["Support"] * 2, "Support",
    )  # fmt: skip


def test_without_a_thread_the_agent_goes_on_and_closing_ends(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    adapter, bus = make()

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        adapter.start_turn(IDS, "A")
        assert adapter.context(IDS, "A").reason == "bus_unavailable"
        assert (adapter.stats.dropped, adapter.stats.errors) == (1, 0)
    adapter.end_turn(IDS, "A")  # there is a thread again
    assert adapter.flush()
    assert bus.types == ["agent.turn_complete"]
    unused, _ = make()
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        unused.start_turn(IDS, "A")
        unused.close()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_copy_says_so_and_waits_for_no_lock(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    adapter, _ = make()
    adapter.start_turn(IDS, "A")
    assert adapter.flush()
    with adapter._lock:  # as the adapter's thread may have it at that moment
        child = os.fork()
        if child == 0:
            adapter.end_turn(IDS, "A")
            reply = adapter.context(IDS, "B")
            adapter.tick()
            adapter.close()
            said = [record for record in caplog.records if "fork" in record.getMessage()]
            os._exit(7 if reply.reason == "bus_unavailable" and len(said) == 1 else 1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 7


def test_what_is_switched_off_altogether_reads_nothing_and_starts_nothing(
    make: Make, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("GRAPHWEFT_CONTEXT", "off")
    monkeypatch.setenv("GRAPHWEFT_CAPTURE", "off")
    adapter, _ = make()
    adapter.start_turn({}, "A")
    adapter.start_turn(IDS, "A")
    adapter.end_turn(IDS, "A", response="Done.")
    assert not adapter._loop.started
    assert not caplog.records


def test_a_missing_workflow_name_is_said_once_with_what_to_do(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    adapter, bus = make()
    for chat in ("one", "two"):
        assert adapter.context({"app_id": "shop", "chat_id": chat}, "A").reason == "invalid_request"
    (line,) = [record.getMessage() for record in caplog.records]
    assert "pass it to the adapter, or as a context variable" in line
    assert not bus.requests


def test_a_copy_of_what_holds_an_adapter_holds_the_same_one(make: Make) -> None:
    adapter, _ = make()
    adapter.start_turn(IDS, "A")
    copied = copy.deepcopy({"hooks": [adapter]})
    assert copied["hooks"][0] is adapter


def test_a_failure_that_an_inner_turn_reported_is_emitted_once(make: Make) -> None:
    adapter, bus = make()
    error = ConnectionError("no model")
    for agent in ("Planner", "Writer"):
        adapter.start_turn(IDS, agent)
    adapter.fail_turn(IDS, "Writer", error)
    adapter.fail_turn(IDS, "Planner", error, reported=True)
    assert adapter.flush()
    assert bus.types == ["agent.turn_start"] * 2 + ["agent.turn_complete", "workflow.error", "agent.turn_complete"]
    assert bus.events[-1].data["error_type"] == "ConnectionError"


def test_overlapping_runs_of_a_chat_are_one_run_that_the_last_one_decides(make: Make) -> None:
    adapter, bus = make()
    runs, key = ChatRuns(adapter), ("shop", "c1")
    for _ in range(2):
        runs.enter(key, IDS)
    runs.leave(key, IDS, failure=ConnectionError("no model"))
    runs.leave(key, IDS, outputs="done")
    runs.enter(key, IDS)
    runs.leave(key, IDS, paused=True)
    runs.enter(key, IDS)
    runs.leave(key, IDS, failure=ConnectionError("no model"))
    assert adapter.flush()
    assert bus.types == ["workflow.start", "workflow.complete", "workflow.start", "workflow.error"]
    assert bus.events[1].data["outputs"] == "done"
    assert len(runs) == 0
