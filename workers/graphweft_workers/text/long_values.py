"""Which values are so long that their work leaves the event loop: in a thread, others run between two steps of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any


def are_long(values: Iterable[Any], most: int) -> bool:
    """Tell whether values have more than ``most`` characters and items, in a time that ``most`` bounds."""
    left = most
    waiting: list[Iterable[Any]] = [values]
    while waiting:
        for value in waiting.pop():
            if isinstance(value, str):
                left -= len(value)
            else:
                left -= 1
                if isinstance(value, Mapping):
                    waiting += [value.keys(), value.values()]  # pyright: ignore[reportUnknownMemberType]
                elif isinstance(value, list | tuple):
                    waiting.append(value)  # pyright: ignore[reportUnknownArgumentType]
            if left < 0:
                return True
    return False
