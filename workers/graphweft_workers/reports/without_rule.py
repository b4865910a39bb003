"""Which kinds of events no rule is for: a misspelt type counts as applied, and does nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from graphweft_contracts import Event

if TYPE_CHECKING:  # a command that sends events need not wait for the rules to load
    from graphweft_contracts.rules_log import StoredRules
    from graphweft_rules import RuleSet
    from graphweft_workers.ports.bus import Bus


_MOST_KINDS: Final = 1_000
"""Kinds to remember; events of further ones are not judged."""

type _Kind = tuple[str, str, str, str | None]
"""App, workflow, type and agent: what decides whether rules are for an event, whatever their conditions."""


class EventKinds:
    """The kinds of events that have a workflow, with an example and the number of each."""

    def __init__(self) -> None:
        self._found: dict[_Kind, tuple[Event, int]] = {}

    def add(self, event: Event) -> None:
        """Count an event."""
        if event.workflow is None:
            return
        kind = (event.appid, event.workflow, event.type, event.agent)
        known = self._found.get(kind)
        if known is not None:
            self._found[kind] = (known[0], known[1] + 1)
        elif len(self._found) < _MOST_KINDS:
            data = {} if event.agent is None else {"agent_name": event.agent}
            self._found[kind] = (event.model_copy(update={"data": data}), 1)

    def counted(self) -> Collection[tuple[Event, int]]:
        """Return an example of each kind, without its data, and the number of events."""
        return self._found.values()


@dataclass(frozen=True, slots=True, kw_only=True)
class WithoutRule:
    """Events of one kind that no rule is for."""

    app_id: str
    workflow: str
    type: str
    events: int
    reason: str


async def without_rule(bus: Bus, kinds: EventKinds, make: Callable[[StoredRules], RuleSet]) -> list[WithoutRule]:
    """Return the kinds of events that no rule of the active rules is for, with their numbers.

    Events of a workflow without rules are not among them: they become dead letters. Raises ``InvalidSettings`` if the
    bus has lost a rule set, and ``BusUnavailable``.
    """
    from graphweft_rules.matching.explain import why_no_rule
    from graphweft_workers.reports.rules_at import RulesAt

    activations = await bus.rules.activations()
    rules_at = RulesAt(bus, make)
    found: list[WithoutRule] = []
    for event, events in kinds.counted():
        workflow = event.workflow or ""
        for rules in await rules_at.current(activations, event.appid):
            if not rules.is_compiled(workflow):
                await asyncio.to_thread(rules.compile, [workflow])
            if rules.knows(event) and (reason := why_no_rule(rules, event)) is not None:
                found.append(
                    WithoutRule(app_id=event.appid, workflow=workflow, type=event.type, events=events, reason=reason)
                )
    return found
