"""``graphrag:`` of injection rules: which facts of the graph are looked for, made ready for a request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from pydantic import ValidationError

from graphweft_contracts.memory import MemoryScope
from graphweft_contracts.search import SearchQuery
from graphweft_rules.model import InjectionGraphrag
from graphweft_rules.params import Absent, ParamError, Scope, Source, compile_param
from graphweft_rules.searches import (
    CompiledSearch,
    NotReadyError,
    SearchError,
    compile_search,
    said,
    scope_of,
    text_of,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphragQuery:
    """What one request looks for."""

    text: str
    """The question, whose names are looked up."""
    seeds: tuple[Any, ...] = ()
    """What the runtime recalled: maps with ``id``, ``text`` and ``score``."""
    search: SearchQuery | None = None
    """What it finds are seeds, too."""
    memory: MemoryScope | None = None
    """Whose facts; None: those that belong to nobody."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledGraphrag:
    """A ``graphrag:`` whose references have been read."""

    query: Source
    history: int
    seeds: Source | None
    search: CompiledSearch | None
    memory: tuple[tuple[str, Source], ...] | None

    def bind(self, scope: Scope) -> GraphragQuery | str:
        """Return what is looked for in one request, or why nothing is: names of references, never values.

        Seeds that are not there are none: then the question's names lead into the graph.
        """
        try:
            text = text_of(self.query, scope, self.history)
            memory = None if self.memory is None else scope_of(self.memory, scope)
            seeds = () if self.seeds is None else _seeds(self.seeds.resolve(scope))
        except NotReadyError as error:
            return str(error)
        search = None if self.search is None else self.search.bind(scope, None, {})
        if isinstance(search, str):
            return search
        return GraphragQuery(text=text, seeds=seeds, search=search, memory=memory)


def compile_graphrag(given: InjectionGraphrag) -> CompiledGraphrag:
    """Read the references. Raises ``SearchError`` when no request can make it work."""
    try:
        if given.memory is not None:
            MemoryScope(**dict.fromkeys(given.memory, "x"))
        return CompiledGraphrag(
            query=compile_param(given.query),
            history=given.message_history_count,
            seeds=None if given.seeds is None else compile_param(given.seeds),
            search=None if given.search is None else compile_search(given.search),
            memory=None
            if given.memory is None
            else tuple((name, compile_param(value)) for name, value in given.memory.items()),
        )
    except ValidationError as error:
        raise SearchError(said(error)) from error
    except ParamError as error:
        raise SearchError(str(error)) from error


def _seeds(value: Any) -> tuple[Any, ...]:
    """Return seeds as maps; an id alone is one, too."""
    if value is None or isinstance(value, Absent):
        return ()
    if not isinstance(value, list | tuple):
        raise NotReadyError("the seeds must be a list of ids, or of maps with id, text and score")
    items = cast("Sequence[Any]", value)
    return tuple({"id": item} if isinstance(item, str | int) else item for item in items)
