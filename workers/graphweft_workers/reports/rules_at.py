"""The rule set that is active at a place of the log; each is read when it is first needed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from graphweft_contracts import InvalidSettings
from graphweft_contracts.layout import ALL_APPS
from graphweft_contracts.rules_log import SHARED_RULES, Activation, StoredRules, active_for, newest, restated_scope
from graphweft_workers.ports.bus import Bus
from graphweft_workers.ports.offsets import is_after
from graphweft_workers.rule_sets.lost_rule_sets import how_to_restore

if TYPE_CHECKING:
    from graphweft_rules import RuleSet


def activation_at(activations: Sequence[Activation], app_id: str, partition: int, offset: str) -> Activation | None:
    """Return the activation whose rules apply to an app's event at a place, as ``LoggedRules`` decides it.

    Before the first activation of the app's scopes, that first one applies. None if there is no activation for the app.
    """
    restated = newest(activations, restated_scope(app_id))
    if restated is not None and is_after(restated.positions.get(partition, ""), offset):
        return restated
    mine = [each for each in activations if each.scope in (app_id, ALL_APPS)]
    passed: dict[str, Activation | None] = {}
    for activation in mine:
        position = activation.positions.get(partition)
        if position is not None and not is_after(position, offset):
            passed[activation.scope] = None if activation.digest == SHARED_RULES else activation
    return (
        passed.get(app_id) or passed.get(ALL_APPS) or next((each for each in mine if each.digest != SHARED_RULES), None)
    )


class RulesAt:
    """The rules that the log activates."""

    def __init__(self, bus: Bus, make: Callable[[StoredRules], RuleSet]) -> None:
        self._bus = bus
        self._make = make
        self._sets: dict[str, RuleSet] = {}
        self._none: RuleSet | None = None

    async def rules(self, activation: Activation | None) -> RuleSet:
        """Return the rule set of an activation; without one, an empty rule set.

        Raises ``InvalidSettings`` if the bus has lost it.
        """
        if activation is None:
            self._none = self._none or self._make(StoredRules(files={}))
            return self._none
        digest = activation.digest
        if digest not in self._sets:
            stored = await self._bus.rules.stored(digest)
            if stored is None:
                raise InvalidSettings(how_to_restore(activation))
            self._sets[digest] = await asyncio.to_thread(self._make, stored)
        return self._sets[digest]

    async def current(self, activations: Sequence[Activation], app_id: str | None = None) -> list[RuleSet]:
        """Return the rule sets that are active now: for an app, or for all scopes."""
        scopes = {each.scope for each in activations if each.restates is None} if app_id is None else {app_id}
        found = (active_for(activations, scope) for scope in sorted(scopes))
        digests = {each.digest: each for each in found if each is not None}
        return [await self.rules(each) for each in digests.values()]
