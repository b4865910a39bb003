"""The search indexes that graphweft makes because a rule names them, and those that it cannot make.

A search names ``Label.property`` of nodes that a rule writes: then every graph of an app gets the index, also one that
is made again from the log. Other indexes are made by hand, and a new graph lacks them.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Final, Literal

from graphweft_rules.cypher.clauses import outline
from graphweft_rules.cypher.indexes import SearchIndex
from graphweft_rules.cypher.names import written_labels
from graphweft_rules.files.findings import Finding
from graphweft_rules.files.model import GraphInjectionConfig, InjectionRule, InjectionSearch, MutationRule, Place

type Kind = Literal["fulltext", "vector"]
_PROCEDURE: Final = re.compile(r"db\.(idx|index)\.(fulltext|vector)\.query")


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedIndex:
    """An index as a search of a rule names it; with an empty name, a setting of the responder names it."""

    kind: Kind
    name: str
    dimensions: int | None
    place: Place

    def parts(self, labels: Collection[str]) -> tuple[str, str] | None:
        """Return label and property, if the name is ``Label.property`` with one of the labels."""
        found = [label for label in labels if self.name.startswith(f"{label}.") and "`" not in self.name]
        label = max(found, key=len, default="")
        name = self.name[len(label) + 1 :]
        return (label, name) if label and name else None


def named_indexes(rules: Iterable[InjectionRule]) -> Iterator[NamedIndex]:
    """Yield the indexes that searches of rules name, with repetitions."""
    for rule in rules:
        for query in rule.queries:
            search = query.search or (query.graphrag.search if query.graphrag is not None else None)
            if search is not None and search.memory is None:
                yield from _named(search, query.place)


def _named(search: InjectionSearch, place: Place) -> Iterator[NamedIndex]:
    asks, name = search.options.get("index_type"), search.options.get("index_name") or ""
    kind: Kind = "fulltext" if asks == "fulltext" else "vector"
    yield NamedIndex(kind=kind, name=name, dimensions=search.dimensions, place=place)
    if asks == "hybrid" and (words := search.options.get("fulltext_index_name")) is not None:
        yield NamedIndex(kind="fulltext", name=words, dimensions=None, place=place)


def labels_of(rules: Iterable[MutationRule]) -> frozenset[str]:
    """Return the labels that mutations write, without those that are known only when a query runs."""
    cyphers = (mutation.cypher for rule in rules for mutation in rule.mutations)
    return frozenset[str]().union(*(written_labels(outline(cypher))[0] for cypher in cyphers))


def made_indexes(named: Iterable[NamedIndex], mutations: Iterable[MutationRule]) -> frozenset[SearchIndex]:
    """Return the indexes that graphweft makes for rules: one for each kind, label and property.

    A vector index without ``dimensions`` is not made. Of several lengths, which rules of one set never have, the first
    one counts.
    """
    given = list(named)
    labels = labels_of(mutations) if any("." in each.name for each in given) else frozenset[str]()
    found: dict[tuple[str, str, str], SearchIndex] = {}
    for each in given:
        parts = each.parts(labels)
        if parts is None or (each.kind == "vector" and each.dimensions is None):
            continue
        label, name = parts
        found.setdefault(
            (each.kind, label, name),
            SearchIndex.of_rules(each.kind, label, name, each.dimensions if each.kind == "vector" else None),
        )
    return frozenset(found.values())


def indexed_properties(named: Iterable[NamedIndex]) -> frozenset[tuple[str, str]]:
    """Return what counts toward the limit of indexes: (label, property and kind)."""
    parts = ((each, each.name.partition(".")) for each in named)
    return frozenset((label, f"{name} ({each.kind})") for each, (label, dot, name) in parts if dot)


def search_findings(configs: Iterable[GraphInjectionConfig], known: Collection[str] = ()) -> Iterator[Finding]:
    """Yield an error for each vector index whose length is unknown, and a warning for each index that is not made.

    ``known`` are labels that something else than rules writes; searches of these have indexes of their own.
    """
    configs = tuple(configs)
    labels = labels_of(rule for config in configs for rule in config.mutation_rules) - frozenset(known)
    sizes: dict[tuple[str, str], int] = {}
    said: set[tuple[str, str]] = set()
    for each in (named for config in configs for named in named_indexes(config.injection_rules)):
        parts = each.parts(labels)
        if parts is None:
            if (each.kind, each.name) not in said:
                said.add((each.kind, each.name))
                yield Finding(level="warning", code="unmade-index", message=_unmade(each), place=each.place)
        elif each.kind == "vector":
            if each.dimensions is None:
                message = (
                    f"the vector index {each.name!r} is made with the graph, and needs the length of its vectors: "
                    "write for example dimensions: 384"
                )
                yield Finding(level="error", code="missing-key", message=message, place=each.place)
            elif (first := sizes.setdefault(parts, each.dimensions)) != each.dimensions:
                message = f"the vector index {each.name!r} has dimensions: {first} in another rule: write the same"
                yield Finding(level="error", code="conflicting-keys", message=message, place=each.place)
    indexes = made_indexes(
        (named for config in configs for named in named_indexes(config.injection_rules)),
        (rule for config in configs for rule in config.mutation_rules),
    )
    # Procedures name an index, or its label and, for vectors, the property.
    made = {(index.kind, name) for index in indexes for name in (index.name, index.label, _pair(index))}
    for kind, name, place in (called for config in configs for called in called_indexes(config)):
        if (kind, name) not in made and name.partition(".")[0] not in known:
            made.add((kind, name))  # say it once
            message = (
                f"graphweft does not make the {kind} index {name!r}, which the query asks: name it as Label.property "
                "in the search of a rule; ignore this if you make it, also in each graph that is rebuilt or restored"
            )
            yield Finding(level="warning", code="unmade-index", message=message, place=place)


def _pair(index: SearchIndex) -> str:
    return f"{index.label}.{index.properties[0]}"


def called_indexes(config: GraphInjectionConfig) -> Iterator[tuple[Kind, str, Place]]:
    """Yield kind, name and place of each index that the Cypher of a rule asks by a procedure.

    The name is that of the index, of the label, or ``Label.property``, as the procedure takes it.
    """
    queries = [(each.cypher, each.place) for rule in config.mutation_rules for each in rule.mutations]
    queries += [
        (each.cypher, each.place)
        for rule in config.injection_rules for each in rule.queries if each.cypher is not None
    ]  # fmt: skip
    for text, place in queries:
        if "query" not in text.lower():
            continue
        query = outline(text)
        words = query.words
        for clause in query.clauses:
            at = clause.words[0]
            name = "".join(words.text(index) for index in range(at + 1, at + 8)).lower()
            found = _PROCEDURE.match(name) if clause.keyword == "CALL" else None
            opening = next((index for index in clause.words if words.text(index) == "("), None)
            if found is None or opening is None:
                continue
            kind: Kind = "vector" if found[2] == "vector" else "fulltext"
            values = [words.tokens[index] for index in (opening + 1, opening + 3) if index < len(words.tokens)]
            texts = [each.text[1:-1] for each in values if each.kind == "string"]
            if texts:
                is_pair = found[1] == "idx" and kind == "vector" and len(texts) > 1
                yield kind, ".".join(texts) if is_pair else texts[0], place


def _unmade(named: NamedIndex) -> str:
    if not named.name:
        return (
            f"the search names no index, so a setting of the responder names its {named.kind} index, which graphweft "
            "does not make: write index_name: Label.property for nodes that a rule writes; ignore this if you make it"
        )
    return (
        f"no rule here writes nodes for {named.name!r}, so graphweft does not make this {named.kind} index: write "
        "Label.property with a label that a rule writes; ignore this if you make it, also in each graph that is "
        "rebuilt or restored"
    )
