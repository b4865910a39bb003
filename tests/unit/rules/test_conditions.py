from __future__ import annotations

from typing import Any

import pytest

from graphweft_contracts import Event
from graphweft_rules.matching.condition_cost import MOST_STEPS, ConditionCost, ConditionValues, StepCounter
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
MAP = {str(number): 1 for number in range(44)}
DEAR: list[tuple[str, dict[str, Any]]] = [
    ("$event.xs.all(x, $event.xs.all(y, y >= 0))", {"xs": XS}),
    ("$event.xs.all(x, // two\n $event.xs.all(y, y >= 0) // loops\n)", {"xs": XS}),
    ("$event.xs.exists(x, $event.ys.exists(y, y == x))", {"xs": XS[:700], "ys": XS[700:1_400]}),
    ("$event.a.all(x, $event.a.all(y, $event.a.all(z, x + y + z >= 0)))", {"a": XS[:79]}),
    ("$event.a[0][0].all(x, $event.a[0][0].all(y, true))", {"a": [[XS[:300]]]}),
    # What ``filter`` and ``map`` have found is copied at each item, with all that it holds.
    ("$event.xs.map(x, x).size() > 0", {"xs": XS}),
    ("$event.xs.filter(x, x >= 0).size() > 0", {"xs": XS}),
    ("$event.l.filter(a, a.ok == true).size() > 3", {"l": [{"ok": True, "c": MAP}] * 2_650}),
    ("$event.l.filter(a, a.ok == true).size() > 3", {"l": [{"ok": True}] * 2_500}),
    ("$event.l.map(a, a.c).size() > 3", {"l": [{"ok": True, "c": MAP}] * 100}),
    ("$event.a.map(x, $event.b).size() > 3", {"a": XS[:2_600], "b": XS * 10}),
    ("$event.xs.map(x, x > 3, [x]).size() > 0", {"xs": XS}),
    ("$event.m.map(k, $event.m[k]).size() > 1", {"m": {str(number): [1] * 30 for number in range(300)}}),
    ("$event.xs.filter(x, $event.xs.filter(y, y == x).size() == 1).size() > 0", {"xs": XS[:200]}),
    # Texts and lists that grow.
    ("$event.tags.map(x, x + $event.b).exists(y, y == 'zz')", {"tags": ["x"] * 1_000, "b": "b" * 300_000}),
    ("$event.tags.all(x, $event.tags.all(y, (x + y) != ''))", {"tags": ["x" * 1_000] * 400}),
    ("[$event.b, $event.b].map(x, x + x + x).map(x, x + x + x).map(x, x + x + x) != []", {"b": "b" * 900_000}),
    (" + ".join(["$event.b"] * 200) + " == 'x'", {"b": "b" * 900_000}),
    (" + ".join(["$event.b"] * 200) + " == [1]", {"b": XS * 10}),
    ("$event.xs.all(x, [x, $event.b] != [])", {"xs": XS, "b": XS}),
    ("$event.xs.map(x, {'k': x, 'l': [x, x]}).size() > 0", {"xs": [MAP] * 100}),
    # Operators that read much.
    ("$event.xs.filter(x, x < 0).size() == 0 && $event.xs.all(x, x in $event.xs + $event.xs + [x])", {"xs": XS}),
    ("$event.xs.exists(x, x in $event.b)", {"xs": ["y"] * 2_000, "b": ["z"] * 2_000}),
    ("$event.a.exists(x, x == $event.b)", {"a": [XS] * 13, "b": XS}),
    ("$event.xs.all(x, !$event.b.contains(x))", {"xs": ["y"] * 1_000, "b": "z" * 500_000}),
    ("$event.xs.all(x, $event.b[0].c.size() > 0)", {"xs": XS, "b": [{"c": XS}]}),
    ("duration($event.b) == duration('1h')", {"b": "1h" * 400_000}),
    ("$event.xs.all(x, duration(x) == duration('1h'))", {"xs": ["1h"] * 3_000}),
    # Patterns.
    ("$event.s.matches($event.p)", {"s": "a" * 5_000, "p": "(?:a{1,50}){1,50}c"}),
    ("$event.xs.all(x, 'aa'.matches($event.p))", {"xs": XS, "p": "a+"}),
    ("$event.ps.exists(p, 'aa'.matches(p))", {"ps": ["\\w{1,30}c"] * 9}),
    ("'aa'.matches('^' + $event.p)", {"p": "(?:\\w{1,30}){1,10}"}),
    ("$event.s.matches('(?:a{1,50}){1,50}c')", {"s": "a" * 5_000}),
    ("$event.s.matches(r'(.*)(.*)(.*)=x')", {"s": "word " * 40_000}),
    # Values whose conversion alone takes too long.
    ("size($event.l) > 3", {"l": [MAP] * 2_650}),
    ("$event.a == $event.b", {"a": [1.5] * 40_000, "b": [1.5] * 40_000}),
    ("$event.xs.all(x, x >= 0)", {"xs": XS * 30}),
    ("'x' in $event.m", {"m": dict.fromkeys(map(str, range(20_000)))}),
]
OVER = f"it needs more than {MOST_STEPS} steps"


@pytest.mark.parametrize(("text", "given"), DEAR)
def test_a_condition_ends_after_20000_steps(text: str, given: dict[str, Any]) -> None:
    verdict = compile_condition(text).evaluate(values(**given))
    assert (verdict.holds, verdict.missing) == (False, ())
    assert (verdict.error or "").startswith(OVER)


@pytest.mark.parametrize(("text", "given"), DEAR)
def test_a_refused_condition_has_not_cost_more(text: str, given: dict[str, Any]) -> None:
    """Each value that an evaluation has made was counted before, so that what it holds in memory is bounded, too."""
    condition = compile_condition(text)
    found = ConditionValues.of({name: reference.resolve(values(**given)) for name, reference in condition.variables})
    assert found.steps <= MOST_STEPS
    if condition.counted is None or not found.is_whole:
        return
    counter = StepCounter(condition.cost, found.bound(condition.cost), found.steps)
    calls: list[bool] = []

    def call(*arguments: Any) -> object:
        calls.append(counter.is_over)
        return counter.call(*arguments)

    if not counter.is_over:
        with pytest.raises((TypeError, RuntimeError)):
            condition.counted.run(found.values, call)
        assert not any(calls)  # the first call beyond the limit is the last one


@pytest.mark.parametrize(
    ("text", "given"),
    [
        ("$event.xs.all(x, x >= 0)", {"xs": XS}),
        ("$event.xs.all(x, $event.xs.all(y, y >= 0))", {"xs": XS[:100]}),
        ("$event.xs.map(x, x).size() > 0", {"xs": XS[:200]}),
        ("$event.xs.filter(x, x < 0).size() == 0", {"xs": XS}),  # nothing found, nothing copied
        ("$event.xs.filter(x, x < 9).map(x, x + 1) == [1, 2, 3, 4, 5, 6, 7, 8, 9]", {"xs": XS[:1_000]}),
        ("$event.xs.exists_one(x, x == $event.k)", {"xs": XS, "k": 0}),
        ("$event.xs.all(x, x in $event.xs)", {"xs": XS[:200]}),
        ("$event.items.all(i, i.tags.exists(t, t == i.kind))", {"items": [{"tags": ["a", "b"], "kind": "b"}] * 300}),
        ("$event.xs.all(x, 'aa'.matches($event.p))", {"xs": XS[:40], "p": "a+"}),
        ("$event.s.matches('(?i)refund|chargeback|dispute')", {"s": "word " * 4_000 + "Refund"}),
        ("$event.s.contains('word')", {"s": "word " * 200_000}),
        ("$event.s == $event.s", {"s": "word " * 200_000}),
        ("size($event.s) > 3 && $event.s.startsWith('w')", {"s": "word " * 200_000}),
        ("$event.m.last == 3", {"m": {"list": XS, "last": 3}}),
        # Without what is too large, the rest decides.
        ("$event.k == 0 || $event.xs.all(x, $event.xs.all(y, y >= 0))", {"xs": XS, "k": 0}),
        ("$event.k == 0 || size($event.l) > 3", {"l": [MAP] * 2_650, "k": 0}),
        ("$event.k == 0 || $event.s + $event.s + $event.s != 'x'", {"s": "word " * 2_000_000, "k": 0}),
        ("$event.k == 0 ? true : $event.s.matches('(?:a{1,50}){1,50}c')", {"s": "a" * 5_000, "k": 0}),
        ("has($event.no) && $event.xs.all(x, $event.xs.all(y, y >= 0)) || true", {"xs": XS}),
    ],
)
def test_conditions_within_the_limit_hold(text: str, given: dict[str, Any]) -> None:
    assert compile_condition(text).evaluate(values(**given)) == Verdict(holds=True)


@pytest.mark.parametrize(
    "text",
    [
        *dict.fromkeys(text for text, _ in DEAR if compile_condition(text).counted is not None),
        "$event.k == 0 ? $event.xs == [1] : $event.k == 1 ? $event.xs != [1] : $event.b in [$event.b] // end",
        "[1, 2, 3].filter(x, x > 1 && (x == 2 || x in $event.xs)).map(x, [x].map(y, y + x)) == [[4], [6]] // end",
        "[[1], [2]].filter(x, x.filter(y, y > 1).size() > 0) == [[2]]",
        "({'a': [1, 2,], 'b': []}).map(k, k).size() == 2 && -($event.k) == -1 && !(1 in [2]) && b'a' == b'a'",
        "[1].all(x, [2].all(x, x == 2) && x == 1)",
    ],
)
def test_counting_does_not_change_the_result(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    some = {
        "xs": [1],
        "b": "2h",
        "s": "a",
        "p": "a",
        "m": {"a": [1]},
        "k": 1,
        "a": [[[1]]],
        "l": [{"ok": 1, "c": 2}],
        "items": [],
    }
    given = values(**some, tags=["a"], ps=["a"], ys=[1])
    expected = compile_condition(text).evaluate(given)
    monkeypatch.setattr(ConditionCost, "is_small", lambda *_: False)
    monkeypatch.setattr(ConditionValues, "is_within", lambda *_: False)
    assert compile_condition(text).evaluate(given) == expected
