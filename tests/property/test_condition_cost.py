"""Whatever a condition and its values are: counting changes no result, and no evaluation costs more than its bound."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from hypothesis import given
from hypothesis import strategies as st

from graphweft_contracts import Event
from graphweft_rules.matching.condition_cost import ConditionValues, StepCounter
from graphweft_rules.matching.conditions import Condition, compile_condition
from graphweft_rules.matching.parameters import Scope

NUMBER, TEXT, NUMBERS, TEXTS, TRUTH = "number", "text", "numbers", "texts", "truth"
LEAVES: Final = {
    NUMBER: ["0", "1", "$event.n", "$event.m.a"],
    TEXT: ["'a'", '"b"', "$event.s", "$event.m['b']"],
    NUMBERS: ["$event.xs", "[1, 2]", "$event.m.c"],
    TEXTS: ["$event.ys", "['a', \"b\"]"],
    TRUTH: ["true", "false", "$event.t", "has($event.no)", "$event.no == 1"],
}
FORMS: Final = {
    NUMBER: [
        "({number} + {number})",
        "{number} - {number}",
        "size({numbers})",
        "{texts}.size()",
        "({truth} ? {number} : 2)",
    ],
    TEXT: ["({text} + {text})", "string({number})", "({truth} ? {text} : {text} // so\n)", "{texts}[0]"],
    NUMBERS: ["[{number}, {number}]", "({numbers} + {numbers})", "LOOP"],
    TEXTS: ["[{text}]", "({texts} + {texts})", "LOOP"],
    TRUTH: [
        "{number} < {number}",
        "{text} == {text}",
        "{numbers} != {numbers}",
        "({number} in {numbers})",
        "({text} in {texts})",
        "{text}.contains({text})",
        "{text}.startsWith({text})",
        "{text}.matches(r'a+')",
        "{text}.matches({text})",
        "({truth} && {truth})",
        "({truth} || {truth} || {truth})",
        "!({truth})",
        "[{truth}, {truth}].exists(e, e)",
        "{{'k': {numbers}}}.all(k, k == {text})",
        "LOOP",
        "LOOP",
        "LOOP",
    ],
}
FIELDS: Final = {name: f"{{{name}}}" for name in FORMS}


@st.composite
def expressions(draw: st.DrawFn, kind: str = TRUTH, depth: int = 4, bound: tuple[tuple[str, str], ...] = ()) -> str:
    """Return an expression of a type; ``bound`` are the variables of loops around it, with their types."""
    if depth == 0 or draw(st.integers(0, 9)) == 0:
        return draw(st.sampled_from([*LEAVES[kind], *(name for name, of in bound * 4 if of == kind)]))
    form = draw(st.sampled_from(FORMS[kind]))
    if form != "LOOP":
        parts = form
        for name, field in FIELDS.items():
            while field in parts:
                parts = parts.replace(field, draw(expressions(name, depth - 1, bound)), 1)
        return parts.replace("{{", "{").replace("}}", "}")
    over = draw(st.sampled_from([NUMBERS, TEXTS]))
    variable = f"i{len(bound)}"
    within = (*bound, (variable, NUMBER if over == NUMBERS else TEXT))
    items = draw(expressions(over, depth - 1, bound))
    if kind == TRUTH:
        loop, body = draw(st.sampled_from(["all", "exists", "exists_one"])), draw(expressions(TRUTH, depth - 1, within))
        return f"{items}.{loop}({variable}, {body})"
    if draw(st.booleans()):
        items = draw(expressions(kind, depth - 1, bound))
        within = (*bound, (variable, NUMBER if kind == NUMBERS else TEXT))
        return f"{items}.filter({variable}, {draw(expressions(TRUTH, depth - 1, within))} // so\n)"
    made = draw(expressions(NUMBER if kind == NUMBERS else TEXT, depth - 1, within))
    if draw(st.booleans()):
        return f"{items}.map({variable}, {made})"
    return f"{items}.map({variable}, {draw(expressions(TRUTH, depth - 1, within))}, {made})"


texts = st.sampled_from(["", "a", "b", "ab", "a" * 300, "\\w{3}", "(a|b)*"])
numbers = st.integers(-2, 3)
payloads = st.fixed_dictionaries(
    {
        "n": numbers,
        "s": texts,
        "t": st.booleans(),
        "xs": st.lists(numbers, max_size=6),
        "ys": st.lists(texts, max_size=6),
        "m": st.fixed_dictionaries({"a": numbers, "b": texts, "c": st.lists(numbers, max_size=3)}),
    }
)


def outcome(condition: Condition, values: dict[str, object], call: Callable[..., object] | None = None) -> object:
    try:
        if call is None or condition.counted is None:
            return condition.program.execute(values)
        return condition.counted.run(values, call)
    except (RuntimeError, TypeError, ArithmeticError, LookupError, ValueError) as error:
        return type(error).__name__


@given(expressions(), payloads)
def test_a_condition_costs_no_more_than_its_bound(text: str, payload: dict[str, object]) -> None:
    condition = compile_condition(text)
    scope = Scope.of_event(Event.create("a.b", app_id="app", chat_id="c", workflow="W", data=payload))
    values = {name: reference.resolve(scope) for name, reference in condition.variables if "no" not in reference.path}
    values |= {name: False for name, _ in condition.presences}
    found = ConditionValues.of(values)
    bound = found.bound(condition.cost)
    counter = StepCounter(condition.cost, bound, found.steps)
    counted = outcome(condition, found.values, counter.call)
    assert counter.spent <= bound.total + found.steps * 16
    if not counter.is_over:
        assert counted == outcome(condition, found.values)
    if condition.cost.is_small(values.values()):
        assert found.is_within(bound)


def test_a_loop_costs_its_items() -> None:
    """A bound of nothing would hold above, too."""
    condition = compile_condition("$event.xs.all(x, $event.xs.all(y, x + y >= 0))")
    found = ConditionValues.of({name: list(range(10)) for name, _ in condition.variables})
    bound = found.bound(condition.cost)
    counter = StepCounter(condition.cost, bound, found.steps)
    assert outcome(condition, found.values, counter.call) is True
    assert 100 * 16 < counter.spent <= bound.total + found.steps * 16 < 400 * 16
