"""Which rows look like rows that failed before, so that they can run apart from the others.

It compares the values of parameters. A wrong guess costs a query, and decides nothing: each row is tried.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Sized
from dataclasses import dataclass, field
from typing import Any, Final, cast

from graphweft_contracts.bounded_dict import BoundedDict

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
_PLAIN: Final = frozenset({str, int, bool, float, type(None)})

type _Trait = tuple[str, object]
"""A parameter, and its value or what is unusual about it."""
type Params = Mapping[str, Any]


@dataclass(slots=True)
class _Known:
    """The traits of the failed rows of a statement."""

    traits: BoundedDict[_Trait, None] = field(default_factory=lambda: BoundedDict(_MOST_TRAITS))
    looked_up: list[tuple[str, set[object], set[object], bool]] = field(
        default_factory=list[tuple[str, set[object], set[object], bool]]
    )
    """The same by parameter, because all rows are compared: its traits, the values among them, and whether these are
    all of them."""
    idle: int = 0
    """Batches since the last one with a suspect."""

    def changed(self) -> None:
        by_name: dict[str, set[object]] = {}
        for name, trait in self.traits:
            by_name.setdefault(name, set()).add(trait)
        self.looked_up = []
        for name, traits in by_name.items():
            values = {value for trait in traits for value in _value_of(trait)}
            self.looked_up.append((name, traits, values, len(values) == len(traits)))

    def have(self, params: Params) -> bool:
        for name, traits, values, are_all in self.looked_up:
            value = params.get(name)
            if (not are_all or (type(value) in _PLAIN and value in values)) and _trait(value) in traits:
                return True
        return False


class Suspects:
    """The traits of failed rows, by statement: short values of parameters, in memory only."""

    def __init__(self) -> None:
        self._known: BoundedDict[str, _Known] = BoundedDict(_MOST_STATEMENTS)
        self.changes = 0
        """How often what it knows has changed."""

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
            known = self._known.setdefault(statement, _Known())
            for trait in own:
                known.traits[trait] = None
            known.changed()
            self.changes += 1

    def clear(self, statement: str, sound: Params) -> None:
        """Forget the traits of a row that was suspected and took effect."""
        known = self._known.get(statement)
        if known is None:
            return
        for trait in _traits(sound):
            known.traits.pop(trait, None)
        known.changed()
        self.changes += 1
        if not known.traits:
            del self._known[statement]

    def among(self, rows: Iterable[tuple[str, Params]], *, are_new: bool = True) -> list[int]:
        """Return the indexes of rows, given as statement and parameters, that look like failed ones.

        ``are_new``: they are those of another batch, for the count of batches without a suspect.
        """
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
        for statement, has in seen.items() if are_new else ():
            known = self._known[statement]
            known.idle = 0 if has else known.idle + 1
            if known.idle > _MOST_IDLE:
                del self._known[statement]
                self.changes += 1
        return found


def _traits(params: Params) -> Iterable[_Trait]:
    return [(name, _trait(value)) for name, value in params.items()]


def _trait(value: object) -> object:
    """Return the kind of a value with the value itself if it is short, else with its size."""
    kind = type(value).__name__
    if value is None or isinstance(value, bool | float):
        return (kind, "nan") if value != value else (kind, value)  # noqa: PLR0124 - NaN does not equal itself
    if isinstance(value, int):
        return (kind, value) if -_LARGEST <= value < _LARGEST else (kind, "large")
    if isinstance(value, str):
        if "\0" in value:
            return (kind, "nul")
        return (kind, value) if len(value) <= _LONG else (kind, len(value).bit_length())
    return (kind, len(value).bit_length()) if isinstance(value, Sized) else kind


def _value_of(trait: object) -> Iterable[object]:
    """Yield the value that a trait is, if it is one and not a kind or a size."""
    if isinstance(trait, tuple):
        kind, value = cast("tuple[str, object]", trait)
        if type(value).__name__ == kind and trait != ("str", "nul"):
            yield value
