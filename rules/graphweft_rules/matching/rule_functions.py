"""Mutation rules as Python functions: nearly all that rules need of an event are a few look-ups in its payload.

``decider_of`` makes a function of a condition that compares references with literals, and ``binder_of`` one of the
parameters of a rule. Each is one Python expression, in which names and literals of the rule are constants. These
functions decide in the plain case alone. If a value is missing, is of another type than its literal or lies in a list,
they leave the decision to ``Condition`` and ``Source``, which also word what is wrong.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from graphweft_contracts import Event
from graphweft_rules.matching.clock import clock_values, utc_text, uuid_values
from graphweft_rules.matching.conditions import PLAIN_TEXT, Condition, conjunction
from graphweft_rules.matching.mutation import BoundMutation, CompiledMutation
from graphweft_rules.matching.parameters import ListSource, LiteralSource, MapSource, Reference, Source, has_path

type Values = Mapping[str, Any]
type Decide = Callable[[Event, Values, Values, str | None], bool | None]
"""Takes an event, its payload, context variables and agent. None or an error: the condition decides."""
type Bind = Callable[[Event, Values, Values, str | None], tuple[BoundMutation, ...]]
"""Takes the same. An error: the sources decide."""

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
_EQUAL: Final = ("==", "!=")
_ORDERED: Final = ("<", "<=", ">", ">=")


class _OtherForm(Exception):
    """A condition has a part for which there is no function."""


def decider_of(condition: Condition | None) -> Decide:
    """Return the function that decides a condition in the plain case; ``undecided`` for one of another form."""
    if condition is None:
        return _always
    code = _Code()
    plain: list[str] = []
    compared: list[str] = []
    try:
        for operand in conjunction(condition.text):
            compared.append(code.comparison(operand, plain))
    except _OtherForm:
        return undecided
    if not compared:
        return undecided
    found: Decide = code.function(f"({' and '.join(compared)}) if {' and '.join(plain) or True} else None")
    return found


def binder_of(parts: Iterable[CompiledMutation]) -> Bind:
    """Return the function that binds the mutations of a rule in the plain case."""
    code = _Code()
    bound: list[str] = []
    try:
        for part in parts:
            items = [f"{code.constant(name)}: {code.value(source)}" for name, source in part.sources]
            if part.cypher.clock:
                items.append(f"**clock_values({code.constant(part.cypher.clock)}, event.time)")
            if part.cypher.uuids:
                items.append(f"**uuids({code.constant(part)}, event)")
            bound.append(f"BoundMutation({code.constant(part)}, {{{', '.join(items)}}}), ")
        found: Bind = code.function(f"({''.join(bound)})")
    except (SyntaxError, RecursionError, MemoryError):  # a literal with a hundred levels
        return _unbound
    return found


def uuids_of(part: CompiledMutation, event: Event) -> dict[str, str]:
    """Return the values of the calls of ``randomUUID()`` of a mutation."""
    return uuid_values(part.cypher.uuids, f"{event.source}\n{event.id}\n{part.rule}\n{part.id}")


def _always(_event: Event, _data: Values, _context: Values, _agent: str | None) -> bool:
    return True


def _unbound(_event: Event, _data: Values, _context: Values, _agent: str | None) -> tuple[BoundMutation, ...]:
    raise LookupError


def undecided(_event: Event, _data: Values, _context: Values, _agent: str | None) -> None:
    """Decide nothing: the function of a condition of another form."""


def _given[T](value: T | None) -> T:
    if value is None:
        raise LookupError
    return value


def _root(reference: Reference) -> str:
    return reference.absent.name.removeprefix("$").split(".")[0]


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


class _Code:
    """Writes an expression; its constants have names, so nothing of a rule is read as Python."""

    def __init__(self) -> None:
        self._names: dict[str, Any] = {
            "__builtins__": {},
            **{each.__name__: each for each in (BoundMutation, clock_values, utc_text, has_path)},
            **{each.__name__: each for each in (type, str, int, float, bool)},
            "uuids": uuids_of,
            "given": _given,
        }

    def function(self, expression: str) -> Any:
        """Return the function with this result."""
        return eval(f"lambda event, data, context, agent: {expression}", self._names)

    def constant(self, value: object) -> str:
        """Return the name of a value."""
        name = f"c{len(self._names)}"
        self._names[name] = value
        return name

    def comparison(self, operand: Sequence[tuple[str, str]], plain: list[str]) -> str:
        """Return the expression for an operand of a conjunction, and add to ``plain`` what must hold to use it."""
        match operand:
            case [("has", path)]:
                return self._presence(Reference.parse(path))
            case [("other", "!"), ("has", path)]:
                return f"not {self._presence(Reference.parse(path))}"
            case [("reference", path), *signs, literal] if all(kind == "other" for kind, _ in signs):
                return self._comparison(path, "".join(text for _, text in signs), _literal(*literal), plain)
            case [literal, ("other", "="), ("other", "="), ("reference", path)]:
                return self._comparison(path, "==", _literal(*literal), plain)
            case _:
                raise _OtherForm

    def _comparison(self, path: str, sign: str, literal: str | float, plain: list[str]) -> str:
        if sign not in (_EQUAL if type(literal) in (str, bool) else (*_EQUAL, *_ORDERED)):
            raise _OtherForm
        name = f"v{len(plain)}"
        plain.append(f"type({name} := {self.value(Reference.parse(path))}) is {type(literal).__name__}")
        if type(literal) is str:
            plain.append(f"{name}.isascii()")  # CEL takes no half of a surrogate pair, not even to compare it
        elif type(literal) is int:
            plain.append(f"{-(2**63)} <= {name} < {2**63}")  # the numbers of CEL
        elif type(literal) is float:
            plain.append(f"{name} - {name} == 0")  # a finite number
        return f"{name} {sign} {self.constant(literal)}"

    def _presence(self, reference: Reference) -> str:
        values, others = _ROOTS[_root(reference)]
        if reference.path[0] in others:  # it may come from the envelope
            raise _OtherForm
        return f"has_path({values}, {self.constant(reference.path)})"

    def value(self, source: Source) -> str:
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
