"""The port of rules in the log: rule sets by their digest, and the activations that make them active."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from graphweft_contracts.rules_log import Activation, StoredRules


class RulesLog(Protocol):
    """The rule sets of a bus; every group of readers shares them. Every method raises ``BusUnavailable``."""

    async def store(self, digest: str, rules: StoredRules) -> None:
        """Store a rule set. If one with this digest is stored, only its summary is replaced (``updated_by``)."""
        ...

    async def stored(self, digest: str) -> StoredRules | None:
        """Return a rule set; None if it does not exist, or is damaged. The next ``store`` replaces it then."""
        ...

    async def activate(self, scope: str, digest: str) -> Activation:
        """Announce a stored rule set in each partition that may hold events of a scope, and record the activation.

        In one step: no reader finds an entry whose activation is not recorded. Without partitions for the scope, in
        all of them.
        """
        ...

    async def activations(self, *, after: int = 0) -> Sequence[Activation]:
        """Return the activations with a number above ``after``, in order."""
        ...
