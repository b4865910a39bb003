"""Whatever a runtime calls back, and in whatever order: each turn starts once and completes once."""

from __future__ import annotations

from collections import Counter
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from tests.declared_fields import undeclared

from graphweft.adapters.turn_book import CallbackMoment, Chat, EmittedEvent, ErrorFields, TurnBook

CHATS = (Chat(app_id="shop", chat_id="c1"), Chat(app_id="shop", chat_id="c2"), Chat(app_id="other", chat_id="c1"))
chats = st.sampled_from([CHATS[0], *CHATS])  # what meets in one chat is what can go wrong
agents = st.sampled_from(["Planner", "Writer"])
runs = st.sampled_from(["", "", "r2"])
calls = st.sampled_from(["a", "b"])
failures = st.none() | st.sampled_from(
    [ErrorFields(error_type="Timeout"), ErrorFields(error_type="Refused", error_message="no")]
)
failed = st.sampled_from([ErrorFields(error_type="Timeout"), ErrorFields(error_type="Refused", error_message="no")])

steps = st.one_of(
    st.tuples(st.just("start_run"), chats, st.fixed_dictionaries({})),
    st.tuples(st.just("end_run"), chats, st.fixed_dictionaries({})),
    st.tuples(st.just("fail_run"), chats, st.fixed_dictionaries({"failure": failed})),
    st.tuples(
        st.just("start_turn"),
        chats,
        st.fixed_dictionaries({"agent": agents, "run": runs, "fresh": st.booleans(), "sequential": st.booleans()}),
    ),
    st.tuples(st.just("end_turn"), chats, st.fixed_dictionaries({"agent": agents, "run": runs, "failure": failures})),
    st.tuples(st.just("abandon_turn"), chats, st.fixed_dictionaries({"agent": agents, "run": runs})),
    st.tuples(st.just("hand_over"), chats, st.fixed_dictionaries({"agent": agents, "to": agents, "run": runs})),
    st.tuples(
        st.just("start_tool"),
        chats,
        st.fixed_dictionaries({"tool": st.just("t"), "call_id": calls, "agent": st.none() | agents, "run": runs}),
    ),
    st.tuples(
        st.just("end_tool"),
        chats,
        st.fixed_dictionaries({"tool": st.just("t"), "call_id": calls, "success": st.none() | st.booleans()}),
    ),
    st.tuples(
        st.just("model_call"), chats, st.fixed_dictionaries({"agent": agents, "run": runs, "success": st.booleans()})
    ),
    st.tuples(st.just("tick"), chats, st.fixed_dictionaries({})),
)
gaps = st.sampled_from([0.0, 0.0, 0.5, 4.0, 11.0, 200.0])


def play(book: TurnBook, script: list[tuple[tuple[str, Chat, dict[str, Any]], float]]) -> list[EmittedEvent]:
    now_s, told = 0.0, []
    for (name, chat, arguments), gap_s in script:
        now_s += gap_s
        if name == "tick":
            told += book.tick(now_s)
        else:
            told += getattr(book, name)(CallbackMoment(chat=chat, context={"at": now_s}, now_s=now_s), **arguments)
    return [*told, *book.close(now_s)]


@given(st.lists(st.tuples(steps, gaps), min_size=20, max_size=60), st.sampled_from([1, 100, 100]))
def test_every_turn_starts_once_and_completes_once(script: list[Any], max_chats: int) -> None:
    book = TurnBook(idle_s=10, max_chats=max_chats)
    open_turns: dict[tuple[Any, ...], str] = {}
    open_calls: Counter[tuple[Any, ...]] = Counter()
    over: set[tuple[Any, ...]] = set()
    starts = completes = 0
    for told in play(book, script):
        turn = (told.chat.key, told.data.get("turn_number"))
        if told.type == "agent.turn_start":
            assert turn not in open_turns
            open_turns[turn] = told.data["agent_name"]
            starts += 1
        elif told.type == "agent.turn_complete":
            assert open_turns.pop(turn) == told.data["agent_name"]
            assert told.data["success"] == (told.data["outcome"] in {"completed", "handed_off"})
            assert not any(told.chat.key == call[0] and call[1] == turn[1] for call, n in open_calls.items() if n)
            completes += 1
        elif told.type == "model.call_complete" and turn[1] is not None:
            assert turn in open_turns
        elif told.type == "tool.call_start" and turn[1] is not None:
            assert turn in open_turns
            open_calls[(*turn, told.data["call_id"])] += 1
        elif told.type == "tool.call_complete" and turn[1] is not None:
            assert turn in open_turns
            if "duration_ms" in told.data:  # its start was told
                open_calls[(*turn, told.data["call_id"])] -= 1
        assert all(number in {0, 1} for number in open_calls.values())
        call = (told.chat.key, told.data.get("call_id"))
        if told.type == "tool.call_start":
            over.discard(call)
        elif told.type == "tool.call_complete" and max_chats > 1:  # a chat that was forgotten knows no calls
            assert call not in over or "duration_ms" in told.data  # calls of two turns may have one id
            over.add(call)
    assert (open_turns, starts) == ({}, completes)
    assert not any(open_calls.values())
    assert list(book.open_turns()) == []


@given(st.lists(st.tuples(steps, gaps), max_size=40))
def test_the_contracts_declare_every_field(script: list[Any]) -> None:
    for told in play(TurnBook(idle_s=10), script):
        assert undeclared(told.type, {**told.data, "context": told.context}) == []


@given(st.lists(st.tuples(steps, gaps), max_size=40))
def test_a_run_starts_once_and_ends_at_most_once(script: list[Any]) -> None:
    running: set[Any] = set()
    failed: set[Any] = set()
    for told in play(TurnBook(idle_s=10), script):
        key = told.chat.key
        if told.type == "workflow.start":
            assert key not in running - failed  # with a turn's failure a run may end without an event of its own
            running.add(key)
            failed.discard(key)
        elif told.type == "workflow.complete":
            running.remove(key)
        elif told.type == "workflow.error" and "agent_name" in told.data:
            failed.add(key)
        elif told.type == "workflow.error":
            running.discard(key)


@given(st.lists(st.tuples(steps, gaps), max_size=40))
def test_chats_do_not_meet(script: list[Any]) -> None:
    """What is told of a chat is what would be told of it alone."""
    together = play(TurnBook(idle_s=10), script)
    for chat in CHATS:
        now_s, alone = 0.0, []
        for (name, where, arguments), gap_s in script:
            now_s += gap_s
            if where == chat or name == "tick":
                alone.append(((name, where, arguments), now_s))
        book, apart = TurnBook(idle_s=10), []
        for (name, where, arguments), at_s in alone:
            if name == "tick":
                apart += book.tick(at_s)
            else:
                apart += getattr(book, name)(CallbackMoment(chat=where, context={"at": at_s}, now_s=at_s), **arguments)
        apart += book.close(now_s)
        assert [told for told in together if told.chat == chat] == apart
