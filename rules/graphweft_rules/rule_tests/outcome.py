"""What came of a case: values that the judge compares with the case."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from graphweft_contracts import ContextReply, DeadLetterReason
from graphweft_rules.files.model import Place


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """A mutation that runs for an event."""

    name: str
    params: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class NotRan:
    """A mutation that is skipped for an event."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """Events, or mutations of them, without effect, for one cause: what a dead letter says."""

    reason: DeadLetterReason
    rule: str | None
    mutation: str | None
    workflow: str | None
    type: str | None
    """The type of the first event."""
    message: str
    place: str | None
    events: int

    @property
    def name(self) -> str:
        """The mutation; or the event type if a whole event had no effect."""
        whole = self.rule is None or self.mutation in (None, "*")
        return f"the event {self.type}" if whole else f"{self.rule}/{self.mutation}"


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseRows:
    """The rows of a query."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Numbers of nodes or relationships by name; that of all has the empty name."""

    by_name: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class UnmatchedEvent:
    """An event that no rule is for."""

    type: str
    message: str
    place: Place


@dataclass(slots=True, kw_only=True)
class CaseOutcome:
    """What came of a case. The answers are in the order of its checks."""

    ran: Sequence[Ran] = ()
    skipped: Sequence[NotRan] = ()
    troubles: Sequence[Trouble] = ()
    unmatched: Sequence[UnmatchedEvent] = ()
    graph: list[CaseRows | Counts | str] = field(default_factory=list[CaseRows | Counts | str])
    """Rows, counts, or why the graph refused the query."""
    replies: list[ContextReply] = field(default_factory=list[ContextReply])


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseFailure:
    """An expectation that does not hold, or trouble that nothing expects."""

    place: Place
    message: str
    diff: tuple[str, ...] = ()
    """Lines that begin with ``-`` (expected), ``+`` (got) or a space (both)."""

    def to_dict(self) -> dict[str, Any]:
        """Return a flat mapping for JSON."""
        return {
            "file": self.place.file,
            "line": self.place.line,
            "column": self.place.column,
            "message": self.message,
            "diff": list(self.diff),
        }
