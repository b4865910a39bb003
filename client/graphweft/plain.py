"""Values of a runtime as JSON can say them: a copy, made without ever raising for what is in them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, Final, cast

from pydantic_core import to_jsonable_python

__all__ = ("plain",)

_DEPTH: Final = 100
"""Levels of nesting that are kept; JSON readers give up at about 200."""


def plain(
    values: Mapping[str, Any], *, most_values: int | None = None, most_characters: int | None = None
) -> dict[str, Any]:
    """Return a JSON-able copy; objects that JSON cannot say become their type's name, not an error in the turn.

    After ``most_values`` values containers too become their type's name, and texts longer than ``most_characters`` are
    cut and end with an ellipsis. Raises only what reading ``values`` itself raises.
    """
    copy = _Copy(most_values, most_characters)
    return {copy.key(name): copy.value(value, ()) for name, value in dict(values).items()}


class _Copy:
    def __init__(self, most_values: int | None, most_characters: int | None) -> None:
        self._left = math.inf if most_values is None else most_values
        self._most_characters = most_characters

    def value(self, value: object, above: tuple[int, ...]) -> Any:
        """``above`` holds the ids of the containers around ``value``: one that holds itself ends there."""
        self._left -= 1
        if value is None or type(value) in {bool, int}:
            return value
        if type(value) is float:
            return value if math.isfinite(value) else None
        if type(value) is str:
            return self._text(value)
        kind, identity = _name(value), id(value)
        if isinstance(value, dict | list | tuple | set | frozenset):
            container = cast("dict[object, object] | list[object]", value)
            if identity in above or len(above) >= _DEPTH or len(container) > self._left:
                return kind
            inside = (*above, identity)
            if isinstance(container, dict):
                return {self.key(name): self.value(item, inside) for name, item in container.items()}
            return [self.value(item, inside) for item in container]
        if isinstance(value, Iterator):  # reading it takes its values from the runtime, and some never end
            return kind
        try:
            return to_jsonable_python(value, fallback=_name, inf_nan_mode="null")
        except Exception:  # noqa: BLE001 - bytes that are no text, a model that refuses, a property that raises
            return kind

    def key(self, name: object) -> str:
        text = self.value(name, ())
        return text if isinstance(text, str) else str(text)

    def _text(self, value: str) -> str:
        if self._most_characters is not None and len(value) > self._most_characters:
            value = value[: self._most_characters] + "…"
        return value if value.isascii() else value.encode(errors="replace").decode()  # half of a surrogate pair


def _name(value: object) -> str:
    return f"<{type(value).__name__}>"
