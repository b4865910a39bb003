"""The tables of secrets: each example goes, each text beside it stays, and no pattern runs away."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

import pytest
from tests.services.pattern_steps import Steps, TooManySteps

from graphweft_workers.text import redaction, secret_structures, secret_words
from graphweft_workers.text.redaction import REDACTED, redact
from graphweft_workers.text.secret_keys import KEYS, KeyKind, key_pattern
from graphweft_workers.text.secret_shapes import LOGINS, NAMED, SHAPES, SecretShape

SHAPE_ROWS: Final = (*LOGINS, *SHAPES, *NAMED)
LENGTH: Final = 300
MOST: Final = 250 * LENGTH
"""A pattern that reads its text anew from each place takes LENGTH squared, and more."""
RUNS: Final = ("a1", "1", "a", "_1", " ", "\n", "#", "-", "=", ".", "/", "|")
OTHERS: Final = {
    "_BREAK": ('"one" +\n  "two"', redaction._BREAK),
    "_ASSIGNED, option": ("--db-password hunter2", redaction._ASSIGNED),
    "_ASSIGNED, tag": ("<db.password>hunter</db.password>", redaction._ASSIGNED),
    "_ASSIGNED, sentence": ("the password is set to: hunter", redaction._ASSIGNED),
    "_ASSIGNED, comment": ('"password":\n # "hunter"', redaction._ASSIGNED),
    "_SEED": ("seed phrase words", redaction._SEED),
    "_SEED_PHRASE": ("apple river, stone cloud", redaction._SEED_PHRASE),
    "NAME": ("connection string", secret_words.NAME),
    "WORDS": ("some words", secret_words.WORDS),
    "_URL": ("postgres://ann:hunter@db", redaction._URL),
    "_NAMED": ('"passwords": ', secret_structures._NAMED),
    "_SECTION": (" [[db.passwords]]", secret_structures._SECTION),
    "_EXPRESSION": ("(a + b)", secret_structures._EXPRESSION),
    "_TOKEN": (r'\\"a b\\", [c', secret_structures._TOKEN),
}
AT_ONE_PLACE: Final = {
    "_LIST": ('": \n - x', redaction._LIST),
    "_LEAD": ("# export DB_", redaction._LEAD),
    "_COMMON": ("a-word/v2.example.com-12", secret_words._COMMON),
    "_REFERENCE": ("[REDACTED]***.", secret_words._REFERENCE),
    "PLAIN_WORD": ("two-words", secret_words.PLAIN_WORD),
    "_BEGINS": (" \n", secret_structures._BEGINS),
    "_BLOCK": ("|-2 # a", secret_structures._BLOCK),
    "_NEXT_LINE": ("\n  - a\\b", secret_structures._NEXT_LINE),
    "_ITEM": ("12)  a b", secret_structures._ITEM),
    "_MEMBER": ("'a.b' : c d", secret_structures._MEMBER),
    "_TAGS": ("&main !!seq ", secret_structures._TAGS),
    "_TYPE": ("list[str] = ", secret_structures._TYPE),
    "_MAKER": ("new java.util.HashSet<String>(", secret_structures._MAKER),
    "_SAID": ("(click here, at 10.)", secret_structures._SAID),
    "_SAID, link": ("[a link](https://a.b/c)", secret_structures._SAID),
    "_TRAIL": ("'a b' # c", secret_structures._TRAIL),
    "_TRAIL, bare": ("a b # c", secret_structures._TRAIL),
    "_REMARK": ("## a b", secret_structures._REMARK),
    "_END_OF_LINE": ("a\\b", secret_structures._END_OF_LINE),
    "_INDENT": ("  - - a", secret_structures._INDENT),
    "_KEY_SIGN": ("  :", secret_structures._KEY_SIGN),
}


def key_row(key: KeyKind) -> re.Pattern[str]:
    return re.compile(f"(?<![A-Za-z0-9])(?:{'|'.join(key.starts)}){key.rest}", re.ASCII)


def hostile(example: str) -> Iterator[str]:
    """Yield the beginnings of an example, each with a run behind it, and each again and again."""
    cuts = {0, len(example), *(match.end() for match in re.finditer(r"[\W_]|\w(?=\W)", example))}
    for begin in (example[:cut] for cut in sorted(cuts)):
        yield from (begin + (run * LENGTH)[:LENGTH] for run in RUNS)
        yield (begin * LENGTH)[:LENGTH]


@pytest.mark.parametrize("key", KEYS, ids=lambda key: key.of)
def test_a_key_of_each_kind_goes_and_its_neighbour_stays(key: KeyKind) -> None:
    example = "".join(key.example)
    assert key_row(key).fullmatch(example)
    assert redact(f"It is {example} here.") == f"It is {REDACTED} here."
    assert redact(key.stays) == key.stays


@pytest.mark.parametrize("shape", SHAPE_ROWS, ids=lambda shape: shape.name)
def test_a_secret_of_each_shape_goes_and_its_neighbour_stays(shape: SecretShape) -> None:
    before, secret, after = re.split("[«»]", shape.example)
    found = [match[match.lastgroup or 0] for match in re.finditer(shape.pattern, before + secret + after)]
    assert [value for value in found if shape.counts(value)] == [secret]
    assert redact(before + secret + after) == before + REDACTED + after
    assert redact(shape.stays) == shape.stays


def test_a_key_of_two_kinds_is_found_once() -> None:
    for key in KEYS:
        example = "".join(key.example)
        assert [match[0] for match in key_pattern().finditer(f"see {example} there")] == [example]


def test_names_are_unique() -> None:
    names = [key.of for key in KEYS] + [shape.name for shape in SHAPE_ROWS]
    assert len({*names}) == len(names)


@pytest.mark.parametrize(
    ("example", "pattern"),
    [
        *(("".join(key.example), key_row(key)) for key in KEYS),
        *((re.sub("[«»]", "", shape.example), re.compile(shape.pattern)) for shape in SHAPE_ROWS),
        *OTHERS.values(),
    ],
    ids=[*(key.of for key in KEYS), *(shape.name for shape in SHAPE_ROWS), *OTHERS],
)
def test_a_search_takes_steps_in_proportion_to_the_text(example: str, pattern: re.Pattern[str]) -> None:
    steps = Steps(pattern)
    for text in hostile(example):
        assert [*steps.spans(text, most=MOST)] == [match.span() for match in pattern.finditer(text)]


@pytest.mark.parametrize(("example", "pattern"), AT_ONE_PLACE.values(), ids=AT_ONE_PLACE)
def test_a_match_takes_steps_in_proportion_to_the_text(example: str, pattern: re.Pattern[str]) -> None:
    steps = Steps(pattern)
    for text in hostile(example):
        match = pattern.match(text)
        assert steps.match(text, most=MOST) == (match and match.end())


def test_signs_without_end_behind_a_name_are_read_at_once() -> None:
    for begin in ("bearer ", "curl -u ", "the password for the shop is ", "--password ", "password is "):
        for run in ("#", "/", "=", " ", "\n"):
            assert redact(begin + run * 3_000).startswith(begin.rstrip())


@pytest.mark.parametrize("pattern", ["(?:a+)+b", "(?:[#/]+ *)*b", r"\s*\s*b", "(?:a|a)*b"])
def test_a_pattern_that_runs_away_is_seen(pattern: str) -> None:
    with pytest.raises(TooManySteps, match="steps for 300 characters"):
        list(Steps(re.compile(pattern)).spans(({"[": "#", "\\": " "}.get(pattern[3:4], "a") * LENGTH), most=MOST))
