"""Turns whose subject is in a turn before, and how a ranking finds them."""

from __future__ import annotations

from datetime import date

import pytest

from graphweft_workers.retrieval.continued_turns import corrects, is_bare_answer, quotes_another
from graphweft_workers.retrieval.questions import read_question
from graphweft_workers.retrieval.scope_index import IndexedNode, ScopeIndex
from graphweft_workers.retrieval.scope_ranking import FITTING, rank
from graphweft_workers.retrieval.signals import KindIndex, Near
from graphweft_workers.text.terms import terms

SMALL_TALK = (("user", "The train was late."), ("assistant", "Sorry to hear that."))


def found(said: tuple[tuple[str, str], ...], question: str) -> dict[str, float]:
    turns = (*SMALL_TALK, *said, *SMALL_TALK)
    index = ScopeIndex([
        IndexedNode(
            str(number), f"2026-01-01T10:{number:02}:00Z", " ".join(terms(text)), len(terms(text)), thread="c",
            who=role, role=role, said=text,
        )
        for number, (role, text) in enumerate(turns)
    ])  # fmt: skip
    assert index.read(1_000)
    asked = read_question(question, today=date(2026, 2, 1))
    hits = rank(asked, [KindIndex(of=0, index=index)], Near())
    return {turns[int(hit.key)][1]: hit.score for hit in hits}


@pytest.mark.parametrize(
    ("said", "question", "answer"),
    [
        ((("user", "My birthday is on May 3rd."), ("user", "no, it's May 5th")), "When is my birthday?", 1),
        (
            (("user", "My birthday is on May 3rd."), ("assistant", "Noted!"), ("user", "no, it's May 5th")),
            "When is my birthday?", 2,
        ),
        ((("assistant", "Tell me your favourite colour."), ("user", "Blue.")), "What is my favourite colour?", 1),
        ((("assistant", "Do you live in Oslo?"), ("user", "Yes, since 2019.")), "Since when do I live in Oslo?", 1),
        (
            (("user", "My sister moved to Bergen."), ("assistant", "How nice."), ("user", "Sorry, I meant Stavanger.")),
            "Where did my sister move?", 2,
        ),
        (
            (
                ("user", "The dentist appointment is on 17 June."), ("assistant", "Noted: 17 June."),
                ("user", "Actually no, they called: it's on 19 June at 11 now."),
            ),
            "When is the dentist appointment?", 2,
        ),
        (
            (
                ("user", "Ich habe am 14. Juli Nachtschicht, und am 18. Juli auch."), ("assistant", "Notiert."),
                ("user", "Moment, nicht am 18., sondern am 19. Juli."),
            ),
            "Wann habe ich Nachtschicht?", 2,
        ),
        (
            (
                ("user", "Shopping list for the dinner: lentils, rice."), ("assistant", "Got it."),
                ("user", "Add lemons to it please."),
            ),
            "What is on my shopping list?", 2,
        ),
    ],
)  # fmt: skip
def test_an_answer_is_found_by_the_words_of_what_it_answers(
    said: tuple[tuple[str, str], ...], question: str, answer: int
) -> None:
    hits = found(said, question)
    assert said[answer][1] in list(hits)[:2]
    assert hits[said[answer][1]] >= FITTING
    assert not {"The train was late.", "Noted!", "How nice."} & {*hits}


@pytest.mark.parametrize(
    ("text", "quotes"),
    [
        ('Imane said: "I live in a spreadsheet."', True), ("Oma sagt: \u201eJetzt kann ich sterben.\u201c", True),
        ("She said \u201cwe moved to Rome\u201d.", True), ('I read "The Overstory".', False),
        ('My boss told me "you will be team lead".', False), ("I live in Oslo.", False), ('5" and I like 6"', False),
    ],
)  # fmt: skip
def test_who_speaks_in_quotes_speaks_of_themselves(text: str, quotes: bool) -> None:
    assert quotes_another(text) is quotes


def test_what_somebody_else_says_of_themselves_is_not_what_the_user_told_last() -> None:
    said = (("user", "We moved to Antwerp."), ("user", 'My colleague says: "I live in a spreadsheet."'))
    assert next(iter(found(said, "Where do I live?"))) == said[0][1]


@pytest.mark.parametrize(
    ("said", "question"),
    [
        ((("user", "My train leaves at 6:42."), ("assistant", "Noted."), ("user", "No, wait, it's 6:24.")),
         "When does my train leave?"),
        ((("user", "The service listens on port 8080."), ("user", "Oops, the port is 8081, 8080 is for metrics.")),
         "On which port does the service listen?"),
        ((("user", "He can come on Thursday the 12th."), ("assistant", "Thursday, noted."), ("user", "Is it free?"),
          ("assistant", "Yes, of charge."), ("user", "Oh sorry, I mixed that up, I meant Friday the 13th.")),
         "When can he come?"),
        ((("user", "My train leaves at 6:42."), ("assistant", "Anything else?"), ("user", "Sorry, I meant 6:24.")),
         "When does my train leave?"),
    ],
)  # fmt: skip
def test_a_correction_is_before_what_it_corrects(said: tuple[tuple[str, str], ...], question: str) -> None:
    assert next(iter(found(said, question))) == said[-1][1]


def test_a_correction_is_not_found_by_the_long_answer_before_it() -> None:
    said = (
        ("user", "The service listens on port 8080."), ("user", "How do I make a probe?"),
        ("assistant", "In each version of Python, use the module of this version."),
        ("user", "Oops, the port is 8081."),
    )  # fmt: skip
    assert said[-1][1] not in found(said, "Which Python version do we use?")


def test_an_answer_to_a_question_corrects_nothing_that_was_told_before() -> None:
    said = (("user", "I like the blue lamp."), ("assistant", "Do you live in Oslo?"), ("user", "No, it's Bergen."))
    assert next(iter(found(said, "Which lamp do I like?"))) == said[0][1]


def test_a_few_words_of_the_same_author_are_no_answer() -> None:
    said = (("user", "Meine Schwester wohnt in Lyon."), ("user", "Mieszkam w Warszawie."))
    assert list(found(said, "Lyon")) == [said[0][1]]


@pytest.mark.parametrize(
    "text",
    [
        "No, it's May 5th",
        "Actually, Bergen",
        "Nein, am 5. Mai",
        "nope, blue",
        "Actually no, they called: it's on 19 June at 11 now.",
        "Moment, nicht am 18., sondern am 19. Juli.",
        "Correction, the hall is taken. It will be the library, same day.",
        "Sorry, I meant the other one by the station.",
        "Oops, the port is 8081, 8080 is the metrics port.",
        "Oh sorry, I mixed that up, it is Friday.",
        "My mistake, the meeting with Ann is at four.",
    ],
)
def test_a_correction_is_known_by_its_beginning(text: str) -> None:
    assert corrects(text)


@pytest.mark.parametrize(
    "text",
    [
        "", "Thanks!", "Okay, great", "The train was late.", "I like tea", "What is it?", "No, really?", "How nice.",
        "Oops, I dropped my phone.", "Oops, I am late again.",
        "I moved to Bergen last week, and like it.", "Add a test for the parser.", "Take it easy.",
        "No idea what the committee decided about the new building.",
        "\u6211\u7684\u72d7\u53eb\u5c0f\u767d",
    ],
)  # fmt: skip
def test_other_turns_are_neither_corrections_nor_bare_answers(text: str) -> None:
    assert not corrects(text)
    assert not is_bare_answer(text, "user")


def test_a_few_words_are_an_answer_of_the_user_only() -> None:
    assert [is_bare_answer("Blue.", role) for role in ("user", "assistant")] == [True, False]
