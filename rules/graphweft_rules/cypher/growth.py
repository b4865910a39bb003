"""How much values of a query may grow: one that is joined with itself in clause after clause doubles each time."""

from __future__ import annotations

from collections import Counter
from typing import Final

from graphweft_rules.cypher.clauses import Clause, Outline, QueryWords
from graphweft_rules.cypher.named_calls import NamedCall, named_calls
from graphweft_rules.cypher.parts import PatternError
from graphweft_rules.cypher.pattern_parser import split_at_commas

MOST_GROWTH: Final = 1_024
"""Of the values of a rule's query."""
_JOINING: Final = frozenset("+[],:")

type Problem = tuple[str, int]
"""Message, and the index of the word where it is."""


def growth_problem(query: Outline, most: int) -> Problem | None:
    """Return where values may grow too much: each clause multiplies them by the uses of one value in one column."""
    words = query.words
    growth = 1
    for clause in query.clauses:
        if clause.keyword in ("WITH", "RETURN", "UNWIND"):
            growth *= max(1, _most_uses(words, clause))
        if growth > most:
            return "values are joined with themselves in clause after clause: use each value once", clause.words[0]
    for call in named_calls(query):
        if call.lower == "reduce":
            name, inside = words.identifier(call.opening + 1), range(call.opening + 3, words.closing(call.opening))
            if sum(words.identifier(place) == name and _joins(words, place) for place in inside) > 1:
                message = f"reduce() joins {name!r} with itself, so that it doubles with each item: use it once"
                return message, call.place
        elif call.lower == "replace" and (name := _put_into_itself(words, call)):
            return f"replace() puts {name!r} into itself, so that its length is squared: use another value", call.place
    return None


def _put_into_itself(words: QueryWords, call: NamedCall) -> str:
    """Return the value that ``replace(text, search, replacement)`` puts into itself; empty: none."""
    try:
        arguments = list(split_at_commas(words, range(call.opening + 1, words.closing(call.opening))))
    except PatternError:  # the server refuses it
        return ""
    if len(arguments) != 3:
        return ""
    text, _, replacement = arguments
    value = [words.text(place) for place in text]
    if words.tokens[text.start].kind not in ("name", "quoted", "param") or "(" in value:
        return ""
    for start in range(replacement.start, replacement.stop - len(value) + 1):
        end = start + len(value)
        if [words.text(place) for place in range(start, end)] == value and "." not in (
            words.text(start - 1), words.text(end)
        ):  # fmt: skip
            return "".join(value)
    return ""


def _most_uses(words: QueryWords, clause: Clause) -> int:
    """Return how often one column uses one value beside what joins values: ``+``, a list or a map."""
    most = depth = 0
    uses: Counter[tuple[str, str]] = Counter()
    joins = False
    for index in (*clause.words[1:], -1):
        text = words.text(index)
        if index < 0 or (text == "," and depth == 0):
            most = max(most, _together(uses)) if joins else most
            uses.clear()
            joins = False
            continue
        depth += (text in ("(", "[", "{")) - (text in (")", "]", "}"))
        joins = joins or text in ("+", "{", "[")
        is_name = words.identifier(index) and words.text(index - 1) != "." and words.text(index + 1) != "("
        if words.tokens[index].kind == "param" or is_name:
            field = words.identifier(index + 2) if words.text(index + 1) == "." else ""
            uses[words.tokens[index].identifier, field] += 1
    return most


def _together(uses: Counter[tuple[str, str]]) -> int:
    """Return the uses of the value that is used most: as a whole, and by that field which is used most."""
    fields: Counter[str] = Counter()
    for (name, field), count in uses.items():
        if field:
            fields[name] = max(fields[name], count)
    return max((uses[name, ""] + fields[name] for name, _ in uses), default=0)


def _joins(words: QueryWords, index: int) -> bool:
    """Tell whether the value at the index is an operand of ``+``, or an item of a list or a map."""
    left, right = index - 1, index + 1
    while words.text(left) == "(":
        left -= 2 if words.identifier(left - 1) else 1
    while words.text(right) == ")":
        right += 1
    return words.text(left) in _JOINING or words.text(right) in _JOINING
