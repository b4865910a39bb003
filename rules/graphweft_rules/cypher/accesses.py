"""Accesses: what a query does to one kind of entity, property or label."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

type Resource = tuple[str, ...]
"""``("node", class)``, ``("property", class, name)``, ``("label", name)``, ``("relationship", type)`` or
``("relationship property", type, name)``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LookupKey:
    """The value by which a query looks an entity up: a literal, or a parameter and a path into it."""

    literal: str | int | None = None
    parameter: str = ""
    path: tuple[str, ...] = ()

    def of(self, params: Mapping[str, Any]) -> Any:
        """Return the value; None if it is null or missing."""
        if not self.parameter:
            return self.literal
        value: Any = params.get(self.parameter)
        for name in self.path:
            value = value.get(name) if isinstance(value, Mapping) else None  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
        return value  # pyright: ignore[reportUnknownVariableType]

    def all_of(self, params: Mapping[str, Any]) -> Iterator[Any]:
        """Yield the values; a list stands for its items, at each place of the path. None for a missing value."""
        if not self.parameter:
            yield self.literal
        else:
            yield from _all_of(params.get(self.parameter), self.path)


def _all_of(value: Any, path: Sequence[str]) -> Iterator[Any]:
    if isinstance(value, list | tuple):
        for item in value:  # pyright: ignore[reportUnknownVariableType]
            yield from _all_of(item, path)
    elif not path:
        yield value
    elif isinstance(value, Mapping):
        yield from _all_of(value.get(path[0]), path[1:])  # pyright: ignore[reportUnknownMemberType]
    else:
        yield None


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceAccess:
    """One effect of a query on a resource."""

    resource: Resource
    access: str
    """``read``; ``create``, a new entity; ``ensure SHAPE``, a MERGE; ``merge SHAPE``, a MERGE with ON CREATE or ON
    MATCH, whose effect depends on the order; ``write``, anything else."""
    key: LookupKey | None = None
    """None: any entity of the resource."""
    certain: bool = False
    """For MERGE: whether every row reaches it, so that the entity exists afterwards.

    If earlier accesses of the query have ``finds``, this applies only to rows that are known to find all of them.
    """
    finds: str = ""
    """For MATCH: it finds every entity that an ``ensure`` of this shape created."""
    if_created: bool = False
    """Takes effect only if the MERGE before it in the list creates its entity."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadWriteSet:
    """The accesses of a query. ``opaque`` is empty, or the reason why the query may touch anything."""

    touches: tuple[ResourceAccess, ...] = ()
    opaque: str = ""


def commute(access: str, other: str) -> bool:
    """Return whether two accesses to one entity may be swapped without an effect."""
    return access == other and access != "write" and not access.startswith("merge")
