"""``graphrag`` of injection rules: look-ups of facts, compiled, and bound to one request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from pydantic import ValidationError

from graphweft_contracts.memory import MemoryScope
from graphweft_contracts.search import SearchQuery
from graphweft_rules.files.model import InjectionGraphrag
from graphweft_rules.matching.parameters import Absent, ParamError, ParameterSource, Scope, compile_param
from graphweft_rules.matching.searches import (
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
    """The look-up of facts for one request."""

    text: str
    """The question; its names are looked up."""
    seeds: tuple[Any, ...] = ()
    """Results that the runtime recalled: maps with ``id``, ``text`` and ``score``."""
    search: SearchQuery | None = None
    """A search whose results are seeds, too."""
    memory: MemoryScope | None = None
    """The scope of the facts; None: facts without a scope."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledGraphrag:
    """A ``graphrag`` with parsed references."""

    query: ParameterSource
    history: int
    seeds: ParameterSource | None
    search: CompiledSearch | None
    memory: tuple[tuple[str, ParameterSource], ...] | None

    def bind(self, scope: Scope) -> GraphragQuery | str:
        """Return the look-up for one request, or why it is skipped: with names of references, never values.

        Missing seeds do not skip it: the names in the question are looked up anyway.
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
    """Compile a ``graphrag``. Raises ``SearchError`` if it can never work."""
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
    """Return seeds as maps; a lone id becomes one."""
    if value is None or isinstance(value, Absent):
        return ()
    if not isinstance(value, list | tuple):
        raise NotReadyError("the seeds must be a list of ids, or of maps with id, text and score")
    items = cast("Sequence[Any]", value)
    return tuple({"id": item} if isinstance(item, str | int) else item for item in items)
