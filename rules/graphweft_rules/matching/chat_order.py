"""Finds mutations whose effect depends on the order of events of different chats."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from graphweft_rules.cypher.accesses import LookupKey, Resource, ResourceAccess, commute
from graphweft_rules.cypher.read_write_sets import read_write_sets
from graphweft_rules.files.findings import Finding, ordered
from graphweft_rules.matching.mutation import CompiledMutation
from graphweft_rules.matching.parameters import Reference
from graphweft_rules.matching.workflow import Workflow

_UNIQUE: Final = frozenset({"$workflow.chat_id", "$context.chat_id", "$event.id"})
"""References whose values differ between chats, unless context variables or payloads replace these ids."""


@dataclass(frozen=True, slots=True)
class _Touch:
    mutation: CompiledMutation
    access: ResourceAccess
    own: bool
    """Whether only events of the same chat reach the entity."""


def order_across_chats(workflows: Iterable[Workflow]) -> list[Finding]:
    """Return a warning for each mutation whose effect may depend on the order of events of different chats.

    Two mutations, or two events of one, conflict if they touch the same data in ways that do not commute, and do not
    look it up by the chat's or the event's id. The analysis is that of read/write sets: it may warn without need, such
    as for counters, but misses nothing that it understands. A query that it does not understand gets a warning too.
    """
    mutations = [part for workflow in workflows for part in workflow.parts if isinstance(part, CompiledMutation)]
    known = read_write_sets(mutation.cypher for mutation in mutations)
    findings: list[Finding] = []
    touches: dict[Resource, list[_Touch]] = {}
    for mutation in mutations:
        read_write_set = known[mutation.cypher.statement]
        if read_write_set.opaque:
            findings.append(_finding(mutation, f"it is not known what the query touches ({read_write_set.opaque})"))
            continue
        for access in read_write_set.touches:
            own = access.key is not None and _is_unique(mutation, access.key)
            touches.setdefault(access.resource, []).append(_Touch(mutation, access, own))
    for mutation in mutations:
        conflict = next(_conflicts(mutation, touches), None)
        if conflict is not None:
            findings.append(_finding(mutation, conflict))
    return list(ordered(findings))


def _conflicts(mutation: CompiledMutation, touches: dict[Resource, list[_Touch]]) -> Iterator[str]:
    for resource, found in touches.items():
        for mine in found:
            if mine.mutation is not mutation:
                continue
            for other in found:
                if commute(mine.access.access, other.access.access) or (mine.own and other.own):
                    continue
                yield f"events of other chats {_verb(other.access)} {_name(resource)} too, {_by(mutation, other)}"


def _is_unique(mutation: CompiledMutation, key: LookupKey) -> bool:
    if key.path or not key.parameter:
        return False
    source = dict(mutation.sources).get(key.parameter)
    return isinstance(source, Reference) and source.absent.name in _UNIQUE


def _finding(mutation: CompiledMutation, why: str) -> Finding:
    name = f"{mutation.rule}/{mutation.id}"
    message = f"with the order `chat`, the effect of {name} may depend on which chat comes first: {why}"
    return Finding(level="warning", code="order-across-chats", message=message, place=mutation.place)


def _verb(access: ResourceAccess) -> str:
    if access.access == "read":
        return "read"
    if access.access.startswith("merge"):
        return "create or change"
    return "write" if access.access == "write" else "create"


def _by(mutation: CompiledMutation, other: _Touch) -> str:
    if other.mutation is mutation:
        return "by this mutation"
    return f"by {other.mutation.rule}/{other.mutation.id} ({other.mutation.place})"


def _name(resource: Resource) -> str:
    match resource:
        case ("node", label):
            return f"nodes :{label}"
        case ("label", label):
            return f"the label :{label}"
        case ("relationship", kind):
            return f"relationships :{kind}"
        case ("node property", label, name):
            return f"the property {name} of nodes :{label}"
        case (_, kind, name):
            return f"the property {name} of relationships :{kind}"
        case _:
            return "data"
