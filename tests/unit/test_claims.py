"""What a user states, and what it says: in doubt nothing."""

from __future__ import annotations

import pytest
from tests.services.planted_statements import Pair, planted

from graphweft_workers.features.memory.claims import Claim, is_all_stated, statements, without
from graphweft_workers.features.memory.predicates import key_of


def claims(text: str) -> list[Claim]:
    return [each.claim for each in statements(text, year=2026) if each.claim is not None]


def said(text: str) -> list[tuple[str, str, str, bool]]:
    return [(each.subject, each.predicate, each.object_key, each.holds) for each in claims(text)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Actually, I moved from Oslo to Bergen last week.", ("user", "lives in", "bergen", True)),
        ("Bergen is my home now.", ("user", "lives in", "bergen", True)),
        ("My sister Anna lives in Rio de Janeiro.", ("my sister anna", "lives in", "rio de janeiro", True)),
        ("I was laid off by Acme.", ("user", "works for", "acme", False)),
        ("I quit my job", ("user", "works for", "", False)),
        ("I work as a nurse at Acme", ("user", "works as", "nurse", True)),
        ("My new doctor is Dr. Lee.", ("user", "has doctor", "dr. lee", True)),
        ("Anna and I broke up.", ("user", "has partner", "anna", False)),
        ("I drive a red Volvo now.", ("user", "drives", "volvo", True)),
        ("I stopped eating meat", ("user", "does eat", "meat", False)),
        ("My favourite colour is now green", ("user", "has favourite colour", "green", True)),
        ("I prefer an aisle seat these days.", ("user", "prefers seat", "aisle", True)),
    ],
)
def test_known_forms_of_words_make_a_claim(text: str, expected: tuple[str, str, str, bool]) -> None:
    assert said(text) == [expected]


@pytest.mark.parametrize(
    "text",
    [
        "I used to live in Rome.", "I might move to Rome.", "If I move to Rome, I swim.", "I moved to Rome in 2019",
        'He said: "I live in Rome."', "I live in a small house.", "My flat is nice.", "I moved to the front row.",
        "I work with children.", "I study every day.", "My girlfriend is Norwegian.", "My wife is Anna's sister.",
        "Anna left me a note.", "Call me back", "I work as hard as I can.", "I drive a lot.", "I have a question.",
        "> I live in Rome.", "I will live in Rome.", "I was born in Rome.",
    ],
)  # fmt: skip
def test_what_is_past_to_come_quoted_or_no_name_makes_no_claim(text: str) -> None:
    assert said(text) == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("I live in Oslo and my cat is called Tom.", ["I live in Oslo", "my cat is called Tom."]),
        ("My wife and I like tea.", ["My wife and I like tea."]),
        ("Hi! Where do I live? Thanks. I see. Can you help me? I'd like some tea.", []),
        ("The train was late.", []),
        ("I own " * 200, []),
    ],
)
def test_statements_are_sentences_that_tell_something(text: str, expected: list[str]) -> None:
    assert [each.text for each in statements(text)] == expected


@pytest.mark.parametrize(
    ("text", "whole"),
    [
        ("I live in Oslo.", True), ("Hi, thanks! I live in Oslo. Which day is it?", True),
        ("I live in Oslo. The rain is heavy.", False), ("", True),
    ],
)  # fmt: skip
def test_statements_are_all_of_a_message_or_not(text: str, whole: bool) -> None:
    assert is_all_stated(text, list(statements(text))) == whole


def test_a_message_without_its_statements_has_the_rest() -> None:
    text = "The rain is heavy.  I live in Oslo.\nSee you."
    assert " ".join(without(text, statements(text)).split()) == "The rain is heavy. See you."


def is_ended(one: Claim, by: Claim) -> bool:
    keys = [key_of((), each.subject, each.predicate, each.object_key) for each in (one, by)]
    if not (one.is_sure and by.is_sure) or keys[0] != keys[1]:
        return False
    if one.holds and by.holds:
        return one.object_key != by.object_key
    return one.holds != by.holds and ("" in {one.object_key, by.object_key} or one.object_key == by.object_key)


def test_what_planted_statements_end_by_rules() -> None:
    pairs = planted()
    assert len(pairs) == 600

    def ended(pair: Pair) -> bool:
        return any(is_ended(one, by) for one in claims(pair.first) for by in claims(pair.second))

    assert [pair for pair in pairs if ended(pair) and not pair.ends] == []
    assert [pair for pair in pairs if pair.ends and not ended(pair) and not pair.is_beyond_rules] == []
    assert sum(map(ended, pairs)) >= 0.8 * sum(pair.ends for pair in pairs)


def test_long_rows_of_words_take_no_time_to_speak_of() -> None:
    """A pattern that tries each way to divide them would not end."""
    for word in ("actually, ", "I really ", "my new ", "and I ", "a ", "A ", "Dr. "):
        assert len(list(statements(word * 1_000))) <= 100
