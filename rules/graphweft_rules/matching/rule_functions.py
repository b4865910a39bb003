"""Mutation rules as Python functions: nearly all that rules need of an event are a few look-ups in its payload.

``matcher_of`` makes a function of a rule whose condition compares references with constants, and ``group_decider_of``
one of many such conditions. Each is one Python expression, in which names and literals of the rule are constants. These
functions decide in the plain case alone. If a value is missing, is of another type than its constant or lies in a list,
they leave the decision to ``Condition`` and ``ParameterSource``, which also word what is wrong.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import isfinite
from typing import Any, Final

from graphweft_rules.matching.clock import clock_values, utc_text, uuid_values
from graphweft_rules.matching.conditions import PLAIN_TEXT, Condition, conjunction
from graphweft_rules.matching.mutation import BoundMutation, CompiledMutation
from graphweft_rules.matching.parameters import (
    EventView,
    ListSource,
    LiteralSource,
    MapSource,
    ParameterSource,
    Reference,
    has_path,
)

type Values = Mapping[str, Any]
type Match = Callable[[EventView, Values, Values, str | None], tuple[BoundMutation, ...] | None]
"""Takes an event, its payload, context variables and agent, and returns the mutations of a rule for it.

None or an error: the condition and the sources of the rule decide.
"""
type DecideGroup = Callable[[EventView, Values, Values, str | None], tuple[bool, ...] | None]
"""Takes the same, and decides many conditions. None or an error: each condition decides."""

_EVENT: Final = {
    "id": "event.id",
    "source": "event.source",
    "type": "event.type",
    "subject": "given(event.subject)",
    "time": "utc_text(event.time)",
    "timestamp": "utc_text(event.time)",
}
_WORKFLOW: Final = {
    "name": "given(event.workflow)",
    "app_id": "event.appid",
    "chat_id": "event.chatid",
    "user_id": "given(event.userid)",
}
_CONTEXT: Final = {
    "app_id": "event.appid",
    "chat_id": "event.chatid",
    "user_id": "given(event.userid)",
    "workflow_name": "given(event.workflow)",
    "agent_name": "given(agent)",
}
_ROOTS: Final = {"event": ("data", _EVENT), "context": ("context", _CONTEXT), "workflow": ("", _WORKFLOW)}
"""By root: the variable with its values, and expressions for the fields that these lack, as in ``parameters``."""
_INTEGER: Final = re.compile(r"0|[1-9][0-9]{0,17}")
_DECIMAL: Final = re.compile(r"[0-9]{1,15}\.[0-9]{1,15}")
_ARITHMETIC: Final = frozenset("+-*/%()")
_EQUAL: Final = ("==", "!=")
_ORDERED: Final = ("<", "<=", ">", ">=")
_PRESENT: Final = "has"
_ABSENT: Final = "!has"


class _OtherForm(Exception):
    """A condition has a part for which there is no function."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """An operand of a conjunction that a function can decide."""

    path: str
    """The reference."""
    sign: str
    constant: str | float | None = None
    """What the value is compared with; None for ``has`` and ``!has``."""


def comparisons_of(condition: Condition) -> tuple[Comparison, ...] | None:
    """Return the comparisons that ``&&`` joins in a condition; None for a condition of another form."""
    try:
        return tuple(_comparison(operand) for operand in conjunction(condition.text)) or None
    except _OtherForm:
        return None


def matcher_of(comparisons: Iterable[Comparison] | None, parts: Iterable[CompiledMutation]) -> Match:
    """Return the function of a rule with a condition and mutations; ``undecided`` for a condition of another form.

    ``comparisons`` are those of the condition, none at all if the rule has none.
    """
    if comparisons is None:
        return undecided
    code = _Code()
    decided = code.conjunction(comparisons)
    bound = code.mutations(parts)
    found: Match
    try:
        found = code.function(f"({bound} if {decided} else ()) if {code.is_plain} else None" if decided else bound)
    except (SyntaxError, RecursionError, MemoryError):  # a literal with a hundred levels
        return undecided
    return found


def group_decider_of(conditions: Iterable[tuple[Comparison, ...]]) -> DecideGroup:
    """Return the function that decides conditions in their order, and looks each value up once.

    They should have the same ``plain_case``, because it decides none of them if one of their values is not plain.
    """
    code = _Code()
    decided = "".join(f"{code.conjunction(each)}, " for each in conditions)
    found: DecideGroup = code.function(f"({decided}) if {code.is_plain} else None")
    return found


def plain_case(comparisons: Iterable[Comparison]) -> frozenset[tuple[str, type]]:
    """Return the references of comparisons, each with the type that its value needs."""
    return frozenset((each.path, type(each.constant)) for each in comparisons if each.constant is not None)


def uuids_of(part: CompiledMutation, event: EventView) -> dict[str, str]:
    """Return the values of the calls of ``randomUUID()`` of a mutation."""
    return uuid_values(part.cypher.uuids, f"{event.source}\n{event.id}\n{part.rule}\n{part.id}")


def undecided(_event: EventView, _data: Values, _context: Values, _agent: str | None) -> None:
    """Decide nothing: the function of a rule that has none of its own."""


def _given[T](value: T | None) -> T:
    if value is None:
        raise LookupError
    return value


def _checked() -> None:
    """Leave the binding to ``ParameterSource``: the values of the mutations are to be checked."""
    raise LookupError


def _root(reference: Reference) -> str:
    return reference.absent.name.removeprefix("$").split(".")[0]


def _is_number(text: str) -> bool:
    return bool(_INTEGER.fullmatch(text) or _DECIMAL.fullmatch(text))


def _literal(kind: str, text: str) -> str | float:
    if kind == "text" and PLAIN_TEXT.fullmatch(text):
        return text[1:-1]
    if kind == "number" and _INTEGER.fullmatch(text):
        return int(text)
    if kind == "number" and _DECIMAL.fullmatch(text):
        return float(text)
    if kind == "name" and text in ("true", "false"):
        return text == "true"
    raise _OtherForm


def _comparison(operand: Sequence[tuple[str, str]]) -> Comparison:
    match operand:
        case [("has", path)]:
            return _presence(path, _PRESENT)
        case [("other", "!"), ("has", path)]:
            return _presence(path, _ABSENT)
        case [("reference", path), ("other", first), ("other", "="), *constant]:
            return _compared(path, f"{first}=", _constant(constant))
        case [("reference", path), ("other", sign), *constant]:
            return _compared(path, sign, _constant(constant))
        case [*constant, ("other", "="), ("other", "="), ("reference", path)]:
            return _compared(path, "==", _constant(constant))
        case _:
            raise _OtherForm


def _presence(path: str, sign: str) -> Comparison:
    reference = Reference.parse(path)
    if reference.path[0] in _ROOTS[_root(reference)][1]:  # it may come from the envelope
        raise _OtherForm
    return Comparison(path, sign)


def _compared(path: str, sign: str, constant: str | float) -> Comparison:
    if sign not in (_EQUAL if type(constant) in (str, bool) else (*_EQUAL, *_ORDERED)):
        raise _OtherForm
    return Comparison(path, sign, constant)


def _constant(tokens: Sequence[tuple[str, str]]) -> str | float:
    """Return the value of a literal, or of arithmetic with numbers."""
    if len(tokens) == 1:
        return _literal(*tokens[0])
    for kind, text in tokens:
        if not (text in _ARITHMETIC if kind == "other" else kind == "number" and _is_number(text)):
            raise _OtherForm
    return _arithmetic(" ".join(text for _, text in tokens))


@lru_cache(maxsize=1_024)
def _arithmetic(text: str) -> float:
    """Return what CEL makes of an expression without references."""
    import cel

    try:
        found: Any = cel.compile(text).execute({})
    except (RuntimeError, TypeError, ArithmeticError, ValueError):  # the condition reports it for each event
        raise _OtherForm from None
    if type(found) not in (int, float) or not isfinite(found):
        raise _OtherForm
    number: float = found
    return number


class _Code:
    """Writes an expression; its constants have names, so nothing of a rule is read as Python."""

    def __init__(self) -> None:
        self._names: dict[str, Any] = {
            "__builtins__": {},
            **{each.__name__: each for each in (BoundMutation, clock_values, utc_text, has_path)},
            **{each.__name__: each for each in (type, str, int, float, bool)},
            "uuids": uuids_of,
            "given": _given,
            "checked": _checked,
        }
        self._plain: dict[tuple[str, type], tuple[str, str]] = {}
        """Reference and type of a value -> its name, and the test that names it."""

    def function(self, expression: str) -> Any:
        """Return the function with this result."""
        return eval(f"lambda event, data, context, agent: {expression}", self._names)

    def constant(self, value: object) -> str:
        """Return the name of a value."""
        name = f"c{len(self._names)}"
        self._names[name] = value
        return name

    def mutations(self, parts: Iterable[CompiledMutation]) -> str:
        """Return the expression of the bound mutations of a rule."""
        given = tuple(parts)
        if any(part.cypher.ranges for part in given):
            return "checked()"
        return f"({''.join(f'{self._mutation(part)}, ' for part in given)})"

    def _mutation(self, part: CompiledMutation) -> str:
        items = [f"{self.constant(name)}: {self.value(source)}" for name, source in part.sources]
        if part.cypher.clock:
            items.append(f"**clock_values({self.constant(part.cypher.clock)}, event.time)")
        if part.cypher.uuids:
            items.append(f"**uuids({self.constant(part)}, event)")
        return f"BoundMutation({self.constant(part)}, {{{', '.join(items)}}})"

    def conjunction(self, comparisons: Iterable[Comparison]) -> str:
        """Return the expression that decides comparisons, which holds if ``is_plain`` does."""
        return " and ".join(self._comparison(each) for each in comparisons)

    @property
    def is_plain(self) -> str:
        """The expression that tells whether the values of all comparisons until now are plain; it names them."""
        return " and ".join(test for _, test in self._plain.values()) or "True"

    def _comparison(self, each: Comparison) -> str:
        reference = Reference.parse(each.path)
        if each.constant is None:
            values, _ = _ROOTS[_root(reference)]
            return f"{'not ' * (each.sign == _ABSENT)}has_path({values}, {self.constant(reference.path)})"
        key = each.path, type(each.constant)
        if key not in self._plain:
            name = f"v{len(self._plain)}"
            self._plain[key] = name, self._test(name, reference, key[1])
        return f"{self._plain[key][0]} {each.sign} {self.constant(each.constant)}"

    def _test(self, name: str, reference: Reference, kind: type) -> str:
        test = f"type({name} := {self.value(reference)}) is {kind.__name__}"
        if kind is str:
            test += f" and {name}.isascii()"  # CEL takes no half of a surrogate pair, not even to compare it
        elif kind is int:
            test += f" and {-(2**63)} <= {name} < {2**63}"  # the numbers of CEL
        elif kind is float:
            test += f" and {name} - {name} == 0"  # a finite number
        return test

    def value(self, source: ParameterSource) -> str:
        """Return the expression for the value of a parameter."""
        match source:
            case Reference():
                return self._reference(source)
            case MapSource():
                return f"{{{', '.join(f'{self.constant(name)}: {self.value(each)}' for name, each in source.fields)}}}"
            case ListSource():
                return f"[{', '.join(self.value(each) for each in source.items)}]"
            case LiteralSource():
                return self.constant(source.value)
            case _:
                raise TypeError(source)

    def _reference(self, reference: Reference) -> str:
        values, others = _ROOTS[_root(reference)]
        first, *rest = (self.constant(part) for part in reference.path)
        other = others.get(reference.path[0])
        if not values:
            return str(other)
        found = f"{values}[{first}]"
        if other is not None:
            found = f"({found} if {first} in {values} else {other})"
        return found + "".join(f"[{part}]" for part in rest)
