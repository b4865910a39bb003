"""Forms of English words that count as one in a question."""

from __future__ import annotations

from datetime import date

import pytest

from graphweft_workers.retrieval.questions import read_question
from graphweft_workers.retrieval.word_forms import forms_of
from graphweft_workers.text.terms import terms

TODAY = date(2026, 11, 28)


@pytest.mark.parametrize(
    ("question", "told"),
    [
        ("What did Dave buy?", "I bought a camera"),
        ("Who has bought a camera?", "I want to buy one"),
        ("Where did Ann go?", "She went home"),
        ("Which books has Tim written?", "he wrote two"),
        ("What is her favorite game?", "my favourite game"),
        ("Which colours does she like?", "the color red"),
        ("Who travelled to Rome?", "she was traveling"),
        ("Who organised the party?", "they organize it"),
    ],
)
def test_another_form_of_a_word_counts_as_the_word(question: str, told: str) -> None:
    asked = read_question(question, today=TODAY)
    found = set(terms(told))
    assert any(not asked.alike.get(term, {term}).isdisjoint(found) for term in asked.terms)
    assert not asked.has_topic


def test_a_form_that_is_asked_for_too_counts_once() -> None:
    assert forms_of(("bought", "buy", "tea")) == {"bought": {"bought"}, "buy": {"buy"}}


def test_a_topic_has_its_words_and_their_forms() -> None:
    asked = read_question("Where did I leave my home?", today=TODAY)
    assert asked.has_topic
    assert {"leav", "left"} <= asked.alike["leav"]
    assert "move" in asked.alike["home"]


@pytest.mark.parametrize("word", ["rose", "ground", "tea", "house", "saws"])
def test_a_word_that_is_no_form_of_another_stands_for_itself(word: str) -> None:
    assert forms_of(terms(word)) in ({}, {"saw": frozenset(terms("see saw seen"))})


@pytest.mark.parametrize(("asked", "told"), [("mum", "mother"), ("father", "dad"), ("grandma", "grandmother")])
def test_the_words_for_a_relative_count_as_one(asked: str, told: str) -> None:
    assert set(terms(told)) <= forms_of(terms(asked))[terms(asked)[0]]
