"""Numbers with their noun."""

from __future__ import annotations

import pytest

from graphweft_contracts.plurals import counted


@pytest.mark.parametrize(
    ("number", "noun", "text"),
    [
        (0, ("event",), "0 events"),
        (1, ("event",), "1 event"),
        (1_200, ("event",), "1,200 events"),
        (1, ("entry",), "1 entry"),
        (2, ("dead letter",), "2 dead letters"),
        (2, ("memory",), "2 memories"),
        (1, ("letter is", "letters are"), "1 letter is"),
        (3, ("letter is", "letters are"), "3 letters are"),
    ],
)
def test_a_number_has_its_noun_in_singular_or_plural(number: int, noun: tuple[str, ...], text: str) -> None:
    assert counted(number, *noun) == text
