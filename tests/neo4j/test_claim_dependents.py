"""What claims depend on by the rules of an ontology, on both kinds of server, through the bus and a worker."""

from __future__ import annotations

import random
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.neo4j.test_memory_events import APP, T0, check_small_batches, event, logged, rows, store, write
from tests.neo4j.test_statements import DAY, said
from tests.services.planted_conversations import ONTOLOGY, planted
from tests.services.planted_stories import Story, wrong

from graphweft_contracts import Event
from graphweft_contracts.clock import SYSTEM_CLOCK, PastClock
from graphweft_contracts.memory import MemoryScope, memory_id
from graphweft_contracts.search import SearchQuery
from graphweft_rules import RuleSet
from graphweft_workers.features.episodes.mutations import EpisodeMutations
from graphweft_workers.features.episodes.ontologies.files import read_ontology
from graphweft_workers.features.memory.mutations import MemoryMutations
from graphweft_workers.ports.graph_store import GraphStore
from graphweft_workers.retrieval.search import Searcher

pytestmark = pytest.mark.integration
__all__ = ("store",)

STATEMENTS = (
    "MATCH (s:Statement) MATCH (m:Memory {id: s.memory_id}) "
    "RETURN s.user_id, m.timestamp, m.text, s.until, s.doubted_at, s.ended_why ORDER BY s.rank"
)


def life() -> RuleSet:
    ontology, findings = read_ontology(ONTOLOGY.encode(), Path("life_v1.yaml"))
    assert findings == ()
    assert ontology is not None
    return RuleSet({}, packs=(MemoryMutations(ontology.predicate_rules), EpisodeMutations()))


RULES = life()


def told(stories: Sequence[Story], rng: random.Random) -> list[Event]:
    """Return the messages of stories in any order, each in a chat of its own."""
    events = [
        said(100 * story.number + place, text, day, user=f"u{story.number}", chat=f"{place} {story.number}")
        for story in stories for place, (day, text) in enumerate(story.said)
    ]  # fmt: skip
    rng.shuffle(events)
    return events


async def found(store: GraphStore) -> tuple[dict[str, set[str]], dict[str, set[str]]]:
    """Return by user the messages of which all that they state holds, and those of which something is in doubt."""
    ended: dict[str, set[str]] = {}
    holds: dict[str, set[str]] = {}
    doubted: dict[str, set[str]] = {}
    for user, timestamp, text, until, doubted_at, _ in await rows(store, STATEMENTS):
        name = f"{_day(timestamp)} {text}"
        (holds if until is None else ended).setdefault(user, set()).add(name)
        if doubted_at is not None:
            doubted.setdefault(user, set()).add(name)
    return {user: names - ended.get(user, set()) for user, names in holds.items()}, doubted


def _day(timestamp: str) -> int:
    return int((T0.fromisoformat(timestamp) - T0) / timedelta(days=1))


@pytest.mark.timeout(900)
@pytest.mark.long("neo4j")
@pytest.mark.soak("126")
@pytest.mark.parametrize("each", [1, 6], ids=["21 stories", "126 stories"])
async def test_what_holds_by_planted_stories_whatever_their_order(url: str, store: GraphStore, each: int) -> None:
    stories = planted(each=each)
    assert sum(story.kind in {"cascade", "absence"} for story in stories) == 12 * each
    await write(url, store, told(stories, random.Random(5)), RULES)
    held, doubted = await found(store)
    assert wrong(stories, held, doubted) == []


@pytest.mark.long("neo4j")
async def test_a_replay_in_small_batches_ends_the_same(url: str, store: GraphStore) -> None:
    await write(url, store, told(planted(each=1), random.Random(7)), RULES)
    await check_small_batches(url, store, RULES)


FIRED = ["I work for Acme.", "I work as a nurse.", "My supervisor is Anna Berg.", "I quit my job."]
ENDS = "MATCH (s:Statement) RETURN s.text, left(s.until, 10), s.ended_why ORDER BY s.rank"


def day(number: int) -> str:
    return (T0 + timedelta(days=number)).date().isoformat()


@pytest.mark.long("neo4j-erase", "neo4j-forget")
@pytest.mark.parametrize("undo", ["forget", "update", "erase"])
async def test_what_is_undone_brings_back_what_depended_on_it(url: str, store: GraphStore, undo: str) -> None:
    await logged(url, store, [said(at, text, at) for at, text in enumerate(FIRED)], clock=None, rules=RULES)
    assert await rows(store, ENDS) == [
        ("I work for Acme.", day(3), None),
        ("I work as a nurse.", day(3), "depends_on"),
        ("My supervisor is Anna Berg.", day(3), "depends_on"),
        ("I quit my job.", None, None),
    ]
    # The end itself, or, for an erasure, all that was logged before: what depends on nothing any more
    wrong = memory_id("/test", "e3", 0)
    chat = "chat of u1"
    if undo == "erase":
        later = [said(7, "My supervisor is Ben Cole.", 7)]
        erasure = event("memory.erase", 20, {"user_id": "u1"}, chat=chat, at=6 * DAY)
        await logged(url, store, [erasure, *later], clock=None, rules=RULES)
        assert await rows(store, ENDS) == [("My supervisor is Ben Cole.", None, None)]
        return
    undone = {
        "forget": event("memory.forget", 20, {"memory_ids": [wrong]}, chat=chat, at=6 * DAY),
        "update": event("memory.update", 20, {"memory_id": wrong, "text": "Nothing."}, chat=chat, at=6 * DAY),
    }[undo]
    await logged(url, store, [undone], clock=None, rules=RULES)
    assert await rows(store, ENDS) == [(text, None, None) for text in FIRED[:3]]


async def test_a_verdict_ends_what_depends_on_a_claim_until_it_is_taken_back(url: str, store: GraphStore) -> None:
    first_day = "Today was my first day of work at Borealis."
    texts = ["I work for Acme.", "My boss is Anna Berg.", first_day]
    await logged(url, store, [said(at, text, at) for at, text in enumerate(texts)], clock=None, rules=RULES)
    ids = await rows(store, "MATCH (s:Statement) RETURN s.id, s.digest, s.timestamp ORDER BY s.rank")
    (old, of_old, _), _, (new, of_new, at) = ids
    judged = {"new": new, "old": old, "verdict": "ends", "at": at, "by": "m", "saw": {new: of_new, old: of_old}}
    verdict = event("statement.judged", 10, judged, chat="chat of u1", at=6 * DAY)
    await logged(url, store, [verdict], clock=None, rules=RULES)
    assert await rows(store, ENDS) == [
        (texts[0], day(2), None), (texts[1], day(2), "depends_on"), (first_day, None, None),
    ]  # fmt: skip
    pair = {"new": new, "old": old}
    back = event("statement.unjudged", 11, pair, chat="chat of u1", at=7 * DAY)
    await logged(url, store, [back], clock=None, rules=RULES)
    assert await rows(store, ENDS) == [(text, None, None) for text in texts]


async def test_a_search_and_a_profile_say_what_ended_and_what_is_in_doubt(url: str, store: GraphStore) -> None:
    texts = ["I work for Acme.", "My boss is Anna Berg.", "I drive a Volvo.", "I work for Globex now."]
    phone = said(9, "My phone number is 555 1234.", 1)
    await write(url, store, [*(said(at, text, at) for at, text in enumerate(texts)), phone], RULES)

    async def ask(at: int, **more: Any) -> list[tuple[Any, ...]]:
        searcher = Searcher(store, clock=PastClock(T0 + timedelta(days=at), SYSTEM_CLOCK))
        table = (await searcher.search(APP, SearchQuery(memory=MemoryScope(user_id="u1"), **more), timeout_s=60)).table
        places = [table.columns.index(name) for name in ("text", "invalid_at", "doubted_at", "doubted_because")]
        return [tuple(value and value[:16] for value in (row[place] for place in places)) for row in table.rows]

    found = await ask(9, text="Who is my boss?", top_k=2)
    assert [row[:2] for row in found] == [("I work for Globe", None), ("My boss is Anna ", f"{day(3)}T10:00")]
    assert await ask(9, text="", of="profile") == [
        ("works for Globex", None, None, None),
        ("drives Volvo", None, f"{day(3)}T10:00", "I work for Acme."),
    ]
    # What is private is in no profile, and a search shows that it is in doubt.
    assert await ask(9, text="What is my phone number?", top_k=1) == [
        ("My phone number ", None, f"{day(3)}T10:00", "I work for Acme."),
    ]
    assert await ask(2, text="What is my phone number?", top_k=1) == [("My phone number ", None, None, None)]
    assert [row[0] for row in await ask(2, text="", of="profile")] == [
        "works for Acme", "has boss Anna Be", "drives Volvo",
    ]  # fmt: skip
