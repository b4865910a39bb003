"""What the marks of a scope say, without a server."""

from __future__ import annotations

from typing import Any

from graphweft_workers.retrieval.scope_marks import Marks, TargetMarks, mark_params, marks_of
from graphweft_workers.retrieval.targets import memories

LENGTH = 600


class Written:
    """The marks of a graph, as the queries of ``marking`` write them."""

    def __init__(self) -> None:
        self.marks: dict[str, str] = {}

    def add(self, event: str, *added: str, **scopes: Any) -> None:
        mutation = "add" if "user_id" in scopes else "add_unowned"
        params = mark_params(mutation, scopes, event, added=added)
        name = params["mark0"]
        self.marks[name] = f"{self.marks.get(name, '')} {params['added']}"[-LENGTH:]
        if "mark1" in params:
            self.marks[params["mark1"]] = params["marked"]

    @property
    def now(self) -> Marks:
        return dict(self.marks)


def marks_for(**scope: str) -> TargetMarks:
    found = marks_of(memories(scope, now="2026-01-01T00:00:00Z"))
    assert found is not None
    return found


def test_marks_name_what_was_added_since() -> None:
    written, user = Written(), marks_for(user_id="u")
    written.add("1", "a", user_id="u")
    first = written.now
    written.add("2", "b", "c", user_id="u")
    written.add("3", "x", user_id="v")
    written.add("4", "d", user_id="u", thread_id="t")
    assert user.added(first, written.now) == ["b", "c", "d"]
    assert user.are_same(first, first)
    assert marks_for(user_id="u", thread_id="t").added(first, written.now) == ["b", "c", "d"]
    assert marks_for(user_id="v").added(written.now, written.now) is None


def test_a_thread_lists_what_nobody_added_alone() -> None:
    written, thread = Written(), marks_for(thread_id="t")
    written.add("1", "a", thread_id="t")
    before = written.now
    written.add("2", "b", thread_id="t")
    assert thread.added(before, written.now) == ["b"]
    written.add("3", "c", user_id="u", thread_id="t")
    assert thread.added(before, written.now) is None


def test_marks_say_nothing_of_what_they_do_not_go_on_from() -> None:
    written, user = Written(), marks_for(user_id="u")
    empty = written.now
    written.add("1", "a", user_id="u")
    first = written.now
    assert user.added(empty, first) is None
    [name] = {name for name in first if first[name] and name in user.ids}
    for number in range(100):
        written.add(f"more {number}", f"key{number:04}", user_id="u")
    assert user.added(first, written.now) is None  # more than it names
    written = Written()
    written.add("2", *(f"key{number}" for number in range(500)), user_id="u")
    assert user.added(first, written.now) is None
    before = written.now
    written.add("3", "b", user_id="u")
    assert user.added(before, written.now) == ["b"]
    written.marks[name] = "of an earlier version"
    plain = written.now
    assert user.added(before, plain) is None
    written.add("4", "c", user_id="u")
    assert user.added(before, written.now) is None
    assert user.added(plain, written.now) == ["c"]


def test_a_graph_that_was_made_without_an_event_does_not_go_on_from_one_with_it() -> None:
    """An index of the first would keep what the second does not have."""
    first, second, user = Written(), Written(), marks_for(user_id="u")
    for event in ("1", "2", "3"):
        first.add(event, f"of {event}", user_id="u")
        if event != "2":
            second.add(event, f"of {event}", user_id="u")
    assert not user.are_same(first.now, second.now)
    second.add("4", "of 4", user_id="u")
    assert user.added(first.now, second.now) is None


def test_an_event_of_many_messages_that_is_applied_again_changes_the_mark() -> None:
    written, user = Written(), marks_for(user_id="u")
    keys = [f"key{number:04}" for number in range(200)]
    written.add("0", "a", user_id="u")
    written.add("1", *keys, user_id="u")
    first = written.now
    written.add("1", *keys, user_id="u")
    assert not user.are_same(first, written.now)


def test_an_event_of_more_messages_than_a_mark_names_is_counted() -> None:
    written, user = Written(), marks_for(user_id="u")
    written.add("0", "a", user_id="u")
    first = written.now
    written.add("1", *(f"key{number:04}" for number in range(200)), user_id="u")
    assert user.added(first, written.now) is None
    second = written.now
    written.add("2", "b", user_id="u")
    assert user.added(first, written.now) is None
    assert user.added(second, written.now) == ["b"]
