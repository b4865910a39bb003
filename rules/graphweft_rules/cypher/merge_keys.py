"""By which properties mutations find nodes: the keys of MERGE, and the values with which one row looks nodes up."""

from __future__ import annotations

import contextlib

from graphweft_rules.cypher.accesses import LookupKey
from graphweft_rules.cypher.clauses import Outline, once
from graphweft_rules.cypher.entities import EntityReader, Opaque
from graphweft_rules.cypher.part_parser import read_parts
from graphweft_rules.cypher.parts import PatternError, PatternPart


@once
def merge_keys(query: Outline) -> frozenset[tuple[str, tuple[str, ...]]]:
    """Return a label and the sorted properties of each node that a query merges; none if it is not understood."""
    try:
        parts = read_parts(query)
    except PatternError:
        return frozenset()
    return frozenset(
        (label, tuple(sorted(each.name for each in node.properties)))
        for part in parts
        if isinstance(part, PatternPart) and part.keyword == "MERGE"
        for path in part.paths
        for node in path.nodes
        for label in node.labels
        if node.properties
    )


@once
def looked_up(query: Outline) -> frozenset[tuple[str, str, LookupKey]]:
    """Return label, property and value of the nodes that a query names, where the value is known before it runs."""
    reader = EntityReader(query)
    with contextlib.suppress(PatternError, Opaque):  # what was read until then is true
        reader.read()
    return frozenset(
        (label, name, key)
        for thing in reader.things
        if thing.kind == "node"
        for label in thing.names
        for name, key in thing.keys.items()
    )
