"""The signals of the ranking of a scope, each alone, and their sum."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from datetime import date, datetime, timedelta
from typing import Any, Final

import numpy as np
import pytest

from graphweft_workers.retrieval.periods import Period
from graphweft_workers.retrieval.questions import read_question
from graphweft_workers.retrieval.scope_index import IndexedNode, ScopeIndex, Unfit
from graphweft_workers.retrieval.scope_ranking import FITTING, WEIGHTS, rank
from graphweft_workers.retrieval.signals import MOST_CANDIDATES, MOST_POSTINGS, KindIndex, Near, find_signals
from graphweft_workers.text.terms import terms

TODAY: Final = date(2026, 11, 28)  # a Saturday
START: Final = datetime.fromisoformat("2026-07-20T10:00:00.000000+00:00")


def turn(place: int, text: str, *, who: str = "", role: str = "user", thread: str = "t", at: Any = None) -> IndexedNode:
    """A turn a minute after the one before, or ``at`` so many days later."""
    time = START + (timedelta(minutes=place) if at is None else timedelta(days=at))
    found = terms(f"{who}: {text}" if who else text)
    return IndexedNode(
        f"{place:05}", time.isoformat(), " ".join(found), len(found), thread=thread, who=who or role, role=role,
        said=text if len(text) <= 300 else "",
    )  # fmt: skip


def index_of(nodes: Sequence[IndexedNode]) -> ScopeIndex:
    index = ScopeIndex(nodes)
    while not index.read(1_000):
        pass
    return index


def values(question: str, *nodes: IndexedNode, near: dict[int, float] | None = None) -> dict[str, dict[int, float]]:
    """Return each signal of the candidates, by the place of the turn."""
    index = index_of(nodes)
    cosines = {(0, index.keys.index(f"{place:05}")): cosine for place, cosine in (near or {}).items()}
    asked = read_question(question, today=TODAY)
    found = find_signals(asked, [KindIndex(of=0, index=index)], Near(cosines=cosines, parts=frozenset({0})), WEIGHTS)
    places = [int(index.keys[number]) for _, number in found.candidates]
    return {name: dict(zip(places, each.tolist(), strict=True)) for name, each in found.values.items()}


def order_of_two(question: str, own: IndexedNode, of_another: IndexedNode) -> list[int]:
    """Return the order of a record of the user and one of another user."""
    parts = [KindIndex(of=0, index=index_of([own])), KindIndex(of=1, index=index_of([of_another]), of_another=True)]
    return [int(hit.key) for hit in rank(read_question(question, today=TODAY), parts, Near())]


def order(question: str, *nodes: IndexedNode, near: dict[int, float] | None = None) -> list[int]:
    index = index_of(nodes)
    cosines = {(0, index.keys.index(f"{place:05}")): cosine for place, cosine in (near or {}).items()}
    asked = read_question(question, today=TODAY)
    hits = rank(asked, [KindIndex(of=0, index=index)], Near(cosines=cosines, parts=frozenset({0})))
    return [int(hit.key) for hit in hits]


def test_a_long_turn_counts_as_its_best_passage() -> None:
    spread = turn(1, " ".join(["kayak", *["word"] * 200, "lake"]))
    dense = turn(2, " ".join([*["word"] * 200, "kayak lake"]))
    found = values("kayak lake", spread, dense)["words"]
    assert found[2] == 1.0
    assert found[1] < 0.8


def test_the_covered_part_counts_rare_words_for_more() -> None:
    others = [turn(place, "the lake is cold", thread=f"o{place}") for place in range(3, 20)]
    found = values("kayak lake", turn(1, "kayak"), turn(2, "lake"), *others)["covered"]
    assert found[1] > 3 * found[2]


def test_words_next_to_each_other_are_a_pair() -> None:
    found = values("red lamp", turn(1, "a red lamp"), turn(2, "a lamp that nobody would ever call red"))
    assert found["pairs"] == {1: 1.0, 2: 0.0}


def test_neighbours_and_the_session_speak_for_a_turn() -> None:
    alone = turn(9, "Bruno", thread="other")
    found = values("What dog is Bruno?", turn(1, "We got a dog."), turn(2, "He is Bruno."), turn(3, "Good dog."), alone)
    assert found["window"][2] > found["window"][9]
    assert found["session"][2] > found["session"][9]
    assert found["session_best"][2] > found["session_best"][9]


def test_turns_of_another_session_or_thread_are_no_neighbours() -> None:
    index = index_of([turn(1, "a", at=0), turn(2, "b", at=1), turn(3, "c", thread="x", at=1)])
    assert len(set(index.sessions)) == 3
    assert list(index.before) == list(index.after) == [0, 1, 2]


def test_an_answer_counts_by_its_question() -> None:
    found = values("Where is the kayak stored?", turn(1, "Where is the kayak?", role="assistant"), turn(2, "In Oslo."))
    assert found["after_question"] == {1: 0.0, 2: 1.0}
    same = values("Where is the kayak stored?", turn(1, "Where is the kayak?"), turn(2, "In the kayak shed."))
    assert set(same["after_question"].values()) == {0.0}, "nobody answers himself"


@pytest.mark.parametrize(
    ("question", "days"),
    [
        ("What did I say on 21 July 2026?", {1}), ("on July 21st?", {1}), ("2026-07-21", {1}), ("in August 2026", {20}),
        ("What did I say last week?", {122, 125}), ("What did I say yesterday?", {130}), ("2 weeks ago", {116}),
        ("What did I say in the kitchen?", set()),
    ],
)  # fmt: skip
def test_a_day_in_the_question_finds_what_was_said_then(question: str, days: set[int]) -> None:
    nodes = [turn(day, "Nothing of that kind.", at=day) for day in (1, 20, 60, 116, 122, 125, 130)]
    found = values(question, *nodes).get("date", {})
    best = max(found.values(), default=0)
    assert {day for day, value in found.items() if value and value == best} == days


@pytest.mark.parametrize(
    ("text", "periods"),
    [
        ("7 May 2023", [Period(year=2023, month=5, day=7)]), ("in may", [Period(month=5)]), ("may I?", []),
        ("May 2023", [Period(year=2023, month=5)]), ("in 2022", [Period(year=2022)]),
        ("yesterday", [Period(first="2026-11-27", last="2026-11-27")]),
        ("last week", [Period(first="2026-11-16", last="2026-11-22")]),
        ("last month", [Period(first="2026-10-01", last="2026-10-31")]), ("31 abc 2023", []),
    ],
)  # fmt: skip
def test_periods_are_read(text: str, periods: list[Period]) -> None:
    assert list(read_question(text, today=TODAY).periods) == periods


@pytest.mark.parametrize(
    ("text", "first", "last"),
    [
        ("What happened the day before yesterday?", "2026-11-26", "2026-11-26"), ("last night", "2026-11-27", ""),
        ("What did I eat this morning?", "2026-11-28", ""), ("this week", "2026-11-23", "2026-11-28"),
        ("the week before last", "2026-11-09", "2026-11-15"), ("this month", "2026-11-01", "2026-11-28"),
        ("this year", "2026-01-01", "2026-11-28"), ("Where was I last year?", "2025-01-01", "2025-12-31"),
        ("the month before last", "2026-09-01", "2026-09-30"), ("the year before last", "2024-01-01", "2024-12-31"),
        ("What did I do last weekend?", "2026-11-21", "2026-11-22"), ("this weekend", "2026-11-28", ""),
        ("on Tuesday", "2026-11-24", ""), ("on Saturday", "2026-11-21", ""), ("last Friday", "2026-11-27", ""),
        ("this Monday", "2026-11-23", ""), ("on Friday last week", "2026-11-20", ""),
        ("last week on Monday", "2026-11-16", ""), ("last Friday's lunch", "2026-11-27", ""),
        ("in the last 10 days", "2026-11-18", "2026-11-28"), ("over the past two weeks", "2026-11-14", "2026-11-28"),
        ("in the last few days", "2026-11-23", "2026-11-28"), ("the past week", "2026-11-21", "2026-11-28"),
        ("since Monday", "2026-11-23", "2026-11-28"), ("since last week", "2026-11-16", "2026-11-28"),
        ("since yesterday", "2026-11-27", "2026-11-28"), ("since October", "2026-10-01", "2026-11-28"),
        ("since December", "2025-12-01", "2026-11-28"), ("since 2025", "2025-01-01", "2026-11-28"),
        ("since 20 November", "2026-11-20", "2026-11-28"), ("3 days ago", "2026-11-25", ""),
        ("a few days ago", "2026-11-22", "2026-11-27"), ("ten days ago", "2026-11-18", ""),
        ("Was war gestern?", "2026-11-27", ""), ("vorgestern", "2026-11-26", ""), ("am Dienstag", "2026-11-24", ""),
        ("letzte Woche", "2026-11-16", "2026-11-22"), ("letztes Jahr", "2025-01-01", "2025-12-31"),
        ("vor drei Tagen", "2026-11-25", ""), ("in den letzten 10 Tagen", "2026-11-18", "2026-11-28"),
        ("seit Montag", "2026-11-23", "2026-11-28"), ("am Wochenende", "2026-11-28", ""),
        ("letzte Nacht", "2026-11-27", ""), ("heute Morgen", "2026-11-28", ""),
        ("in der vorletzten Woche", "2026-11-09", "2026-11-15"), ("vorletzten Monat", "2026-09-01", "2026-09-30"),
        ("vorletztes Jahr", "2024-01-01", "2024-12-31"), ("diesen Montag", "2026-11-23", ""),
        ("letzte Woche Freitag", "2026-11-20", ""), ("am Montag letzter Woche", "2026-11-16", ""),
        ("am Montag der letzten Woche", "2026-11-16", ""), ("vergangenen Freitag", "2026-11-27", ""),
        ("vor ein paar Tagen", "2026-11-22", "2026-11-27"), ("in den letzten paar Tagen", "2026-11-23", "2026-11-28"),
        ("vor einem Jahr", "2025-05-30", "2026-05-29"), ("seit gestern", "2026-11-27", "2026-11-28"),
        ("¿Qué hice la semana pasada?", "2026-11-16", "2026-11-22"), ("¿Qué dije ayer?", "2026-11-27", ""),
        ("hace tres días", "2026-11-25", ""), ("el mes pasado", "2026-10-01", "2026-10-31"),
        ("el martes", "2026-11-24", ""), ("el viernes pasado", "2026-11-27", ""), ("anteayer", "2026-11-26", ""),
        ("en los últimos diez días", "2026-11-18", "2026-11-28"), ("este año", "2026-01-01", "2026-11-28"),
        ("el fin de semana pasado", "2026-11-21", "2026-11-22"), ("desde octubre", "2026-10-01", "2026-11-28"),
        ("Qu'ai-je fait la semaine dernière ?", "2026-11-16", "2026-11-22"), ("avant-hier", "2026-11-26", ""),
        ("il y a trois jours", "2026-11-25", ""), ("le mois dernier", "2026-10-01", "2026-10-31"),
        ("vendredi dernier", "2026-11-27", ""), ("l'année dernière", "2025-01-01", "2025-12-31"),
        ("les dix derniers jours", "2026-11-18", "2026-11-28"), ("cette semaine", "2026-11-23", "2026-11-28"),
        ("le week-end dernier", "2026-11-21", "2026-11-22"), ("depuis octobre", "2026-10-01", "2026-11-28"),
    ],
)  # fmt: skip
def test_relative_times_are_read(text: str, first: str, last: str) -> None:
    found = read_question(text, today=TODAY).periods
    assert [(period.first, period.last) for period in found] == [(first, last or first)]


@pytest.mark.parametrize(
    ("text", "periods"),
    [
        ("24.11.2026", [Period(year=2026, month=11, day=24)]), ("11/24/2026", [Period(year=2026, month=11, day=24)]),
        ("24/11/2026", [Period(year=2026, month=11, day=24)]), ("2026/11/24", [Period(year=2026, month=11, day=24)]),
        ("3/4/2026", [Period(year=2026, month=3, day=4), Period(year=2026, month=4, day=3)]),
        ("Was war im März?", [Period(month=3)]), ("am 2. Februar 2026", [Period(year=2026, month=2, day=2)]),
        ("in May 2023 or on 7 June", [Period(month=6, day=7), Period(year=2023, month=5)]),
        ("en febrero", [Period(month=2)]), ("el 3 de mayo de 2025", [Period(year=2025, month=5, day=3)]),
        ("en février", [Period(month=2)]), ("le 1er août 2025", [Period(year=2025, month=8, day=1)]),
        ("en marzo de 2025", [Period(year=2025, month=3)]), ("en 2024", [Period(year=2024)]),
    ],
)  # fmt: skip
def test_dates_are_read_as_people_write_them(text: str, periods: list[Period]) -> None:
    assert list(read_question(text, today=TODAY).periods) == periods


@pytest.mark.parametrize(
    "text",
    [
        "What is my Sunday roast recipe?", "Is the sun hot?", "May I sit here?", "How many of the 5 mayors came?",
        "Do I use Python 3.11?", "Is my order number 4711-08?", "What do I do on Tuesdays?", "Is it the second one?",
        "What do I plan for next Friday?", "In my last year of school, where was I?", "Who march in the parade?",
        "Who is Jan?", "Is version 30.2.1 newer?", "What is the 2023-24 budget?", "Did I buy the last one?",
        "What do we know of mars?", "¿Qué hago los lunes?", "Que fais-je le lundi ?",
        "¿Qué planes tengo el viernes próximo?", "¿Veo el mar?", "Wer ist hier?",
        "Which weekend house do I like?", "Is my address 31/99/2026?", "this weekend house",
    ],
)  # fmt: skip
def test_ordinary_words_are_no_days(text: str) -> None:
    today = TODAY if text != "this weekend house" else date(2026, 11, 25)
    assert read_question(text, today=today).periods == ()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("What happened this week?", ["happen"]), ("What did I do in the last 10 days?", []),
        ("When did Tom call the day before yesterday?", ["tom", "call"]), ("What did I do since Monday?", ["monday"]),
        ("What do I have on 24 December?", ["24", "decemb"]), ("What did I buy 2 weeks ago?", ["buy"]),
        ("What did Tom say last Friday?", ["tom", "say", "friday"]), ("What do I do next week?", ["next", "week"]),
        ("Who am I?", []),
    ],
)  # fmt: skip
def test_words_that_only_say_when_are_not_asked_for(text: str, expected: list[str]) -> None:
    assert list(read_question(text, today=TODAY).terms) == expected


def test_a_word_of_a_relative_time_does_not_rank_a_text() -> None:
    nodes = [turn(100, "Tom died last week.", at=100), turn(130, "Something happened.", at=130)]
    assert order("What happened this week?", *nodes) == [130]


def test_an_exact_day_is_not_filled_up_with_its_month() -> None:
    nodes = [turn(day, "Nothing of that kind.", at=day) for day in range(1, 12)]
    assert values("What did I do on 25 July 2026?", *nodes)["date"] == {5: 1.0}
    assert order("What did I do on 25 July 2026?", *nodes) == [5]
    assert order("What did I do on 25 July 2026 or in August?", *nodes) == [5]
    assert order("What did I do on 25 July 2026 or yesterday?", *nodes) == [5]
    without = [node for node in nodes if node.key != "00005"]
    assert set(order("What did I do on 25 July 2026?", *without)) == {1, 2, 3, 4, 6, 7, 8, 9, 10, 11}


def test_when_and_how_many_ask_for_a_time_and_a_number() -> None:
    nodes = [turn(1, "I sold the lamp yesterday."), turn(2, "I sold the lamp."), turn(3, "I sold three lamps.")]
    assert values("When did I sell the lamp?", *nodes)["when"] == {1: 1.0, 2: 0.0, 3: 0.0}
    assert values("How many lamps did I sell?", *nodes)["number"] == {1: 0.0, 2: 0.0, 3: 1.0}
    assert "when" not in values("Did I sell the lamp?", *nodes)


def test_who_is_asked_about() -> None:
    nodes = [turn(1, "A lamp", who="Ann"), turn(2, "A lamp", who="Bob", role="assistant")]
    assert values("What lamp does Bob like?", *nodes)["named"] == {1: 0.0, 2: 1.0}
    assert values("What is my lamp?", *nodes)["own"] == {1: 1.0, 2: 0.0}
    assert WEIGHTS["named"] < WEIGHTS["own"]


def test_questions_and_short_turns_count_less() -> None:
    told = turn(1, "The lamp is in the kitchen beside our old oven.")
    nodes = [told, turn(2, "A nice lamp! How is it?"), turn(3, "Lamp")]
    found = values("lamp", *nodes)
    assert found["asks"] == {1: 0.0, 2: 1.0, 3: 0.0}
    assert found["short"] == {1: 0.0, 2: 1.0, 3: 1.0}
    assert values("lamp", turn(1, "Where is the lamp?"))["empty"] == {1: 1.0}


def test_words_of_the_first_hits_find_more() -> None:
    nodes = [turn(1, "kayak on fjord"), turn(2, "kayak in fjord"), turn(3, "a kayak"), turn(4, "kayak, fjord")]
    others = [turn(place, f"other {place}", thread="o") for place in range(10, 60)]
    found = values("kayak", *nodes, *others)["first_hits"]
    assert found[4] == 1.0
    assert found[3] < 0.5


def test_vectors_count_and_what_has_none_counts_by_its_words() -> None:
    nodes = [turn(1, "A feline"), turn(2, "A dog"), turn(3, "My cat")]
    found = values("cat", *nodes, near={1: 0.6, 2: 0.1})["vector"]
    assert (found[1], found[2], found[3]) == (1.0, 0.0, 0.0)
    index = index_of(nodes)
    asked = read_question("cat", today=TODAY)
    near = Near(cosines={(0, index.keys.index("00001")): 0.6}, parts=frozenset({0}), is_all=True)
    signals = find_signals(asked, [KindIndex(of=0, index=index)], near, WEIGHTS)
    keys = [index.keys[number] for _, number in signals.candidates]
    assert signals.values["vector"][keys.index("00003")] == 1.0


def test_of_equal_turns_the_newest_is_first() -> None:
    assert order("lamp", *(turn(place, "the lamp", thread=f"t{place}", at=place) for place in (1, 3, 2))) == [3, 2, 1]


def test_a_neighbour_of_a_hit_is_no_hit() -> None:
    assert order("lamp", turn(1, "the lamp"), turn(2, "The train was late.")) == [1]


def test_more_hits_than_candidates_are_all_returned() -> None:
    count = MOST_CANDIDATES + 60
    nodes = [turn(place, f"lamp {place}", thread=f"t{place}") for place in range(count)]
    hits = rank(read_question("lamp", today=TODAY), [KindIndex(of=0, index=index_of(nodes))], Near(), limit=count)
    assert len(hits) == len({hit.key for hit in hits}) == count


def test_no_more_hits_are_returned_than_are_asked_for() -> None:
    nodes = [turn(place, f"lamp {place}", thread=f"t{place}") for place in range(30)]
    hits = rank(read_question("lamp", today=TODAY), [KindIndex(of=0, index=index_of(nodes))], Near(), limit=20)
    assert [int(hit.key) for hit in hits] == list(range(29, 9, -1))


def test_scores_say_whether_anything_fits() -> None:
    index = index_of([turn(place, f"the lamp is {place} years old") for place in range(50)])

    def best(question: str) -> float:
        hits = rank(read_question(question, today=TODAY), [KindIndex(of=0, index=index)], Near())
        assert all(0 < hit.score <= 1 for hit in hits)
        return max((hit.score for hit in hits), default=0.0)

    assert best("How old is the lamp?") > 2 * FITTING
    assert best("Which years had quantum entanglement experiments in Mongolia?") < FITTING
    assert best("violin") == 0


def fits(question: str, *said: str, near: float | None = None) -> bool:
    """Return whether the first hit is said to fit."""
    index = index_of([turn(place, text, thread=f"t{place}", at=place) for place, text in enumerate(said)])
    cosines = {} if near is None else {(0, number): near for number in range(len(said))}
    asked = read_question(question, today=TODAY)
    hits = rank(asked, [KindIndex(of=0, index=index)], Near(cosines=cosines, parts=frozenset({0})))
    assert all(hit.score > 0 for hit in hits)
    return bool(hits) and hits[0].score >= FITTING


SAUSAGES: Final = ("My dog Bello likes sausages.", "The train to Oslo was late.", "I went running in the park.")


@pytest.mark.parametrize(
    ("question", "said"),
    [
        ("Please remind me what Bello likes to eat", SAUSAGES),
        ("Could you please tell me everything that you know about my dear old Bello and his food", SAUSAGES),
        ("When did I go running?", SAUSAGES), ("\u5c0f\u767d\u51e0\u5c81?", ("\u6211\u7684\u72d7\u53eb\u5c0f\u767d",)),
        ("Tell me everything you know about Bello", tuple(f"Bello ate {n} sausages" for n in range(20))),
        ("Tell me everything you know about Bello", SAUSAGES[:1]),
    ],
)  # fmt: skip
def test_a_record_that_shares_a_word_of_weight_fits_however_long_the_question_is(
    question: str, said: Sequence[str]
) -> None:
    assert fits(question, *said)


def test_a_record_without_a_word_of_weight_does_not_fit() -> None:
    said = [*SAUSAGES, "Please tell me more, I know nothing of it."]
    assert not fits("Please tell me what you know about violins", *said)
    assert not fits("What is the capital of France?", *SAUSAGES, near=0.15)
    assert fits("What does my pet eat?", *SAUSAGES, near=0.6)


CAT: Final = "My cat is called Tom and he is three years old"
ASKED: Final = ("What is my cat called?", "How old is my cat?", "what is tom", "Do I have a pet called Tom?")
OF_CATS: Final = ("What is my cat called?", "how old is my cat", "Who is Tom?", "Is my cat called Tom or Tim?")
ANSWERS: Final = ("I do not know.", "Sorry, I do not know what your cat is called.", "You have not told me.")
TALK: Final = (
    "I had {0} coffees today", "The train was {0} minutes late", "My boss called me {0} times",
    "We are {0} years old as a firm", "Your order number {0} is on its way", "The weather is fine",
    "Let us meet at {0}",
    "I read {0} pages of the book",
)  # fmt: skip


def test_a_fact_said_once_is_found_after_a_thousand_turns() -> None:
    """With 50 questions about it among them."""
    nodes = [turn(0, CAT, thread="first")]
    for place in range(1, 1_001):
        if place % 20 == 1:
            nodes.append(turn(place, OF_CATS[place // 20 % len(OF_CATS)], thread=f"t{place // 40}"))
        elif place % 20 == 2:
            nodes.append(turn(place, ANSWERS[place // 20 % 3], role="assistant", thread=f"t{place // 40}"))
        else:
            role = "user" if place % 2 else "assistant"
            nodes.append(turn(place, TALK[place % len(TALK)].format(place), role=role, thread=f"t{place // 40}"))
    for question in ASKED:
        assert 0 in order(question, *nodes)[:20], question


def test_a_question_has_a_bounded_number_of_days() -> None:
    """Each is compared with every day of a scope."""
    days = " and ".join(f"{day} {month}" for month in ("may", "june", "july") for day in range(1, 31))
    assert len(read_question(f"What was on {days}?", today=TODAY).periods) == 12


def crowd(lamps: int, *kept: IndexedNode) -> ScopeIndex:
    """Thousands of turns with common words, behind some others."""
    words = ["lamp"] * lamps + ["house"] * (MOST_POSTINGS + 200)
    return index_of([*kept, *(turn(place, word, thread=f"t{place}") for place, word in enumerate(words, 100))])


def test_many_memories_leave_room_to_facts() -> None:
    facts = index_of([turn(1, "zebra house", thread="a"), turn(2, "zebra", thread="b")])
    asked = read_question("lamp house zebra", today=TODAY)
    parts = [KindIndex(of=place, index=index) for place, index in enumerate((crowd(MOST_POSTINGS + 100), facts))]
    found = find_signals(asked, parts, Near(), WEIGHTS)
    covered = dict(zip(found.candidates, found.values["covered"], strict=True))
    assert covered[1, 0] > covered[1, 1]


def test_a_pair_counts_however_common_its_words_are() -> None:
    index = crowd(MOST_POSTINGS - 10, turn(1, "lamp house", thread="a"), turn(2, "lamp or a house", thread="b"))
    near = Near(cosines={(0, 0): 0.9, (0, 1): 0.9}, parts=frozenset({0}))
    found = find_signals(read_question("lamp house", today=TODAY), [KindIndex(of=0, index=index)], near, WEIGHTS)
    pairs = dict(zip(found.candidates, found.values["pairs"], strict=True))
    assert pairs[0, 0] == 1.0


def test_a_turn_that_is_not_valid_is_no_hit_by_its_question() -> None:
    index = index_of([turn(1, "Where is the kayak, the red one?", role="assistant"), turn(2, "In Oslo.")])
    asked = read_question("Where is the red kayak?", today=TODAY)
    for valid, count in (None, 2), (np.array([True, False]), 1):
        assert len(rank(asked, [KindIndex(of=0, index=index, valid=valid)], Near())) == count


def test_an_index_to_which_nodes_were_added_ranks_like_a_new_one() -> None:
    rnd = random.Random(4)
    words = ["lamp", "cat", "tom", "oslo", "blue", "seven", "yesterday", "live", "moved", "name"]
    nodes = [
        turn(place, " ".join(rnd.choices(words, k=rnd.randint(1, 9))) + rnd.choice([".", "?"]),
             who=rnd.choice(["", "Ann", "Bob"]), role=rnd.choice(["user", "assistant"]), thread=rnd.choice("abc"))
        for place in range(200)
    ]  # fmt: skip
    index = index_of(rnd.sample(nodes[:150], 150))
    for first in range(150, 200, 5):
        index.add(rnd.sample(nodes[first : first + 5], 5))
        while not index.read(7):
            pass
    whole = index_of(nodes)
    for _ in range(50):
        asked = read_question(f"Where does my {' '.join(rnd.choices(words, k=3))} live", today=TODAY)
        found = [rank(asked, [KindIndex(of=0, index=each)], Near()) for each in (index, whole)]
        assert found[0] == found[1]
    assert index.bytes == pytest.approx(whole.bytes, rel=0.1)


def test_only_later_nodes_can_be_added() -> None:
    index = index_of([turn(2, "lamp"), turn(1, "cat")])
    for node, why in ((turn(1, "lamp"), "one id"), (turn(3, "lamp", at=-1), "later")):
        with pytest.raises(Unfit, match=why):
            index.add([node])
    assert index.keys == ["00001", "00002"]


MOVES: Final = ("I live in Oslo.", "I moved to Bergen.", "My new flat is in Stavanger.")


@pytest.mark.parametrize(
    ("question", "first"),
    [
        ("Where do I live?", 2), ("What is my address?", 2), ("Where did I live in August?", 0),
        ("Where did I live in March?", 1), ("Where does Ann live?", 0),
    ],
)  # fmt: skip
def test_what_is_now_is_what_was_told_last(question: str, first: int) -> None:
    nodes = [turn(place, text, thread=f"t{place}", at=at) for place, text, at in zip(
        range(3), MOVES, (0, 200, 340), strict=False
    )]  # fmt: skip
    asked = read_question(question, today=date(2027, 7, 30))
    index = index_of(nodes)
    [best, *_] = rank(asked, [KindIndex(of=0, index=index)], Near())
    assert int(best.key) == first


def test_a_session_is_as_long_as_its_turns_together() -> None:
    """A rule may write any length that a node can have, and the sum of a session's is larger than each."""
    nodes = [replace(turn(place, f"the kayak of day {place}"), length=2**31) for place in range(3)]
    assert index_of(nodes).session_lengths.tolist() == [0, 3 * 2**31]
    assert sorted(order("kayak", *nodes)) == [0, 1, 2]


def test_nothing_is_found_where_nothing_is_searched() -> None:
    assert rank(read_question("kayak", today=TODAY), [], Near(cosines={}, parts=frozenset())) == []


@pytest.mark.parametrize(
    ("question", "is_own", "is_when", "is_count", "is_past"),
    [
        ("Wo wohne ich?", True, False, False, False), ("Was arbeite ich?", True, False, False, False),
        ("Wie viele Kollegen habe ich?", True, False, True, False), ("Wann kommt mein Opa?", True, True, False, True),
        ("Was hat meine Oma gesagt?", True, False, False, True), ("Wo war ich im Urlaub?", True, False, False, True),
        ("Was I late?", True, False, False, True), ("What was the war about?", False, False, False, True),
    ],
)  # fmt: skip
def test_german_questions_ask_by_their_own_words(
    question: str, is_own: bool, is_when: bool, is_count: bool, is_past: bool
) -> None:
    asked = read_question(question, today=TODAY)
    assert (asked.is_own, asked.is_when, asked.is_count, asked.is_past) == (is_own, is_when, is_count, is_past)


def test_words_of_a_topic_answer_german_questions_and_what_was_told_last_is_first() -> None:
    turns = (
        turn(1, "Ich wohne in Leipzig.", thread="a", at=1), turn(2, "Der Zug ist sehr schnell.", thread="b", at=2),
        turn(3, "Wir sind nach Halle umgezogen.", thread="c", at=3),
    )  # fmt: skip
    assert order("Wo wohne ich?", *turns)[:2] == [3, 1]


@pytest.mark.parametrize(
    ("text", "day", "first"),
    [
        ("My gym code is 4471 until Sunday.", 127, 2), ("My gym code is 4471 until Sunday.", 120, 1),
        ("From December my gym code is 4471.", 127, 1), ("From November my gym code is 4471.", 100, 2),
        ("Bis Sonntag ist my gym code 4471.", 120, 1),
    ],
)  # fmt: skip
def test_what_does_not_hold_by_its_own_words_is_not_what_was_told_last(text: str, day: int, first: int) -> None:
    nodes = turn(1, "My gym code is 9920.", at=90), turn(2, text, at=day)
    assert order("What is my gym code?", *nodes)[0] == first


def test_a_question_about_a_time_to_come_counts_what_has_not_begun() -> None:
    nodes = turn(1, "My gym code is 9920.", at=90), turn(2, "From December my gym code is 4471.", at=127)
    assert order("What will my gym code be from December?", *nodes)[0] == 2


@pytest.mark.parametrize(
    ("question", "first"),
    [
        ("Where do I live?", 1), ("Where does my mum live?", 2), ("Wo wohne ich?", 1),
        ("Where do my mum and I live?", 2),
    ],
)  # fmt: skip
def test_what_tells_of_a_relative_alone_is_not_what_the_user_told_last(question: str, first: int) -> None:
    is_german = "ich" in question
    texts = (
        ("Ich wohne in Oslo.", "Meine Mutter wohnt in Cork.")
        if is_german
        else ("I live in Oslo.", "My mum lives in Cork.")
    )
    assert order(question, *(turn(place, text, at=100 + place) for place, text in enumerate(texts, 1)))[0] == first


def test_a_question_whom_the_user_is_with_counts_what_tells_of_them() -> None:
    nodes = turn(1, "I am single.", at=100), turn(2, "My wife is called Anna.", at=110)
    assert order("Am I married?", *nodes)[0] == 2


@pytest.mark.parametrize("question", ["Who is on call?", "Who is on call this week?", "Wer hat call?"])
def test_what_is_over_by_its_own_words_is_behind_what_holds(question: str) -> None:
    nodes = turn(1, "On call this week: Ben, who is on call.", at=119), turn(2, "On-call this week: Mia.", at=126)
    assert order(question, *nodes)[0] == 2


def test_a_question_about_the_past_finds_what_is_over() -> None:
    nodes = turn(1, "The lobby is closed until Friday.", at=10), turn(2, "The lobby is open again.", at=20)
    signals = values("Why was the lobby closed?", *nodes)
    assert "over" not in signals
    assert set(values("Is the lobby closed?", *nodes)["over"].items()) == {(1, 1.0), (2, 0.0)}


@pytest.mark.parametrize(
    ("question", "is_past"),
    [
        ("When is the standup?", False), ("When's my lesson?", False), ("Wann ist die Besprechung?", False),
        ("When was the standup?", True), ("Wann war die Besprechung?", True),
        ("When I lived in Oslo, what did I eat?", True),
    ],
)  # fmt: skip
def test_when_alone_does_not_ask_about_the_past(question: str, is_past: bool) -> None:
    assert read_question(question, today=TODAY).is_past is is_past


def test_words_of_requests_alone_are_no_words_of_a_question() -> None:
    assert read_question("What do you know about me?", today=TODAY).terms == ()
    assert read_question("Tell me everything.", today=TODAY).terms == ()
    asked = read_question("What did I say last week?", today=TODAY)
    assert (asked.terms, len(asked.periods)) == ((), 1)
    assert read_question("What did I say about cats?", today=TODAY).terms == ("say", "cat")
    assert read_question("say", today=TODAY, filter_stop_words=False).terms == ("say",)


def test_what_another_user_says_of_themselves_is_not_what_the_user_told_last() -> None:
    assert order_of_two("Where do I live?", turn(1, "I live in Oslo.", at=90), turn(2, "I live in Cork.", at=100)) == [
        1,
        2,
    ]


@pytest.mark.parametrize(
    ("question", "first"),
    [
        ("When are Lena's swimming lessons?", 1), ("When did Lena's swimming lessons begin?", 0),
        ("Where does Greta live?", 4), ("Where does Gerda live?", 3), ("Where did Greta live?", 2),
    ],
)  # fmt: skip
def test_a_question_how_others_are_counts_what_was_told_last(question: str, first: int) -> None:
    said = [
        turn(0, "Lena has swimming lessons on Tuesdays at four.", at=0, thread="a"),
        turn(1, "Lena's swimming lessons are on Thursdays at five from now on.", at=60, thread="b"),
        turn(2, "My sister Greta lives in Hamburg.", at=1, thread="c"),
        turn(3, "My sister Gerda lives in Bremen.", at=2, thread="d"),
        turn(4, "Greta lives in Cologne now.", at=70, thread="e"),
    ]
    assert order(question, *said)[0] == first


def test_what_another_user_told_last_of_others_counts_as_well() -> None:
    question = "When are Lena's lessons?"
    own, later = turn(0, "Lena has lessons on Mondays."), turn(1, "Lena's lessons are on Fridays now.", at=60)
    assert order_of_two(question, own, later) == [1, 0]
    assert order_of_two("When are my lessons, Lena?", own, later) == [0, 1]
