"""Labels that rules read, no rule writes, and that look like one that a rule writes.

Such a query never finds a node, and no server says so. A label that looks like none is one of another program.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Final

from graphweft_contracts.wire import did_you_mean
from graphweft_rules.cypher.names import graph_names, written_labels
from graphweft_rules.cypher.query import rule_outline
from graphweft_rules.files.findings import Finding
from graphweft_rules.files.model import GraphInjectionConfig, Place
from graphweft_rules.matching.searches import parse_retrieval

_CLOSENESS: Final = 0.7
"""Least similarity by ``difflib``: that of Oder and Order is 0.9, of Custmr and Customer 0.86."""


def unwritten_labels(configs: Iterable[GraphInjectionConfig], known: Collection[str]) -> Iterator[Finding]:
    """Yield a warning for each label that a query reads, and that looks like one which is written or ``known``.

    Nothing is said where labels are known only when a query runs.
    """
    configs = tuple(configs)
    mutations = [each for config in configs for rule in config.mutation_rules for each in rule.mutations]
    written: set[str] = set()
    for each in mutations:
        labels, whole = written_labels(rule_outline(each.cypher))
        if not whole:
            return
        written |= labels
    for name, place in _read(configs).items():
        if name in written or name in known:
            continue
        if near := did_you_mean(name, sorted({*written, *known}), closeness=_CLOSENESS):
            message = f"no rule here writes the label {name!r}{near}: ignore this if another program writes it"
            yield Finding(level="warning", code="unwritten-label", message=message, place=place)


def _read(configs: Iterable[GraphInjectionConfig]) -> Mapping[str, Place]:
    """Return the labels in queries of sound rules, each with the place of the first query that has it."""
    found: dict[str, Place] = {}
    for config in configs:
        queries = [(each.cypher, each.place) for rule in config.mutation_rules for each in rule.mutations]
        for rule in config.injection_rules:
            for each in rule.queries:
                queries += [(each.cypher, each.place)] if each.cypher is not None else []
                if each.search is not None and each.search.retrieval_query is not None:
                    cypher = parse_retrieval(each.search.retrieval_query)
                    found |= {name: each.place for kind, name in cypher.names if kind == "label" and name not in found}
        for text, place in queries:
            for kind, name in graph_names(rule_outline(text)):
                if kind == "label":
                    found.setdefault(name, place)
    return found
