"""What a rule file says, once read: plain values that remember where they stand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, get_args

from graphweft_contracts.context import Format
from graphweft_contracts.search import IndexType, Searched

FORMATS: Final[tuple[Format, ...]] = get_args(Format)
EVERY_AGENT: Final = "*"
MESSAGE_HISTORY: Final = 10
"""Messages that a search goes by, where its rule does not say how many."""
TOP_K: Final = 5
"""Most results of a search, where its rule does not say how many."""


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
class Written:
    """Where a text stands in a file."""

    place: Place
    first: Place | None = None
    """Where its first character stands, when the file has the text letter by letter."""

    def at(self, line: int, column: int) -> Place:
        """Return where line and column of the text (both from 1) stand in the file.

        That is exact for literal blocks and for strings on one line without escapes, else it is ``place``.
        """
        if self.first is None:
            return self.place
        return Place(file=self.first.file, line=self.first.line + line - 1, column=self.first.column + column - 1)


def most_rows(format: Format, max_results: int | None) -> int | None:
    """Return how many rows count, from the first one on; None for all of them."""
    return 1 if format == "single" else max_results


@dataclass(frozen=True, slots=True, kw_only=True)
class InjectionSearch:
    """What an injection query searches for, in place of Cypher: see ``graphweft_contracts.search.SearchQuery``.

    ``memory`` holds the scopes by name; they and ``query`` are values as in ``params``. A ``query`` that is a list of
    messages is read by ``query_text`` with the last ``message_history_count`` of them.
    """

    memory: Mapping[str, Any] | None = None
    of: Searched = "all"
    query: Any = None
    index_type: IndexType | None = None
    index_name: str | None = None
    fulltext_index_name: str | None = None
    top_k: int = TOP_K
    message_history_count: int = MESSAGE_HISTORY
    filter_stop_words: bool = True
    retrieval_query: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class InjectionGraphrag:
    """Where facts of the graph are looked for: around what was recalled, and around what a question names.

    ``query``, ``seeds`` and the scopes of ``memory`` are values as in ``params``. What ``search`` finds are seeds, too;
    its query and memory are these, where it has none of its own.
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
    written: Written | None = field(default=None, compare=False)
    """Where the text of ``cypher`` stands, or that of the search's ``retrieval_query``."""

    @property
    def most_rows(self) -> int | None:
        """Rows that count, from the first one on; None for all of them."""
        return most_rows(self.format, self.max_results)


@dataclass(frozen=True, slots=True, kw_only=True)
class InjectionRule:
    """What to look up before the turns of the named agents (``*`` is every agent).

    Where tokens are short, rules of a higher ``priority`` come first, and a rule's blocks together have no more than
    ``max_tokens``. Each of its queries has ``timeout_ms`` milliseconds at most, and never more than the request.
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
    written: Written | None = field(default=None, compare=False)
    """Where the text of ``cypher`` stands."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MutationRule:
    """What to write after the named events; ``agents`` empty or ``*`` is every agent and events without one.

    ``events`` holds event types, ``*`` for all, or ``prefix.*`` for all that start with ``prefix.``.
    """

    name: str
    events: tuple[str, ...]
    agents: tuple[str, ...] = ()
    condition: str | None = None
    mutations: tuple[Mutation, ...]
    place: Place


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphInjectionConfig:
    """The rules of one workflow after ``extends`` was resolved, in the order in which they are processed.

    Parents' rules come first, without those that a child has under the same name; then the child's, which override.
    """

    version: str = "1.0"
    injection_rules: tuple[InjectionRule, ...] = ()
    mutation_rules: tuple[MutationRule, ...] = ()
    files: tuple[Path, ...] = ()
    """The files that were read, the outermost parent first."""
