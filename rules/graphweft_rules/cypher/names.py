"""The labels and relationship types that a query names."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Literal

from graphweft_rules.cypher.clauses import Outline

_LABELLING: Final = frozenset({"CREATE", "MERGE", "SET", "FOREACH"})
type Name = tuple[Literal["label", "type"], str]


def graph_names(query: Outline) -> Iterator[Name]:
    """Yield every label and relationship type in the query's text, with repetitions.

    Names in parameters are not included. It may yield a name that is neither, and never misses one.
    """
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
            is_type = in_list and words.text(openers[-1] - 1).endswith("-")
            # In a list comprehension the bar ends the condition.
            joining = (":", "&") if in_list and not is_type else (":", "&", "|")
            for name in _operands(query, index + 1, joining):
                yield "type" if is_type else "label", name


def _operands(query: Outline, index: int, joining: tuple[str, ...]) -> Iterator[str]:
    """Yield the names in the label expression at the index."""
    words = query.words
    depth = 0
    while True:
        while words.text(index) in ("!", "(", ":"):
            depth += words.text(index) == "("
            index += 1
        name = words.identifier(index)
        if name:
            yield name
        index += 1
        while depth and words.text(index) == ")":
            depth -= 1
            index += 1
        if words.text(index) not in joining:
            return
        index += 1


def written_labels(query: Outline) -> frozenset[str] | None:
    """Return the labels in clauses that create nodes or set labels; None if a label is known only at run time."""
    words = query.words
    found: set[str] = set()
    for clause in query.clauses:
        if clause.keyword not in _LABELLING:
            continue
        inside = set(clause.words)
        for index in clause.words:
            if words.text(index) == ":" and index not in query.in_map and index + 1 in inside:
                if words.text(index + 1) == "$":
                    return None
                found.update(_operands(query, index + 1, (":", "&", "|")))
    procedures = any(
        clause.keyword == "CALL" and words.text(clause.words[0] + 1) not in ("{", "(") for clause in query.clauses
    )
    return None if procedures else frozenset(found)
