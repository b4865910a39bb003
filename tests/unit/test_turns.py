"""The book of turns, case by case. That no order of callbacks confuses it: ``tests/property/test_turn_book.py``."""

from __future__ import annotations

from typing import Any

import pytest

from graphweft.adapters.turn_book import Chat, EmittedEvent, Failure, Moment, TurnBook

CHAT = Chat(app_id="shop", chat_id="c1", workflow="Sales", user_id="u1")
REFUSED = Failure(error_type="Refused", error_message="no")


def at(now_s: float, chat: Chat = CHAT, *, context: dict[str, Any] | None = None) -> Moment:
    return Moment(chat=chat, context=context or {}, now_s=now_s)


def said(told: list[EmittedEvent]) -> list[tuple[Any, ...]]:
    """Return the events as short lines."""
    return [
        (one.type, *(one.data[name] for name in ("agent_name", "turn_number", "outcome") if name in one.data))
        for one in told
    ]


def test_a_tool_round_is_one_turn() -> None:
    book = TurnBook()
    told = book.start_turn(at(1.0), "Planner")
    told += book.model_call(at(2.0), "Planner", success=True, about={"model": "m"})
    told += book.start_tool(at(3.0), "search", "t1", arguments={"q": 1})
    told += book.end_tool(at(3.5, context={"found": 1}), "search", "t1", result=[1], success=True)
    told += book.start_turn(at(4.0), "Planner")
    told += book.model_call(at(5.0), "Planner", success=True)
    told += book.end_turn(at(6.0), "Planner", response="done")
    who = {"agent_name": "Planner", "turn_number": 1}
    assert [(one.type, one.data) for one in told] == [
        ("agent.turn_start", who),
        ("model.call_complete", {**who, "success": True, "model": "m", "call_number": 1}),
        ("tool.call_start", {**who, "tool_name": "search", "call_id": "t1", "arguments": {"q": 1}}),
        (
            "tool.call_complete",
            {**who, "tool_name": "search", "call_id": "t1", "result": [1], "success": True, "duration_ms": 500.0},
        ),
        ("model.call_complete", {**who, "success": True, "call_number": 2}),
        (
            "agent.turn_complete",
            {**who, "success": True, "outcome": "completed", "response": "done", "duration_ms": 5000.0},
        ),
    ]
    assert [one.context for one in told if one.type == "tool.call_complete"] == [{"found": 1}]


def test_turns_are_numbered_within_a_chat() -> None:
    book, other = TurnBook(), Chat(app_id="shop", chat_id="c2")
    told = book.start_turn(at(1.0), "Planner")
    told += book.end_turn(at(2.0), "Planner")
    told += book.start_turn(at(3.0), "Writer")
    told += book.start_turn(at(3.0, other), "Planner")
    numbers = [(one.chat.chat_id, one.data["turn_number"]) for one in told if one.type == "agent.turn_start"]
    assert numbers == [("c1", 1), ("c1", 2), ("c2", 1)]


def test_an_agent_that_works_next_has_taken_over() -> None:
    book = TurnBook()
    told = book.start_turn(at(1.0), "Planner", sequential=True)
    told += book.start_tool(at(2.0), "transfer", "t1")
    told += book.end_tool(at(3.0), "transfer", "t1", success=True)
    told += book.start_turn(at(4.0), "Writer", sequential=True)
    assert said(told)[3:] == [
        ("agent.turn_complete", "Planner", 1, "handed_off"),
        ("workflow.phase_complete",),
        ("agent.turn_start", "Writer", 2),
    ]
    assert told[3].data["success"] is True
    assert told[3].data["handed_to"] == "Writer"
    assert told[4].data == {"phase_name": "Planner", "next_phase": "Writer"}


def test_an_agent_that_works_for_another_one_s_tool_takes_nothing_over() -> None:
    book = TurnBook()
    told = book.start_turn(at(1.0), "Planner", sequential=True)
    told += book.start_tool(at(2.0), "ask_expert", "t1")
    told += book.start_turn(at(3.0), "Expert", sequential=True)
    told += book.end_turn(at(4.0), "Expert")
    told += book.end_tool(at(5.0), "ask_expert", "t1", success=True)
    told += book.start_turn(at(6.0), "Planner", sequential=True)
    told += book.end_turn(at(7.0), "Planner")
    assert [line for line in said(told) if "turn" in line[0] or "phase" in line[0]] == [
        ("agent.turn_start", "Planner", 1),
        ("agent.turn_start", "Expert", 2),
        ("agent.turn_complete", "Expert", 2, "completed"),
        ("agent.turn_complete", "Planner", 1, "completed"),
    ]
    assert told[-2].data["agent_name"] == "Planner"


def test_a_failure_is_emitted_once_though_the_run_reports_it_again() -> None:
    book = TurnBook()
    book.start_run(at(0.0))
    told = book.start_turn(at(1.0), "Planner")
    told += book.end_turn(at(2.0), "Planner", failure=REFUSED)
    told += book.fail_run(at(3.0), REFUSED)
    told += book.fail_run(at(4.0), Failure(error_type="Other"))
    assert [(one.type, one.data.get("error_type")) for one in told] == [
        ("agent.turn_start", None),
        ("agent.turn_complete", "Refused"),
        ("workflow.error", "Refused"),
        ("workflow.error", "Other"),
    ]
    assert told[1].data["success"] is False
    assert told[2].data == {"error_type": "Refused", "error_message": "no", "agent_name": "Planner", "turn_number": 1}


def test_a_run_has_a_start_and_an_end_with_its_duration() -> None:
    book = TurnBook()
    told = book.start_run(at(1.0))
    told += book.start_run(at(2.0))
    told += book.end_run(at(3.5), outputs=[1])
    told += book.end_run(at(4.0))
    assert [(one.type, one.data) for one in told] == [
        ("workflow.start", {}),
        ("workflow.complete", {"status": "COMPLETE", "duration": 2.5, "outputs": [1]}),
    ]


def test_a_turn_that_hears_nothing_was_abandoned_one_with_a_tool_at_work_later() -> None:
    book = TurnBook(idle_s=10)
    book.start_turn(at(0.0), "Planner")
    book.start_turn(at(0.0), "Writer")
    book.start_tool(at(1.0), "people", "t1", agent="Writer")
    assert said(book.tick(9.0)) == []
    assert said(book.tick(10.0)) == [("agent.turn_complete", "Planner", 1, "abandoned")]
    assert said(book.end_turn(at(11.0), "Planner")) == []
    assert said(book.tick(120.0)) == []
    late = book.tick(121.0)
    assert said(late) == [("tool.call_complete", "Writer", 2), ("agent.turn_complete", "Writer", 2, "abandoned")]
    assert late[0].data["success"] is None
    assert late[1].data["success"] is False
    assert said(book.end_tool(at(122.0), "people", "t1", success=True)) == []


def test_a_new_turn_of_the_same_agent_closes_the_one_whose_end_was_missed() -> None:
    book = TurnBook()
    told = book.start_turn(at(1.0), "Planner", fresh=True)
    told += book.start_turn(at(2.0), "Planner", fresh=True)
    assert said(told) == [
        ("agent.turn_start", "Planner", 1),
        ("agent.turn_complete", "Planner", 1, "abandoned"),
        ("agent.turn_start", "Planner", 2),
    ]


def test_an_id_of_a_tool_call_may_come_back() -> None:
    book = TurnBook()
    book.start_turn(at(1.0), "Planner")
    told = [
        *book.start_tool(at(2.0), "search", "t1"),
        *book.start_tool(at(2.0), "search", "t1"),
        *book.end_tool(at(3.0), "search", "t1"),
        *book.end_tool(at(3.0), "search", "t1"),
        *book.start_tool(at(4.0), "search", "t1"),
        *book.end_tool(at(5.0), "search", "t1"),
    ]
    assert [one.type for one in told] == ["tool.call_start", "tool.call_complete"] * 2
    assert book.strays == 1


def test_the_end_of_a_tool_call_without_a_start_is_emitted() -> None:
    book = TurnBook()
    book.start_turn(at(1.0), "Planner")
    (told,) = book.end_tool(at(2.0), "search", "t1", success=True)
    assert (told.type, told.data["agent_name"]) == ("tool.call_complete", "Planner")
    assert "duration_ms" not in told.data


def test_handing_over_by_name_ends_turn_and_phase_once() -> None:
    book = TurnBook()
    book.start_turn(at(1.0), "Planner", sequential=True)
    told = book.hand_over(at(2.0), "Planner", "Writer")
    told += book.start_turn(at(3.0), "Writer", sequential=True)
    assert [one.type for one in told] == ["agent.turn_complete", "workflow.phase_complete", "agent.turn_start"]


@pytest.mark.parametrize("chats", [1, 3])
def test_chats_that_were_quiet_longest_are_forgotten(chats: int) -> None:
    book = TurnBook(max_chats=chats)
    told: list[EmittedEvent] = []
    for number in range(5):
        told += book.start_turn(at(float(number), Chat(app_id="shop", chat_id=f"c{number}")), "Planner")
    gone = [one.chat.chat_id for one in told if one.type == "agent.turn_complete"]
    assert gone == [f"c{number}" for number in range(5 - chats)]
    assert len(list(book.open_turns())) == chats


def test_turns_whose_calls_have_one_id_keep_them_apart() -> None:
    book = TurnBook()
    told = []
    for run in "ab":
        told += book.start_turn(at(0), "Scout", run=run)
    for run in "ab":
        told += book.start_tool(at(1), "weather", "w1", agent="Scout", run=run)
        told += book.start_tool(at(1), "weather", "w1", agent="Scout", run=run)
    for run in "baa":
        told += book.end_tool(at(2), "weather", "w1", result=run, success=True, agent="Scout", run=run)
    tools = [(one.type, one.data["turn_number"], one.data.get("result")) for one in told if "tool_name" in one.data]
    assert tools == [
        ("tool.call_start", 1, None),
        ("tool.call_start", 2, None),
        ("tool.call_complete", 2, "b"),
        ("tool.call_complete", 1, "a"),
    ]
    assert book.strays == 1
