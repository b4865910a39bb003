"""What a pack is: mutations for certain types of events, with parameters that code works out.

A pack's mutations run like those of rules: in order, exactly once, in batches, with dead letters. They differ in where
the parameters come from, and in that they are about an event whatever its workflow is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from graphweft_contracts import Event
from graphweft_rules.indexes import SearchIndex
from graphweft_rules.workflow import CompiledMutation


class Pack(Protocol):
    """Turns events into mutations; pure, and the same event always gives the same ones."""

    @property
    def types(self) -> frozenset[str]:
        """The types of events that the pack is about."""
        ...

    @property
    def mutations(self) -> Sequence[CompiledMutation]:
        """All that the pack may say; each has its names (rule, id) for itself. A rule is named after the event."""
        ...

    @property
    def keys(self) -> frozenset[tuple[str, str]]:
        """(label, property) by which nodes are looked up: each gets an index."""
        ...

    @property
    def indexes(self) -> Sequence[SearchIndex]:
        """The indexes for search."""
        ...

    def match(self, event: Event) -> Sequence[tuple[CompiledMutation, dict[str, Any]]]:
        """Return the mutations for an event with their parameters, in their order; none for a type of another pack.

        The event's payload has been checked. Never raises. An event that is refused has none.
        """
        ...

    def refusal(self, event: Event) -> str | None:
        """Return why an event has no effect although it keeps the contract, for its dead letter; None for any other."""
        ...
