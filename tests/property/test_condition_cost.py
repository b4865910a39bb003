"""Whatever a condition and its values are: counting changes no result, and no bound is less than what is counted."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from graphweft_contracts import Event
from graphweft_rules.matching.condition_cost import Given, StepCounter
from graphweft_rules.matching.conditions import Condition, compile_condition
from graphweft_rules.matching.parameters import Scope

scalars = st.sampled_from([0, 1, 2, -1, True, False, None, 1.5, "", "a", "b", "ab", "a" * 300, "1h"])
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(st.sampled_from(["a", "b", "c"]), inner, max_size=3),
    max_leaves=12,
)
_NAMES = ["$event.x", "$event.y", "$event.z"]
_OPERATORS = ["+", "-", "*", "==", "!=", "<", ">=", "in", "&&", "||"]
_LOOPS = ["all", "exists", "exists_one", "filter", "map"]
_METHODS = ["contains", "startsWith", "endsWith", "matches"]


@st.composite
def expressions(draw: st.DrawFn, depth: int = 3, bound: tuple[str, ...] = ()) -> str:
    """Return an expression with any operators; nearly all are valid, many of the wrong type."""
    if depth == 0:
        literals = ["1", "0", "true", "null", "'a'", '"b"', "r'a+'", "[1, 2]", "{'a': [1]}", "[]", "1.5"]
        return draw(st.sampled_from([*_NAMES, *bound, *bound, *literals]))
    inner = expressions(depth - 1, bound)
    kind = draw(st.sampled_from(["operator", "loop", "loop", "choice", "method", "list", "unary", "access", "leaf"]))
    if kind == "operator":
        return f"({draw(inner)} {draw(st.sampled_from(_OPERATORS))} {draw(inner)})"
    if kind == "loop":
        name = f"i{depth}{len(bound)}"
        body = draw(expressions(depth - 1, (*bound, name)))
        return f"{draw(inner)}.{draw(st.sampled_from(_LOOPS))}({name}, {body})"
    if kind == "choice":
        return f"({draw(inner)} ? {draw(inner)} : {draw(inner)} // so\n)"
    if kind == "method":
        return f"{draw(inner)}.{draw(st.sampled_from(_METHODS))}({draw(inner)})"
    if kind == "list":
        return draw(st.sampled_from(["[{}, {}]", "{{'k': {}, 'l': {}}}", "size({}) + {}"])).format(
            draw(inner), draw(inner)
        )
    if kind == "unary":
        return f"{draw(st.sampled_from(['!', 'string', 'size', 'dyn', 'duration']))}({draw(inner)})"
    if kind == "access":
        return draw(inner) + draw(st.sampled_from(["[0]", ".a", "['a']", "[1].b"]))
    return draw(expressions(0, bound))


def outcome(condition: Condition, given: Given, call: Any = None) -> object:
    try:
        if call is None or condition.counted is None:
            found = condition.program.execute(given.values)
        else:
            found = condition.counted.run(given.values, call)
    except (RuntimeError, TypeError, ArithmeticError, LookupError, ValueError) as error:
        return type(error).__name__
    return repr(found)


@given(expressions(), values, values, values)
def test_a_condition_never_costs_more_than_its_bound(text: str, x: object, y: object, z: object) -> None:
    condition = compile_condition(text)
    event = Event.create("a.b", app_id="app", chat_id="c", workflow="W", data={"x": x, "y": y, "z": z})
    scope = Scope.of_event(event)
    given = Given.of({name: reference.resolve(scope) for name, reference in condition.variables})
    bound = given.bound(condition.cost)
    counter = StepCounter(condition.cost, bound, given.steps)
    counted = outcome(condition, given, counter.call)
    assert counter.spent <= bound.total + given.steps * 16
    if not counter.is_over:
        assert counted == outcome(condition, given)
    if condition.cost.is_small(given.values.values()):
        assert given.is_within(bound)
