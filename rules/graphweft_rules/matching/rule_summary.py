"""What must be known about a whole rule set before its workflows are compiled.

Who pushes rules has compiled all of them, and stores the summary beside the files. It is data from the bus: a summary
of another format or of another shape is none, and then the rules are compiled as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import accumulate, groupby
from typing import Any, Final, Self

from graphweft_rules.cypher.indexes import SearchIndex
from graphweft_rules.cypher.mutation_summary import UNKNOWN, MutationSummary, items
from graphweft_rules.cypher.read_write_sets import summary_of
from graphweft_rules.files.search_indexes import made_indexes, named_indexes
from graphweft_rules.matching.workflow import Workflow
from graphweft_rules.text_limits import (
    MOST_DIMENSIONS,
    MOST_DIMENSIONS_OF_ALL,
    MOST_KEYS,
    MOST_KEYS_OF_LABEL,
    keys_problem,
)

FORMAT: Final = 3
"""Raise it when the analysis of queries finds more or other things: an old summary would then hold too little."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleSummary:
    """A summary of the rules of all workflows."""

    mutations: MutationSummary
    keys: frozenset[tuple[str, str]]
    """(label, property) by which queries look nodes up."""
    asks_for_facts: bool
    """Whether a rule has a ``graphrag``, whose queries have look-up keys of their own."""
    search_indexes: frozenset[SearchIndex] = frozenset()
    """The search indexes that rules name on labels that they write."""

    @classmethod
    def of(cls, workflows: Iterable[Workflow], *, complete: bool = True) -> Self:
        """Return the summary of workflows; not ``complete`` if there are others that do not compile."""
        given = tuple(workflows)
        cyphers = (part.cypher for each in given for rule in each.mutation_rules for part in rule.parts)
        return cls(
            mutations=summary_of(cyphers) if complete else UNKNOWN,
            keys=_allowed(frozenset[tuple[str, str]]().union(*(each.keys for each in given))),
            asks_for_facts=any(each.asks_for_facts for each in given),
            search_indexes=_allowed_indexes(
                made_indexes(
                    named_indexes(rule.rule for each in given for rule in each.injection_rules),
                    (rule.rule for each in given for rule in each.mutation_rules),
                )
            ),
        )

    def to_json(self) -> dict[str, Any]:
        """Return it as plain values."""
        return {
            "format": FORMAT,
            "mutations": self.mutations.to_json(),
            "keys": sorted(map(list, self.keys)),
            "asks_for_facts": self.asks_for_facts,
            "search_indexes": [
                [index.kind, index.label, index.properties[0], index.dimensions]
                for index in sorted(self.search_indexes, key=lambda index: index.name)
            ],
        }

    @classmethod
    def from_json(cls, body: Any) -> Self | None:
        """Return the summary that ``to_json`` wrote; None for any other value, also for one with too many keys."""
        match body:
            case {
                "format": int() as version,
                "mutations": mutations,
                "keys": keys,
                "asks_for_facts": bool() as asks_for_facts,
                "search_indexes": search_indexes,
            } if version == FORMAT and type(version) is int:
                pass
            case _:
                return None
        try:
            found = frozenset(map(_key, items(keys)))
            indexes = frozenset(map(_search_index, items(search_indexes)))
            if keys_problem(found) is not None or _allowed_indexes(indexes) != indexes:
                return None
            return cls(
                mutations=MutationSummary.from_json(mutations),
                keys=found,
                asks_for_facts=asks_for_facts,
                search_indexes=indexes,
            )
        except ValueError:
            return None


def _allowed(keys: frozenset[tuple[str, str]]) -> frozenset[tuple[str, str]]:
    """Return the keys; of too many, as rules of an older version may have, the first ones that are allowed."""
    if keys_problem(keys) is None:
        return keys
    return frozenset(_first(sorted(keys), lambda key: key[0]))


def _allowed_indexes(indexes: frozenset[SearchIndex]) -> frozenset[SearchIndex]:
    """Return the search indexes; of too many, as rules of an older version may name, the first ones."""
    found = _first(sorted(indexes, key=_order), lambda index: index.label)
    sums = accumulate(index.dimensions or 0 for index in found)
    return frozenset(index for index, total in zip(found, sums, strict=True) if total <= MOST_DIMENSIONS_OF_ALL)


def _first[T](by_label: Iterable[T], label_of: Callable[[T], str]) -> list[T]:
    """Return as many of what takes an index each, in order of their labels, as a label and a rule set may have."""
    of_labels = (list(some) for _, some in groupby(by_label, key=label_of))
    return [each for some in of_labels for each in some[:MOST_KEYS_OF_LABEL]][:MOST_KEYS]


def _order(index: SearchIndex) -> tuple[str, str, str]:
    return index.label, index.kind, index.name


def _search_index(value: Any) -> SearchIndex:
    match value:
        case [("fulltext" | "vector") as kind, str() as label, str() as name, size] if (
            _is_size(size) if kind == "vector" else size is None
        ):
            return SearchIndex.of_rules(kind, label, name, size)
        case _:
            raise ValueError("the value is not a search index")


def _is_size(value: Any) -> bool:
    return type(value) is int and 1 <= value <= MOST_DIMENSIONS


def _key(value: Any) -> tuple[str, str]:
    match value:
        case [str() as label, str() as name]:
            return label, name
        case _:
            raise ValueError("the value is not a label and a property")
