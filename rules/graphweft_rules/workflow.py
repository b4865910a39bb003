"""The rules of one workflow, compiled once and found by event type and agent in one dictionary look-up.

What costs time or can be wrong in a rule (Cypher, conditions, references) is worked out here, when the rules load. An
event then pays only for the rules that are about it, however many there are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import batched
from typing import Any, Final

from graphweft_rules.conditions import Condition, ConditionError, ConditionGroup, compile_condition, compile_group
from graphweft_rules.cypher import Cypher, parse
from graphweft_rules.findings import Finding, RulesError
from graphweft_rules.graphrag import CompiledGraphrag, compile_graphrag
from graphweft_rules.model import (
    EVERY_AGENT,
    GraphInjectionConfig,
    InjectionQuery,
    InjectionRule,
    MutationRule,
    Place,
    Written,
)
from graphweft_rules.params import ParamError, Reference, Scope, Source, compile_param
from graphweft_rules.searches import CompiledSearch, SearchError, compile_search, parse_retrieval

_FEW: Final = 4
"""Rules that are not worth a look at what tells them apart."""
_TOGETHER: Final = 64
"""Conditions of one program: where one of them cannot be evaluated, all of them are asked one by one."""
_MEMORY: Final = 4096
"""Combinations of event type and agent that are remembered; both come from outside, so there is no end of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledMutation:
    """A mutation whose Cypher and parameters have been read."""

    rule: str
    id: str
    cypher: Cypher
    sources: tuple[tuple[str, Source], ...]
    place: Place
    written: Written | None = None
    """Where the query's text stands."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledInjection:
    """An injection query whose Cypher and parameters have been read."""

    rule: str
    id: str
    query: InjectionQuery
    cypher: Cypher | None
    """The query; of a search its ``retrieval_query``, None without one."""
    search: CompiledSearch | None = None
    graphrag: CompiledGraphrag | None = None
    sources: tuple[tuple[str, Source], ...]
    place: Place


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledMutationRule:
    """A mutation rule with its compiled parts."""

    rule: MutationRule
    condition: Condition | None
    parts: tuple[CompiledMutation, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledInjectionRule:
    """An injection rule with its compiled parts."""

    rule: InjectionRule
    condition: Condition | None
    parts: tuple[CompiledInjection, ...]


class Candidates:
    """The mutation rules for a type of event and an agent, found by what their conditions demand.

    Many rules about one type of event tell each other apart by one value (``$event.tool_name == 'search'``). Their
    conditions need not be evaluated to know that all but a few are false. Others that ask for the same values are
    evaluated together, and only what is not false by then is looked at for itself.
    """

    def __init__(self, rules: tuple[CompiledMutationRule, ...]) -> None:
        self.rules = rules
        self._always: list[int] = []
        self._together: list[tuple[ConditionGroup, list[int]]] = []
        self._by_value: dict[str, tuple[Reference, dict[str, list[int]]]] = {}
        self._direct = len(rules) <= _FEW
        if self._direct:
            return
        alike: dict[frozenset[str], list[tuple[int, str]]] = {}
        for number, rule in enumerate(rules):
            if rule.condition is None:
                self._always.append(number)
            elif rule.condition.required:
                reference, text = rule.condition.required[0]
                by_text = self._by_value.setdefault(reference.absent.name, (reference, {}))[1]
                by_text.setdefault(text, []).append(number)
            else:
                names = frozenset(reference.absent.name for _, reference in rule.condition.variables)
                alike.setdefault(names, []).append((number, rule.condition.text))
        for found in alike.values():
            for some in batched(found, _TOGETHER):
                self._evaluate_together([number for number, _ in some], tuple(text for _, text in some))

    def _evaluate_together(self, numbers: list[int], texts: tuple[str, ...]) -> None:
        group = compile_group(texts) if len(texts) > _FEW else None
        if group is None:
            self._always += numbers
        else:
            self._together.append((group, numbers))

    def select(self, scope: Scope) -> Iterable[CompiledMutationRule]:
        """Return the rules whose conditions may hold, in rule order."""
        if self._direct:
            return self.rules
        numbers = list(self._always)
        for reference, by_text in self._by_value.values():
            value = reference.resolve(scope)
            if isinstance(value, str):
                numbers += by_text.get(value, ())
            else:  # not there, or of another type: the condition itself says what that means
                numbers += [number for found in by_text.values() for number in found]
        for group, among in self._together:
            results = group.results(scope)
            if results is None:  # each condition for itself says why
                numbers += among
            else:
                numbers += [number for number, result in zip(among, results, strict=True) if result is not False]
        return [self.rules[number] for number in sorted(numbers)]


class Workflow:
    """The compiled rules of a workflow; finding them is safe from several threads."""

    def __init__(
        self, name: str, mutations: Iterable[CompiledMutationRule], injections: Iterable[CompiledInjectionRule]
    ) -> None:
        self.name = name
        self.mutation_rules = tuple(mutations)
        self.injection_rules = tuple(injections)
        self._by_pattern: dict[str, list[int]] = {}
        for number, compiled in enumerate(self.mutation_rules):
            for pattern in compiled.rule.events:
                self._by_pattern.setdefault(pattern, []).append(number)
        self._mutations_for: dict[tuple[str, str | None], Candidates] = {}
        self._injections_for: dict[str, tuple[CompiledInjectionRule, ...]] = {}

    def mutations_for(self, event_type: str, agent: str | None) -> Candidates:
        """Return the rules for an event; ``agent`` is None when the event names none."""
        found = self._mutations_for.get((event_type, agent))
        if found is None:
            numbers = {number for pattern in _patterns(event_type) for number in self._by_pattern.get(pattern, ())}
            rules = (self.mutation_rules[number] for number in sorted(numbers))
            found = Candidates(
                tuple(rule for rule in rules if not rule.rule.agents or _covers(rule.rule.agents, agent))
            )
            _remember(self._mutations_for, (event_type, agent), found)
        return found

    def injections_for(self, agent: str) -> tuple[CompiledInjectionRule, ...]:
        """Return the rules for the turns of an agent, in rule order."""
        found = self._injections_for.get(agent)
        if found is None:
            found = tuple(rule for rule in self.injection_rules if _covers(rule.rule.agents, agent))
            _remember(self._injections_for, agent, found)
        return found

    @property
    def parts(self) -> tuple[CompiledMutation | CompiledInjection, ...]:
        """All queries of the workflow."""
        mutations = [part for rule in self.mutation_rules for part in rule.parts]
        return (*mutations, *(part for rule in self.injection_rules for part in rule.parts))


def compile_workflow(name: str, config: GraphInjectionConfig) -> Workflow:
    """Compile the rules of a workflow. Raises ``RulesError`` with all that is wrong; loaded rules have been checked."""
    compiler = _Compiler()
    mutations = [compiler.mutation_rule(rule) for rule in config.mutation_rules]
    injections = [compiler.injection_rule(rule) for rule in config.injection_rules]
    if compiler.findings:
        raise RulesError(compiler.findings)
    return Workflow(name, mutations, injections)


class _Compiler:
    """Compiles rules and collects what is wrong with them, so that all of it is told at once."""

    def __init__(self) -> None:
        self.findings: list[Finding] = []

    def mutation_rule(self, rule: MutationRule) -> CompiledMutationRule:
        parts = [
            CompiledMutation(
                rule=rule.name,
                id=mutation.id,
                cypher=self._read(parse(mutation.cypher, role="mutation"), mutation.place),
                sources=self._sources(mutation.params, mutation.place),
                place=mutation.place,
                written=mutation.written,
            )
            for mutation in rule.mutations
        ]
        return CompiledMutationRule(
            rule=rule, condition=self._condition(rule.condition, rule.place), parts=tuple(parts)
        )

    def injection_rule(self, rule: InjectionRule) -> CompiledInjectionRule:
        parts = [
            CompiledInjection(
                rule=rule.name,
                id=query.id,
                query=query,
                cypher=self._injected(query),
                search=self._search(query),
                graphrag=self._graphrag(query),
                sources=self._sources(query.params, query.place),
                place=query.place,
            )
            for query in rule.queries
        ]
        return CompiledInjectionRule(
            rule=rule, condition=self._condition(rule.condition, rule.place), parts=tuple(parts)
        )

    def _condition(self, text: str | None, place: Place) -> Condition | None:
        try:
            return None if text is None else compile_condition(text)
        except ConditionError as error:
            self._error("bad-condition", str(error), place)
            return None

    def _sources(self, params: Mapping[str, Any], place: Place) -> tuple[tuple[str, Source], ...]:
        sources: list[tuple[str, Source]] = []
        for name, value in params.items():
            try:
                sources.append((name, compile_param(value)))
            except ParamError as error:
                self._error("bad-param", f"{name}: {error}", place)
        return tuple(sources)

    def _injected(self, query: InjectionQuery) -> Cypher | None:
        if sum(kind is not None for kind in (query.cypher, query.search, query.graphrag)) > 1:
            message = "a query has one of cypher, search and graphrag: make several queries of it"
            self._error("conflicting-keys", message, query.place)
        if query.graphrag is not None:
            return None
        if query.search is None:
            return self._read(parse(query.cypher or "", role="injection"), query.place)
        text = query.search.retrieval_query
        return None if text is None else self._read(parse_retrieval(text), query.place)

    def _search(self, query: InjectionQuery) -> CompiledSearch | None:
        try:
            return None if query.search is None else compile_search(query.search)
        except SearchError as error:
            self._error("bad-search", str(error), query.place)
            return None

    def _graphrag(self, query: InjectionQuery) -> CompiledGraphrag | None:
        try:
            return None if query.graphrag is None else compile_graphrag(query.graphrag)
        except SearchError as error:
            self._error("bad-graphrag", str(error), query.place)
            return None

    def _read(self, cypher: Cypher, place: Place) -> Cypher:
        for problem in cypher.problems:
            if problem.level == "error":
                where = f" (line {problem.line}, column {problem.column} of the query)"
                self._error(f"cypher-{problem.code.removeprefix('cypher-')}", problem.message + where, place)
        return cypher

    def _error(self, code: str, message: str, place: Place) -> None:
        self.findings.append(Finding(level="error", code=code, message=message, place=place))


def _patterns(event_type: str) -> list[str]:
    """Return every pattern that means an event type: itself, ``prefix.*`` for each of its prefixes, ``*``."""
    words = event_type.split(".")
    prefixes = (".".join(words[:count]) for count in range(1, len(words)))
    return [event_type, "*", *(f"{prefix}.*" for prefix in prefixes)]


def _covers(agents: tuple[str, ...], agent: str | None) -> bool:
    return EVERY_AGENT in agents or agent in agents


def _remember[Key, Found](memory: dict[Key, Found], key: Key, found: Found) -> None:
    if len(memory) >= _MEMORY:
        memory.clear()  # rather than an order of use: the few combinations that matter are back after one event each
    memory[key] = found
