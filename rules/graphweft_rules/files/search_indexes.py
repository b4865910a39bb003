"""The search indexes that graphweft makes because a rule names them, and those that it cannot make.

A search names ``Label.property`` of nodes that a rule writes: then every graph of an app gets the index, also one that
is made again from the log. Other indexes are made by hand, and a new graph lacks them.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Final

from graphweft_rules.cypher.indexes import IndexKind, SearchIndex
from graphweft_rules.cypher.names import written_labels
from graphweft_rules.cypher.query import rule_outline
from graphweft_rules.cypher.written_properties import WrittenProperties
from graphweft_rules.files.findings import Finding
from graphweft_rules.files.model import GraphInjectionConfig, InjectionRule, InjectionSearch, MutationRule, Place

_FAR: Final = 8
"""Signs by which the length of a name may differ from that of a name that was meant."""
_COMPARED: Final = 200
"""Limit of names that are compared, each of which takes some 20 µs, for each of up to 500 indexes."""
_PROCEDURE: Final = re.compile(r"db\.(idx|index)\.(fulltext|vector)\.query")


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedIndex:
    """An index as a search of a rule names it; with an empty name, a setting of the responder names it."""

    kind: IndexKind
    name: str
    dimensions: int | None
    place: Place
    dimensions_place: Place

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
    kind: IndexKind = "fulltext" if asks == "fulltext" else "vector"
    at = search.places.get("index_name", place)
    size_at = search.places.get("dimensions", at)
    yield NamedIndex(kind=kind, name=name, dimensions=search.dimensions, place=at, dimensions_place=size_at)
    if asks == "hybrid" and (words := search.options.get("fulltext_index_name")) is not None:
        at = search.places.get("fulltext_index_name", place)
        yield NamedIndex(kind="fulltext", name=words, dimensions=None, place=at, dimensions_place=at)


def labels_of(rules: Iterable[MutationRule]) -> frozenset[str]:
    """Return the labels that mutations write, without those that are known only when a query runs."""
    return frozenset[str]().union(*(written_labels(rule_outline(cypher))[0] for cypher in _cyphers(rules)))


def _cyphers(rules: Iterable[MutationRule]) -> Iterator[str]:
    return (mutation.cypher for rule in rules for mutation in rule.mutations)


def made_indexes(named: Iterable[NamedIndex], mutations: Iterable[MutationRule]) -> frozenset[SearchIndex]:
    """Return the indexes that graphweft makes for rules: one for each kind, label and property.

    A vector index without ``dimensions`` is not made. Of several lengths, which rules of one set never have, the first
    one counts.
    """
    given = list(named)
    return _made(given, labels_of(mutations) if any("." in each.name for each in given) else ())


def _made(named: Iterable[NamedIndex], labels: Collection[str]) -> frozenset[SearchIndex]:
    found: dict[tuple[str, str, str], SearchIndex] = {}
    for each in named:
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


def dimensions_of(named: Iterable[NamedIndex]) -> dict[str, int]:
    """Return what counts toward the limit of dimensions: the name of each vector index and its greatest length."""
    found: dict[str, int] = {}
    for each in named:
        if each.kind == "vector" and each.dimensions is not None and "." in each.name:
            found[each.name] = max(each.dimensions, found.get(each.name, 0))
    return found


def length_findings(configs: Iterable[GraphInjectionConfig], known: Collection[str] = ()) -> Iterator[Finding]:
    """Yield an error for each vector index whose length is unknown; ``known`` are labels with indexes of their own."""
    configs = tuple(configs)
    if named := [each for each in _named_in(configs) if each.kind == "vector"]:
        yield from _lengths(named, labels_of(_mutations_in(configs)) - frozenset(known))


def _lengths(named: Iterable[NamedIndex], labels: Collection[str]) -> Iterator[Finding]:
    sizes: dict[tuple[str, str], int] = {}
    for each in named:
        parts = each.parts(labels)
        if parts is None or each.kind != "vector":
            continue
        if each.dimensions is None:
            message = (
                f"the vector index {each.name!r} is made with the graph, and needs the length of its vectors: "
                "write for example dimensions: 384"
            )
            yield Finding(level="error", code="missing-key", message=message, place=each.place)
        elif (first := sizes.setdefault(parts, each.dimensions)) != each.dimensions:
            message = f"the vector index {each.name!r} has dimensions: {first} in another rule: write the same"
            yield Finding(level="error", code="conflicting-keys", message=message, place=each.dimensions_place)


def search_findings(configs: Iterable[GraphInjectionConfig], known: Collection[str] = ()) -> Iterator[Finding]:
    """Yield what ``length_findings`` finds, and a warning for each index that is not made or that stays empty."""
    configs = tuple(configs)
    every, mutations = _named_in(configs), _mutations_in(configs)
    written = labels_of(mutations) if every else frozenset[str]()
    labels = written - frozenset(known)
    yield from _lengths(every, labels)
    named: dict[tuple[IndexKind, str], NamedIndex] = {}
    for each in every:
        named.setdefault((each.kind, each.name), each)
    of_mutations = WrittenProperties.of(map(rule_outline, _cyphers(mutations)) if named else ())
    properties = {label: of_mutations.of_label(label) for label in sorted(labels)}
    for each in named.values():
        parts = each.parts(labels)
        if parts is None:
            yield _unmade(each, properties, known)
        elif (names := properties[parts[0]]) is not None and parts[1] not in names:
            yield _unwritten(each, *parts, names)
    indexes = _made(every, written)
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


def _named_in(configs: Iterable[GraphInjectionConfig]) -> list[NamedIndex]:
    return [each for config in configs for each in named_indexes(config.injection_rules)]


def _mutations_in(configs: Iterable[GraphInjectionConfig]) -> list[MutationRule]:
    return [rule for config in configs for rule in config.mutation_rules]


def _pair(index: SearchIndex) -> str:
    return f"{index.label}.{index.properties[0]}"


def called_indexes(config: GraphInjectionConfig) -> Iterator[tuple[IndexKind, str, Place]]:
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
        query = rule_outline(text)
        words = query.words
        for clause in query.clauses:
            at = clause.words[0]
            name = "".join(words.text(index) for index in range(at + 1, at + 8)).lower()
            found = _PROCEDURE.match(name) if clause.keyword == "CALL" else None
            opening = next((index for index in clause.words if words.text(index) == "("), None)
            if found is None or opening is None:
                continue
            kind: IndexKind = "vector" if found[2] == "vector" else "fulltext"
            values = [words.tokens[index] for index in (opening + 1, opening + 3) if index < len(words.tokens)]
            texts = [each.text[1:-1] for each in values if each.kind == "string"]
            if texts:
                is_pair = found[1] == "idx" and kind == "vector" and len(texts) > 1
                yield kind, ".".join(texts) if is_pair else texts[0], place


def _unwritten(named: NamedIndex, label: str, name: str, names: Collection[str]) -> Finding:
    """Return the finding of an index on a property that no mutation writes; ``names`` are those that they write."""
    near = _nearest(name, {each: f"{label}.{each}" for each in sorted(names)})
    message = (
        f"no rule here writes the property {name!r} of {label!r}, so the {named.kind} index {named.name!r} stays empty"
        f"{near}: write Label.property with a property that a rule writes; ignore this if another program writes it"
    )
    return Finding(level="warning", code="unwritten-property", message=message, place=named.place)


def _unmade(named: NamedIndex, properties: Mapping[str, Collection[str] | None], known: Collection[str]) -> Finding:
    """Return the finding of an index on a label that no mutation writes; ``properties`` are those of each label."""
    label, _, name = named.name.partition(".")
    pairs = {f"{each}.{prop}" for each, names in properties.items() for prop in names or (name,)}
    near = _nearest(named.name, {each: each for each in sorted(pairs)}, closeness=0.75)
    if not named.name:
        message = (
            f"the search names no index, so a setting of the responder names its {named.kind} index, which graphweft "
            "does not make: write index_name: Label.property for nodes that a rule writes; ignore this if you make it"
        )
    elif label in known:
        message = (
            f"graphweft itself writes nodes with the label {label!r}, and makes no {named.kind} index {named.name!r}: "
            "search what is remembered by memory: {user_id: $workflow.user_id} in place of index_name"
        )
    else:
        message = (
            f"no rule here writes nodes for {named.name!r}, so graphweft does not make this {named.kind} index{near}: "
            "write Label.property with a label that a rule writes; ignore this if you make it, also in each graph that "
            "is rebuilt or restored"
        )
    return Finding(level="warning", code="unmade-index", message=message, place=named.place)


def _nearest(name: str, known: Mapping[str, str], closeness: float = 0.6) -> str:
    """Return `` (did you mean 'Doc.text'?)`` with what the nearest known name stands for, or an empty string."""
    same = next((each for each in known if each.casefold() == name.casefold()), None)
    compared = [each for each in known if abs(len(each) - len(name)) <= _FAR][:_COMPARED]
    near = [same] if same is not None else get_close_matches(name, compared, n=1, cutoff=closeness)
    return f" (did you mean {known[near[0]]!r}?)" if near else ""
