"""One vocabulary for the arguments of functions: each takes ``app``, ``user``, ``chat``, ``agent`` and ``workflow``.

Some functions name them ``app_id``, ``user_id``, ``chat_id``, ``agent_id`` and ``workflow_name``. Both names work, and
any other one raises a ``TypeError`` that names the argument which is meant.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final, ParamSpec, TypeVar, cast

_P = ParamSpec("_P")
_T = TypeVar("_T")

_SYNONYMS: Final = (
    ("app", "app_id"),
    ("user", "user_id"),
    ("chat", "chat_id", "thread_id"),
    ("agent", "agent_id", "agent_name"),
    ("workflow", "workflow_name"),
)
"""Names of one thing, the short one first."""
_VAR_KEYWORDS: Final = 0x08
"""The flag of code that takes further keyword arguments: ``inspect.CO_VARKEYWORDS``."""


def takes_synonyms(function: Callable[_P, _T]) -> Callable[_P, _T]:
    """Return the function, which takes the synonyms of its keyword arguments too.

    It returns what the function returns, so a coroutine function still gives a coroutine.
    """
    plain: Any = function
    while hasattr(plain, "__wrapped__"):
        plain = plain.__wrapped__
    code = plain.__code__
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    known = frozenset(names)
    takes_any = bool(code.co_flags & _VAR_KEYWORDS)

    @functools.wraps(function)
    def call(*args: _P.args, **given: _P.kwargs) -> _T:
        if known.issuperset(given):
            return function(*args, **given)
        return cast("Callable[..., _T]", function)(
            *args, **_renamed(function.__qualname__, names, given, takes_any=takes_any)
        )

    return call


def _renamed(function: str, names: Collection[str], given: Mapping[str, Any], *, takes_any: bool) -> dict[str, Any]:
    function = function.removesuffix(".__init__").lstrip("_")
    renamed: dict[str, Any] = {}
    for name, value in given.items():
        own = name if name in names else _own(name, names) or (name if takes_any else None)
        if own is None:
            raise TypeError(unknown_argument(function, name, names))
        if own in renamed:
            raise TypeError(f"{function}() has {own!r} under two names: give one of them")
        renamed[own] = value
    return renamed


def unknown_argument(function: str, name: str, names: Collection[str]) -> str:
    """Return the error for an argument that a function does not have, with the nearest one that it has."""
    from graphweft_contracts.nearest import nearest  # for errors only

    near = nearest(name, [each for each in names if each != "self"])
    hint = f"; did you mean {near!r}?" if near else ""
    return f"{function}() has no argument {name!r}{hint}"


def _own(name: str, names: Collection[str]) -> str | None:
    """Return the name that a function has for the argument ``name``, if it has exactly one."""
    for synonyms in _SYNONYMS:
        if name in synonyms:
            return next((each for each in synonyms if each in names), None)
    return None
