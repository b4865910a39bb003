"""The passage of a long text that is shown where the whole has no room."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from graphweft_rules.output.passages import passage
from graphweft_workers.retrieval.passages import best_place
from graphweft_workers.retrieval.questions import answering_terms
from graphweft_workers.text.terms import query_terms

BEFORE, AFTER = "We spoke of the weather and of the week. " * 100, "And of other things, too. " * 100


def shown(text: str, question: str, size: int) -> str:
    return passage(text, size, best_place(text, size, query_terms(question)))


def test_the_passage_is_where_the_question_matches() -> None:
    text = f"{BEFORE}Your cat is called Tom, as you said. He is three. {AFTER}"
    for size in (400, 150, 50):
        found = shown(text, "What is my cat called?", size)
        assert found.startswith("\u2026Your cat is called Tom")
        assert found.endswith("\u2026")
        assert len(found) <= size + 2


def test_without_a_word_of_the_question_the_passage_is_where_other_words_answer_it() -> None:
    text = f"{BEFORE}You moved to Cork in June. {AFTER}"
    asked = "Where do I live?"
    at = best_place(text, 150, query_terms(asked), answering_terms(asked))
    assert passage(text, 150, at).startswith("\u2026You moved to Cork")
    assert best_place(f"To live is good. {text}", 150, query_terms(asked), answering_terms(asked)) == 0


def test_different_words_count_more_than_repeated_ones() -> None:
    text = "cat cat cat cat. " + BEFORE + "The cat is three years old. " + AFTER
    assert "three years old" in shown(text, "How many years is the cat, three?", 150)


def test_without_a_match_the_beginning_is_shown() -> None:
    assert shown(BEFORE, "cello", 150).startswith("We spoke of the weather")
    assert not shown(BEFORE, "cello", 150).startswith("\u2026")


def test_the_end_of_a_text_has_no_ellipsis_behind() -> None:
    assert shown(BEFORE + "The cat is Tom.", "cat", 150).endswith("The cat is Tom.")


@given(st.text(max_size=300), st.integers(1, 120), st.integers(0, 400))
def test_a_passage_is_a_part_of_the_text(text: str, size: int, start: int) -> None:
    found = passage(text, size, start)
    assert len(found) <= size + 2 + size // 4
    assert found.removeprefix("\u2026").removesuffix("\u2026").strip() in text or text == found
