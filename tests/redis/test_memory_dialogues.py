"""What a user is told by a new installation, by words alone and by meaning: the right answer is first."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pytest
from tests.neo4j.test_memory_events import APP, T0, event, write
from tests.services.model_process import ModelProcess
from tests.services.runtime_environments import MODEL_ENVIRONMENT_S

from graphweft_contracts import Event
from graphweft_contracts.clock import SYSTEM_CLOCK, PastClock
from graphweft_contracts.memory import MemoryScope, memory_id
from graphweft_contracts.search import SearchQuery
from graphweft_workers.drivers.falkordb.store import FalkorDBStore
from graphweft_workers.embedding.protocol import Embedder
from graphweft_workers.retrieval.search import Searcher

pytestmark = pytest.mark.integration

TODAY: Final = datetime(2026, 6, 20, 12, tzinfo=UTC)
MOVES: Final = (
    (datetime(2026, 1, 10, 9, tzinfo=UTC), "I live in Oslo."),
    (datetime(2026, 3, 5, 9, tzinfo=UTC), "I moved to Bergen."),
    (datetime(2026, 6, 10, 9, tzinfo=UTC), "My new flat is in Stavanger, I have been here since Monday."),
)
OTHERS: Final = (
    (datetime(2026, 2, 14, 9, tzinfo=UTC), "I bought a red bicycle."),
    (datetime(2026, 4, 2, 9, tzinfo=UTC), "I am allergic to nuts."),
    (datetime(2026, 6, 11, 9, tzinfo=UTC), "The concert was wonderful."),
)
SEATS: Final = (
    (datetime(2026, 2, 1, 9, tzinfo=UTC), "I prefer the window seat."),
    (datetime(2026, 5, 1, 9, tzinfo=UTC), "I prefer an aisle seat these days."),
)


def seconds(at: datetime) -> int:
    return int((at - T0).total_seconds())


def said(number: int, text: str, at: datetime, role: str = "user") -> Event:
    data = {"user_id": "u1", "messages": [{"role": role, "text": text}]}
    return event("memory.add", number, data, chat=f"c{number}", at=seconds(at))


class Told:
    """What was told, and a search of it."""

    def __init__(self, url: str, graph: FalkorDBStore, embedder: Embedder | None) -> None:
        self._url, self._graph, self._embedder = url, graph, embedder
        self._searcher = Searcher(graph, embedder, clock=PastClock(TODAY, SYSTEM_CLOCK))

    async def write(self, events: Sequence[Event], *, vectors: bool = True) -> None:
        embedded: list[Event] = []
        if self._embedder is not None and vectors:
            texts = [each.data["messages"][0]["text"] for each in events]
            for number, (made, vector) in enumerate(zip(events, await self._embedder.embed(texts), strict=True)):
                data = {
                    "memory_id": memory_id("/test", made.id, 0), "model": self._embedder.model, "embedding": vector,
                }  # fmt: skip
                embedded.append(event("memory.embedded", 100_000 + number, data, chat=made.chatid))
        await write(self._url, self._graph, [*events, *embedded])

    async def ask(self, question: str, top_k: int = 5, **more: Any) -> list[str]:
        query = SearchQuery(text=question, memory=MemoryScope(user_id="u1"), top_k=top_k, fill="latest", **more)
        return [row[0] for row in (await self._searcher.search(APP, query, timeout_s=60)).table.rows]

    async def first(self, questions: Iterable[str]) -> dict[str, str]:
        """Return what is found first for each question."""
        return {question: (await self.ask(question))[0] for question in questions}


_MINILM: Final = pytest.param("minilm", marks=[pytest.mark.slow, pytest.mark.timeout(MODEL_ENVIRONMENT_S)])


@pytest.fixture(scope="module")
def minilm(model_python: Path) -> Iterator[Embedder]:
    with contextlib.closing(ModelProcess(model_python)) as process:
        yield process


@pytest.fixture(params=["words", _MINILM])
def told(request: pytest.FixtureRequest, url: str, graph: FalkorDBStore) -> Told:
    return Told(url, graph, request.getfixturevalue("minilm") if request.param == "minilm" else None)


ANSWERS: Final = {
    "Where do I live?": MOVES[2][1], "Where am I living now?": MOVES[2][1], "What is my address?": MOVES[2][1],
    "In which city is my home?": MOVES[2][1], "Where did I live in February?": MOVES[0][1],
    "Where did I live in April?": MOVES[1][1], "Which seat do I prefer?": SEATS[1][1],
    "What did I buy in February?": OTHERS[0][1], "What am I allergic to?": OTHERS[1][1],
    "What did I say last week?": MOVES[2][1],
}  # fmt: skip


@pytest.mark.long("minilm")
async def test_what_was_told_last_is_first(told: Told) -> None:
    events = [said(number, text, at) for number, (at, text) in enumerate((*MOVES, *OTHERS, *SEATS), 1)]
    await told.write(events)
    assert await told.first(ANSWERS) == ANSWERS


SUPPORT: Final = (
    ("user", "Hi, my name is Marta Kowalczyk and I have a problem with my router."),
    ("assistant", "Hello Marta, what happens exactly?"), ("user", "The wifi drops every evening."),
    ("user", "My email is marta.k@postbox.example."), ("assistant", "Noted."),
    ("user", "We have moved: our new address is 14 Mill Lane, York."), ("assistant", "I have changed the address."),
    ("user", "Yes, please move the contract to the new flat from July 1st."), ("assistant", "Done."),
    ("user", "I'm a carpenter and I have my own workshop in Hall 3."), ("assistant", "That sounds great."),
    ("user", "My email address has changed, it's now marta@kowalczyk.example."), ("assistant", "Thank you, I did so."),
    ("user", "By the way, your hotline music is awful."), ("assistant", "I'll pass that on."),
)  # fmt: skip


CLAIMED: Final = {
    "Where do I live?": SUPPORT[5][1], "What is my address?": SUPPORT[5][1],
    "What's my e-mail address?": SUPPORT[11][1], "What is my email?": SUPPORT[11][1],
    "What is my job?": SUPPORT[9][1], "What do I do for work?": SUPPORT[9][1], "What is my name?": SUPPORT[0][1],
    "Which problem do I have with my router?": SUPPORT[0][1],
}  # fmt: skip


async def test_what_a_user_claims_answers_a_question_that_shares_no_word(told: Told) -> None:
    day = TODAY - timedelta(days=90)
    events = [said(number, text, day + timedelta(days=number), role) for number, (role, text) in enumerate(SUPPORT, 1)]
    await told.write(events)
    assert await told.first(CLAIMED) == CLAIMED
    # What is in the profile is before what was said last.
    known = await told.ask("What do you know about me?", 4)
    assert known[:2] == [SUPPORT[0][1], SUPPORT[9][1]]
    assert SUPPORT[-2][1] in known
    assert "I'll pass that on." not in known


async def test_what_has_begun_since_is_before_an_earlier_claim(told: Told) -> None:
    new = "I've got a new job: from June I work at the Clinic am Park."
    day = TODAY - timedelta(days=100)
    await told.write([said(1, "I work at St. Mary's hospital.", day), said(2, new, day + timedelta(days=60))])
    assert (await told.ask("Where do I work?"))[0] == new
    await told.write([
        said(3, "We have moved: our new address is 14 Mill Lane, York.", day),
        said(4, "Please move the contract to the new flat from May 1st.", day + timedelta(days=1)),
    ])  # fmt: skip
    assert (await told.ask("Where do I live?"))[0] == "We have moved: our new address is 14 Mill Lane, York."


async def test_a_move_that_has_begun_is_before_the_home_and_where_am_i_finds_the_latest(told: Told) -> None:
    day = TODAY - timedelta(days=60)
    texts = ("I live in Oslo.", "I like tea.", "I'm moving to Graz next month.", "I'm in Lisbon this week.")
    await told.write([said(n, text, day + timedelta(days=n) if n < 4 else TODAY) for n, text in enumerate(texts, 1)])
    assert (await told.ask("Where do I live?"))[0] == texts[2]
    assert (await told.ask("Where am I?"))[0] == texts[3]
    assert (await told.ask("Who am I?"))[0] == texts[0]


async def test_a_claim_of_another_user_or_of_a_forgotten_memory_answers_nothing(told: Told) -> None:
    events = [said(1, "I'm a nurse.", TODAY - timedelta(days=9)), said(2, "I like tea.", TODAY - timedelta(days=8))]
    other = {"user_id": "u2", "messages": [{"role": "user", "text": "I'm a carpenter."}]}
    forget = {"memory_ids": [memory_id("/test", events[0].id, 0)]}
    await told.write([*events, event("memory.add", 3, other, chat="c3", at=seconds(TODAY - timedelta(days=7)))])
    assert (await told.ask("What is my job?"))[0] == "I'm a nurse."
    await told.write([event("memory.forget", 4, forget | {"keep_statements": True}, chat="c1")], vectors=False)
    assert (await told.ask("What is my job?"))[0] == "I'm a nurse."
    await told.write([event("memory.forget", 5, forget, chat="c1")], vectors=False)
    assert await told.ask("What is my job?") == ["I like tea."]


async def test_all_of_a_small_scope_answers_what_is_known_of_the_user(told: Told) -> None:
    await told.write([said(number, text, at) for number, (at, text) in enumerate((*MOVES, *OTHERS), 1)])
    assert set(await told.ask("What do you know about me?", 10)) == {text for _, text in (*MOVES, *OTHERS)}


CAT: Final = "My cat is called Tom and he is three years old."
ASKED: Final = ("What is my cat called?", "How old is my cat?", "Do you remember my cat Tom?", "Who is Tom?")


@pytest.mark.long("minilm")
async def test_a_fact_is_first_after_a_thousand_other_turns(told: Told) -> None:
    events = [said(1, CAT, TODAY - timedelta(days=90))]
    topics = ("train", "invoice", "garden", "printer", "holiday", "recipe", "bridge", "novel")
    for number in range(2, 1_002):
        at = TODAY - timedelta(days=80) + timedelta(minutes=number)
        if number % 20 == 0:
            events.append(said(number, f"{ASKED[number // 20 % 4][:-1]} on day {number}?", at))
        else:
            topic = topics[number % 8]
            events.append(said(number, f"The {topic} of step {number} was {('late', 'new', 'fine')[number % 3]}.", at))
    await told.write(events)
    for question in ASKED:
        assert (await told.ask(question))[0] == CAT


async def test_the_row_with_the_name_is_before_its_neighbour(told: Told) -> None:
    texts = ("My cat is called Tom.", "He is four.", "He sleeps all day.")
    made = [
        event("memory.add", number, {
            "user_id": "u1", "thread_id": "t", "messages": [{"role": "user", "text": text}],
        }, chat="t", at=seconds(TODAY - timedelta(days=1)) + 60 * number)
        for number, text in enumerate(texts, 1)
    ]  # fmt: skip
    await told.write(made)
    for question in ("Tom", "Who is Tom?", "What do you know about Tom?"):
        assert (await told.ask(question))[0] == texts[0]


@pytest.mark.parametrize(
    ("stored", "question"),
    [("My sister lives in Zürich.", "zurich"), ("我的狗叫小白", "狗"), ("ฉันปวดหัวทุกเช้า", "ปวดหัว")],
)
async def test_a_memory_is_found_without_its_accents_and_by_one_character(
    told: Told, stored: str, question: str
) -> None:
    await told.write([said(1, stored, TODAY - timedelta(days=3)), said(2, "The train was late.", TODAY)])
    assert (await told.ask(question, 1))[0] == stored
