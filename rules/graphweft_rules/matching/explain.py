"""Why rules do not match an event: for tools. Workers use ``RuleSet.match_event``."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Final

from graphweft_contracts import Event
from graphweft_contracts.events import LIFECYCLE
from graphweft_contracts.wire import did_you_mean
from graphweft_rules.files.findings import errors
from graphweft_rules.files.model import Place
from graphweft_rules.matching.conditions import Condition, ConditionError, compile_condition, conjuncts
from graphweft_rules.matching.parameters import Absent, Scope
from graphweft_rules.matching.rule_set import RuleSet
from graphweft_rules.matching.workflow import is_for_agent

_MOST: Final = 60
"""Characters of a value in a reason."""
_NAMED: Final = 50
"""Workflows that a message names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnmatchedRule:
    """A rule for the type of an event that does not match the event."""

    rule: str
    place: Place
    reason: str
    """It quotes short values of the event, so do not log it."""


def unmatched(rules: RuleSet, event: Event) -> list[UnmatchedRule]:
    """Return the rules for the event's type that are not for its agent, or whose condition is false.

    Rules whose condition cannot be decided are skips of ``RuleSet.match_event``.
    """
    workflow = None if rules.problem(event.workflow) is not None else rules.workflows.get(event.workflow or "")
    if workflow is None:
        return []
    scope = Scope.of_event(event)
    found: list[UnmatchedRule] = []
    for compiled in workflow.rules_for(event.type):
        rule = compiled.rule
        if not is_for_agent(compiled, event.agent):
            agent = "none" if event.agent is None else repr(_short(event.agent))
            reason = f"it is for the agents {', '.join(rule.agents)}; the agent of the event is {agent}"
        elif compiled.condition is not None and (false := _false_part(compiled.condition, scope)):
            reason = false
        else:
            continue
        found.append(UnmatchedRule(rule=rule.name, place=rule.place, reason=reason))
    return found


def why_no_rule(rules: RuleSet, event: Event) -> str | None:
    """Return why no mutation rule is for an event, whatever their conditions; None if one is."""
    if rules.packs_for([event.type]):
        return None
    if event.workflow is None:
        return "the event has no workflow, so no rules apply to it"
    if (problem := rules.problem(event.workflow)) is not None:
        first, *more = errors(problem.findings) or problem.findings
        others = f", and {len(more)} more findings" if more else ""
        return (
            f"the rules of the workflow {event.workflow!r} do not compile ({first}{others}): correct them and push them"
        )
    workflow = rules.workflows.get(event.workflow)
    if workflow is None:
        known = named(rules.workflows)
        return f"there are no rules for the workflow {event.workflow!r}; workflows with rules: {known}"
    if not workflow.mutations_for(event.type, event.agent).rules:
        types = sorted({pattern for rule in workflow.mutation_rules for pattern in rule.rule.events})
        agent = "" if event.agent is None else f" and agent {event.agent!r}"
        near = did_you_mean(event.type, [*types, *LIFECYCLE], closeness=0.8) if event.type not in LIFECYCLE else ""
        its = ", ".join(types) or "none"
        return f"no rule is for the event type {event.type!r}{agent}{near}; its rules are for {its}"
    return None


def why_nothing(rules: RuleSet, event: Event) -> str:
    """Return why no rule has a mutation for an event."""
    return why_no_rule(rules, event) or "rules are for this event type, but no condition holds"


def named(workflows: Collection[str]) -> str:
    """Return the names of workflows for people: some of them if they are many."""
    names = sorted(workflows)
    rest = len(names) - _NAMED
    return ", ".join(names[:_NAMED] if rest > 0 else names) + (f" and {rest} more" if rest > 0 else "") or "none"


def _false_part(condition: Condition, scope: Scope) -> str | None:
    """Return why a condition is false, with the operand that decides; None if it holds or cannot be decided."""
    verdict = condition.evaluate(scope)
    if verdict.holds or verdict.missing or verdict.error:
        return None
    for text in conjuncts(condition.text):
        try:
            part = compile_condition(text)
        except ConditionError:  # only a whole condition is known to be valid
            break
        verdict = part.evaluate(scope)
        if not (verdict.holds or verdict.missing or verdict.error):
            values = ", ".join(dict.fromkeys(_values(part, scope)))
            return f"the condition {text!r} is false" + (f": {values}" if values else "")
    return f"the condition {condition.text!r} is false"


def _values(condition: Condition, scope: Scope) -> Iterator[str]:
    for _, reference in (*condition.variables, *condition.presences):
        name, value = reference.absent.name, reference.resolve(scope)
        if isinstance(value, Absent):
            yield f"{name} is missing"
        else:
            yield f"{name} is {_short(json.dumps(value, ensure_ascii=False, default=str))}"


def _short(text: str) -> str:
    return text if len(text) <= _MOST else text[: _MOST - 1] + "…"
