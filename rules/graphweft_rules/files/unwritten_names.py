"""Names that rules read and no rule writes: misspelt labels, and times that another program may have written."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final

from graphweft_contracts.wire import did_you_mean
from graphweft_rules.cypher.clauses import Outline
from graphweft_rules.cypher.names import graph_names, written_labels
from graphweft_rules.cypher.query import rule_outline
from graphweft_rules.files.findings import Finding
from graphweft_rules.files.model import GraphInjectionConfig, Mutation, Place
from graphweft_rules.matching.searches import parse_retrieval

_CLOSENESS: Final = 0.7
"""Least similarity by ``difflib``: that of Oder and Order is 0.9, of Custmr and Customer 0.86."""
_TEXT_CALL: Final = ("DATETIME", "(", ")")
_SIGNS: Final = frozenset("<>=")


def unwritten_labels(configs: Iterable[GraphInjectionConfig], known: Collection[str]) -> Iterator[Finding]:
    """Yield a warning for each label that a query reads, and that looks like one which is written or ``known``.

    Such a query never finds a node, and no server says so. A label that looks like none is one of another program.
    Nothing is said where labels are known only when a query runs.
    """
    configs = tuple(configs)
    written: set[str] = set()
    for each in _mutations(configs):
        labels, whole = written_labels(rule_outline(each.cypher))
        if not whole:
            return
        written |= labels
    for name, place in _labels_read(configs).items():
        if name in written or name in known:
            continue
        if near := did_you_mean(name, sorted({*written, *known}), closeness=_CLOSENESS):
            message = f"no rule here writes the label {name!r}{near}: ignore this if another program writes it"
            yield Finding(level="warning", code="unwritten-label", message=message, place=place)


def _labels_read(configs: Iterable[GraphInjectionConfig]) -> Mapping[str, Place]:
    """Return the labels in queries of sound rules, each with the place of the first query that has it."""
    found: dict[str, Place] = {}
    for config in configs:
        for rule in config.injection_rules:
            for each in rule.queries:
                if each.search is not None and each.search.retrieval_query is not None:
                    cypher = parse_retrieval(each.search.retrieval_query)
                    found |= {name: each.place for kind, name in cypher.names if kind == "label" and name not in found}
        for text, place in _queries([config]):
            for kind, name in graph_names(rule_outline(text)):
                if kind == "label":
                    found.setdefault(name, place)
    return found


def text_times(configs: Iterable[GraphInjectionConfig]) -> Iterator[Finding]:
    """Yield a warning for each property that rules compare with ``datetime()``, a text in rules, and do not write.

    Another program may store times as native values, where the graph server has these. Compared with text they give
    null: the query finds nothing, and neither the linter nor the server can see it in the query alone.
    """
    configs = tuple(configs)
    written = {name for each in _mutations(configs) for name in _written(rule_outline(each.cypher))}
    found: dict[str, Place] = {}
    for text, place in _queries(configs):
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


def _mutations(configs: Iterable[GraphInjectionConfig]) -> list[Mutation]:
    return [each for config in configs for rule in config.mutation_rules for each in rule.mutations]


def _queries(configs: Sequence[GraphInjectionConfig]) -> list[tuple[str, Place]]:
    """Return all queries in Cypher with their places, those of mutations first."""
    queries = [each for config in configs for rule in config.injection_rules for each in rule.queries]
    found = [(each.cypher, each.place) for each in _mutations(configs)]
    return found + [(each.cypher, each.place) for each in queries if each.cypher is not None]
