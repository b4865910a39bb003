"""Values of a rule's parameters and conditions.

A reference (``$context.user.id``) is parsed when the rules load, so most mistakes show before the first event, and an
event costs a few dictionary look-ups. Values are never inserted into a query's text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import date, datetime
from difflib import get_close_matches
from operator import attrgetter
from typing import Any, Final, Protocol, cast

from graphweft_contracts import ContextRequest
from graphweft_rules.matching.clock import utc_text


class ParamError(ValueError):
    """A parameter or reference is invalid; the message says how to write it."""


class EventView(Protocol):
    """What rules read of an event: an ``Event``, or an event of the log that is no model yet."""

    @property
    def id(self) -> str:
        """See ``Event``, as for all of them."""
        ...

    @property
    def source(self) -> str: ...  # noqa: D102
    @property
    def type(self) -> str: ...  # noqa: D102
    @property
    def subject(self) -> str | None: ...  # noqa: D102
    @property
    def time(self) -> datetime: ...  # noqa: D102
    @property
    def appid(self) -> str: ...  # noqa: D102
    @property
    def chatid(self) -> str: ...  # noqa: D102
    @property
    def workflow(self) -> str | None: ...  # noqa: D102
    @property
    def userid(self) -> str | None: ...  # noqa: D102
    @property
    def data(self) -> dict[str, Any]: ...  # noqa: D102
    @property
    def agent(self) -> str | None: ...  # noqa: D102
    @property
    def context(self) -> dict[str, Any]: ...  # noqa: D102


@dataclass(slots=True, kw_only=True, eq=False)  # not frozen: that doubles the cost of making one for every event
class Scope:
    """The values that references can name for one event or one context request."""

    context: Mapping[str, Any]
    event: Mapping[str, Any]
    envelope: EventView | None = None
    """Its attributes replace missing payload fields; None for a context request."""
    app_id: str
    chat_id: str
    workflow_name: str | None = None
    user_id: str | None = None
    agent_name: str | None = None

    @classmethod
    def of_event(cls, event: EventView) -> Scope:
        """Return the scope of an event."""
        return cls(
            context=event.context,
            event=event.data,
            envelope=event,
            app_id=event.appid,
            chat_id=event.chatid,
            workflow_name=event.workflow,
            user_id=event.userid,
            agent_name=event.agent,
        )

    @classmethod
    def of_request(cls, request: ContextRequest) -> Scope:
        """Return the scope of a context request, in which ``$event`` has only ``agent_name``."""
        return cls(
            context=request.context,
            event={"agent_name": request.agent},
            app_id=request.app_id,
            chat_id=request.chat_id,
            workflow_name=request.workflow,
            user_id=request.user_id,
            agent_name=request.agent,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Absent:
    """The result of a reference without a value; ``name`` is the reference as written."""

    name: str


class ParameterSource(Protocol):
    """Gives the value of one parameter for one event or request."""

    def resolve(self, scope: Scope) -> Any:
        """Return the value, or ``Absent`` if a reference in it has none. Null is a value. Never raises."""
        ...


_Fallback = Callable[[Scope], str | None]

_WORKFLOW: Final[Mapping[str, _Fallback]] = {
    "name": lambda scope: scope.workflow_name,
    "app_id": lambda scope: scope.app_id,
    "chat_id": lambda scope: scope.chat_id,
    "user_id": lambda scope: scope.user_id,
}
WORKFLOW_FIELDS: Final = tuple(_WORKFLOW)
"""The fields of ``$workflow``."""
_CONTEXT: Final[Mapping[str, _Fallback]] = {
    "app_id": lambda scope: scope.app_id,
    "chat_id": lambda scope: scope.chat_id,
    "user_id": lambda scope: scope.user_id,
    "workflow_name": lambda scope: scope.workflow_name,
    "agent_name": lambda scope: scope.agent_name,
}
_EVENT: Final[Mapping[str, _Fallback]] = {
    "id": lambda scope: scope.envelope.id if scope.envelope else None,
    "source": lambda scope: scope.envelope.source if scope.envelope else None,
    "type": lambda scope: scope.envelope.type if scope.envelope else None,
    "subject": lambda scope: scope.envelope.subject if scope.envelope else None,
    "time": lambda scope: utc_text(scope.envelope.time) if scope.envelope else None,
    "timestamp": lambda scope: utc_text(scope.envelope.time) if scope.envelope else None,
}


@dataclass(frozen=True, slots=True)
class _Root:
    """The first word of a reference: its values, and fallbacks for missing fields."""

    values: Callable[[Scope], Mapping[str, Any]]
    fallbacks: Mapping[str, _Fallback]
    example: str


_ROOTS: Final[Mapping[str, _Root]] = {
    "context": _Root(attrgetter("context"), _CONTEXT, "user_id"),
    "event": _Root(attrgetter("event"), _EVENT, "agent_name"),
    "workflow": _Root(lambda _: {}, _WORKFLOW, "name"),
}
"""The roots, by the name that follows the dollar."""
_FIELD: Final = re.compile(r"[\w-]+")
_INDEX: Final = re.compile(r"[0-9]{1,9}")
_NOWHERE: Final = object()


@dataclass(frozen=True, slots=True)
class Reference:
    """A path such as ``$context.user.id`` or ``$context.items.0.name``.

    If the context variables lack them, ``$context.user_id``, ``chat_id``, ``app_id``, ``workflow_name`` and
    ``agent_name`` come from the envelope. If the payload lacks them, so do ``$event.id``, ``source``, ``type``,
    ``subject``, ``time`` and ``timestamp`` (both the event's time in UTC as text).
    """

    root: _Root
    path: tuple[str, ...]
    absent: Absent

    @classmethod
    def parse(cls, text: str) -> Reference:
        """Parse ``$root.field.field``. Raises ``ParamError`` with the nearest valid spelling."""
        name, *path = text.removeprefix("$").split(".")
        root = _ROOTS.get(name)
        if root is None:
            hint = _nearest(name, _ROOTS, "$", "".join(f".{part}" for part in path))
            raise ParamError(f"{text!r} is not a reference: {hint}")
        if not path:
            raise ParamError(f"{text!r} has no field: write for example '${name}.{root.example}'")
        for part in path:
            if not _FIELD.fullmatch(part):
                raise ParamError(
                    f"{text!r} is not a reference: {part!r} is not a field name (letters, digits, '_', '-'); "
                    "a value holds nothing but its reference"
                )
        if name == "workflow" and (len(path) > 1 or path[0] not in _WORKFLOW):
            raise ParamError(f"{text!r} does not exist: {_nearest(path[0], _WORKFLOW, '$workflow.')}")
        return cls(root, tuple(path), Absent(name=text))

    def resolve(self, scope: Scope) -> Any:
        """Return the value of the path, or ``Absent``."""
        values = self.root.values(scope)
        path = self.path
        first = path[0]
        value: Any
        if first in values:
            value = values[first]
        else:
            fallback = self.root.fallbacks.get(first)
            value = fallback(scope) if fallback else None
            if value is None:
                return self.absent
        if len(path) == 1:
            return value
        value = _walk(value, path[1:])
        return self.absent if value is _NOWHERE else value


def has_path(values: Mapping[str, Any], path: tuple[str, ...]) -> bool:
    """Tell whether a path leads to a value."""
    return _walk(values, path) is not _NOWHERE


def _walk(value: Any, path: tuple[str, ...]) -> Any:
    """Return what a path leads to, or ``_NOWHERE``."""
    for part in path:
        if type(value) is dict or isinstance(value, Mapping):  # JSON gives dict; the first test is ten times faster
            inner = cast("Mapping[str, Any]", value)
            if part not in inner:
                return _NOWHERE
            value = inner[part]
        elif isinstance(value, (list, tuple)) and _INDEX.fullmatch(part):
            items = cast("list[Any]", value)
            if int(part) >= len(items):
                return _NOWHERE
            value = items[int(part)]
        else:
            return _NOWHERE
    return value


@dataclass(frozen=True, slots=True)
class LiteralSource:
    """A value that is the same for every event."""

    value: Any

    def resolve(self, scope: Scope) -> Any:
        """See ``ParameterSource.resolve``."""
        return self.value


@dataclass(frozen=True, slots=True)
class MapSource:
    """A map of sources."""

    fields: tuple[tuple[str, ParameterSource], ...]

    def resolve(self, scope: Scope) -> Any:
        """See ``ParameterSource.resolve``."""
        resolved: dict[str, Any] = {}
        for name, source in self.fields:
            resolved[name] = value = source.resolve(scope)
            if isinstance(value, Absent):
                return value
        return resolved


@dataclass(frozen=True, slots=True)
class ListSource:
    """A list of sources."""

    items: tuple[ParameterSource, ...]

    def resolve(self, scope: Scope) -> Any:
        """See ``ParameterSource.resolve``."""
        resolved: list[Any] = []
        for source in self.items:
            value = source.resolve(scope)
            if isinstance(value, Absent):
                return value
            resolved.append(value)
        return resolved


def compile_param(value: Any) -> ParameterSource:
    """Compile a value of ``params``: a reference, ``$$…`` for text that starts with ``$``, or a literal.

    Maps and lists may hold references; if one has no value, the whole value is absent. Raises ``ParamError``.
    """
    whole: Any = value  # pyright forgets `Any` inside the cases
    match value:
        case str() if value.startswith("$$"):
            return LiteralSource(value[1:])
        case str() if value.startswith("$"):
            try:
                return Reference.parse(value)
            except ParamError as error:
                raise ParamError(f"{error} (a literal that starts with '$' is written with '$$')") from None
        case None | bool() | int() | float() | str():
            return LiteralSource(value)
        case date():  # YAML reads a bare 2026-02-01 as a date; the graph takes text
            return LiteralSource(value.isoformat())
        case dict():
            return MapSource(tuple((str(name), compile_param(inner)) for name, inner in whole.items()))
        case list():
            return ListSource(tuple(compile_param(inner) for inner in whole))
        case _:
            raise ParamError(
                f"{value!r} is not a value that a graph stores: write text, a number, a boolean, null, a list or a map"
            )


def _nearest(name: str, known: Iterable[str], prefix: str, suffix: str = "") -> str:
    names = list(known)
    near = get_close_matches(name, names, n=1)
    if near:
        return f"did you mean '{prefix}{near[0]}{suffix}'?"
    return "write one of " + ", ".join(f"'{prefix}{known_name}{suffix}'" for known_name in names)
