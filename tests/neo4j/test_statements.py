"""What users state becomes nodes that later statements end, on both kinds of server, through the bus and a worker."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.neo4j.test_memory_events import APP, T0, event, logged, rows, store, write
from tests.services.changes import CHANGES, LOOKALIKES, ends
from tests.services.planted_statements import planted
from tests.services.rules import rules_of_parts

from graphweft_contracts import Event
from graphweft_contracts.clock import SYSTEM_CLOCK, PastClock
from graphweft_contracts.memory import MemoryScope, memory_id
from graphweft_contracts.search import SearchQuery
from graphweft_workers.ports.graph_store import GraphStore
from graphweft_workers.retrieval.search import Searcher

pytestmark = pytest.mark.integration

__all__ = ("store",)

DAY = 86_400
TODAY = T0 + timedelta(days=300)
ENDS = "MATCH (s:Statement) RETURN s.user_id, s.text, left(s.until, 10), s.superseded_by IS NULL ORDER BY s.rank"


def said(number: int, text: str, day: int, *, user: str = "u1", chat: str = "", **more: Any) -> Event:
    data = {"user_id": user, "messages": [{"role": "user", "text": text}], **more}
    return event("memory.add", number, data, chat=chat or f"chat of {user}", at=day * DAY)


def day(number: int) -> str:
    return (T0 + timedelta(days=number)).date().isoformat()


class Told:
    """What one user told, and a search of it."""

    def __init__(self, url: str, store: GraphStore) -> None:
        self._url, self._store = url, store

    async def write(self, *texts: str) -> None:
        await write(self._url, self._store, [said(number, text, 10 * number) for number, text in enumerate(texts, 1)])

    async def ask(self, question: str, **more: Any) -> list[tuple[str, str | None]]:
        searcher = Searcher(self._store, clock=PastClock(TODAY, SYSTEM_CLOCK))
        query = SearchQuery(text=question, memory=MemoryScope(user_id="u1"), top_k=5, **more)
        table = (await searcher.search(APP, query, timeout_s=60)).table
        until = table.columns.index("invalid_at")
        return [(row[0], row[until] and row[until][:10]) for row in table.rows]


@pytest.fixture
def told(url: str, store: GraphStore) -> Told:
    return Told(url, store)


@pytest.mark.long("neo4j")
async def test_what_planted_statements_end(url: str, store: GraphStore) -> None:
    pairs = planted()
    events = [
        said(2 * pair.number + place, text, place, user=f"u{pair.number}")
        for place in (0, 1)
        for pair in pairs
        for text in [(pair.first, pair.second)[place]]
    ]
    await write(url, store, events)
    ended = {user for user, _, until, _ in await rows(store, ENDS) if until is not None}
    right = {f"u{pair.number}" for pair in pairs if pair.ends}
    assert {pair for pair in pairs if f"u{pair.number}" in ended - right} == set()
    assert len(ended & right) / len(right) >= 0.8


@pytest.mark.long("neo4j")
async def test_a_graph_ends_what_rules_say_of_ordinary_changes(url: str, store: GraphStore) -> None:
    pairs = dict(enumerate((*CHANGES, *LOOKALIKES)[::4]))
    await write(url, store, [
        said(2 * number + place, pair[place], place, user=f"u{number}")
        for place in (0, 1) for number, pair in pairs.items()
    ])  # fmt: skip
    ended = {user for user, _, until, _ in await rows(store, ENDS) if until is not None}
    assert {pair for number, pair in pairs.items() if (f"u{number}" in ended) != ends(*pair)} == set()


async def test_statements_end_each_other_in_whatever_order_their_chats_come(url: str, store: GraphStore) -> None:
    both = "I live in Rome and I like tea."
    texts = ["I live in Oslo.", "I moved to Bergen.", "I live in Bergen.", both, "I hate tea."]
    chats = [said(number, text, number, chat=f"c{number}") for number, text in enumerate(texts)]
    for place in (3, 0, 4, 2, 1):
        await logged(url, store, [chats[place]], clock=None)
    assert [row[1:3] for row in await rows(store, ENDS)] == [
        ("I live in Oslo.", day(1)), ("I moved to Bergen.", day(3)), ("I live in Bergen.", day(3)),
        ("I live in Rome", None), ("I like tea.", day(4)), ("I hate tea.", None),
    ]  # fmt: skip


@pytest.mark.long("neo4j")
async def test_questions_courtesy_and_what_assistants_say_are_no_statements(url: str, store: GraphStore) -> None:
    messages = [
        {"role": "user", "text": "Hi! Where do I live? Thanks."}, {"role": "assistant", "text": "I live in the cloud."},
        {"role": "user", "text": "Can you help me? I think so. I have a question. The train was late. I own a boat."},
    ]  # fmt: skip
    await write(url, store, [event("memory.add", 1, {"user_id": "u1", "messages": messages})])
    assert [row[1] for row in await rows(store, ENDS)] == ["I own a boat."]
    assert await rows(store, "MATCH (m:Memory) RETURN m.stated ORDER BY m.timestamp") == [(None,), (None,), (1,)]


@pytest.mark.long("neo4j")
async def test_a_statement_stays_of_a_forgotten_memory_only_where_that_is_wanted(
    told: Told, url: str, store: GraphStore
) -> None:
    await told.write("I live in Oslo. The weather is bad.", "I moved to Bergen.", "I like tea.")
    ids = [memory_id("/test", f"e{number}", 0) for number in (1, 2, 3)]
    forget = {"memory_ids": ids[:1], "keep_statements": True}
    await write(url, store, [event("memory.forget", 11, forget, chat="chat of u1")])
    assert await told.ask("Where do I live?") == [("I moved to Bergen.", None), ("I live in Oslo.", day(20))]
    # An explicit wish to forget leaves nothing, and what the statement ended holds again.
    await write(url, store, [event("memory.forget", 12, {"memory_ids": ids[1:2]}, chat="chat of u1")])
    assert [row[1:3] for row in await rows(store, ENDS)] == [("I live in Oslo.", None), ("I like tea.", None)]
    await write(url, store, [event("memory.forget", 13, {"memory_ids": ids[2:]}, chat="chat of u1")])
    assert await told.ask("Where do I live?") == [("I live in Oslo.", None)]


@pytest.mark.long("neo4j")
async def test_what_ended_is_marked_in_each_of_several_scopes_and_only_when_it_had(told: Told) -> None:
    await told.write("I live in Oslo.", "I moved to Bergen.")
    right = [("I moved to Bergen.", None), ("I live in Oslo.", day(20))]
    for others in ([], [MemoryScope(application_id="team")], [MemoryScope(user_id="u1", agent_id="a")]):
        assert await told.ask("Where do I live?", any_of=others) == right
    assert await told.ask("Where do I live?", as_of=T0 + timedelta(days=15)) == [("I live in Oslo.", None)]


@pytest.mark.long("neo4j")
async def test_what_another_user_said_has_their_name_and_is_not_the_askers_own(url: str, store: GraphStore) -> None:
    await write(url, store, [said(1, "I live in Oslo.", 1), said(2, "I live in Cork.", 2, user="u2")])
    searcher = Searcher(store, clock=PastClock(TODAY, SYSTEM_CLOCK))
    both = SearchQuery(
        text="Where do I live?", memory=MemoryScope(user_id="u1"), any_of=(MemoryScope(user_id="u2"),), top_k=5
    )
    rows = (await searcher.search(APP, both, timeout_s=60)).rows()
    assert [(row["text"], row["author_name"]) for row in rows] == [("I live in Oslo.", None), ("I live in Cork.", "u2")]


@pytest.mark.long("neo4j")
async def test_a_fact_ends_by_a_later_claim_that_nobody_has_condensed(told: Told, url: str, store: GraphStore) -> None:
    await told.write("I live in Oslo.", "I moved to Bergen.")
    oslo = {
        "subject": "user", "predicate": "lives in", "object": "Oslo", "text": "The user lives in Oslo",
        "valid_from": (T0 + timedelta(days=10)).isoformat(), "memory_ids": [memory_id("/test", "e1", 0)],
    }  # fmt: skip
    condensed = {
        "user_id": "u1",
        "memory_ids": oslo["memory_ids"],
        "summary": "One message",
        "model": "m",
        "facts": [oslo],
    }
    await write(url, store, [event("memory.summarized", 21, condensed, chat="chat of u1")])
    right = [("I moved to Bergen.", None), ("I live in Oslo.", day(20)), ("The user lives in Oslo", day(20))]
    assert sorted(await told.ask("Where do I live?"), key=str) == sorted(right, key=str)
    assert (await told.ask("Where do I live?"))[0] == right[0]
    assert ("The user lives in Oslo", None) in await told.ask("Where do I live?", as_of=T0 + timedelta(days=15))


@pytest.mark.long("neo4j")
async def test_what_says_its_own_end_is_marked_once_it_is_over(told: Told, url: str, store: GraphStore) -> None:
    text, question = "I use desk 3 for two weeks.", "Which desk do I use?"
    await told.write(text)
    assert await told.ask(question) == [(text, day(24))]
    assert await told.ask(question, as_of=T0 + timedelta(days=24)) == [(text, None)]
    assert await told.ask(question, as_of=T0 + timedelta(days=25)) == [(text, day(24))]
    forget = {"memory_ids": [memory_id("/test", "e1", 0)], "keep_statements": True}
    await write(url, store, [event("memory.forget", 11, forget, chat="chat of u1")])
    assert await told.ask(question) == [(text, day(24))], "of the statement that is left"


@pytest.mark.long("neo4j")
async def test_a_statement_that_is_left_tells_by_what_it_is_forgotten(told: Told, url: str, store: GraphStore) -> None:
    await told.write("I live in Oslo.")
    id = memory_id("/test", "e1", 0)
    forget = {"memory_ids": [id], "keep_statements": True}
    await write(url, store, [event("memory.forget", 11, forget, chat="chat of u1")])
    searcher = Searcher(store, clock=PastClock(TODAY, SYSTEM_CLOCK))
    query = SearchQuery(memory=MemoryScope(user_id="u1"))
    [left] = (await searcher.search(APP, query, timeout_s=60)).rows()
    [row] = (await searcher.search(APP, query.model_copy(update={"ids": (left["id"],)}), timeout_s=60)).rows()
    assert (row["kind"], row["chat_id"], row["memory_id"]) == ("statement", "chat of u1", id)


@pytest.mark.long("neo4j")
async def test_an_update_of_a_memory_forgets_what_its_earlier_text_stated(
    told: Told, url: str, store: GraphStore
) -> None:
    await told.write("I live in Oslo.", "I moved to Bergen.", "I like tea.")
    moved, tea = (memory_id("/test", f"e{number}", 0) for number in (2, 3))
    changed = {"memory_id": moved, "text": "I was in Bergen for a week."}
    pinned = {"memory_id": tea, "pinned": True}
    updates = [event("memory.update", 11 + at, data, chat="chat of u1") for at, data in enumerate((changed, pinned))]
    await write(url, store, updates)
    assert [row[1:3] for row in await rows(store, ENDS)] == [("I live in Oslo.", None), ("I like tea.", None)]
    assert ("I live in Oslo.", None) in await told.ask("Where do I live?")
    # What is kept of a forgotten memory is no memory that could be updated.
    forget = {"memory_ids": [tea], "keep_statements": True}
    late = {"memory_id": tea, "text": "I like coffee."}
    await write(url, store, [event("memory.forget", 13, forget, chat="chat of u1")])
    await write(url, store, [event("memory.update", 14, late, chat="chat of u1")])
    assert [row[1:3] for row in await rows(store, ENDS)] == [("I live in Oslo.", None), ("I like tea.", None)]


@pytest.mark.long("neo4j")
async def test_an_erasure_reaches_statements_and_what_they_ended(url: str, store: GraphStore) -> None:
    lasting = said(9, "I live in Rome.", 2, user="u2")
    events = [said(1, "I live in Oslo.", 0), said(2, "I moved to Bergen.", 1), lasting]
    await write(url, store, [*events, event("memory.forget", 3, {
        "memory_ids": [memory_id("/test", "e1", 0)], "keep_statements": True}, chat="chat of u1")])  # fmt: skip
    await write(url, store, [event("memory.erase", 4, {"user_id": "u1"}, chat="chat of u1")])
    assert [row[:2] for row in await rows(store, ENDS)] == [("u2", "I live in Rome.")]
    await write(url, store, [said(5, "I live in Lyon.", 3)])
    assert [row[:3] for row in await rows(store, ENDS)] == [
        ("u2", "I live in Rome.", None), ("u1", "I live in Lyon.", None),
    ]  # fmt: skip


@pytest.mark.long("neo4j")
async def test_what_has_ended_is_behind_what_ended_it(told: Told) -> None:
    texts = ("I live in Oslo.", "I moved to Bergen.", "The keys to Stavanger came.", "My new home is Stavanger.")
    await told.write(*texts)
    expected = [("My new home is Stavanger.", None), ("I moved to Bergen.", day(40)), ("I live in Oslo.", day(20))]
    assert [row for row in await told.ask("Where does this user live?") if row in expected] == expected
    # By words alone, nothing is known of the others.
    assert await told.ask("live", index_type="fulltext") == [("I live in Oslo.", day(20))]


async def test_a_question_about_the_past_sees_what_held_then(told: Told) -> None:
    await told.write("I live in Oslo.", "I moved to Bergen.", "I live in Rome.")  # 10, 20, 30 days after February 1
    assert (await told.ask("Where did I live on 15 February 2026?"))[0] == ("I live in Oslo.", day(20))
    assert (await told.ask("Where did I live in February?"))[0] == ("I moved to Bergen.", day(30))
    assert (await told.ask("Where do I live?"))[0] == ("I live in Rome.", None)


@pytest.mark.long("neo4j")
@pytest.mark.parametrize(
    ("texts", "question", "answer"),
    [
        (("My girlfriend is Anna.", "Anna and I broke up."), "Who is my girlfriend?", "Anna and I broke up."),
        (("I have a dog called Rex.", "My dog died."), "Which pets do I have?", "My dog died."),
        (("I work for Acme.", "I was laid off."), "Where do I work?", "I was laid off."),
        (("I drink coffee.", "I stopped drinking coffee."), "Do I drink coffee?", "I stopped drinking coffee."),
    ],
)
async def test_the_end_of_something_is_the_answer(told: Told, texts: Sequence[str], question: str, answer: str) -> None:
    await told.write(*texts, "The concert was wonderful.")
    assert (await told.ask(question))[0] == (answer, None)


async def test_what_another_thread_ended_is_marked_only_where_both_are_searched(url: str, store: GraphStore) -> None:
    texts = [("I live in Oslo.", "t1"), ("I moved to Bergen.", "t2")]
    await write(url, store, [said(n, text, n, thread_id=thread) for n, (text, thread) in enumerate(texts, 1)])
    found: dict[str, list[tuple[str, bool]]] = {}
    for thread in ("", "t1", "t2"):
        scope = MemoryScope(user_id="u1", thread_id=thread or None)
        searcher = Searcher(store, clock=PastClock(TODAY, SYSTEM_CLOCK))
        table = (await searcher.search(APP, SearchQuery(text="Where do I live?", memory=scope), timeout_s=60)).table
        until = table.columns.index("invalid_at")
        found[thread] = [(row[0], row[until] is None) for row in table.rows]
    assert found == {
        "": [("I moved to Bergen.", True), ("I live in Oslo.", False)], "t1": [("I live in Oslo.", True)],
        "t2": [("I moved to Bergen.", True)],
    }  # fmt: skip


@pytest.mark.long("neo4j")
async def test_authors_of_one_scope_do_not_end_what_others_state(url: str, store: GraphStore) -> None:
    said_by = (("Ann", "I live in Oslo."), ("Bob", "I live in Rome."), ("Ann", "I moved to Bonn."))
    messages = [{"role": "user", "text": text, "author_name": author} for author, text in said_by]
    await write(url, store, [
        event("memory.add", number, {"user_id": "u1", "messages": [message]}) for number, message in enumerate(messages)
    ])  # fmt: skip
    assert [(row[1], row[2] is None) for row in await rows(store, ENDS)] == [
        ("I live in Oslo.", False), ("I live in Rome.", True), ("I moved to Bonn.", True),
    ]  # fmt: skip


@pytest.mark.long("neo4j")
async def test_an_erasure_leaves_statements_that_rules_wrote(url: str, store: GraphStore, tmp_path: Path) -> None:
    rules = rules_of_parts(tmp_path, {"keep": "MERGE (s:Statement {id: $s}) SET s.user_id = 'u1'"})
    await write(
        url, store, [event("bank.statement", 1, {"s": "of a bank"}).model_copy(update={"workflow": "W"})], rules
    )
    erased = event("memory.erase", 3, {"user_id": "u1"}, chat="chat of u1")
    await write(url, store, [said(2, "I live in Oslo.", 1), erased])
    assert await rows(store, "MATCH (s:Statement) RETURN s.id") == [("of a bank",)]


@pytest.mark.long("neo4j")
async def test_of_many_claims_each_ends_by_the_first_that_says_otherwise(url: str, store: GraphStore) -> None:
    """More than are looked at together, in runs of equal ones, before and after each third is forgotten."""
    texts = ["I live in Oslo.", "I live in Rome.", "I live in Oslo.", "I live in Lyon."]
    stated = [texts[number // 7 % 4] for number in range(110)]
    events = [
        event("memory.add", at, {"user_id": "u1", "messages": [
            {"role": "user", "text": text, "time": (T0 + timedelta(days=number)).isoformat()}
            for number, text in enumerate(stated[at : at + 10], at)
        ]}, chat="c")
        for at in range(0, len(stated), 10)
    ]  # fmt: skip
    await write(url, store, events)
    gone = [number for number in range(len(stated)) if number % 3 == 0]

    def ended(left: Sequence[int]) -> list[tuple[str, str | None]]:
        later = [
            next((day(other) for other in left if other > number and stated[other] != stated[number]), None)
            for number in left
        ]
        return [(stated[number], until) for number, until in zip(left, later, strict=True)]

    assert [row[1:3] for row in await rows(store, ENDS)] == ended(range(len(stated)))
    ids = [memory_id("/test", f"e{number // 10 * 10}", number % 10) for number in gone]
    await write(url, store, [event("memory.forget", 999, {"memory_ids": ids}, chat="c")])
    assert [row[1:3] for row in await rows(store, ENDS)] == ended([n for n in range(len(stated)) if n not in gone])


async def test_what_is_said_of_a_name_ends_the_claims_about_it(url: str, store: GraphStore) -> None:
    """In whatever order the chats come, and until it is forgotten, updated or erased."""
    texts = [
        "I have a dog called Rex.", "My friend Greta lives in Hamburg.", "I work at Siemens.", "Rex died.",
        "Greta has moved to Cologne.", "I left Siemens.", "I have a cat called Rex.",
    ]  # fmt: skip
    for place in (3, 0, 6, 4, 1, 5, 2):
        await logged(url, store, [said(place, texts[place], place, chat=f"c{place}")], clock=None)
    right = [day(3), day(4), day(5), None, None, None, None]
    assert [row[2] for row in await rows(store, ENDS)] == right
    forget = {"memory_ids": [memory_id("/test", "e3", 0)]}
    await write(url, store, [event("memory.forget", 11, forget, chat="c3")])
    change = {"memory_id": memory_id("/test", "e4", 0), "text": "Greta has a new bicycle."}
    await write(url, store, [event("memory.update", 12, change, chat="c4")])
    left = [(texts[0], None), (texts[1], None), (texts[2], day(5)), (texts[5], None), (texts[6], None)]
    assert [row[1:3] for row in await rows(store, ENDS)] == left
    await write(url, store, [event("memory.erase", 13, {"user_id": "u1"}, chat="c5")])
    assert await rows(store, ENDS) == []


async def test_a_claim_with_the_day_of_its_beginning_ends_the_earlier_one_on_that_day(
    told: Told, store: GraphStore
) -> None:
    await told.write("I work at Siemens.", "From 1 June I work at the town hall.")
    assert [row[1:3] for row in await rows(store, ENDS)] == [
        ("I work at Siemens.", "2026-06-01"), ("From 1 June I work at the town hall.", None),
    ]  # fmt: skip
    asked = "Where do I work?"
    assert (await told.ask(asked, as_of=datetime(2026, 5, 31, tzinfo=UTC)))[0] == ("I work at Siemens.", None)
    assert (await told.ask(asked))[0] == ("From 1 June I work at the town hall.", None)
    assert ("I work at Siemens.", "2026-06-01") in await told.ask(asked)


async def test_a_question_about_another_person_finds_the_latest_of_them(told: Told) -> None:
    texts = ("My sister Greta lives in Hamburg.", "Greta has moved to Cologne.", "Tom lives in Hamburg.", "I like tea.")
    await told.write(*texts)
    assert (await told.ask("Where does Greta live?"))[:2] == [(texts[1], None), (texts[0], day(20))]
    assert (texts[2], None) in await told.ask("Where does Tom live?")


async def test_where_am_i_is_where_the_user_is_away_and_then_the_home(told: Told) -> None:
    texts = ("I live in Porto.", "I'm in Lisbon this week.", "The train was crowded.")
    await told.write(*texts)
    question = "Where am I right now?"
    during, after = T0 + timedelta(days=20, hours=1), T0 + timedelta(days=35)
    assert [text for text, _ in await told.ask(question, as_of=during)][:2] == [texts[1], texts[0]]
    assert [text for text, _ in await told.ask(question, as_of=after)] == [texts[0], texts[2], texts[1]]
