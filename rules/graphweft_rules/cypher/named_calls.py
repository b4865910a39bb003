"""The calls in a query's text: each name before a parenthesis, whether or not the query has a form that is known."""

from __future__ import annotations

from dataclasses import dataclass

from graphweft_rules.cypher.clauses import Outline, QueryWords, once


@dataclass(frozen=True, slots=True)
class NamedCall:
    """``name(…)``: a call of a function or procedure, or a keyword before a parenthesis."""

    name: str
    """As the author wrote it, with its dots and without quotes."""
    place: int
    opening: int
    """The index of the parenthesis."""

    @property
    def lower(self) -> str:
        """The name in lower case: servers find functions in any case."""
        return self.name.lower()


@once
def named_calls(query: Outline) -> tuple[NamedCall, ...]:
    """Return the calls of a query in the order of their parentheses."""
    words = query.words
    openings = (index for index, token in enumerate(words.tokens) if token.text == "(")
    return tuple(call for opening in openings if (call := _before(words, opening)) is not None)


def _before(words: QueryWords, opening: int) -> NamedCall | None:
    start = opening - 1
    while words.text(start - 1) == "." and words.identifier(start - 2):
        start -= 2
    if not words.identifier(opening - 1) or words.text(start - 1) == ".":
        return None
    return NamedCall(".".join(map(words.identifier, range(start, opening, 2))), start, opening)
