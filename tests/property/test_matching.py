from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from graphweft_contracts import ContextRequest, Event
from graphweft_rules.files.model import (
    GraphInjectionConfig,
    InjectionQuery,
    InjectionRule,
    Mutation,
    MutationRule,
    Place,
)
from graphweft_rules.matching.conditions import Verdict
from graphweft_rules.matching.parameters import Scope
from graphweft_rules.matching.workflow import compile_workflow

PLACE = Place(file="rules.yaml")
TYPES = st.lists(st.sampled_from(["a", "b", "ab"]), min_size=2, max_size=4).map(".".join)
PATTERNS = st.one_of(TYPES, TYPES.map(lambda name: f"{name}.*"), st.sampled_from(["*", "a.*", "ab.*", "b.b.*"]))
AGENTS = st.sampled_from(["A", "B", "C"])
NAMED = st.lists(st.one_of(AGENTS, st.just("*")), max_size=3).map(tuple)
MUTATION = Mutation(id="m", cypher="CREATE (:N)", place=PLACE)
QUERY = InjectionQuery(id="q", cypher="RETURN 1", inject_as="x", place=PLACE)


def names(count: int) -> list[str]:
    return [f"rule{number}" for number in range(count)]


@st.composite
def mutation_rules(draw: st.DrawFn) -> list[MutationRule]:
    described = draw(st.lists(st.tuples(st.lists(PATTERNS, min_size=1, max_size=3).map(tuple), NAMED), max_size=12))
    return [
        MutationRule(name=name, events=events, agents=agents, mutations=(MUTATION,), place=PLACE)
        for name, (events, agents) in zip(names(len(described)), described, strict=True)
    ]


def means(pattern: str, event_type: str) -> bool:
    if pattern.endswith(".*"):
        return event_type.startswith(pattern.removesuffix("*"))
    return pattern in ("*", event_type)


@given(mutation_rules(), st.lists(st.tuples(TYPES, st.one_of(st.none(), AGENTS)), max_size=8))
def test_the_index_finds_what_a_scan_finds(rules: list[MutationRule], events: list[tuple[str, str | None]]) -> None:
    workflow = compile_workflow("W", GraphInjectionConfig(mutation_rules=tuple(rules)))
    for event_type, agent in events + events:  # the second time from memory
        data = {"agent_name": agent} if agent else {}
        happened = Event.create(event_type, app_id="app", chat_id="chat", data=data)
        scanned = [
            rule.name
            for rule in rules
            if any(means(pattern, happened.type) for pattern in rule.events)
            and (not rule.agents or "*" in rule.agents or happened.agent in rule.agents)
        ]
        assert [found.rule.name for found in workflow.mutations_for(happened.type, happened.agent).rules] == scanned


@given(st.lists(st.lists(st.one_of(AGENTS, st.just("*")), min_size=1, max_size=3).map(tuple), max_size=8), AGENTS)
def test_requests_find_what_a_scan_finds(agents: list[tuple[str, ...]], agent: str) -> None:
    rules = tuple(
        InjectionRule(name=name, agents=named, queries=(QUERY,), place=PLACE)
        for name, named in zip(names(len(agents)), agents, strict=True)
    )
    workflow = compile_workflow("W", GraphInjectionConfig(injection_rules=rules))
    request = ContextRequest(id="r", app_id="app", workflow="W", agent=agent, chat_id="c", deadline_ms=0)
    scanned = [rule.name for rule in rules if {"*", agent} & set(rule.agents)]
    for _ in range(2):
        assert [found.rule.name for found in workflow.injections_for(request.agent)] == scanned


TESTS = ["$event.tool == 'x'", "$event.tool == 'y'", "'x' == $event.tool", '$context.phase == "p"', "$event.n > 1"]
OTHERS = ["$event.tool != 'x'", "!($event.tool == 'x')", "$event.tool == 'x' || $event.n > 1", "has($event.tool)"]
OTHERS += [
    "($event.tool == 'x')",
    "$event.tool == 'x' ? true : false",
    "$event.tool.startsWith('x')",
    "$event.a == $event.b",
    "$event.a",
]
CONDITIONS = st.lists(st.sampled_from(TESTS + OTHERS), min_size=1, max_size=3).map(" && ".join)
VALUES = st.sampled_from(["x", "y", "", 1, None, True])


@given(
    st.lists(st.one_of(st.none(), CONDITIONS, st.sampled_from(OTHERS)), max_size=24),
    st.dictionaries(st.sampled_from(["tool", "n", "a", "b"]), VALUES),
    st.dictionaries(st.just("phase"), VALUES),
)
def test_rules_that_are_not_asked_would_have_said_no(
    conditions: list[str | None], data: dict[str, object], context: dict[str, object]
) -> None:
    rules = tuple(
        MutationRule(name=name, events=("*",), condition=condition, mutations=(MUTATION,), place=PLACE)
        for name, condition in zip(names(len(conditions)), conditions, strict=True)
    )
    workflow = compile_workflow("W", GraphInjectionConfig(mutation_rules=rules))
    event = Event.create("a.b", app_id="app", chat_id="chat", workflow="W", data=data, context=context)
    scope = Scope.of_event(event)
    candidates = workflow.mutations_for(event.type, event.agent)
    selected = list(candidates.select(event, scope))
    assert [rule.rule.name for rule in selected] == [rule.rule.name for rule in candidates.rules if rule in selected]
    for rule in candidates.rules:
        if rule not in selected:
            assert rule.condition is not None
            assert rule.condition.evaluate(scope) == Verdict(holds=False)


def test_rules_that_one_value_tells_apart_are_not_all_asked() -> None:
    rules = tuple(
        MutationRule(
            name=f"r{number}",
            events=("a.b",),
            condition=f"$event.n > 1 && $event.tool == 't{number}'",
            mutations=(MUTATION,),
            place=PLACE,
        )
        for number in range(100)
    )
    candidates = compile_workflow("W", GraphInjectionConfig(mutation_rules=rules)).mutations_for("a.b", None)
    event = Event.create("a.b", app_id="app", chat_id="chat", data={"tool": "t7"})
    assert [rule.rule.name for rule in candidates.select(event, Scope.of_event(event))] == ["r7"]


def test_conditions_that_are_evaluated_together_are_asked_for_themselves_unless_they_are_false() -> None:
    texts = ["$event.n > 1", "$event.n > 2", "$event.n < 1 // never", "$event.n", "$event.n == 2", "$event.n / 0 == 1"]

    def selected(texts: list[str], **data: object) -> list[str]:
        rules = tuple(
            MutationRule(name=text, events=("a.b",), condition=text, mutations=(MUTATION,), place=PLACE)
            for text in texts
        )
        candidates = compile_workflow("W", GraphInjectionConfig(mutation_rules=rules)).mutations_for("a.b", None)
        event = Event.create("a.b", app_id="app", chat_id="chat", data=data)
        return [rule.rule.name for rule in candidates.select(event, Scope.of_event(event))]

    assert selected(texts[:5], n=2) == [texts[0], "$event.n", texts[4]]
    assert selected(texts, n=2) == texts  # one of them cannot be evaluated, so all say themselves what they are
    assert selected(texts[:5]) == texts[:5]  # nor can any of them
    assert selected(texts[:5], n="2") == texts[:5]
