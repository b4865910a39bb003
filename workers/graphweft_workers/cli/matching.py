"""Why no rule is for an event."""

from __future__ import annotations

from graphweft_contracts import Event
from graphweft_rules import RuleSet


def why_no_rule(rules: RuleSet, event: Event) -> str | None:
    """Return why no mutation rule is for an event, whatever their conditions; None if one is."""
    if rules.packs_for([event.type]):
        return None
    if event.workflow is None:
        return "the event has no workflow, so no rules apply to it"
    workflow = rules.workflows.get(event.workflow)
    if workflow is None:
        known = ", ".join(sorted(rules.workflows)) or "none"
        return f"there are no rules for the workflow {event.workflow!r}; workflows with rules: {known}"
    if not workflow.mutations_for(event.type, event.agent).rules:
        types = sorted({pattern for rule in workflow.mutation_rules for pattern in rule.rule.events})
        agent = "" if event.agent is None else f" and agent {event.agent!r}"
        return f"no rule is for the event type {event.type!r}{agent}; its rules are for {', '.join(types) or 'none'}"
    return None
