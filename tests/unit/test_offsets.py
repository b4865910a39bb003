"""The forms of offsets: what a user or a page gives is compared only after it was accepted."""

from __future__ import annotations

import pytest

from graphweft_workers.ports.offsets import OffsetForm

NUMBER, PAIR, EITHER = OffsetForm


@pytest.mark.parametrize(
    ("offset", "forms"),
    [
        ("", {NUMBER, PAIR, EITHER}),
        ("17", {NUMBER, EITHER}),
        (str(2**63 - 1), {NUMBER, EITHER}),
        ("1700000000000-3", {PAIR, EITHER}),
        (f"{2**64 - 1}-{2**64 - 1}", {PAIR, EITHER}),
        ("17\n", set()),
        ("-1", set()),
        ("1-", set()),
        ("٣", set()),
        ("9" * 5_000, set()),  # Python reads no number of so many digits
        (f"1-{'9' * 5_000}", set()),
    ],
    ids=[
        "empty",
        "number",
        "largest",
        "pair",
        "largest pair",
        "line end",
        "sign",
        "half",
        "other digits",
        "long",
        "long pair",
    ],
)
def test_an_offset_has_the_form_of_its_bus(offset: str, forms: set[OffsetForm]) -> None:
    assert {form for form in OffsetForm if form.accepts(offset)} == forms
