"""Where the names of properties come from that a mutation writes: its text, or maps in its parameters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, cast

from graphweft_rules.cypher.accesses import LookupKey
from graphweft_rules.cypher.clauses import Outline, once
from graphweft_rules.cypher.entities import ANYTHING, entities_of
from graphweft_rules.cypher.part_parser import literal_map, read_parts
from graphweft_rules.cypher.parts import CallPart, NodePattern, PatternError, PatternPart, RelationshipPattern, SetPart

_EVERY_MAP = LookupKey(parameter=ANYTHING)
"""A map of any parameter: where it comes from is not known."""


@once
def name_sources(query: Outline) -> tuple[LookupKey, ...]:
    """Return the maps whose keys become names of properties. It is empty if the text has all names, as it usually has.

    ``given_names`` reads them.
    """
    try:
        parts = read_parts(query)
    except PatternError:
        return (_EVERY_MAP,)
    found: list[LookupKey] = []
    unknown = False
    for part in parts:
        if isinstance(part, CallPart) and part.procedure:
            unknown = True
        elif isinstance(part, PatternPart):
            patterns: list[NodePattern | RelationshipPattern] = []
            for path in part.paths:
                patterns += path.nodes
                patterns += path.relationships
            found += [LookupKey(parameter=each.map_parameter) for each in patterns if each.map_parameter]
        elif isinstance(part, SetPart):
            unknown = unknown or any(
                item.kind in ("replace", "update")
                and item.value is not None
                and literal_map(query, item.value) is None
                for item in part.items
            )  # fmt: skip
    if unknown:
        reader = entities_of(query)
        if isinstance(reader, str):
            return (_EVERY_MAP,)
        whole = [act.value for act in reader.acts if act.access == "write" and act.name == ANYTHING]
        if not whole or None in whole:
            return (_EVERY_MAP,)
        found += [key for key in whole if key is not None]
    return tuple(dict.fromkeys(found))


def given_names(sources: tuple[LookupKey, ...], params: Mapping[str, Any]) -> Iterator[str]:
    """Yield the names that the parameters of a row give to properties; more than that if the source is not known."""
    for source in sources:
        if source is _EVERY_MAP:
            for value in params.values():
                yield from _keys(value)
        else:
            for value in source.all_of(params):
                if isinstance(value, Mapping):
                    yield from map(str, cast("Mapping[object, Any]", value))


def _keys(value: Any) -> Iterator[str]:
    waiting: list[Any] = [value]
    while waiting:
        part = waiting.pop()
        if isinstance(part, Mapping):
            named = cast("Mapping[object, Any]", part)
            yield from map(str, named)
            waiting += named.values()
        elif isinstance(part, list | tuple):
            waiting += cast("list[Any]", part)
