"""A search as callers say it, and what is wrong with one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import ValidationError

from graphweft_contracts import MemoryScope, SearchQuery
from graphweft_contracts.search import IndexType, Searched, query_text

__all__ = ("faults", "make_query", "make_scope", "text_of")


def make_query(
    *,
    memory: MemoryScope | None,
    of: Searched,
    index_type: IndexType | None,
    index_name: str | None,
    fulltext_index_name: str | None,
    top_k: int,
    retrieval_query: str | None,
    filter_stop_words: bool,
    message_history_count: int,
) -> SearchQuery:
    """Return the search but for its text and parameters, which come from a running conversation.

    Raises ``ValueError`` for what can never work, whatever is searched for.
    """
    query_text((), message_history_count)
    if memory is None and index_name is None and of == "memories":
        # The installation has an index for that, but a caller who means it can say so, and one who forgot a scope not.
        raise ValueError("index_name is required: name the index, or give memory a scope")
    try:
        return SearchQuery(
            memory=memory,
            of=of,
            index_type=index_type,
            index_name=index_name,
            fulltext_index_name=fulltext_index_name,
            top_k=top_k,
            retrieval_query=retrieval_query,
            filter_stop_words=filter_stop_words,
        )
    except ValidationError as error:
        raise ValueError(faults(error)) from None  # pydantic's text quotes the input


def make_scope(**scopes: str | None) -> MemoryScope:
    """Return the scope. Raises ``ValueError`` for one without a limit, or with one that nothing can have."""
    try:
        return MemoryScope(**scopes)
    except ValidationError as error:
        raise ValueError(faults(error)) from None


def text_of(query: str | Iterable[Any], message_history_count: int) -> str:
    """Return the text to search by: ``query`` itself, or that of the last messages in it (``query_text``)."""
    if isinstance(query, Mapping):
        raise TypeError("a map: give a text or a list of messages")
    return query if isinstance(query, str) else query_text(query, message_history_count)


def faults(error: ValidationError) -> str:
    """Return what is wrong in one line, without quoting the input: it may hold personal data."""
    said: list[str] = []
    for fault in error.errors(include_input=False, include_url=False, include_context=False):
        where = ".".join(str(step) for step in fault["loc"])
        message = fault["msg"].removeprefix("Value error, ")
        said.append(f"{where}: {message}" if where else message)
    return "; ".join(said)
