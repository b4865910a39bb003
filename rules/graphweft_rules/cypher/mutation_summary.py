"""What the order of rows depends on beside the mutations of the rows: facts about all mutations that ever ran.

Rows conflict only with rows of their own batch. But any mutation may have put two labels on one node, and any mutation
may take the first node that it finds, so that nodes must be created in log order. A summary holds just that, so the
other mutations need not be compiled.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final, Self


@dataclass(frozen=True, slots=True)
class Pick:
    """Entities of which a mutation takes the first or last match."""

    kind: str
    """``node`` or ``relationship``."""
    names: frozenset[str]
    """The labels of the node, or the types of the relationship."""
    labels: frozenset[str]
    """The labels of the node by which it is looked up: itself, or the start of the relationship; empty for none."""
    by: frozenset[str]
    """The properties by which that node is looked up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MutationSummary:
    """A summary of mutations. Summaries are values: equal mutations have equal summaries."""

    shared: frozenset[str] | None = frozenset()
    """Labels that may be on a node beside another label (``shared_labels``); None: any label may."""
    groups: frozenset[frozenset[str]] = frozenset()
    """Labels that may be on one node."""
    anywhere: bool = False
    """Any two labels may be on one node."""
    picks: frozenset[Pick] = frozenset()
    picks_any: bool = False
    """A mutation may take the first match of anything."""
    written: frozenset[str] | None = frozenset()
    """Labels of nodes, and types of relationships, that may be written; None: any may."""

    def __or__(self, other: MutationSummary) -> MutationSummary:
        """Return the summary of the mutations of both; ``self`` if that adds nothing."""
        if other.within(self):
            return self
        if self.within(other):
            return other
        return MutationSummary(
            shared=None if self.shared is None or other.shared is None else self.shared | other.shared,
            groups=self.groups | other.groups,
            anywhere=self.anywhere or other.anywhere,
            picks=self.picks | other.picks,
            picks_any=self.picks_any or other.picks_any,
            written=None if self.written is None or other.written is None else self.written | other.written,
        )

    def within(self, other: MutationSummary) -> bool:
        """Tell whether the other summary holds all of this one."""
        return (
            (other.shared is None or (self.shared is not None and self.shared <= other.shared))
            and self.groups <= other.groups
            and self.anywhere <= other.anywhere
            and self.picks <= other.picks
            and self.picks_any <= other.picks_any
            and (other.written is None or (self.written is not None and self.written <= other.written))
        )

    def to_json(self) -> dict[str, Any]:
        """Return it as plain values."""
        return {
            "shared": None if self.shared is None else sorted(self.shared),
            "groups": sorted(map(sorted, self.groups)),
            "anywhere": self.anywhere,
            "picks": sorted([p.kind, sorted(p.names), sorted(p.labels), sorted(p.by)] for p in self.picks),
            "picks_any": self.picks_any,
            "written": None if self.written is None else sorted(self.written),
        }

    @classmethod
    def from_json(cls, body: Any) -> Self:
        """Return the summary that ``to_json`` wrote. Raises ``ValueError`` for any other value."""
        match body:
            case {
                "shared": shared,
                "groups": groups,
                "anywhere": bool() as anywhere,
                "picks": picks,
                "picks_any": bool() as picks_any,
                "written": written,
            }:
                return cls(
                    shared=None if shared is None else texts(shared),
                    groups=frozenset(map(texts, items(groups))),
                    anywhere=anywhere,
                    picks=frozenset(map(_pick, items(picks))),
                    picks_any=picks_any,
                    written=None if written is None else texts(written),
                )
            case _:
                raise ValueError("the value is not a summary of mutations")


EMPTY: Final = MutationSummary()
"""No mutations."""
UNKNOWN: Final = MutationSummary(shared=None, anywhere=True, picks_any=True, written=None)
"""Mutations of which nothing is known: rows keep their order as far as needed for any mutations."""


def items(value: Any) -> list[Any]:
    """Return a list. Raises ``ValueError`` for any other value."""
    match value:
        case [*found] if type(value) is list:
            return list(found)
        case _:
            raise ValueError("the value is not a list")


def texts(value: Any) -> frozenset[str]:
    """Return a list of texts as a set. Raises ``ValueError`` for any other value."""
    found = items(value)
    if not all(isinstance(item, str) for item in found):
        raise ValueError("the value is not a list of texts")
    return frozenset(found)


def union(summaries: Iterable[MutationSummary]) -> MutationSummary:
    """Return the summary of the mutations of all summaries."""
    found = EMPTY
    for each in summaries:
        found |= each
    return found


def _pick(value: Any) -> Pick:
    match value:
        case ["node" | "relationship" as kind, names, labels, by]:
            return Pick(kind, texts(names), texts(labels), texts(by))
        case _:
            raise ValueError("the value is not a pick")
