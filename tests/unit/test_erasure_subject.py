"""Whose an entry is: the user's own, those of chats that the user began, and nobody else's."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from graphweft_contracts.episodes import episode_id
from graphweft_contracts.memory import memory_id
from graphweft_workers.archive.subject import Subject, named_of
from graphweft_workers.ports.event_log import Entry

TIME = datetime(2026, 1, 2, tzinfo=UTC)


def entry(**event: Any) -> Entry:
    body = {"appid": "shop", "chatid": "c1", "type": "order.placed", "source": "/s", "id": "1", **event}
    fields = {b"content-type": b"application/cloudevents+json", b"data": json.dumps(body).encode()}
    return Entry(offset="1-0", fields=fields, received=TIME)


def held(user: str | None, *entries: Entry) -> list[bool]:
    subject = Subject(app_id="shop", user_id=user)
    subject.learn(entries)
    return [subject.holds(each) for each in entries]


@pytest.mark.parametrize(
    "named",
    [
        {"userid": "ada"},
        {"data": {"user_id": "ada"}},
        {"data": {"context": {"user_id": "ada"}}},
        {"userid": "ada", "type": 7, "data": "no payload", "specversion": "?"},  # no valid event
    ],
)
def test_an_entry_that_names_the_user_is_the_users(named: dict[str, Any]) -> None:
    assert held("ada", entry(**named)) == [True]
    assert held("ad", entry(**named)) == [False]
    assert held("ada", entry(**named, appid="other")) == [False]
    assert held(None, entry(**named)) == [True]


def test_a_numeric_user_is_found() -> None:
    assert held("42", entry(data={"user_id": 42}), entry(chatid="c2", data={"user_id": True})) == [True, False]


def test_entries_without_a_user_are_those_of_who_began_the_chat_alone() -> None:
    hers, nameless, bobs = entry(userid="ada"), entry(), entry(userid="bob")
    assert held("ada", hers, nameless) == [True, True]
    assert held("ada", nameless, hers) == [False, True]  # a chat of the system, in which she said something
    assert held("ada", hers, nameless, bobs) == [True, False, False]
    subject = Subject(app_id="shop", user_id="ada")
    subject.learn([hers, nameless, bobs])
    assert [subject.may_hold(each) for each in (hers, nameless, bobs)] == [False, True, False]


def test_memories_are_known_by_the_first_event_that_adds_them() -> None:
    messages = [{"role": "user", "text": "x"}]
    bobs = entry(type="memory.add", userid="bob", data={"messages": messages})
    copy = entry(type="memory.add", userid="ada", chatid="c9", data={"messages": messages})
    vector = entry(type="memory.embedded", chatid="x", data={"memory_id": memory_id("/s", "1", 0)})
    forget = entry(type="memory.forget", chatid="x", data={"memory_ids": [memory_id("/s", "1", 0)]})
    update = entry(type="memory.update", chatid="x", data={"memory_id": memory_id("/s", "1", 0), "text": "y"})
    assert held("ada", bobs, copy, vector, forget, update) == [False, True, False, False, False]
    assert held("bob", bobs, copy, vector, forget, update) == [True, False, True, False, True]


def test_what_a_model_read_in_an_episode_is_of_whose_episode_it_is() -> None:
    hers = entry(type="episode.add", userid="ada", chatid="c9", data={"content": "x"})
    copy = entry(type="episode.add", userid="bob", chatid="c9", data={"content": "x"})
    read = entry(type="episode.extracted", chatid="c9", data={"episode_id": episode_id("/s", "1"), "entities": []})
    assert held("ada", hers, copy, read) == [True, False, True]
    assert held("bob", hers, copy, read) == [False, True, False]


def test_binary_events_and_what_cannot_be_read() -> None:
    binary = Entry(offset="1", fields={b"ce_appid": b"shop", b"ce_userid": b"ada", b"data": b"{"}, received=TIME)
    assert held("ada", binary) == [True]
    for fields in ({}, {b"gw_rules": b"{}"}):
        assert named_of(Entry(offset="1", fields=fields, received=TIME)) is None
    deep = Entry(offset="1", fields={b"data": b"[" * 100_000}, received=TIME)
    assert held("ada", deep) == [False]


def cut(event: dict[str, Any], *, end: int = -2) -> Entry:
    """Return the entry of an event that arrived in part."""
    return Entry(offset="1-0", fields={b"data": json.dumps(event, ensure_ascii=False).encode()[:end]}, received=TIME)


@pytest.mark.parametrize(
    ("user", "event"),
    [
        ("ada", {"appid": "shop", "userid": "ada", "data": {"text": "secret"}}),
        ("ada", {"data": {"user_id": "ada"}, "appid": "shop", "x": 1}),
        ("ünï", {"appid": "shop", "userid": "ünï", "data": {}}),
        ('a"b\\c', {"appid": "shop", "userid": 'a"b\\c', "data": {}}),
        ("42", {"appid": "shop", "data": {"user_id": 42}, "more": {}}),
        ("ada", {"appid": "shop", "data": {"context": {"user_id": "ada"}, "deep": "[" * 5_000}}),
    ],
)
def test_what_is_no_json_is_of_whom_it_mentions(user: str, event: dict[str, Any]) -> None:
    assert held(user, cut(event)) == [True]
    assert held(None, cut(event)) == [True], "all of the app"
    assert held("bob", cut(event)) == [False]
    assert held("4", cut(event)) == [False]
    assert held(user, cut({**event, "appid": "other"})) == [False]
    assert held(None, cut({**event, "appid": "other"})) == [False]


def test_what_is_no_json_is_of_its_attributes_too() -> None:
    fields = {b"ce_appid": b"shop", b"data": b'{"user_id": "ada", "text": "sec'}
    assert held("ada", Entry(offset="1", fields=fields, received=TIME)) == [True]
    assert held("bob", Entry(offset="1", fields=fields, received=TIME)) == [False]
    other = {**fields, b"ce_appid": b"other", b"data": b'{"user_id": "ada", "app": "shop", "text": "sec'}
    assert held("ada", Entry(offset="1", fields=other, received=TIME)) == [False]
