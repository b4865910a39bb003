"""Items of values that are maps, objects or lists."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast


def item(value: Any, *names: str) -> Any:
    """Return the first field of a map, or attribute of an object, that is not None; or None."""
    for name in names:
        found = cast("Mapping[str, Any]", value).get(name) if isinstance(value, Mapping) else getattr(value, name, None)
        if found is not None:
            return found
    return None


def items(value: Any) -> Iterator[Any]:
    """Yield the items of a list or tuple; nothing for other values, which may be read only once."""
    if isinstance(value, list | tuple):
        yield from cast("Sequence[Any]", value)


def name_of(value: Any) -> str | None:
    """Return a text that is not empty, or None. Numbers count as texts: some servers number their calls."""
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return (value.strip() and value) or None if isinstance(value, str) else None
