"""The cases of rule tests, with the place of each expectation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal

from graphweft_contracts import ContextRequest, DeadLetterReason, Event, ReasonCode
from graphweft_rules.files.model import Place

_WITHOUT_SERVER: Final[frozenset[DeadLetterReason]] = frozenset({"skipped", "no_rules", "invalid_event"})
"""Reasons of dead letters that need no graph server to be known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedValue:
    """A value of a test file, and where it is."""

    value: Any
    place: Place


@dataclass(frozen=True, slots=True, kw_only=True)
class StatementCheck:
    """A mutation that runs, or that is skipped."""

    name: str
    """``rule/mutation``."""
    skipped: bool = False
    params: Mapping[str, ExpectedValue]
    """Values of some of its parameters."""
    reason: str = ""
    """A part of the reason of a skip."""
    place: Place


@dataclass(frozen=True, slots=True, kw_only=True)
class StatementChecks:
    """All mutations that run for the events of a case, in order, and some that are skipped."""

    checks: tuple[StatementCheck, ...]
    place: Place


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryCheck:
    """The rows of a query on the graph. A row is a list of values, or a map with the names of columns."""

    query: str
    params: Mapping[str, Any]
    rows: tuple[ExpectedValue, ...]
    ordered: bool
    """Whether the query sorts its rows."""
    place: Place
    """The place of the query."""
    rows_place: Place


@dataclass(frozen=True, slots=True, kw_only=True)
class CountCheck:
    """Numbers of nodes by label, or of relationships by type. The empty name stands for all."""

    of: Literal["nodes", "relationships"]
    counts: Mapping[str, ExpectedValue]


GraphCheck = QueryCheck | CountCheck


@dataclass(frozen=True, slots=True, kw_only=True)
class MissingCheck:
    """A block that is missing in the reply."""

    name: str
    reason: ReasonCode | None
    place: Place


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextCheck:
    """What an agent gets for one request."""

    request: ContextRequest
    """Without its app and its deadline."""
    budget_ms: int
    time: datetime
    """The time of clock functions in queries."""
    contains: tuple[ExpectedValue, ...]
    excludes: tuple[ExpectedValue, ...]
    equals: ExpectedValue | None
    empty: ExpectedValue | None
    missing: tuple[MissingCheck, ...]
    place: Place


@dataclass(frozen=True, slots=True, kw_only=True)
class LetterCheck:
    """Dead letters: only those with all the given properties."""

    reason: DeadLetterReason
    rule: str | None
    mutation: str | None
    type: str | None
    message: str
    """A part of the message."""
    events: int | None
    """How many events they stand for, together."""
    place: Place


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One case: events, and what they lead to."""

    name: str
    workflow: str
    app_id: str = ""
    """An app of its own, so cases do not see one another."""
    place: Place
    events: tuple[Event, ...]
    event_places: tuple[Place, ...]
    statements: StatementChecks | None
    graph: tuple[GraphCheck, ...]
    context: tuple[ContextCheck, ...]
    letters: tuple[LetterCheck, ...]
    unmatched: tuple[str, ...]
    """Types of events that no rule needs to be for; ``*`` and ``prefix.*`` as in rules."""

    @property
    def needs_server(self) -> bool:
        """Whether the events must be applied to a graph; a case without expectations tells whether they can be."""
        expects = self.statements is not None or bool(self.letters)
        served = any(letter.reason not in _WITHOUT_SERVER for letter in self.letters)
        return bool(self.graph or self.context) or served or not expects

    @property
    def workflows(self) -> frozenset[str]:
        """The workflows whose rules the case needs."""
        named = {event.workflow for event in self.events} | {check.request.workflow for check in self.context}
        return frozenset(name for name in (*named, self.workflow) if name)
