"""The profile of a user, on both kinds of server, through the bus and a worker."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from tests.neo4j.test_memory_events import APP, T0, event, rows, store, write
from tests.neo4j.test_statements import TODAY, day, said

from graphweft_contracts.clock import SYSTEM_CLOCK, PastClock
from graphweft_contracts.memory import MemoryScope, memory_id
from graphweft_contracts.search import SearchQuery
from graphweft_workers.ports.graph_store import GraphStore
from graphweft_workers.retrieval.search import Searcher

pytestmark = pytest.mark.integration

__all__ = ("store",)

ABOUT = (
    "My name is Ada.", "I live in Oslo.", "I work as a nurse.", "My partner is Tom.", "I like tea and I hate coffee.",
    "I am allergic to nuts.", "My favourite colour is blue.", "My phone number is +47 555 123.", "I have a cat.",
    "My mother lives in Rome.",
)  # fmt: skip


async def profile(store: GraphStore, user: str = "u1", app: str = APP, **more: Any) -> list[tuple[str, str]]:
    """Return each line of a profile, and since when it holds."""
    scope = MemoryScope(user_id=user, **more.pop("scope", {}))
    query = SearchQuery(memory=scope, of="profile", top_k=more.pop("top_k", 20), **more)
    found = (await Searcher(store, clock=PastClock(TODAY, SYSTEM_CLOCK)).search(app, query, timeout_s=60)).rows()
    return [(row["text"], row["valid_at"][:10]) for row in found]


async def lines(store: GraphStore, user: str = "u1", **more: Any) -> list[str]:
    return [text for text, _ in await profile(store, user, **more)]


async def test_a_profile_has_what_a_user_claims_in_order_of_use(url: str, store: GraphStore) -> None:
    await write(url, store, [said(number, text, number) for number, text in enumerate(ABOUT, 1)])
    assert await profile(store) == [
        ("is called Ada", day(1)), ("lives in Oslo", day(2)), ("works as nurse", day(3)),
        ("is allergic to nuts", day(6)),
        ("does not like coffee", day(5)), ("likes tea", day(5)), ("has favourite colour blue", day(7)),
        ("has partner Tom", day(4)), ("mother lives in Rome", day(10)), ("has cat", day(9)),
    ]  # fmt: skip
    assert await lines(store, top_k=2) == ["is called Ada", "lives in Oslo"]
    assert await lines(store, "u2") == []


async def test_what_has_ended_is_in_the_profile_of_its_time_only(url: str, store: GraphStore) -> None:
    texts = (
        "I live in Oslo.",
        "I like tea.",
        "I live in Oslo.",
        "I moved to Bergen.",
        "I hate tea.",
        "I live in Bergen.",
    )
    await write(url, store, [said(number, text, 10 * number) for number, text in enumerate(texts, 1)])
    assert await profile(store) == [("lives in Bergen", day(40)), ("does not like tea", day(50))]
    then = T0 + timedelta(days=35)
    assert await profile(store, as_of=then) == [("lives in Oslo", day(10)), ("likes tea", day(20))]
    assert await profile(store, as_of=T0) == []


@pytest.mark.long("neo4j")
async def test_forgetting_updating_and_erasing_change_the_profile(url: str, store: GraphStore) -> None:
    chat = "chat of u1"
    events = [said(number, text, number) for number, text in enumerate(("I live in Oslo.", "I moved to Bergen."), 1)]
    await write(url, store, [*events, said(3, "I like tea.", 3), said(4, "I live in Rome.", 4, user="u2")])
    oslo, bergen, tea = (memory_id("/test", f"e{number}", 0) for number in (1, 2, 3))
    await write(url, store, [event("memory.forget", 11, {"memory_ids": [bergen]}, chat=chat)])
    assert await lines(store) == ["lives in Oslo", "likes tea"]
    await write(url, store, [event("memory.update", 12, {"memory_id": tea, "text": "The tea is cold."}, chat=chat)])
    assert await lines(store) == ["lives in Oslo"]
    kept = {"memory_ids": [oslo], "keep_statements": True}
    await write(url, store, [event("memory.forget", 13, kept, chat=chat)])
    assert await lines(store) == ["lives in Oslo"]
    await write(url, store, [event("memory.erase", 14, {"user_id": "u1"}, chat=chat)])
    assert await lines(store) == []
    assert await lines(store, "u2") == ["lives in Rome"]


async def test_a_profile_is_held_to_its_scope(url: str, store: GraphStore) -> None:
    events = [
        said(1, "I live in Oslo.", 1, agent_id="a"), said(2, "I like tea.", 2, agent_id="b", thread_id="t"),
        said(3, "I like wine.", 3, user="u2"), said(4, "I like gin.", 4, user="u1x"),
    ]  # fmt: skip
    await write(url, store, events)
    assert await lines(store) == ["lives in Oslo", "likes tea"]
    assert await lines(store, scope={"agent_id": "a"}) == ["lives in Oslo"]
    assert await lines(store, scope={"agent_id": "b"}) == ["likes tea"]
    assert await lines(store, scope={"application_id": "other"}) == []
    # What a user claims is known beyond its thread.
    assert await lines(store, scope={"thread_id": "other"}) == ["lives in Oslo", "likes tea"]


@pytest.mark.long("neo4j")
async def test_many_claims_leave_room_for_what_was_said_once(url: str, store: GraphStore) -> None:
    texts = ["I live in Oslo.", "I am allergic to nuts.", *(f"I like thing{number}." for number in range(400))]
    messages = [{"role": "user", "text": text} for text in texts]
    events = [
        event("memory.add", number, {"user_id": "u1", "messages": messages[at : at + 3]}, at=number)
        for number, at in enumerate(range(0, len(messages), 3))
    ]
    await write(url, store, events)
    assert await lines(store) == [
        "lives in Oslo", "is allergic to nuts", *(f"likes thing{number}" for number in range(399, 394, -1)),
    ]  # fmt: skip


async def test_statements_of_rules_and_of_nobody_are_in_no_profile(url: str, store: GraphStore) -> None:
    messages = [{"role": "user", "text": "I live in Oslo."}]
    await write(url, store, [event("memory.add", 1, {"thread_id": "t1", "messages": messages})])
    assert await rows(store, "MATCH (s:Statement) RETURN s.object, s.profile") == [("Oslo", None)]
    assert await lines(store) == []
