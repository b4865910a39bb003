"""The rule set: the compiled rules of all workflows, matched against one event or one context request.

Matching is pure, so workers, replays and rule tests use it alike.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from graphweft_contracts import ContextRequest, Event
from graphweft_contracts.rules_log import digest_of
from graphweft_contracts.search import SearchQuery
from graphweft_rules.cypher.batch_query import Dialect
from graphweft_rules.cypher.indexes import SearchIndex
from graphweft_rules.cypher.query import Cypher
from graphweft_rules.cypher.ranges import range_problem
from graphweft_rules.files.findings import Finding, RulesError
from graphweft_rules.files.loader import RuleFiles, discover, index_findings, reader_of, workflow_files
from graphweft_rules.files.model import GraphInjectionConfig, InjectionQuery, InjectionRule, Place
from graphweft_rules.files.search_indexes import length_findings
from graphweft_rules.matching.clock import clock_values
from graphweft_rules.matching.graphrag import GraphragQuery
from graphweft_rules.matching.lazy_workflows import LazyWorkflows, share
from graphweft_rules.matching.mutation import BoundMutation, CompiledMutation
from graphweft_rules.matching.pack import LogTime, Pack
from graphweft_rules.matching.parameters import Absent, EventView, Scope
from graphweft_rules.matching.rule_functions import uuids_of
from graphweft_rules.matching.rule_summary import RuleSummary
from graphweft_rules.matching.workflow import (
    NO_RULES,
    Candidates,
    CompiledInjection,
    CompiledInjectionRule,
    CompiledMutationRule,
    Workflow,
    compile_workflow,
)

SkipReason = Literal["condition_error", "missing_param", "missing_variable"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundQuery:
    """An injection query and its parameters for one request: ``search``, ``graphrag`` or ``cypher``."""

    rule: str
    query: InjectionQuery
    cypher: Cypher | None
    """The query, or the ``retrieval_query`` of ``search``; None without one."""
    params: dict[str, Any]
    search: SearchQuery | None = None
    """The search; ``params`` are also its own."""
    graphrag: GraphragQuery | None = None
    """The look-up of facts; then ``cypher`` is None."""
    priority: int = 0
    timeout_ms: int | None = None
    max_tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SkippedQuery:
    """A skip: a query whose rule matched, but lacked a value. ``detail`` names references, never values."""

    rule: str
    query: str
    reason: SkipReason
    detail: str
    place: Place


class InvalidValue(ValueError):
    """A value of an event that a mutation cannot take; the message names parameters, never values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedMutation:
    """A mutation whose matching raised an error: ``InvalidValue``, or an unexpected one."""

    rule: str
    query: str
    error: Exception
    place: Place


@dataclass(slots=True, kw_only=True)  # not frozen: that triples the cost of making one for every event
class MatchResult:
    """The result of matching an event: mutations in the order of rules, then in the order within a rule."""

    mutations: tuple[BoundMutation, ...] = ()
    skipped: tuple[SkippedQuery, ...] = ()
    failed: tuple[FailedMutation, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchedQueries:
    """The result of matching a context request, in the same order."""

    queries: tuple[BoundQuery, ...] = ()
    skipped: tuple[SkippedQuery, ...] = ()


class RuleSet:
    """The rules of all workflows. Immutable: load a new one to see changed files.

    A stored rule set (``of_stored``) compiles each workflow at its first use. One that does not compile is like one
    that does not exist, except for ``problem`` and for look-ups in ``workflows``, which raise.
    """

    def __init__(
        self, workflows: Mapping[str, Workflow], packs: Iterable[Pack] = (), files: Mapping[str, bytes] | None = None
    ) -> None:
        self.workflows: Mapping[str, Workflow] = workflows if isinstance(workflows, LazyWorkflows) else dict(workflows)
        self.packs = tuple(packs)
        self.files: Mapping[str, bytes] = files or {}
        """The content of the rule files, by their paths from the root."""
        self.digest = digest_of(self.files) if self.files else ""
        """SHA-256 of the files' names and content; empty for rules without files."""
        self._found: dict[str | None, Workflow] = {}
        """Workflows that compile, as far as they have been looked up."""
        self._types = frozenset(type for pack in self.packs for type in pack.types)
        self._erasing = frozenset(type for pack in self.packs for type in pack.erasing)
        self._summary: RuleSummary | None = None

    @property
    def summary(self) -> RuleSummary:
        """What is known about all workflows; compiles them unless it was given. Workflows that fail are unknown."""
        if self._summary is None:
            found = [flow for name in self.workflows if (flow := self._workflow(name)) is not None]
            self._summary = RuleSummary.of(found, complete=len(found) == len(self.workflows))
        return self._summary

    @property
    def keys(self) -> frozenset[tuple[str, str]]:
        """(label, property) by which queries of rules look nodes up; each needs an index."""
        return self.summary.keys

    @cached_property
    def search_indexes(self) -> frozenset[SearchIndex]:
        """The search indexes that rules name on labels that rules write, and no pack does."""
        packed = {index.label for pack in self.packs for index in pack.indexes}
        return frozenset(index for index in self.summary.search_indexes if index.label not in packed)

    @property
    def asks_for_facts(self) -> bool:
        """Whether a rule has a ``graphrag``, whose queries have look-up keys of their own."""
        return self.summary.asks_for_facts

    @property
    def mutations(self) -> tuple[CompiledMutation, ...]:
        """The mutations of all rules, without those of packs."""
        return tuple(part for flow in self.workflows.values() for rule in flow.mutation_rules for part in rule.parts)

    @property
    def injections(self) -> tuple[CompiledInjection, ...]:
        """The injection queries of all rules."""
        return tuple(part for flow in self.workflows.values() for rule in flow.injection_rules for part in rule.parts)

    @classmethod
    def load(
        cls,
        root: Path,
        packs: Iterable[Pack] = (),
        dialects: Iterable[Dialect] = (),
        *,
        only: Collection[str] | None = None,
        as_stored: bool = False,
    ) -> RuleSet:
        """Load the workflows in the folder ``root``. Raises ``RulesError`` with the findings of all of them.

        ``dialects`` adds the problems of queries on their graph servers. With ``only``, other workflows are not read.
        With ``as_stored``, the rules name their files from the root. Then a stored rule set with the same files has the
        same workflows, and does not compile them again.
        """
        dialects = tuple(dialects)
        files = RuleFiles(dialects, root=root if as_stored else None)
        found = discover(root)
        try:
            compiled = _compiled({name: found[name] for name in found if only is None or name in only}, files)
        except RulesError as error:
            if not as_stored:
                raise
            raise RulesError(finding.under(root) for finding in error.findings) from None
        contents = files.contents_from(root)
        if as_stored:
            for workflow, config in compiled:
                used = (file.as_posix() for file in config.files)
                share(workflow, {file: contents[file] for file in used}, dialects)
        return cls({workflow.name: workflow for workflow, _ in compiled}, packs, contents)

    @classmethod
    def of_files(
        cls, contents: Mapping[str, bytes], packs: Iterable[Pack] = (), dialects: Iterable[Dialect] = ()
    ) -> RuleSet:
        """Return the rule set of files that are given by their paths from the root. Raises ``RulesError``."""
        compiled = _compiled(workflow_files(contents), RuleFiles(dialects, reader_of(contents)))
        return cls({workflow.name: workflow for workflow, _ in compiled}, packs, contents)

    @classmethod
    def of_stored(
        cls,
        contents: Mapping[str, bytes],
        packs: Iterable[Pack] = (),
        dialects: Iterable[Dialect] = (),
        *,
        summary: RuleSummary | None = None,
    ) -> RuleSet:
        """Return the rule set of files that were valid when they were stored. Never raises on content.

        With the ``summary`` of their rules, nothing is compiled yet, else everything.
        """
        rules = cls(LazyWorkflows(contents, dialects), packs, contents)
        rules._summary = summary
        rules._summary = rules.summary
        return rules

    def is_compiled(self, workflow: str | None) -> bool:
        """Tell whether a workflow can be used at once; also true for an unknown one."""
        found = self.workflows
        return not isinstance(found, LazyWorkflows) or workflow not in found or found.is_compiled(workflow or "")

    def compile(self, workflows: Iterable[str]) -> None:
        """Compile workflows, which takes up to 0.1 s for each: call it in a thread."""
        for name in workflows:
            self._workflow(name)

    def problem(self, workflow: str | None) -> RulesError | None:
        """Return why a workflow does not compile; None for one that compiles or does not exist."""
        try:
            self.workflows.get(workflow or "")
        except RulesError as error:
            return error
        return None

    def _workflow(self, name: str | None) -> Workflow | None:
        found = self._found.get(name)
        if found is None:
            with suppress(RulesError):
                found = self.workflows.get(name or "")
            if found is not None:
                self._found[name] = found
        return found

    def erases(self, type: str) -> bool:
        """Tell whether a pack removes data for events of this type."""
        return type in self._erasing

    def match_event(
        self, event: Event, logged: LogTime | None = None, candidates: Candidates | None = None
    ) -> MatchResult:
        """Return the mutations for an event; those of packs come first and need no workflow.

        ``logged`` says when the log took the event; without it the event's own time counts. ``candidates`` are those
        of the event, if they are known.

        An error in a rule becomes ``failed`` and does not affect other rules. An error in a pack is raised.
        """
        found = MatchResult()
        if event.type in self._types:
            found.mutations = tuple(self._by_packs(event, logged))
        _match_rules(candidates or self.candidates(event), event, found)
        return found

    def match_rules(self, event: EventView, candidates: Candidates | None = None) -> MatchResult:
        """Return the same for an event that no pack handles."""
        found = MatchResult()
        _match_rules(candidates or self.candidates(event), event, found)
        return found

    def candidates(self, event: EventView) -> Candidates:
        """Return the mutation rules among which those for an event are; compiles the workflow of the event."""
        workflow = self._workflow(event.workflow)
        return NO_RULES if workflow is None else workflow.mutations_for(event.type, event.agent)

    def refusal(self, event: Event) -> str | None:
        """Return why a pack refuses an event, or None. A refused event has no mutations of that pack."""
        if event.type not in self._types:
            return None
        return next((why for pack in self.packs if (why := pack.refusal(event)) is not None), None)

    def is_of_packs(self, type: str) -> bool:
        """Tell whether a pack handles an event type."""
        return type in self._types

    def knows(self, event: EventView) -> bool:
        """Tell whether a pack handles the event's type, or the event's workflow has rules, which compile."""
        return event.type in self._types or self._workflow(event.workflow) is not None

    def packs_for(self, types: Iterable[str]) -> tuple[Pack, ...]:
        """Return the packs that handle any of these event types."""
        wanted = self._types.intersection(types)
        return tuple(pack for pack in self.packs if not wanted.isdisjoint(pack.types)) if wanted else ()

    def _by_packs(self, event: Event, logged: LogTime | None) -> Iterator[BoundMutation]:
        for pack in self.packs:
            for mutation, params in pack.match(event, logged):
                yield BoundMutation(mutation=mutation, params=params)

    def match_request(self, request: ContextRequest, now: datetime) -> MatchedQueries:
        """Return the queries for a context request. ``now`` is the time of clock functions. Never raises."""
        steps = self.request_steps(request, now)
        while True:
            try:
                next(steps)
            except StopIteration as end:
                found: MatchedQueries = end.value
                return found

    def request_steps(self, request: ContextRequest, now: datetime) -> Generator[None, None, MatchedQueries]:
        """Do the same in steps of one rule each: a condition may take 10 ms, and an agent may have many rules."""
        workflow = self._workflow(request.workflow)
        rules = workflow.injections_for(request.agent) if workflow else ()
        scope = Scope.of_request(request)
        queries: list[BoundQuery] = []
        skipped: list[SkippedQuery] = []
        for rule in rules:
            if _applies(rule, scope, skipped):
                for part in rule.parts:
                    bound = _bind_query(part, rule.rule, scope, now)
                    if isinstance(bound, SkippedQuery):
                        skipped.append(bound)
                    else:
                        queries.append(bound)
            yield
        return MatchedQueries(queries=tuple(queries), skipped=tuple(skipped))

    def find_mutation(self, workflow: str, rule: str, mutation: str) -> CompiledMutation | None:
        """Return a mutation by its names, or None."""
        if self.is_packed(rule, mutation):
            return self._packed[rule, mutation]
        found = self._workflow(workflow)
        parts = (part for compiled in found.mutation_rules for part in compiled.parts) if found else ()
        return next((part for part in parts if (part.rule, part.id) == (rule, mutation)), None)

    @cached_property
    def _packed(self) -> Mapping[tuple[str, str], CompiledMutation]:
        return {(part.rule, part.id): part for pack in self.packs for part in pack.mutations}

    def is_packed(self, rule: str, mutation: str) -> bool:
        """Tell whether a mutation is one of a pack."""
        return (rule, mutation) in self._packed

    def packed_from(
        self, event: Event, rule: str, mutation: str, logged: LogTime | None = None
    ) -> tuple[BoundMutation, ...]:
        """Bind a mutation of a pack for an event, and all later ones of the pack; none for a refused event.

        A pack's mutations build upon one another: if one had no effect, later ones found nothing and must run again.
        Each may run again without harm.
        """
        for pack in self.packs:
            said = [BoundMutation(mutation=each, params=params) for each, params in pack.match(event, logged)]
            for number, bound in enumerate(said):
                if (bound.mutation.rule, bound.mutation.id) == (rule, mutation):
                    return tuple(said[number:])
        return ()

    def bind_one(self, event: Event, rule: str, mutation: str) -> BoundMutation | SkippedQuery | None:
        """Bind one mutation for an event, for a retry; None if the rules no longer have it.

        The rule's events, agents and condition are not checked again. Also None for a mutation of a pack that does
        nothing for the event. Raises ``InvalidValue``.
        """
        if self.is_packed(rule, mutation):
            return next(iter(self.packed_from(event, rule, mutation)), None)
        found = self.find_mutation(event.workflow or "", rule, mutation)
        return _bind(found, event, Scope.of_event(event)) if found else None


def _match_rules(candidates: Candidates, event: EventView, found: MatchResult) -> None:
    """Add the mutations, skips and failures of the rules for an event."""
    rules: Iterable[CompiledMutationRule] = candidates.rules
    if not rules:
        return
    plain = candidates.match(event)
    if plain is not None:
        found.mutations += plain
        return
    data, context, agent = event.data, event.context, event.agent
    scope: Scope | None = None
    if not candidates.are_few:
        scope = Scope.of_event(event)
        rules = candidates.select(event, scope)
    for rule in rules:
        try:
            bound = rule.match(event, data, context, agent)
        except Exception:  # noqa: BLE001 - then the rule decides step by step, and says what is wrong
            bound = None
        if bound is None:
            scope = scope or Scope.of_event(event)
            match_rule(rule, event, scope, found)
        elif bound:
            found.mutations += bound


def match_rule(rule: CompiledMutationRule, event: EventView, scope: Scope, found: MatchResult) -> None:
    """Add the mutations, skips and failures of a rule, whatever the event holds."""
    parts = rule.parts
    skipped: list[SkippedQuery] = []
    try:
        holds = _applies(rule, scope, skipped)
    except Exception as error:  # noqa: BLE001 - other rules must go on
        found.failed += tuple(
            FailedMutation(rule=part.rule, query=part.id, error=error, place=part.place) for part in parts
        )
        return
    found.skipped += tuple(skipped)
    for part in parts if holds else ():
        try:
            bound = _bind(part, event, scope)
        except Exception as error:  # noqa: BLE001
            found.failed += (FailedMutation(rule=part.rule, query=part.id, error=error, place=part.place),)
            continue
        if isinstance(bound, SkippedQuery):
            found.skipped += (bound,)
        else:
            found.mutations += (bound,)


def _applies(rule: CompiledMutationRule | CompiledInjectionRule, scope: Scope, skipped: list[SkippedQuery]) -> bool:
    """Tell whether the condition holds; if it cannot be decided, add the rule's queries to ``skipped``."""
    if rule.condition is None:
        return True
    verdict = rule.condition.evaluate(scope)
    if verdict.holds or not (verdict.missing or verdict.error):
        return verdict.holds
    reason: SkipReason = "missing_variable" if verdict.missing else "condition_error"
    detail = f"the condition {rule.condition.text!r} "
    if verdict.missing:
        detail += f"needs {', '.join(verdict.missing)}, which is missing: {_give(rule)}, or test for it with has()"
    else:
        detail += f"cannot be decided: {verdict.error}"
    skipped.extend(
        SkippedQuery(rule=part.rule, query=part.id, reason=reason, detail=detail, place=rule.rule.place)
        for part in rule.parts
    )
    return False


def _bind(part: CompiledMutation, event: EventView, scope: Scope) -> BoundMutation | SkippedQuery:
    params = _params(part, scope)
    if isinstance(params, SkippedQuery):
        return params
    cypher = part.cypher
    if cypher.ranges and (problem := range_problem(cypher.ranges, params)) is not None:
        raise InvalidValue(problem)
    if cypher.clock:
        params.update(clock_values(cypher.clock, event.time))
    if cypher.uuids:
        params.update(uuids_of(part, event))
    return BoundMutation(mutation=part, params=params)


def _bind_query(part: CompiledInjection, rule: InjectionRule, scope: Scope, now: datetime) -> BoundQuery | SkippedQuery:
    params = _params(part, scope)
    if isinstance(params, SkippedQuery):
        return params
    cypher = part.cypher
    if cypher is not None:
        if (problem := range_problem(cypher.ranges, params)) is not None:
            return SkippedQuery(rule=part.rule, query=part.id, reason="missing_param", detail=problem, place=part.place)
        params.update(clock_values(cypher.clock, now))
    search: SearchQuery | None = None
    if part.search is not None:
        found = part.search.bind(scope, cypher.statement if cypher is not None else None, params)
        if isinstance(found, str):
            return SkippedQuery(rule=part.rule, query=part.id, reason="missing_param", detail=found, place=part.place)
        search = found
    graphrag: GraphragQuery | None = None
    if part.graphrag is not None:
        facts = part.graphrag.bind(scope)
        if isinstance(facts, str):
            return SkippedQuery(rule=part.rule, query=part.id, reason="missing_param", detail=facts, place=part.place)
        graphrag = facts
    return BoundQuery(
        rule=part.rule,
        query=part.query,
        cypher=cypher,
        params=params,
        search=search,
        graphrag=graphrag,
        priority=rule.priority,
        timeout_ms=rule.timeout_ms,
        max_tokens=rule.max_tokens,
    )


def _give(of: CompiledMutationRule | CompiledInjectionRule | CompiledMutation | CompiledInjection) -> str:
    """Return what to do about a missing value: an event or a request lacks it."""
    return "publish it" if isinstance(of, CompiledMutationRule | CompiledMutation) else "give it with the request"


def _params(part: CompiledMutation | CompiledInjection, scope: Scope) -> dict[str, Any] | SkippedQuery:
    params: dict[str, Any] = {}
    for name, source in part.sources:
        params[name] = value = source.resolve(scope)
        if isinstance(value, Absent):
            detail = (
                f"the parameter {name!r} needs {value.name}, which is missing: {_give(part)}, or remove the parameter"
            )
            return SkippedQuery(rule=part.rule, query=part.id, reason="missing_param", detail=detail, place=part.place)
    return params


def _compiled(named: Mapping[str, Path], files: RuleFiles) -> list[tuple[Workflow, GraphInjectionConfig]]:
    findings: list[Finding] = []
    compiled: list[tuple[Workflow, GraphInjectionConfig]] = []
    for name, path in named.items():
        resolved = files.resolve(path)
        if resolved.config is None:
            findings.extend(resolved.findings)
        else:
            compiled.append((compile_workflow(name, resolved.config), resolved.config))
    if not findings:
        configs = [config for _, config in compiled]
        findings.extend(index_findings(configs, Place(file=str(next(iter(named.values()), "")))))
        findings.extend(length_findings(configs))
    if findings:
        raise RulesError(findings)
    return compiled
