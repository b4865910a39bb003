"""Which rows look like rows that failed before, so that they can run apart from the others.

It compares the values of parameters. A wrong guess costs a query, and decides nothing: each row is tried.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Sized
from dataclasses import dataclass, field
from typing import Any, Final

from graphweft_workers.bounded_dict import BoundedDict

_MOST_TRAITS: Final = 32
"""Traits of the failed rows of a statement; newer ones replace the oldest."""
_MOST_STATEMENTS: Final = 200
_MOST_IDLE: Final = 50
"""How many batches a statement may have without a suspect before its traits are forgotten."""
_LONG: Final = 1_000
"""Longer texts are compared by their size."""
_MOST_COMPARED: Final = 500
"""Rows that took effect, with which a failed one is compared."""
_LARGEST: Final = 2**63

type _Trait = tuple[str, object]
"""A parameter, and its value or what is unusual about it."""
type Params = Mapping[str, Any]


@dataclass(slots=True)
class _Known:
    """The traits of the failed rows of a statement."""

    traits: BoundedDict[_Trait, None] = field(default_factory=lambda: BoundedDict(_MOST_TRAITS))
    idle: int = 0
    """Batches since the last one with a suspect."""

    def have(self, params: Params) -> bool:
        return any(trait in self.traits for trait in _traits(params))


class Suspects:
    """The traits of failed rows, by statement: short values of parameters, in memory only."""

    def __init__(self) -> None:
        self._known: BoundedDict[str, _Known] = BoundedDict(_MOST_STATEMENTS)

    def __bool__(self) -> bool:
        return bool(self._known)

    def add(self, statement: str, failed: Params, sound: Sequence[Params]) -> None:
        """Remember what a failed row has and no row of ``sound`` has, which are rows that took effect.

        Without rows to compare with, it remembers nothing.
        """
        if not sound:
            return
        own = set(_traits(failed))
        for params in sound[-_MOST_COMPARED:]:
            own.difference_update(_traits(params))
        if own:
            traits = self._known.setdefault(statement, _Known()).traits
            for trait in own:
                traits[trait] = None
                traits.move_to_end(trait)

    def clear(self, statement: str, sound: Params) -> None:
        """Forget the traits of a row that was suspected and took effect."""
        known = self._known.get(statement)
        if known is None:
            return
        for trait in _traits(sound):
            known.traits.pop(trait, None)
        if not known.traits:
            del self._known[statement]

    def among(self, rows: Iterable[tuple[str, Params]]) -> list[int]:
        """Return the indexes of the rows of a batch, given as statement and parameters, that look like failed ones."""
        found: list[int] = []
        seen: dict[str, bool] = {}
        for number, (statement, params) in enumerate(rows):
            known = self._known.get(statement)
            if known is None:
                continue
            if known.have(params):
                found.append(number)
                seen[statement] = True
            else:
                seen.setdefault(statement, False)
        for statement, has in seen.items():
            known = self._known[statement]
            known.idle = 0 if has else known.idle + 1
            if known.idle > _MOST_IDLE:
                del self._known[statement]
        return found


def _traits(params: Params) -> Iterable[_Trait]:
    return [(name, _trait(value)) for name, value in params.items()]


def _trait(value: object) -> object:
    """Return the kind of a value with the value itself if it is short, else with its size."""
    kind = type(value).__name__
    if value is None or isinstance(value, bool | float):
        return (kind, value)
    if isinstance(value, int):
        return (kind, value) if -_LARGEST <= value < _LARGEST else (kind, "large")
    if isinstance(value, str):
        if "\0" in value:
            return (kind, "nul")
        return (kind, value) if len(value) <= _LONG else (kind, len(value).bit_length())
    return (kind, len(value).bit_length()) if isinstance(value, Sized) else kind
