from __future__ import annotations

from typing import Any

import pytest

from graphweft_contracts import Event
from graphweft_rules.matching.condition_cost import LoopCost
from graphweft_rules.matching.conditions import ConditionError, Verdict, compile_condition
from graphweft_rules.matching.parameters import Scope

CONTEXT = {"phase": "planning", "n": 3, "none": None, "user": {"id": "u1"}, "tags": ["a", {"b": 1}]}


def scope(context: dict[str, Any] = CONTEXT) -> Scope:
    data = {"agent_name": "A", "success": True}
    return Scope.of_event(
        Event.create("agent.turn_complete", app_id="app", chat_id="c", workflow="Flow", data=data, context=context)
    )


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("$context.phase == 'planning'", True),
        ("$event.success == true", True),
        ("$event.success", True),
        ("!$event.success", False),
        ("$workflow.name == 'Flow' && $workflow.chat_id != 'x'", True),
        ("$context.user.id in ['u1', 'u2']", True),
        ("$context.phase.startsWith ('plan')", True),
        ("$context.tags[0] == 'a' && $context.tags[1].b == 1", True),
        ("$context.tags.0 == 'a'", True),
        ("$context.n-1 == 2", True),
        ("size($context.tags) > 1 ? $context.n > 2 : false", True),
        ("$context.none == null", True),
        ("$context.n > 2.5 && type($context.phase) == string", True),
        ("$context.tags.exists(v0, v0 == $context.phase || v0 == 'a')", True),
        # The library evaluates only what it needs.
        ("$context.missing || true", True),
        ("$context.missing == 1 || $event.success", True),
        ("$event.success || $context.missing == 1", True),
        ("$context.missing && false", False),
        ("has($context.missing)", False),
        ("has($context.missing) && $context.missing == 1", False),
        ("!has( $context.user.none ) && has($context.user.id)", True),
        ("has($context.none)", True),
        # Nothing inside strings is a reference.
        ("'$context.phase' == \"$context\" + '.phase'", True),
        ("r'$context.x\\' == '$context.x\\\\'", True),
        ("'''it's $context.x''' == \"it's $context.x\"", True),
        ("'it\\'s $x' != $context.phase // $nothing", True),
    ],
)
def test_conditions(text: str, holds: bool) -> None:
    assert compile_condition(text).evaluate(scope()) == Verdict(holds=holds)


@pytest.mark.parametrize(
    ("text", "missing"),
    [
        ("$context.missing == 1", ("$context.missing",)),
        ("$context.missing == null", ("$context.missing",)),
        ("$event.success && $context.user.none", ("$context.user.none",)),
        ("$context.a == $context.b", ("$context.a", "$context.b")),
        ("$context.missing.startsWith('x')", ("$context.missing",)),
    ],
)
def test_what_is_missing_is_named(text: str, missing: tuple[str, ...]) -> None:
    assert compile_condition(text).evaluate(scope()) == Verdict(holds=False, missing=missing)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("$context.n", "'int'"),
        ("$context.n > 'secret'", "types"),
        ("$context.n / 0 == 1", "zero"),
        ("$context.n * 9223372036854775807 > 1", "range"),
        ("$context.tags[9] == 1", "index"),
        ("$context.user['secret'] == 1", "key"),
        ("timestamp($context.phase) == timestamp($context.phase)", "arguments"),
        ("$context.phase.matches('(')", "arguments"),
    ],
)
def test_failures_are_false_and_quote_no_value(text: str, error: str) -> None:
    verdict = compile_condition(text).evaluate(scope())
    assert (verdict.holds, verdict.missing) == (False, ())
    assert verdict.error is not None
    assert error in verdict.error
    assert "planning" not in verdict.error
    assert "secret" not in verdict.error


@pytest.mark.parametrize("value", [10**400, object(), {(1, 2): 3}, "\ud800", {1, 2}])
def test_values_that_cel_cannot_take_are_an_error_not_an_exception(value: Any) -> None:
    verdict = compile_condition("$context.x == 1").evaluate(scope({"x": value}))
    assert verdict.holds is False
    assert "type or size" in str(verdict.error)


@pytest.mark.parametrize(
    ("text", "column", "hint"),
    [
        ("context.phase == 'x'", 1, "write '$context.phase'"),
        ("true || event.a.b == 1", 9, "write '$event.a.b'"),
        ("$context.a == phase", 15, "'$context.phase' or '$event.phase'"),
        ("v0 == $context.a", 1, "'v0'"),
        (" $contxt.a == 1", 2, "did you mean '$context.a'?"),
        ("$context == 1", 1, "has no field"),
        ("$workflow.nme == 1", 1, "did you mean '$workflow.name'?"),
        ("has($contxt.x)", 5, "did you mean '$context.x'?"),
        ("$context.phase == 'x' && && true", 26, "'&&'"),
        ("$context.phase = 'x'", 16, "for '=' write '=='"),
        ("$context.phase ==", 18, "ends too early"),
        ("$context.one $context.two", 14, "'$context.two'"),
        ("", 1, "empty"),
        ("$context.a.startWith('x')", 12, "did you mean 'startsWith'?"),
        ("$", 1, "'$context'"),
    ],
)
def test_mistakes_have_a_column(text: str, column: int, hint: str) -> None:
    with pytest.raises(ConditionError) as caught:
        compile_condition(text)
    assert hint in str(caught.value)
    assert caught.value.column == column
    assert "\n" not in str(caught.value)
    assert "v0" not in str(caught.value) or "v0" in text


@pytest.mark.parametrize(
    ("text", "column", "advice"),
    [
        ("$event.success = false", 16, "for '=' write '=='"),
        ("$event.success === false", 16, "for '===' write '=='"),
        ("$event.a <> 'x'", 10, "for '<>' write '!='"),
        ("$event.a == 1 and $event.b == 2", 15, "for 'and' write '&&'"),
        ("$event.a == 1 OR $event.b == 2", 15, "for 'OR' write '||'"),
        ("not $event.a", 1, "for 'not' write '!'"),
        ("$event.a is None", 10, "for 'is' write '=='"),
        ("$event.a == None", 13, "for 'None' write 'null'"),
        ("$event.a == True", 13, "for 'True' write 'true'"),
        ("len($event.a) > 2", 1, "did you mean 'size'?"),
    ],
)
def test_what_other_languages_write_is_told_in_cel(text: str, column: int, advice: str) -> None:
    with pytest.raises(ConditionError) as caught:
        compile_condition(text)
    assert advice in str(caught.value)
    assert caught.value.column == column


def values(**data: Any) -> Scope:
    return Scope.of_event(Event.create("a.b", app_id="app", chat_id="c", workflow="Flow", data=data))


XS = list(range(3_000))
LOOPS = [
    "$event.xs.all(x, $event.xs.all(y, y >= 0))",
    "$event.xs.map(x, x).size() > 0",
    "$event.xs.filter(x, x >= 0).size() > 0",
    "$event.xs.filter(x, x < 0).size() == 0 && $event.xs.exists(x, x in $event.xs + $event.xs + [x])",
    "$event.xs.all(x, 'aa'.matches($event.pattern))",
    "$event.xs.all(x, // two\n $event.xs.all(y, y >= 0) // loops\n)",
]


@pytest.mark.parametrize("text", LOOPS)
def test_loops_end_after_500000_steps(text: str) -> None:
    condition = compile_condition(text)
    verdict = condition.evaluate(values(xs=XS, pattern="a+"))
    assert (verdict.holds, verdict.missing) == (False, ())
    assert (verdict.error or "").startswith("its loops need more than 500000 steps")
    assert condition.evaluate(values(xs=XS[:40], pattern="a+")) == Verdict(holds=True)


@pytest.mark.parametrize("text", LOOPS)
def test_counting_the_steps_does_not_change_the_result(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LoopCost, "is_small", lambda *_: False)
    assert compile_condition(text).evaluate(values(xs=XS[:40], pattern="a+")) == Verdict(holds=True)


@pytest.mark.parametrize(
    "text",
    [
        "$event.xs.all(x, x >= 0)",
        "$event.xs.exists_one(x, x == $event.k)",
        "$event.xs.all(x, x in $event.xs)",
        "$event.items.all(i, i.tags.exists(t, t == i.kind))",  # their lists do not multiply
        "$event.k == 0 || $event.xs.all(x, $event.xs.all(y, y >= 0))",
        "has($event.no) && $event.xs.all(x, $event.xs.all(y, y >= 0)) || true",
    ],
)
def test_loops_whose_steps_do_not_multiply_may_be_long(text: str) -> None:
    given = values(xs=XS, k=0, items=[{"tags": ["a", "b"], "kind": "b"}] * 3_000)
    assert compile_condition(text).evaluate(given) == Verdict(holds=True)


def test_what_the_values_hold_counts_in_inner_loops() -> None:
    condition = compile_condition("$event.xs.all(x, $event.ys.all(y, !x.contains(y)))")
    assert condition.evaluate(values(xs=["a" * 100] * 100, ys=["b"] * 100)).holds
    assert condition.evaluate(values(xs=["a" * 900_000] * 1, ys=["b"] * 10_000)).error is not None
