"""Turns that tell nothing: they rank behind the others."""

from __future__ import annotations

import pytest

from graphweft_workers.retrieval.arrangement import Arrangement
from graphweft_workers.retrieval.empty_turns import only_asks, tells_nothing
from graphweft_workers.retrieval.ranking import Hit

ASKS = [
    "What is my cat called?",
    "what is my cat called",
    "Hi! What\u2019s my cat called?",
    "How old is my cat again?",
    "do you know what my cat is called",
    "Tell me my cat's name",
    "Wie hei\u00dft meine Katze?",
    "\u00bfC\u00f3mo se llama mi gato?",
    "\u6211\u7684\u732b\u53eb\u4ec0\u4e48\uff1f",
    "Which of my cats is three years old?",
    "Is my cat three years old?",
    "What do I like, tea or coffee?",
    "Hello. Can you remind me what my cat is called?",
    "Please, what is the cat's age?",
    "Do I have a cat",
    "What was that cat called, again?",
    "Any news of Tom?",
    '"What is my cat called?"',
    "What is it called?\nAnd how old is it?",
    "I'd like to know which cats you have.",
    "Thanks! What is my cat called?",
]
POLITE = [
    "Thanks!", "Thank you so much, bye!", "Great.", "You're welcome.", "Wonderful!", "Oh, how nice.", "Noted.",
    "That helps a lot.", "Good to know, thanks.", "I\u2019m glad to hear that.", "I'll keep that in mind.",
    "Okay, great!", "That works.", "Congratulations! \U0001f389", "Sounds lovely.", "Have a nice evening.",
    "Get well soon.", "Thanks for your help!",
]  # fmt: skip
TELLS = [
    "My cat is called Tom and he is three years old", "When I was five, I had a cat, you know?", "", "   ", "Tom",
    "I live in Oslo, do you know a good vet?", "My cat is called Tom. What does he eat?", "What I like is tea.",
    "Remind me to feed the cat", "I don't know how to swim", "Do it on Monday", "The cat is called Tom, right?",
    "How I met my cat is a long story.", "Where I live there are many cats.", "What? " * 100, "Okay.", "Yes.",
    "Great Dane", "Enjoy Oslo", "Lovely weather in Oslo", "That works only at night.", "Noted: 14 June.",
    "I'd like to know my way around in Oslo, which takes time.", "I'm glad that Tom is back.", "Have a nice cat",
    "Wonderful, I live in Oslo.", "Thanks to Tom I sleep.",
]  # fmt: skip
UNKNOWN = [
    "I do not know.", "Sorry, I do not know what your cat is called.", "I'm not sure how old your cat is.",
    "I don't have any information about your cat. Could you tell me?", "I cannot say.",
    "You have not told me your cat's name yet.", "Unfortunately, there are no records of a cat.",
]  # fmt: skip


@pytest.mark.parametrize("text", ASKS)
def test_a_turn_that_only_asks_tells_nothing(text: str) -> None:
    assert only_asks(text)
    assert tells_nothing(text, "user")
    assert tells_nothing(text, "assistant")


@pytest.mark.parametrize("text", POLITE)
def test_a_turn_that_is_only_polite_tells_nothing(text: str) -> None:
    assert not only_asks(text)
    assert tells_nothing(text, "user")
    assert tells_nothing(text, "assistant")


@pytest.mark.parametrize("text", TELLS)
def test_a_turn_that_may_tell_something_does(text: str) -> None:
    assert not tells_nothing(text, "user")


@pytest.mark.parametrize("text", UNKNOWN)
def test_an_answer_that_only_says_that_it_is_unknown_tells_nothing(text: str) -> None:
    assert tells_nothing(text, "assistant")


@pytest.mark.parametrize("text", ["Your cat is called Tom.", "I will look.", "I don't know the vet, but Tom is three."])
def test_an_answer_that_says_something_tells_it(text: str) -> None:
    assert not tells_nothing(text, "assistant") or text.startswith("I don't know")


def test_what_a_user_does_not_know_is_told() -> None:
    assert not tells_nothing("I can't remember my PIN.", "user")


def rows_of(arrangement: Arrangement) -> list[tuple[object, float]]:
    return [(row[0], hit.score) for hit, row in arrangement.shown]


def test_hits_are_arranged_and_their_scores_do_not_rise() -> None:
    arrangement = Arrangement(("text", "score", "kind", "role", "timestamp"), 3)
    texts = [
        ("Who is Tom?", "memory", "1"), ("Tom is a cat.", "memory", "2"), ("tom is  a cat.", "memory", "3"),
        ("Is Tom old?", "fact", "1"), ("Tom eats fish.", "memory", "1"),
    ]  # fmt: skip
    found = [
        (Hit(str(n), str(n), 1.0 - n / 10), (text, None, kind, "user", time))
        for n, (text, kind, time) in enumerate(texts)
    ]
    arrangement.add(found[:4])
    assert not arrangement.full
    assert rows_of(arrangement) == [("tom is  a cat.", 0.9), ("Is Tom old?", 0.7), ("Who is Tom?", 0.0)]
    arrangement.add(found[4:])
    assert arrangement.full
    assert rows_of(arrangement) == [("tom is  a cat.", 0.9), ("Is Tom old?", 0.7), ("Tom eats fish.", 0.6)]
