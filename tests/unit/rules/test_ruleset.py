from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from tests.services.rules import load_rules

from graphweft_contracts import ContextRequest, Event
from graphweft_rules import RulesError, RuleSet, compile_workflow
from graphweft_rules.files.model import (
    GraphInjectionConfig,
    InjectionQuery,
    InjectionRule,
    Mutation,
    MutationRule,
    Place,
)
from graphweft_rules.matching.clock import uuid_values
from graphweft_rules.matching.mutation import BoundMutation
from graphweft_rules.matching.rule_set import SkippedQuery

CONTRACT = Path(__file__).parents[2] / "fixtures" / "contract"
WHEN = datetime(2026, 2, 1, 10, tzinfo=UTC)
PLACE = Place(file="rules.yaml", line=3)


def event(type: str = "agent.turn_complete", agent: str | None = "A", workflow: str | None = "W", **data: Any) -> Event:
    if agent is not None:
        data["agent_name"] = agent
    return Event.create(
        type, app_id="app", chat_id="chat", workflow=workflow, data=data, id="e", source="/s", time=WHEN
    )


def mutation(id: str = "m", cypher: str = "CREATE (:N {x: $x})", **params: Any) -> Mutation:
    return Mutation(id=id, cypher=cypher, params=params or {"x": 1}, place=PLACE)


def rule(name: str = "r", *mutations: Mutation, **changes: Any) -> MutationRule:
    made = MutationRule(name=name, events=("agent.turn_complete",), mutations=mutations or (mutation(),), place=PLACE)
    return replace(made, **changes)


def ruleset(*rules: MutationRule, injections: tuple[InjectionRule, ...] = ()) -> RuleSet:
    config = GraphInjectionConfig(mutation_rules=rules, injection_rules=injections)
    return RuleSet(workflows={"W": compile_workflow("W", config)})


def matched(rules: RuleSet, happened: Event) -> list[str]:
    return [f"{bound.mutation.rule}/{bound.mutation.id}" for bound in rules.match_event(happened).mutations]


def test_mutations_come_in_rule_order_then_in_their_own() -> None:
    rules = ruleset(
        rule("b", mutation("2"), mutation("1"), events=("*",)),
        rule("a", events=("agent.turn_complete", "agent.*", "*")),
        rule("c", events=("agent.*",)),
        rule("other", events=("agent.turn_start", "agent.turn_complete.*", "agen.*")),
    )
    assert matched(rules, event()) == ["b/2", "b/1", "a/m", "c/m"]
    assert matched(rules, event("order.paid")) == ["b/2", "b/1", "a/m"]


@pytest.mark.parametrize(
    ("agents", "agent", "matches"),
    [
        ((), "A", True),
        ((), None, True),
        (("*",), None, True),
        (("B", "*"), "A", True),
        (("A",), "A", True),
        (("A",), None, False),
        (("B",), "A", False),
    ],
)
def test_agents_of_mutation_rules(agents: tuple[str, ...], agent: str | None, matches: bool) -> None:
    rules = ruleset(rule(agents=agents, events=("*",)))
    assert matched(rules, event("order.paid", agent)) == (["r/m"] if matches else [])


def test_names_without_end_do_not_fill_the_memory() -> None:
    workflow = ruleset(rule(agents=("A1",))).workflows["W"]
    found = [bool(workflow.mutations_for("agent.turn_complete", f"A{number}").rules) for number in range(10_000)]
    assert found == [number == 1 for number in range(10_000)]
    assert 0 < len(workflow._mutations_for) < 5_000


@pytest.mark.parametrize("workflow", [None, "Other", ""])
def test_events_of_no_known_workflow_match_nothing(workflow: str | None) -> None:
    happened = event().model_copy(update={"workflow": workflow})
    assert ruleset(rule(events=("*",))).match_event(happened).mutations == ()


def test_parameters_are_bound_with_the_events_time_and_ids() -> None:
    cypher = "CREATE (:N {x: $x, y: $y, at: datetime(), ms: timestamp(), id: randomUUID()})"
    rules = ruleset(rule("r", mutation("m", cypher, x="$event.reply", y=["$workflow.chat_id"])))
    happened = event(reply="hello")
    [bound] = rules.match_event(happened).mutations
    assert bound.params == {
        "x": "hello",
        "y": ["chat"],
        "__datetime": "2026-02-01T10:00:00.000000Z",
        "__timestamp": 1769940000000,
        **uuid_values(1, "/s\ne\nr\nm"),
    }
    assert rules.match_event(happened).mutations == (bound,)


def test_a_condition_decides() -> None:
    rules = ruleset(rule(condition="$event.success == true"))
    assert matched(rules, event(success=True)) == ["r/m"]
    unmatched = rules.match_event(event(success=False))
    assert (unmatched.mutations, unmatched.skipped) == ((), ())


@pytest.mark.parametrize(
    ("condition", "reason", "detail"),
    [
        ("$context.secret == 1", "missing_variable", "'$context.secret == 1' needs $context.secret"),
        ("$event.agent_name > 1", "condition_error", "types"),
    ],
)
def test_an_undecided_condition_skips_each_mutation(condition: str, reason: str, detail: str) -> None:
    result = ruleset(rule("r", mutation("1"), mutation("2"), condition=condition), rule("next")).match_event(event())
    assert [bound.mutation.rule for bound in result.mutations] == ["next"]
    assert [(skip.rule, skip.query, skip.reason, skip.place) for skip in result.skipped] == [
        ("r", "1", reason, PLACE),
        ("r", "2", reason, PLACE),
    ]
    assert detail in result.skipped[0].detail


def test_a_condition_with_too_many_steps_skips_its_mutations_only() -> None:
    nested = "$event.xs.all(x, $event.xs.all(y, x >= y - {}))"
    conditions = [nested.format(number) for number in range(10_000, 10_006)]
    rules = ruleset(*(rule(f"r{at}", condition=text) for at, text in enumerate(conditions)), rule("next"))
    assert matched(rules, event(xs=[*range(30)])) == [*(f"r{at}/m" for at in range(6)), "next/m"]
    result = rules.match_event(event(xs=[*range(1_000)]))
    assert [bound.mutation.rule for bound in result.mutations] == ["next"]
    assert {(skip.rule, skip.reason) for skip in result.skipped} == {(f"r{at}", "condition_error") for at in range(6)}
    assert "more than 20000 steps" in result.skipped[0].detail


def test_a_missing_parameter_skips_its_mutation_only() -> None:
    result = ruleset(rule("r", mutation("1", x="$context.none"), mutation("2"))).match_event(event())
    assert [bound.mutation.id for bound in result.mutations] == ["2"]
    [skip] = result.skipped
    assert (skip.query, skip.reason) == ("1", "missing_param")
    assert "'x' needs $context.none" in skip.detail


def test_one_mutation_can_be_bound_again() -> None:
    rules = ruleset(rule("r", mutation("1"), mutation("2", x="$context.none"), condition="false", events=("x.y",)))
    bound = rules.bind_one(event(), "r", "1")
    assert isinstance(bound, BoundMutation)
    assert bound.mutation is rules.find_mutation("W", "r", "1")
    assert isinstance(rules.bind_one(event(), "r", "2"), SkippedQuery)
    assert rules.bind_one(event(), "r", "3") is None
    assert rules.bind_one(event(), "gone", "1") is None
    assert rules.bind_one(event(workflow="Gone"), "r", "1") is None
    assert rules.bind_one(event(workflow=None), "r", "1") is None


def test_requests_get_the_queries_of_their_agent() -> None:
    def injection(name: str, *agents: str, **changes: Any) -> InjectionRule:
        query = InjectionQuery(
            id="q", cypher="MATCH (u:User {id: $u}) WHERE u.at < datetime() RETURN u.x", inject_as=name, place=PLACE,
            params={"u": "$context.user_id"},
        )  # fmt: skip
        return replace(InjectionRule(name=name, agents=agents, queries=(query,), place=PLACE), **changes)

    rules = ruleset(
        injections=(
            injection("b", "B", "A"),
            injection("all", "*"),
            injection("other", "B"),
            injection("no", "A", condition="$context.phase == 'x'"),
            injection("undecided", "A", condition="$context.none == 'x'"),
            injection("long", "A", condition="$context.xs.map(x, x).size() > 0"),
        )
    )
    request = ContextRequest(
        id="1",
        app_id="app",
        workflow="W",
        agent="A",
        chat_id="c",
        user_id="u",
        context={"phase": "y", "xs": [0] * 3_000},
        deadline_ms=0,
    )
    result = rules.match_request(request, WHEN)
    assert [(bound.rule, bound.query.inject_as) for bound in result.queries] == [("b", "b"), ("all", "all")]
    assert result.queries[0].params == {"u": "u", "__datetime": "2026-02-01T10:00:00.000000Z"}
    cypher = result.queries[0].cypher
    assert cypher is not None
    assert cypher.statement.endswith("u.at < $__datetime RETURN u.x")
    assert [(skip.rule, skip.query, skip.reason) for skip in result.skipped] == [
        ("undecided", "q", "missing_variable"),
        ("long", "q", "condition_error"),
    ]

    anonymous = rules.match_request(request.model_copy(update={"user_id": None}), WHEN)
    assert (anonymous.skipped[0].rule, anonymous.skipped[0].reason) == ("b", "missing_param")
    assert rules.match_request(request.model_copy(update={"workflow": "Other"}), WHEN).queries == ()
    assert rules.keys == {("User", "id")}


def test_rules_made_by_hand_are_checked_all_at_once() -> None:
    config = GraphInjectionConfig(
        mutation_rules=(
            rule("one", mutation("1", "CREATE (:N {x: rand()})"), condition="phase == 1"),
            rule("two", mutation("2", x="$contxt.a")),
        )
    )
    with pytest.raises(RulesError) as caught:
        compile_workflow("W", config)
    assert {finding.code for finding in caught.value.findings} == {
        "bad-condition",
        "bad-param",
        "cypher-nondeterministic",
    }
    assert {finding.place for finding in caught.value.findings} == {PLACE}


def test_the_contracts_rules_load() -> None:
    rules = load_rules(CONTRACT)
    assert set(rules.workflows) == {"AgentGenerator", "FullSchema", "InjectionExample", "MutationExample"}
    assert {("User", "id"), ("Journey", "id"), ("Pattern", "name")} <= rules.keys
    happened = Event.create("workflow.complete", app_id="app", chat_id="chat_1", workflow="AgentGenerator", time=WHEN)
    [bound] = rules.match_event(happened).mutations
    assert bound.params == {"chat_id": "chat_1", "__datetime": "2026-02-01T10:00:00.000000Z"}


GOOD = "mutation_rules:\n- {name: m, events: [x.y], mutations: [{id: m, cypher: 'CREATE (:N)'}]}\n"


def write(root: Path, **workflows: str) -> Path:
    for name, text in workflows.items():
        (root / name).mkdir(parents=True)
        (root / name / "graph_injection.yaml").write_text(text)
    return root


def test_loading_tells_the_findings_of_all_workflows(tmp_path: Path) -> None:
    write(tmp_path, One="nope: 1\n", Two=GOOD, Three=GOOD.replace("CREATE", "CRETE ("))
    with pytest.raises(RulesError) as caught:
        load_rules(tmp_path)
    files = {Path(finding.place.file).parent.name for finding in caught.value.findings}
    assert files == {"One", "Three"}


def test_the_digest_tells_rules_apart_wherever_they_lie(tmp_path: Path) -> None:
    first = load_rules(write(tmp_path / "1", W=GOOD)).digest
    assert len(first) == 64
    assert load_rules(write(tmp_path / "2", W=GOOD)).digest == first
    assert load_rules(write(tmp_path / "3", W=GOOD + "# more\n")).digest != first
    assert load_rules(write(tmp_path / "4", V=GOOD)).digest != first

    child = "extends: ../_shared/base.yaml\n"
    for root, base in (("5", GOOD), ("6", GOOD + "# more\n")):
        write(tmp_path / root, W=child, _shared="")
        (tmp_path / root / "_shared" / "base.yaml").write_text(base)
    assert load_rules(tmp_path / "5").digest != load_rules(tmp_path / "6").digest
