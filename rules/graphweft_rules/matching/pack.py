"""Packs: mutations for certain event types whose parameters are computed by code.

They run like mutations of rules: in order, exactly once, in batches, with dead letters. They apply to events of every
workflow.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple, Protocol

from graphweft_contracts import Event
from graphweft_rules.cypher.indexes import SearchIndex
from graphweft_rules.matching.mutation import CompiledMutation


class LogTime(NamedTuple):
    """When the log took an event, by the log's own clock, and where. No producer chooses it."""

    time: datetime
    partition: int = -1
    """Events of one partition have the log's order; -1 for an event that has no place in it, such as a retry."""

    @classmethod
    def of(cls, event: Event) -> LogTime:
        """Return the time of an event that is on no log: its own."""
        return cls(event.time)


class Pack(Protocol):
    """Turns events into mutations. Pure: equal events give equal mutations."""

    @property
    def types(self) -> frozenset[str]:
        """The event types that the pack handles."""
        ...

    @property
    def mutations(self) -> Sequence[CompiledMutation]:
        """All mutations of the pack, with unique names (rule, id). Each rule is named after its event type."""
        ...

    @property
    def keys(self) -> frozenset[tuple[str, str]]:
        """(label, property) by which nodes are looked up; each gets an index."""
        ...

    @property
    def indexes(self) -> Sequence[SearchIndex]:
        """The indexes for search."""
        ...

    @property
    def erasing(self) -> frozenset[str]:
        """The event types that remove data, which responders then must not serve from their caches either."""
        ...

    def match(self, event: Event, logged: LogTime | None = None) -> Sequence[tuple[CompiledMutation, dict[str, Any]]]:
        """Return the mutations for a valid event with their parameters, in order. Never raises.

        ``logged`` says when the log took the event; None for an event that is on no log.

        None for an event of another type, and for a refused event.
        """
        ...

    def refusal(self, event: Event) -> str | None:
        """Return why a valid event has no effect, for its dead letter; None for an event that has one."""
        ...
