"""The labels and relationship types that a query names."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Final, Literal

from graphweft_rules.cypher.clauses import Outline, QueryWords

_LABELLING: Final = frozenset({"CREATE", "MERGE", "SET", "FOREACH"})
type ColonPlace = Literal["relationship", "list", "other"]
"""In the brackets of a relationship, in those of a list, where a bar ends a condition, or elsewhere."""
type Name = tuple[Literal["label", "type"], str]


def graph_names(query: Outline) -> Iterator[Name]:
    """Yield every label and relationship type in the query's text, with repetitions.

    Names in parameters are not included. It may yield a name that is neither, and never misses one.
    """
    words = query.words
    for index, place in colons(query):
        joining = (":", "&") if place == "list" else (":", "&", "|")
        for at in operands(words, index + 1, joining):
            yield "type" if place == "relationship" else "label", words.identifier(at)


def colons(query: Outline) -> Iterator[tuple[int, ColonPlace]]:
    """Yield the index and the place of each colon that may begin labels or types; those of maps do not."""
    words = query.words
    openers: list[int] = []
    for index in range(len(words.tokens)):
        text = words.text(index)
        if text in ("(", "[", "{"):
            openers.append(index)
        elif text in (")", "]", "}") and openers:
            openers.pop()
        elif text == ":" and index not in query.in_map:
            in_list = bool(openers) and words.text(openers[-1]) == "["
            yield index, "other" if not in_list else "relationship" if words.text(openers[-1] - 1) == "-" else "list"


def operands(words: QueryWords, index: int, joining: Collection[str]) -> Iterator[int]:
    """Yield the index of each name in the label expression at the index, whose operators are ``joining``."""
    opening = ("!", "(", ":") if ":" in joining else ("!", "(")
    depth = 0
    while True:
        while words.text(index) in opening:
            depth += words.text(index) == "("
            index += 1
        if words.identifier(index):
            yield index
        index += 1
        while depth and words.text(index) == ")":
            depth -= 1
            index += 1
        if words.text(index) not in joining:
            return
        index += 1


def written_labels(query: Outline) -> tuple[frozenset[str], bool]:
    """Return the labels in clauses that create nodes or set labels, and whether these are all.

    They are not if a label is known only when the query runs.
    """
    words = query.words
    found: set[str] = set()
    whole = True
    for clause in query.clauses:
        if clause.keyword not in _LABELLING:
            continue
        inside = set(clause.words)
        for index in clause.words:
            if words.text(index) == ":" and index not in query.in_map and index + 1 in inside:
                if words.text(index + 1) == "$":
                    whole = False
                    continue
                found.update(words.identifier(at) for at in operands(words, index + 1, (":", "&", "|")))
    procedures = any(
        clause.keyword == "CALL" and words.text(clause.words[0] + 1) not in ("{", "(") for clause in query.clauses
    )
    return frozenset(found), whole and not procedures
