"""Comparisons of ``datetime()``, which is text in rules, with properties that no rule writes.

Another program may store times as native values, where the graph server has these. Compared with text they give null:
the query finds nothing, and neither the linter nor the server can see it in the query alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from graphweft_rules.cypher.clauses import Outline
from graphweft_rules.cypher.query import rule_outline
from graphweft_rules.files.findings import Finding
from graphweft_rules.files.model import GraphInjectionConfig, Place

_TEXT_CALL: Final = ("DATETIME", "(", ")")
_SIGNS: Final = frozenset("<>=")


def text_times(configs: Iterable[GraphInjectionConfig]) -> Iterator[Finding]:
    """Yield a warning for each property that rules compare with ``datetime()`` and do not write."""
    configs = tuple(configs)
    mutations = [each for config in configs for rule in config.mutation_rules for each in rule.mutations]
    queries = [(each.cypher, each.place) for each in mutations]
    queries += [
        (each.cypher, each.place)
        for config in configs for rule in config.injection_rules for each in rule.queries if each.cypher is not None
    ]  # fmt: skip
    written = {name for each in mutations for name in _written(rule_outline(each.cypher))}
    found: dict[str, Place] = {}
    for text, place in queries:
        for name in _compared(rule_outline(text)):
            found.setdefault(name, place)
    for name, place in found.items():
        if name.rpartition(".")[2] not in written:
            message = (
                f"{name} is compared with datetime(), which is text in rules, and no rule here writes it: a native "
                f"time that another program wrote never compares with text. Write {name}.epochMillis and timestamp() "
                "for a native time; ignore this if it is text"
            )
            yield Finding(level="warning", code="text-time", message=message, place=place)


def _compared(query: Outline) -> Iterator[str]:
    """Yield each ``variable.property`` on one side of a comparison with ``datetime()`` on the other."""
    words = query.words
    for index in range(len(words.tokens)):
        if (words.keyword(index), words.text(index + 1), words.text(index + 2)) != _TEXT_CALL:
            continue
        before, after = index - 1, index + 3
        while words.text(before) in _SIGNS:
            before -= 1
        while words.text(after) in _SIGNS:
            after += 1
        for first, is_compared in ((before - 2, before < index - 1), (after, after > index + 3)):
            variable, name = words.identifier(first), words.identifier(first + 2)
            sets = words.keyword(first - 1) in ("SET", ",") or words.text(first - 1) == ","
            plain = words.text(first + 1) == "." and words.text(first - 1) != "." and words.text(first + 3) != "."
            if is_compared and variable and name and plain and not sets:
                yield f"{variable}.{name}"


def _written(query: Outline) -> Iterator[str]:
    """Yield the properties that a mutation sets, in a map or by SET."""
    words = query.words
    for index in range(len(words.tokens)):
        name = words.identifier(index)
        if name and words.text(index + 1) == ":" and index + 1 in query.in_map:
            yield name
        if name and words.text(index - 1) == "." and words.text(index + 1) == "=":
            yield name
