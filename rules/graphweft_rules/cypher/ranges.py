"""``range()`` in a rule's query. A server makes the whole list at once, and 10^9 numbers end it.

So a bound must be a number that is known to be small: a constant, the size of something, or a parameter, whose value is
checked when it is known.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from graphweft_rules.cypher.clauses import Outline, QueryWords
from graphweft_rules.cypher.named_calls import named_calls

MOST: Final = 100_000
"""The largest bound of a range, and the smallest below zero."""
_MOST_TERMS: Final = 6
"""Of both bounds together."""
_SIZES: Final = frozenset({"size", "length"})


def range_problems(query: Outline) -> Iterator[tuple[str, int]]:
    """Yield message and offset of each bound that may be any number."""
    words = query.words
    for index, bounds in _calls(query):
        for bound in bounds:
            why = _unknown(words, bound) if len(bounds) <= _MOST_TERMS else "has too many terms"
            if why:
                message = (
                    f"a bound of range() {why}: write a number up to {MOST:,}, size() or length() of something, a "
                    "parameter, or a sum of these"
                )
                yield message, words.tokens[index].start
                break


def range_parameters(query: Outline) -> frozenset[str]:
    """Return the parameters that are bounds of ranges."""
    words = query.words
    return frozenset(
        words.tokens[place].identifier
        for _, bounds in _calls(query)
        for bound in bounds
        for place in bound
        if words.tokens[place].kind == "param" and words.text(bound.start) not in _SIZES
    )


def range_problem(names: frozenset[str], params: Mapping[str, Any]) -> str | None:
    """Return why the values of these parameters cannot be bounds of ranges, or None."""
    for name in sorted(names):
        value = params.get(name)
        if isinstance(value, int | float) and not -MOST <= value <= MOST:
            return f"the parameter {name!r} is a bound of range(), and its value is beyond {MOST:,}"
    return None


def _calls(query: Outline) -> Iterator[tuple[int, list[range]]]:
    """Yield the place and the first two arguments of each call, the terms of a sum each on its own."""
    for call in named_calls(query):
        if call.lower == "range":
            yield call.place, list(_terms(query.words, call.opening + 1, query.words.closing(call.opening)))


def _terms(words: QueryWords, start: int, end: int) -> Iterator[range]:
    place, commas = start, 0
    while place < end and commas < 2:
        text = words.text(place)
        if text == "," or (text in ("+", "-") and place > start):
            commas += text == ","
            yield range(start, place)
            start = place + 1
        place = words.closing(place) + 1 if text in ("(", "[", "{") else place + 1
    if commas < 2:
        yield range(start, end)


def _unknown(words: QueryWords, term: range) -> str:
    """Return why a term may be any number; empty if it is bounded."""
    if len(term) == 2 and words.text(term.start) in ("+", "-"):
        term = term[1:]
    if len(term) == 1:
        token = words.tokens[term.start]
        if token.kind == "param":
            return ""
        if token.kind == "number":
            small = token.text.isascii() and token.text.isdigit() and len(token.text) < 10 and int(token.text) <= MOST
            return "" if small else f"is {token.text[:20]}"
    called = len(term) > 3 and words.text(term.start).lower() in _SIZES and words.text(term.start + 1) == "("
    if called and words.closing(term.start + 1) == term.stop - 1:
        return ""
    return "is calculated"
