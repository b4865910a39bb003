"""Normalization takes linear time, because no run of marks is long, and is that of Unicode otherwise."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphweft_rules.normal_form import normalized
from graphweft_rules.output.formats import without_marks
from graphweft_workers.features.episodes.ontologies.ontology import HiddenNames
from graphweft_workers.features.graphrag.seeds import entity_terms, mentioned_keys
from graphweft_workers.text.terms import name_key, query_terms, terms

type Form = Literal["NFC", "NFD", "NFKC", "NFKD"]

FORMS: tuple[Form, ...] = ("NFC", "NFD", "NFKC", "NFKD")
MARKS = ["\u0301\u0323", "\u0344\u0323", "\u0f73\u0301", "\uff9e\u0301", "\u0345\u05b0\u0653", "\u302e\U0001d165"]
NORMALIZE = unicodedata.normalize


def longest_run(text: str) -> int:
    """Return how many marks in a row a normalization has to sort."""
    longest = here = 0
    for char in "".join(NORMALIZE("NFKD", char) for char in text):
        here = here + 1 if unicodedata.combining(char) else 0
        longest = max(longest, here)
    return longest


@pytest.mark.parametrize(
    "read",
    [
        *(lambda text, form=form: normalized(form, text) for form in FORMS),
        name_key, terms, query_terms, entity_terms, without_marks, lambda text: mentioned_keys([text]),
        lambda text: HiddenNames([text]).are_in(text),
    ],
)  # fmt: skip
@pytest.mark.parametrize("marks", MARKS)
def test_no_long_run_of_marks_is_normalized(
    read: Callable[[str], Any], marks: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []

    def normalize(form: Form, text: str) -> str:
        seen.append(longest_run(text))
        return NORMALIZE(form, text)

    monkeypatch.setattr(unicodedata, "normalize", normalize)
    read("_a" + marks * 400 + " --" + marks * 400 + "\uff3f")
    assert seen
    assert max(seen) <= 64


@given(st.text())
def test_other_texts_have_the_form_of_unicode(text: str) -> None:
    for form in FORMS:
        assert normalized(form, text) == unicodedata.normalize(form, text)


@pytest.mark.parametrize(
    "text", ["a" + "\u0301" * 30, "-" * 500 + "\u00e9", "\u0e01\u0e34\u0e49" * 100, "\u1100\u1161" * 99]
)
def test_text_without_long_runs_is_not_parted(text: str) -> None:
    assert normalized("NFKC", text) == unicodedata.normalize("NFKC", text)


def test_spellings_of_a_name_stay_one_name() -> None:
    assert name_key("Zu\u0308rich") == name_key("Z\u00fcrich") == "z\u00fcrich"
