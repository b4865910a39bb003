"""Rules are matched by functions of their own, with the result that their conditions and sources give."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any, Final

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from graphweft_contracts import Event
from graphweft_rules import MatchResult, RuleSet
from graphweft_rules.files.model import GraphInjectionConfig, Mutation, MutationRule, Place
from graphweft_rules.matching.conditions import Condition, ConditionGroup, Verdict, compile_condition
from graphweft_rules.matching.parameters import Scope
from graphweft_rules.matching.rule_functions import Match, comparisons_of, matcher_of, undecided
from graphweft_rules.matching.rule_set import match_rule
from graphweft_rules.matching.workflow import Workflow, compile_workflow

PLACE: Final = Place(file="rules.yaml")
REFERENCES: Final = (
    "$event.a", "$event.b", "$event.a.b", "$event.a.0", "$event.a.b.c", "$context.a", "$context.a.b", "$event.id",
    "$event.source", "$event.type", "$event.subject", "$event.time", "$event.timestamp", "$context.user_id",
    "$context.chat_id", "$context.app_id", "$context.workflow_name", "$context.agent_name", "$workflow.name",
    "$workflow.app_id", "$workflow.chat_id", "$workflow.user_id", "$event.agent_name", "$event.id.x",
)  # fmt: skip
LITERALS: Final = (
    "'x'", '"x"', "''", "'é'", "'a\\n'", "r'x'", "'''x'''", "1", "0", "2", "-1", "1u", "0x1", "9223372036854775807",
    "1.0", "0.5", "1e0", "1.", "true", "false", "null", "[1]", "$event.b",
)  # fmt: skip
SIGNS: Final = ("==", "!=", "<", "<=", ">", ">=", " == ", "\n==\n")
VALUES: Final[tuple[Any, ...]] = (
    "x", "", "é", "\ud800", "1", 1, 0, True, False, None, 1.0, 0.5, -0.0, float("nan"), float("inf"), 2**63, -(2**63),
    2**63 - 1, 2**70, [], ["x"], [{"b": "x"}], {}, {"b": "x"}, {"b": {"c": 1}}, {"b": None}, {"0": "x"}, ("x",),
)  # fmt: skip


@st.composite
def comparisons(draw: st.DrawFn) -> str:
    reference, sign, literal = (draw(st.sampled_from(each)) for each in (REFERENCES, SIGNS, LITERALS))
    return draw(
        st.sampled_from(
            [
                f"{reference} {sign} {literal}", f"{literal} {sign} {reference}", f"has({reference})",
                f"!has({reference})", f"!({reference} {sign} {literal})", f"{reference}", f"!{reference}",
                f"size({reference}) == 1", f"{reference}.startsWith('x')", f"({reference} {sign} {literal})",
                f"{reference} {sign} {literal} // && has($event.a)", f"{reference} {sign} {literal} + 1",
                f"[1].exists(i, i == {reference})",
            ]
        )
    )  # fmt: skip


@st.composite
def conditions(draw: st.DrawFn) -> str | None:
    operators = st.sampled_from([" && "] * 5 + ["&&", " || "])
    found = draw(st.lists(comparisons(), max_size=3))
    text = "".join(f"{each}{draw(operators)}" for each in found[:-1]) + "".join(found[-1:])
    try:
        compile_condition(text)
    except ValueError:
        return None
    return text


params = st.recursive(
    st.sampled_from([*REFERENCES, "$$x", "x", 1, 1.5, None, True]),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["k", "a'b\\", "{x}"]), inner, max_size=2)
    ),
    max_leaves=4,
)
queries = st.sampled_from(
    [
        "CREATE (:N {a: $p})",
        "CREATE (:N {a: $p, t: datetime()})",
        "CREATE (:N {a: $p, t: timestamp(), u: randomUUID(), v: randomUUID()})",
        "CREATE (:N {a: $p, t: time(), d: date()})",
    ]
)
rules = st.lists(
    st.tuples(conditions(), st.lists(st.tuples(queries, params), min_size=1, max_size=3)), min_size=1, max_size=6
)
zones = st.sampled_from([UTC, timezone(timedelta(hours=5, minutes=30)), timezone(timedelta(hours=-11))])
times = st.datetimes(timezones=zones) | st.sampled_from(
    [
        datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=14))),
        datetime(9999, 12, 31, 23, tzinfo=timezone(-timedelta(hours=9))),
    ]
)
fields = st.dictionaries(
    st.sampled_from(["a", "b", "id", "subject", "time", "user_id", "agent_name"]), st.sampled_from(VALUES)
)
events = st.builds(
    lambda data, context, envelope, time: Event.model_construct(
        specversion="1.0",
        id="e1",
        source="/s",
        type="a.b",
        time=time,
        appid="app",
        chatid="chat",
        workflow="W",
        data=data if context is None else {**data, "context": context},
        **{"userid": None, "subject": None, **envelope},
    ),
    fields,
    st.none() | fields,
    st.dictionaries(st.sampled_from(["userid", "subject"]), st.sampled_from(["u", None])),
    times,
)


def workflow_of(described: list[tuple[str | None, list[tuple[str, Any]]]]) -> Workflow:
    mutation_rules = tuple(
        MutationRule(
            name=f"r{number}",
            events=("a.b",),
            condition=condition,
            mutations=tuple(
                Mutation(id=f"m{at}", cypher=cypher, params={"p": param}, place=PLACE)
                for at, (cypher, param) in enumerate(mutations)
            ),
            place=PLACE,
        )
        for number, (condition, mutations) in enumerate(described)
    )
    return compile_workflow("W", GraphInjectionConfig(mutation_rules=mutation_rules))


def function_of(condition: Condition) -> Match:
    """Return the function of a rule with this condition and one mutation without values."""
    (rule,) = workflow_of([(None, [("CREATE (:N {a: 1})", 1)])]).mutation_rules
    return matcher_of(comparisons_of(condition), rule.parts)


def shown(found: MatchResult) -> object:
    mutations = [(each.mutation.rule, each.mutation.id, repr(list(each.params.items()))) for each in found.mutations]
    return mutations, found.skipped, [(each.rule, each.query, repr(each.error)) for each in found.failed]


@given(rules, st.lists(events, min_size=1, max_size=4))
def test_an_event_matches_as_its_conditions_and_sources_say(
    described: list[tuple[str | None, list[tuple[str, Any]]]], happened: list[Event]
) -> None:
    workflow = workflow_of(described)
    rule_set = RuleSet({"W": workflow})
    for event in happened:
        expected = MatchResult()
        for rule in workflow.rules_for(event.type):
            match_rule(rule, event, Scope.of_event(event), expected)
        assert shown(rule_set.match_event(event)) == shown(expected)


numbers = st.sampled_from(["0", "1", "2", "3", "7", "1000", "999999999999999999", "1.0", "0.5", "2.5", "1u", "0x1"])
arithmetic = st.recursive(
    numbers,
    lambda inner: (
        st.tuples(inner, st.sampled_from("+-*/%"), inner).map(" ".join)
        | inner.map("({})".format)
        | inner.map("-{}".format)
    ),
    max_leaves=5,
)
constants = arithmetic | st.sampled_from(["'x'", "'é'", "''", "true", "false", "null", "2 * 4611686018427387904"])
plain_values = (
    st.sampled_from([each for each in VALUES if each != "\ud800"])
    | st.integers()
    | st.integers(-9, 9)
    | st.floats(allow_nan=False)
)


@st.composite
def alike(draw: st.DrawFn) -> list[str]:
    """Conditions that mostly compare one value with constants of one type, so that they are decided together."""
    one = draw(st.sampled_from(["$event.a", "$event.b", "$event.a.b", "$context.a"]))
    own = st.integers(-9, 9).map(str) | st.sampled_from(["1 + 1", "7 / 2", "-7 % 3", "9223372036854775807"])
    of_one = draw(st.sampled_from([own, own.map("{} + 5".format), constants, st.sampled_from(["'x'", "'y'", "'é'"])]))
    ordered = st.tuples(st.just(one), st.sampled_from(SIGNS), of_one).map("".join)
    conjunctions = st.lists(ordered, min_size=1, max_size=2).map(" && ".join)
    found = draw(st.lists(conjunctions | conjunctions.map(f"has({one}) && {{}}".format), min_size=17, max_size=40))
    return [text for text in found if is_condition(text)]


def event_of(data: dict[str, Any]) -> Event:
    """Return an event whose values need not be JSON."""
    return Event.model_construct(
        specversion="1.0", id="e1", source="/s", type="a.b", time=datetime(2026, 1, 1, tzinfo=UTC),
        appid="app", chatid="chat", workflow="W", data=data, userid=None, subject=None,
    )  # fmt: skip


def is_condition(text: str) -> bool:
    try:
        compile_condition(text)
    except ValueError:
        return False
    return True


@given(alike(), st.lists(plain_values, min_size=1, max_size=6))
def test_conditions_that_are_decided_together_match_as_each_alone(texts: list[str], values: list[object]) -> None:
    workflow = workflow_of([(text, [("CREATE (:N {a: $p})", "$event.id")]) for text in texts])
    rule_set = RuleSet({"W": workflow})
    for value in values:
        for data in ({"a": value}, {"b": value}, {"a": {"b": value}}, {"context": {"a": value}}, {}):
            event = event_of(data)
            expected = MatchResult()
            for rule in workflow.rules_for(event.type):
                match_rule(rule, event, Scope.of_event(event), expected)
            assert shown(rule_set.match_event(event)) == shown(expected)


@given(st.sampled_from(SIGNS), constants, st.lists(plain_values, min_size=1, max_size=8))
def test_a_constant_is_what_cel_makes_of_it(sign: str, constant: str, values: list[object]) -> None:
    text = f"$event.a {sign} {constant}"
    if not is_condition(text):
        return
    condition = compile_condition(text)
    function = function_of(condition)
    for value in values:
        event = event_of({"a": value})
        found = function(event, event.data, event.context, None)
        if found is not None:
            assert condition.evaluate(Scope.of_event(event)) == Verdict(holds=bool(found)), value


@pytest.mark.parametrize("value", [1100, 0, 2**63 - 1, -(2**63)])
def test_many_comparisons_of_one_value_need_no_condition(monkeypatch: pytest.MonkeyPatch, value: int) -> None:
    texts = [f"$event.a > 1000 + {number}" for number in range(200)]
    workflow = workflow_of([(text, [("CREATE (:N {a: $p})", "$event.a")]) for text in texts])
    event = Event.create("a.b", app_id="app", chat_id="chat", workflow="W", data={"a": value})
    expected = [f"r{number}" for number in range(200) if value > 1000 + number]
    workflow.mutations_for(event.type, None)
    monkeypatch.setattr(Condition, "evaluate", None)
    monkeypatch.setattr(ConditionGroup, "results", None)
    found = RuleSet({"W": workflow}).match_event(event)
    assert [bound.mutation.rule for bound in found.mutations] == expected


@pytest.mark.parametrize(
    "text",
    [
        f"$event.a {sign} {literal}"
        for sign in ("==", "!=", "<", ">=")
        for literal in ("'x'", "1", "1.0", "true", "''", "999999999999999999", "'é'")
        if sign in ("==", "!=") or literal[0] in "019"
    ]
    + ["has($event.a.b)", "!has($event.a.b)", "has($event.a.0)"],
)
def test_a_function_decides_as_its_condition(text: str) -> None:
    condition = compile_condition(text)
    function = function_of(condition)
    assert function is not undecided
    for value in VALUES:
        event = Event.create("a.b", app_id="app", chat_id="chat", data={"a": value})
        try:
            found = function(event, event.data, event.context, None)
        except (LookupError, TypeError):
            continue
        if found is not None:
            assert condition.evaluate(Scope.of_event(event)) == Verdict(holds=bool(found)), value


@pytest.mark.parametrize(
    ("text", "data", "holds"),
    [
        ("$event.a == 'x' && $event.b == true", {"a": "x", "b": True}, True),
        ("$event.a == 'x' && $event.b == true", {"a": "y", "b": True}, False),
        ("$event.n >= 1.0", {"n": 0.5}, False),
        ("$event.n == 1 && has($event.a)", {"n": 1, "a": None}, True),
        ("!has($event.a.b)", {"a": {"b": 1}}, False),
        ("'x' == $context.a", {"context": {"a": "x"}}, True),
        ("$context.user_id == 'u'", {}, True),
        ("$event.n > 1000 + 5", {"n": 1006}, True),
        ("$event.n > 1000 + 5", {"n": 1005}, False),
        ("$event.n == -(7 % -4) / 2", {"n": -1}, True),
        ("$event.n < 3.5 - 2.0 && $event.n > -1.0", {"n": 0.5}, True),
    ],
)
def test_common_conditions_are_decided_by_functions(text: str, data: dict[str, Any], holds: bool) -> None:
    event = Event.create("a.b", app_id="app", chat_id="chat", user_id="u", data=data)
    found = function_of(compile_condition(text))(event, event.data, event.context, None)
    assert found is not None
    assert bool(found) is holds


@pytest.mark.parametrize(
    "text",
    [
        "$event.a == r'x'", "$event.a == 'a\\n'", "$event.a == '''x'''", "$event.a == 1u", "$event.a == 0x1",
        "$event.a == -1u", "$event.a == 9223372036854775808.0", "$event.a == null", "$event.a < 'x'", "$event.a < true",
        "$event.a == 1 + 1.0", "$event.a == 1 || $event.b == 1", "$event.a == 1 // first", "($event.a == 1)", "true",
        "has($context.user_id)", "$event.a.size() == 1", "$event.a == $event.b", "$event.a", "1 < $event.a",
        "$event.a == 1 ? true : false", "$event.a in [1]", "$event.a > 1 / 0", "$event.a > 1.0 / 0.0",
        "$event.a > 999999999999999999 * 10", "$event.a > 1 + $event.b", "$event.a > 5.0 % 2.0", "$event.a + 1 > 2",
        "$event.b == 1 && $event.a.startsWith('x')",
    ],
)  # fmt: skip
def test_conditions_of_another_form_have_no_function(text: str) -> None:
    assert function_of(compile_condition(text)) is undecided


def test_common_rules_need_no_scope(monkeypatch: pytest.MonkeyPatch) -> None:
    rule_set = RuleSet({"W": workflow_of([("$event.a == 'x'", [("CREATE (:N {a: $p})", {"k": ["$event.a", 1]})])])})
    event = Event.create("a.b", app_id="app", chat_id="chat", workflow="W", data={"a": "x"})
    monkeypatch.setattr(Scope, "of_event", None)
    (bound,) = rule_set.match_event(event).mutations
    assert bound.params == {"p": {"k": ["x", 1]}}


@example(300)
@given(st.integers(50, 150))
@settings(deadline=None, max_examples=5)
def test_a_literal_with_many_levels_is_bound(levels: int) -> None:
    param: Any = "$event.a"
    for _ in range(levels):
        param = [param]
    rule_set = RuleSet({"W": workflow_of([(None, [("CREATE (:N {a: $p})", param)])])})
    event = Event.create("a.b", app_id="app", chat_id="chat", workflow="W", data={"a": "x"})
    (bound,) = rule_set.match_event(event).mutations
    (rule,) = rule_set.workflows["W"].mutation_rules
    assert rule.match is rule.match  # made once, even if it is none
    value = bound.params["p"]
    for _ in range(levels):
        (value,) = value
    assert value == "x"


def test_nothing_of_a_rule_is_read_as_code() -> None:
    name = "__import__('os').abort()"
    described = [(f'$event.a == "{name}"', [("CREATE (:N {a: $p})", {"') or (": "$$event.a}", name: name})])]
    rule_set = RuleSet({"W": workflow_of(described)})  # type: ignore[arg-type]
    event = Event.create("a.b", app_id="app", chat_id="chat", workflow="W", data={"a": name})
    (bound,) = rule_set.match_event(event).mutations
    assert bound.params == {"p": {"') or (": "$event.a}", name: name}}
