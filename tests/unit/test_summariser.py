"""The summariser without a model: the same messages give the same summary, and a few phrases say something."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.services.pattern_steps import Steps

from graphweft_contracts.memory import MEMORY_ROLES, MemoryRole, MemoryScope, MemorySummarized
from graphweft_workers.features.memory import extractive_summariser
from graphweft_workers.features.memory.extractive_summariser import ExtractiveSummariser
from graphweft_workers.features.memory.summariser import MemoryText, Summary

T0 = datetime(2026, 2, 1, 10, 0, tzinfo=UTC)
USER = MemoryScope(user_id="u1")


def said(number: int, text: str, role: MemoryRole = "user", author: str | None = None) -> MemoryText:
    return MemoryText(id=f"m{number}", role=role, text=text, time=T0 + timedelta(minutes=number), author_name=author)


def talk(*texts: str) -> list[MemoryText]:
    return [said(number, text) for number, text in enumerate(texts)]


def summarise(messages: list[MemoryText], scope: MemoryScope = USER, **options: Any) -> Summary:
    return asyncio.run(ExtractiveSummariser(**options).summarise(messages, scope=scope))


def test_what_is_talked_about_most_is_quoted_in_its_order_with_who_said_it() -> None:
    messages = [
        said(0, "Good morning! The invoice of the airline is wrong.", author="Ann"),
        said(1, "Which invoice of the airline do you mean? It may have been corrected.", "assistant"),
        said(2, "Never mind.", author="Ann"),
        said(3, "The airline charged the invoice twice.", author="Ann"),
    ]
    assert summarise(messages, characters=140).text.splitlines() == [
        "Ann: The invoice of the airline is wrong.",
        "assistant: Which invoice of the airline do you mean?",
        "Ann: The airline charged the invoice twice.",
    ]


def test_a_summary_has_its_length_and_at_least_a_sentence() -> None:
    messages = talk(*(f"Sentence number {number} is about trains and boats." for number in range(50)))
    assert 0 < len(summarise(messages, characters=300).text) <= 300
    long = summarise(talk("word " * 500), characters=10).text
    assert long.startswith("user: word word")
    assert len(long) <= 310


def test_what_is_left_of_a_sentence_beside_its_statement_has_no_comma() -> None:
    message = MemoryText(
        id="m", role="user", text="I'm allergic to nuts, so none please.", time=T0, has_statements=True
    )
    assert summarise([message]).text == "user: so none please."


def test_messages_without_words_have_a_summary_too() -> None:
    assert summarise(talk(" ", "\n\n")).text == "2 messages without words"
    assert summarise(talk("👍")).text == "user: 👍"


def test_a_thousand_long_messages_are_condensed_while_others_work() -> None:
    messages = talk(*(f"The {number}th ship is laden with {number * 7} tons of coal. " * 200 for number in range(1000)))

    async def run() -> tuple[Summary, int]:
        task = asyncio.create_task(ExtractiveSummariser().summarise(messages, scope=USER))
        turns = 0
        while not task.done():
            await asyncio.sleep(0)
            turns += 1
        return task.result(), turns

    summary, turns = asyncio.run(run())
    assert len(summary.text) <= 1_000
    assert turns > 5


@given(
    texts=st.lists(
        st.tuples(st.sampled_from(MEMORY_ROLES), st.text() | st.from_regex(r"I (like|live in|want) [^\n]{1,200}")),
        min_size=1,
        max_size=5,
    )
)
def test_whatever_is_said_an_event_takes_the_summary(texts: list[tuple[MemoryRole, str]]) -> None:
    messages = [said(number, text, role) for number, (role, text) in enumerate(texts)]
    summary = summarise(messages)
    assert summary == summarise(messages)
    MemorySummarized(
        user_id="u", summary=summary.text, memory_ids=("m",), facts=summary.facts, preferences=summary.preferences,
        model=summary.model,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("text", "fact"),
    [
        ("My name is Ann.", ("is called", "Ann")),
        ("Hi, I'm called Ann Smith and I need help", ("is called", "Ann Smith")),
        ("I live in Oslo", ("lives in", "Oslo")),
        ("Well, I now live in New York, near the park.", ("lives in", "New York")),
        ("I live in Oslo now.", ("lives in", "Oslo")),
        ("I\u2019ve just moved to Rome because of work", ("lives in", "Rome")),
        ("I work at ACME Inc.", ("works for", "ACME Inc")),
        ("I work for the city but not for long", ("works for", "the city")),
        ("I work as a nurse.", ("works as", "nurse")),
        ("I moved to Bergen last weekend!", ("lives in", "Bergen")),
        ("I live in Oslo with my partner.", ("lives in", "Oslo")),
        ("I'm allergic to peanuts!", ("is allergic to peanuts", "yes")),
        ("I am no longer allergic to peanuts", ("is allergic to peanuts", "no")),
    ],
)
def test_facts_that_are_found(text: str, fact: tuple[str, str]) -> None:
    [found] = summarise(talk("Hello.", text)).facts
    assert (found.subject, found.predicate, found.object) == ("user", *fact)
    assert (found.memory_ids, found.valid_from) == (("m1",), T0 + timedelta(minutes=1))


@pytest.mark.parametrize(
    ("text", "preference"),
    [
        ("I prefer tea to coffee.", "prefers tea to coffee"),
        ("I really love dogs and cats", "loves dogs"),
        ("I hate waiting", "hates waiting"),
        ("Yes, I want a window seat, please", "wants a window seat"),
        ("I don't like olives", "does not like olives"),
        ("I can't stand noise.", "cannot stand noise"),
        ("No, I like to walk", "likes to walk"),
    ],
)
def test_preferences_that_are_found(text: str, preference: str) -> None:
    [found] = summarise(talk(text)).preferences
    assert (found.text, found.memory_ids, found.stated_at) == (preference, ("m0",), T0)


@pytest.mark.parametrize(
    "text",
    [
        "Do you know where I live in Oslo?",
        "If I live in Oslo, what then",
        "You live in Oslo",
        "I want you to help me",
        "I want to know more",
        "I like it",
        "I would like tea",
        "I'd like tea",
        "It looks like tea",
        "She said that I prefer tea",
        "I do not live in Oslo",
    ],
)
def test_what_says_nothing(text: str) -> None:
    summary = summarise(talk(text))
    assert (summary.facts, summary.preferences) == ((), ())


def test_only_users_speak_of_themselves() -> None:
    summary = summarise([said(0, "I live in the cloud and I like tea.", "assistant"), said(1, "I like tea.", "system")])
    assert (summary.facts, summary.preferences) == ((), ())


def test_what_is_said_again_is_one_fact_until_another_is_said() -> None:
    facts = summarise(talk("I live in Oslo", "I live in oslo.", "I moved to Rome", "I live in Oslo")).facts
    assert [(fact.object, fact.memory_ids) for fact in facts] == [
        ("Oslo", ("m0", "m1")), ("Rome", ("m2",)), ("Oslo", ("m3",)),
    ]  # fmt: skip


def test_a_preference_that_is_stated_again_is_one() -> None:
    [found] = summarise(talk("I like tea", "I like tea.")).preferences
    assert (found.memory_ids, found.stated_at) == (("m0", "m1"), T0 + timedelta(minutes=1))


def test_without_a_user_a_fact_is_about_who_said_it() -> None:
    messages = [said(0, "I live in Oslo", author="Ann"), said(1, "I live in Rome", author="Bob")]
    facts = summarise(messages, MemoryScope(thread_id="t")).facts
    assert [(fact.subject, fact.object, fact.text) for fact in facts] == [
        ("Ann", "Oslo", "Ann lives in Oslo"), ("Bob", "Rome", "Bob lives in Rome"),
    ]  # fmt: skip
    assert {fact.subject for fact in summarise(messages).facts} == {"user"}


PATTERNS: Final = {
    **{f"_FACTS[{number}]": pattern for number, (pattern, _) in enumerate(extractive_summariser._FACTS)},
    **{name: getattr(extractive_summariser, name) for name in ("_ALLERGIC", "_PREFERENCE", "_REQUEST", "_END")},
}


@pytest.mark.parametrize("name", PATTERNS)
def test_a_search_takes_steps_in_proportion_to_the_text(name: str) -> None:
    """Sixteen times as many steps for four times the text would hold the worker: a conversation has 200,000 signs."""
    steps = Steps(PATTERNS[name])
    for part in (
        ", yes",
        "i am really ",
        "and hi ",
        ",  ",
        "hi \n",
        "i just moved to a ",
        "i really like ",
        "i'm ",
        ". ",
    ):
        counts: list[int] = []
        for length in (400, 1_600):
            list(steps.spans((part * length)[:length], most=10_000_000))
            counts.append(steps.count)
        assert counts[1] <= 6 * counts[0], part
