"""The compiled rules of one workflow, found by event type and agent in one dictionary look-up.

Cypher, conditions and references are compiled when the rules load, so an event costs only the rules that match it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import batched, compress
from typing import Any, Final

from graphweft_rules.cypher.query import Cypher, parse
from graphweft_rules.files.findings import Finding, RulesError
from graphweft_rules.files.model import (
    EVERY_AGENT,
    GraphInjectionConfig,
    InjectionQuery,
    InjectionRule,
    MutationRule,
    Place,
)
from graphweft_rules.matching.conditions import (
    Condition,
    ConditionError,
    ConditionGroup,
    compile_condition,
    compile_group,
)
from graphweft_rules.matching.graphrag import CompiledGraphrag, compile_graphrag
from graphweft_rules.matching.mutation import BoundMutation, CompiledMutation
from graphweft_rules.matching.parameters import EventView, ParamError, ParameterSource, Reference, Scope, compile_param
from graphweft_rules.matching.rule_functions import (
    Comparison,
    DecideGroup,
    Match,
    comparisons_of,
    group_decider_of,
    matcher_of,
    plain_case,
    undecided,
)
from graphweft_rules.matching.searches import CompiledSearch, SearchError, compile_search, parse_retrieval

_FEW: Final = 4
"""Up to this number of rules, each condition is evaluated."""
_FEW_QUICK: Final = 16
"""The same if a function decides each condition."""
_MOST_TOGETHER: Final = 64
"""Conditions of one program. If one cannot be evaluated, all are evaluated one by one."""
_MOST_LOOK_UPS: Final = 4096
"""Limit of cached combinations of event type and agent, because both come from outside."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledInjection:
    """An injection query with parsed Cypher and parameters."""

    rule: str
    id: str
    query: InjectionQuery
    cypher: Cypher | None
    """The query, or the ``retrieval_query`` of a search; None without one."""
    search: CompiledSearch | None = None
    graphrag: CompiledGraphrag | None = None
    sources: tuple[tuple[str, ParameterSource], ...]
    place: Place


@dataclass(frozen=True, kw_only=True)
class CompiledMutationRule:
    """A mutation rule with its compiled parts."""

    rule: MutationRule
    condition: Condition | None
    parts: tuple[CompiledMutation, ...]

    @cached_property
    def comparisons(self) -> tuple[Comparison, ...] | None:
        """Those that its condition joins, none without one; None for a condition of another form."""
        return () if self.condition is None else comparisons_of(self.condition)

    @cached_property
    def match(self) -> Match:
        """The function that returns its mutations for an event in the plain case."""
        return matcher_of(self.comparisons, self.parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledInjectionRule:
    """An injection rule with its compiled parts."""

    rule: InjectionRule
    condition: Condition | None
    parts: tuple[CompiledInjection, ...]


class _Together:
    """Rules whose conditions are decided in one call; where that is not possible, they are evaluated one by one."""

    def __init__(self, conditions: Mapping[int, Condition], comparisons: Iterable[tuple[Comparison, ...]] = ()) -> None:
        """``conditions`` are given by the numbers of the rules, ``comparisons`` are theirs, all in one plain case."""
        self._numbers = tuple(conditions)
        given = tuple(comparisons)
        self._decide: DecideGroup = group_decider_of(given) if given else undecided
        self._groups: list[tuple[ConditionGroup | None, tuple[int, ...]]] = [
            (compile_group(tuple(conditions[number].text for number in some)), some)
            for some in batched(self._numbers, _MOST_TOGETHER)
        ]

    def select(self, event: EventView, scope: Scope) -> list[int]:
        """Return the numbers of the rules whose conditions may hold."""
        try:
            decided = self._decide(event, scope.event, scope.context, scope.agent_name)
        except (LookupError, TypeError):  # a value is missing, or not a map
            decided = None
        if decided is not None:
            return list(compress(self._numbers, decided))
        found: list[int] = []
        for group, numbers in self._groups:
            results = None if group is None else group.results(scope)
            if results is None:
                found += numbers
            else:
                found += [number for number, result in zip(numbers, results, strict=True) if result is not False]
        return found


class Candidates:
    """The mutation rules for one event type and agent, selected by what their conditions require.

    Many rules for one event type differ in one required value (``$event.tool_name == 'search'``), so a look-up of that
    value rules out most of them. Other conditions that use the same references are decided together first.
    """

    def __init__(self, rules: tuple[CompiledMutationRule, ...]) -> None:
        self.rules = rules
        self._always: list[int] = []
        self._together: list[_Together] = []
        self._by_value: dict[str, tuple[Reference, dict[str, list[int]]]] = {}
        self._steps: dict[int, int] = {}
        self.are_few: bool = len(rules) <= _FEW or (
            len(rules) <= _FEW_QUICK and all(rule.comparisons is not None for rule in rules)
        )
        """Whether all rules are tried, so ``select`` gives nothing away."""
        if self.are_few:
            return
        alike: dict[frozenset[str], dict[int, Condition]] = {}
        for number, rule in enumerate(rules):
            condition = rule.condition
            if condition is None or condition.counted is not None:  # its steps are counted, so alone
                self._always.append(number)
            elif condition.required:
                reference, text = condition.required[0]
                by_text = self._by_value.setdefault(reference.absent.name, (reference, {}))[1]
                by_text.setdefault(text, []).append(number)
            else:
                names = frozenset(reference.absent.name for _, reference in condition.variables)
                alike.setdefault(names, {})[number] = condition
        for conditions in alike.values():
            self._decide_together(conditions)

    @cached_property
    def _plain(self) -> tuple[Match, ...]:
        """The functions of all rules; none if a rule has none, or if ``select`` leaves rules out."""
        found = tuple(rule.match for rule in self.rules) if self.are_few else ()
        return () if undecided in found else found

    def match(self, event: EventView) -> tuple[BoundMutation, ...] | None:
        """Return the mutations for an event in the plain case; None: each rule decides."""
        found: tuple[BoundMutation, ...] | None = None
        if self._plain:
            data, context, agent = event.data, event.context, event.agent
            try:
                for match in self._plain:
                    bound = match(event, data, context, agent)
                    if bound is None:
                        return None
                    found = bound if found is None else found + bound
            except Exception:  # noqa: BLE001 - then each rule decides step by step, and says what is wrong
                return None
        return found

    @cached_property
    def have_steps(self) -> bool:
        """Whether ``steps`` may be more than 0."""
        return self.steps(1 << 30) > 0

    def steps(self, size: int) -> int:
        """Return about how many steps the conditions take at most together for an event of so many bytes.

        Those that a function decides, or that a look-up of a value rules out, count nothing.
        """
        magnitude = size.bit_length()
        found = self._steps.get(magnitude)
        if found is None:
            looked_up = {n for _, by_text in self._by_value.values() for numbers in by_text.values() for n in numbers}
            conditions = [
                rule.condition
                for number, rule in enumerate(self.rules)
                if rule.condition is not None and number not in looked_up and rule.comparisons is None
            ]
            found = self._steps[magnitude] = sum(each.estimate((1 << magnitude) - 1) for each in conditions)
        return found

    def _decide_together(self, conditions: dict[int, Condition]) -> None:
        """Decide conditions with the same references in few calls."""
        cases: dict[frozenset[tuple[str, type]], dict[int, tuple[Comparison, ...]]] = {}
        for number, condition in conditions.items():
            if (comparisons := comparisons_of(condition)) is not None:
                cases.setdefault(plain_case(comparisons), {})[number] = comparisons
        left = dict(conditions)
        for case in cases.values():
            if len(case) > _FEW:
                self._together.append(_Together({number: left.pop(number) for number in case}, case.values()))
        if len(left) > _FEW:
            self._together.append(_Together(left))
        else:
            self._always += left

    def select(self, event: EventView, scope: Scope) -> Iterable[CompiledMutationRule]:
        """Return the rules whose conditions may hold, in rule order; ``scope`` is that of the event."""
        if self.are_few:
            return self.rules
        numbers = list(self._always)
        for reference, by_text in self._by_value.values():
            value = reference.resolve(scope)
            if isinstance(value, str):
                numbers += by_text.get(value, ())
            else:  # missing, or of another type: the condition decides
                numbers += [number for found in by_text.values() for number in found]
        for together in self._together:
            numbers += together.select(event, scope)
        return [self.rules[number] for number in sorted(numbers)]


NO_RULES: Final = Candidates(())
"""Of an event without a workflow that compiles."""


class Workflow:
    """The compiled rules of a workflow. Look-ups are thread-safe."""

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
        """Return the rules for an event; ``agent`` is None if the event names none."""
        found = self._mutations_for.get((event_type, agent))
        if found is None:
            found = Candidates(tuple(rule for rule in self.rules_for(event_type) if is_for_agent(rule, agent)))
            _remember(self._mutations_for, (event_type, agent), found)
        return found

    def rules_for(self, event_type: str) -> tuple[CompiledMutationRule, ...]:
        """Return the mutation rules for an event type, of all agents, in rule order."""
        numbers = {number for pattern in _patterns(event_type) for number in self._by_pattern.get(pattern, ())}
        return tuple(self.mutation_rules[number] for number in sorted(numbers))

    def injections_for(self, agent: str) -> tuple[CompiledInjectionRule, ...]:
        """Return the rules for the turns of an agent, in rule order."""
        found = self._injections_for.get(agent)
        if found is None:
            found = tuple(rule for rule in self.injection_rules if _covers(rule.rule.agents, agent))
            _remember(self._injections_for, agent, found)
        return found

    @cached_property
    def keys(self) -> frozenset[tuple[str, str]]:
        """(label, property) by which its queries look nodes up; each needs an index."""
        return frozenset(key for part in self.parts if part.cypher is not None for key in part.cypher.keys)

    @cached_property
    def written_labels(self) -> frozenset[str]:
        """The labels in its mutations."""
        parts = (part for rule in self.mutation_rules for part in rule.parts)
        return frozenset(name for part in parts for kind, name in part.cypher.names if kind == "label")

    @property
    def asks_for_facts(self) -> bool:
        """Whether a rule has a ``graphrag``."""
        return any(part.graphrag is not None for rule in self.injection_rules for part in rule.parts)

    @property
    def parts(self) -> tuple[CompiledMutation | CompiledInjection, ...]:
        """All queries of the workflow."""
        mutations = [part for rule in self.mutation_rules for part in rule.parts]
        return (*mutations, *(part for rule in self.injection_rules for part in rule.parts))


def compile_workflow(name: str, config: GraphInjectionConfig) -> Workflow:
    """Compile the rules of a workflow. Raises ``RulesError`` with all errors, which loaded rules never have."""
    compiler = _Compiler()
    mutations = [compiler.mutation_rule(rule) for rule in config.mutation_rules]
    injections = [compiler.injection_rule(rule) for rule in config.injection_rules]
    if compiler.findings:
        raise RulesError(compiler.findings)
    return Workflow(name, mutations, injections)


class _Compiler:
    """Compiles rules and collects all findings."""

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

    def _sources(self, params: Mapping[str, Any], place: Place) -> tuple[tuple[str, ParameterSource], ...]:
        sources: list[tuple[str, ParameterSource]] = []
        for name, value in params.items():
            try:
                sources.append((name, compile_param(value)))
            except ParamError as error:
                self._error("bad-param", f"{name}: {error}", place)
        return tuple(sources)

    def _injected(self, query: InjectionQuery) -> Cypher | None:
        if sum(kind is not None for kind in (query.cypher, query.search, query.graphrag)) > 1:
            message = "a query has only one of cypher, search and graphrag: write several queries"
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
    """Return every pattern that matches an event type: itself, ``prefix.*`` for each prefix, and ``*``."""
    words = event_type.split(".")
    prefixes = (".".join(words[:count]) for count in range(1, len(words)))
    return [event_type, "*", *(f"{prefix}.*" for prefix in prefixes)]


def is_for_agent(rule: CompiledMutationRule, agent: str | None) -> bool:
    """Tell whether a mutation rule is for the events of an agent; ``agent`` is None if the event names none."""
    return not rule.rule.agents or _covers(rule.rule.agents, agent)


def _covers(agents: tuple[str, ...], agent: str | None) -> bool:
    return EVERY_AGENT in agents or agent in agents


def _remember[Key, Found](found_before: dict[Key, Found], key: Key, found: Found) -> None:
    if len(found_before) >= _MOST_LOOK_UPS:
        found_before.clear()  # simpler than LRU: common combinations return with the next event
    found_before[key] = found
