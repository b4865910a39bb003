"""``reduce()`` whose variable has the name of another one: a graph server then never ends, whatever its limit is.

``WITH 1 AS x RETURN reduce(s = 0, x IN [1] | s + x)`` holds a thread of the server until it is ended.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from graphweft_rules.cypher.clauses import Outline, QueryWords

_QUANTIFIERS: Final = frozenset({"all", "any", "none", "single", "filter", "extract"})


def repeated_reduce_names(query: Outline) -> Iterator[tuple[str, int]]:
    """Yield name and offset of each variable of a ``reduce()`` that is also the name of something outside of lists."""
    words = query.words
    bound: list[str] = []
    """By open bracket: the variable of the list that it reads."""
    reduces: dict[str, int] = {}
    free: set[str] = set()
    for index, token in enumerate(words.tokens):
        text = token.text
        if text in ("(", "[", "{"):
            place = _variable(words, index)
            name = words.identifier(place)
            if words.identifier(index - 1).lower() == "reduce" and name:
                if name in bound:
                    yield name, words.tokens[place].start
                reduces.setdefault(name, words.tokens[place].start)
            bound.append(name)
        elif text in (")", "]", "}"):
            if bound:
                bound.pop()
        elif words.identifier(index) not in ("", *bound) and not _is_field(query, index):
            free.add(words.identifier(index))
    yield from ((name, start) for name, start in reduces.items() if name in free)


def _is_field(query: Outline, index: int) -> bool:
    """Tell whether the name at the index is a property, a label, or the key of a map."""
    words = query.words
    return words.text(index - 1) in (".", ":") or (index in query.in_map and words.text(index + 1) == ":")


def _variable(words: QueryWords, opening: int) -> int:
    """Return the index of the variable of the list that a bracket reads, or -1."""
    function = words.identifier(opening - 1).lower() if words.text(opening) == "(" else ""
    place = opening + 1
    if function == "reduce":
        while place < len(words.tokens) and words.text(place) != ",":
            place = words.closing(place) + 1 if words.text(place) in ("(", "[", "{") else place + 1
        place += 1
    elif words.text(opening) != "[" and function not in _QUANTIFIERS:
        return -1
    return place if words.identifier(place) and words.keyword(place + 1) == "IN" else -1
