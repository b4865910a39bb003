"""The content of a rule file as values with their places."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, get_args

from graphweft_contracts.context import Format
from graphweft_contracts.search import SearchOptions

FORMATS: Final[tuple[Format, ...]] = get_args(Format)
EVERY_AGENT: Final = "*"
MESSAGE_HISTORY: Final = 10
"""Default number of messages for a search."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A position in a file; line and column count from 1, as editors do."""

    file: str
    line: int = 1
    column: int = 1

    def __str__(self) -> str:
        """Return ``file:line:column``, which terminals and editors make a link."""
        return f"{self.file}:{self.line}:{self.column}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TextPlace:
    """The place of a text in a file."""

    place: Place
    first: Place | None = None
    """The place of its first character, if the file has the text literally."""

    def at(self, line: int, column: int) -> Place:
        """Return the place of a line and column of the text, both from 1.

        It is exact for literal blocks and for strings on one line without escapes; otherwise it is ``place``.
        """
        if self.first is None:
            return self.place
        return Place(file=self.first.file, line=self.first.line + line - 1, column=self.first.column + column - 1)


def most_rows(format: Format, max_results: int | None) -> int | None:
    """Return the limit of rows; None for all rows."""
    return 1 if format == "single" else max_results


@dataclass(frozen=True, slots=True, kw_only=True)
class InjectionSearch:
    """The ``search`` of an injection query: see ``graphweft_contracts.search.SearchQuery``.

    ``memory`` holds the scopes by name. Scopes and ``query`` are values as in ``params``. If ``query`` is a list of
    messages, ``query_text`` reads the last ``message_history_count`` of them. ``options`` are the same for every
    request.
    """

    memory: Mapping[str, Any] | None = None
    query: Any = None
    message_history_count: int = MESSAGE_HISTORY
    options: SearchOptions = field(default_factory=SearchOptions)
    filters: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Fields of ``MemoryFilters``, each a value as in ``params``."""
    dimensions: int | None = None
    """The length of the vectors of ``index_name``, for an index that is made because the rule names it."""
    retrieval_query: str | None = None
    places: Mapping[str, Place] = field(default_factory=dict[str, Place], compare=False)
    """Where the values of its keys are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InjectionGraphrag:
    """The ``graphrag`` of an injection query: facts around the seeds and around the names in the question.

    ``query``, ``seeds`` and the scopes of ``memory`` are values as in ``params``. Results of ``search`` are seeds, too;
    ``query`` and ``memory`` are its defaults.
    """

    query: Any = None
    seeds: Any = None
    search: InjectionSearch | None = None
    memory: Mapping[str, Any] | None = None
    message_history_count: int = MESSAGE_HISTORY


@dataclass(frozen=True, slots=True, kw_only=True)
class InjectionQuery:
    """One read-only query of a rule: ``cypher``, ``search`` or ``graphrag``; ``params`` are the Cypher's."""

    id: str
    cypher: str | None = None
    search: InjectionSearch | None = None
    graphrag: InjectionGraphrag | None = None
    params: Mapping[str, Any] = field(default_factory=dict[str, Any])
    inject_as: str
    format: Format = "list"
    max_results: int | None = None
    place: Place
    written: TextPlace | None = field(default=None, compare=False)
    """The place of the text of ``cypher``, or of the search's ``retrieval_query``."""

    @property
    def most_rows(self) -> int | None:
        """The limit of rows; None for all rows."""
        return most_rows(self.format, self.max_results)


@dataclass(frozen=True, slots=True, kw_only=True)
class InjectionRule:
    """Queries that run before the turns of the named agents; ``*`` is every agent.

    Rules of a higher ``priority`` get tokens first, and the blocks of a rule together have at most ``max_tokens``. Each
    query has at most ``timeout_ms`` milliseconds, and never more than the request.
    """

    name: str
    agents: tuple[str, ...]
    condition: str | None = None
    priority: int = 0
    timeout_ms: int | None = None
    max_tokens: int | None = None
    queries: tuple[InjectionQuery, ...]
    place: Place


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutation:
    """One writing query of a mutation rule."""

    id: str
    cypher: str
    params: Mapping[str, Any] = field(default_factory=dict[str, Any])
    place: Place
    written: TextPlace | None = field(default=None, compare=False)
    """The place of the text of ``cypher``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MutationRule:
    """Mutations for the named events. If ``agents`` is empty or ``*``, events of every agent and without one match.

    ``events`` holds event types, ``*`` for all, or ``prefix.*`` for all types that start with ``prefix.``.
    """

    name: str
    events: tuple[str, ...]
    agents: tuple[str, ...] = ()
    condition: str | None = None
    mutations: tuple[Mutation, ...]
    place: Place


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphInjectionConfig:
    """The rules of one workflow after ``extends``, in processing order: see ``merge``."""

    version: str = "1.0"
    injection_rules: tuple[InjectionRule, ...] = ()
    mutation_rules: tuple[MutationRule, ...] = ()
    files: tuple[Path, ...] = ()
    """The files read, outermost parent first."""
