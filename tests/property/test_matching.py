from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from graphweft_contracts import ContextRequest, Event
from graphweft_rules.model import (
    GraphInjectionConfig,
    InjectionQuery,
    InjectionRule,
    Mutation,
    MutationRule,
    Place,
)
from graphweft_rules.workflow import compile_workflow

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
        assert [found.rule.name for found in workflow.mutations_for(happened.type, happened.agent)] == scanned


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
