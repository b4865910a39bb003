"""A search as callers say it, and what is wrong with one."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from pydantic import ValidationError

from graphweft_contracts import MemoryScope, SearchQuery
from graphweft_contracts.search import EMBEDDED, IndexType, Searched, WithoutEmbedder, query_text

__all__ = ("check_retrieval_query", "faults", "make_query", "make_scope", "text_of")

_NO_CODE: Final = re.compile(r"""//[^\n]*|/\*.*?\*/|'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*"|`[^`]*`""", re.DOTALL)
"""Comments, texts and quoted names of Cypher."""
_GOES_ON: Final = "DESC|ASC|AS|IN|IS|AND|OR|RETURN|ORDER|LIMIT|SKIP|WHERE|WITH"
_REFUSED: Final = re.compile(
    rf"""(?<![.:$\w])(?<!\bAS\s)(
        (?:CREATE|MERGE|FOREACH)\s*\( | DETACH\s+DELETE\s | DELETE\s+(?!(?:{_GOES_ON})\b)\w
        | SET\s+\w+\s*(?:[.:=]|\+=) | REMOVE\s+\w+\s*[.:] | (?:CREATE|DROP)\s+(?:INDEX|CONSTRAINT)\b
        | LOAD\s+CSV\b | CALL\s+[A-Za-z_]
    )""",
    re.IGNORECASE | re.VERBOSE,
)
"""What is surely no query that only reads. The responder, which parses it, refuses all the rest."""


def make_query(
    *,
    memory: MemoryScope | None,
    of: Searched,
    index_type: IndexType | None,
    without_embedder: WithoutEmbedder | None,
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
    if memory is None and index_name is None and of in EMBEDDED:
        # The installation has an index for that, but a caller who means it can say so, and one who forgot a scope not.
        raise ValueError("index_name is required: name the index, or give memory a scope")
    try:
        return SearchQuery(
            memory=memory,
            of=of,
            index_type=index_type,
            without_embedder=without_embedder,
            index_name=index_name,
            fulltext_index_name=fulltext_index_name,
            top_k=top_k,
            retrieval_query=retrieval_query,
            filter_stop_words=filter_stop_words,
        )
    except ValidationError as error:
        raise ValueError(faults(error)) from None  # pydantic's text quotes the input


def check_retrieval_query(text: str) -> None:
    """Raise ``ValueError`` for Cypher that can never be a retrieval query, as far as that is seen without a parser."""
    code = _NO_CODE.sub(" ", text)
    if not code.strip():
        raise ValueError("retrieval_query is empty: leave it out, or end it with RETURN node.text AS text, score")
    if found := _REFUSED.search(code):
        clause = found[1].split("(")[0].split()[0].upper()
        raise ValueError(
            f"retrieval_query: it may only read and call no procedure, and it has {clause}: leave that out"
        )
    returns = re.search(r"\bRETURN\b", code, re.IGNORECASE) is not None
    missing = [name for name in ("text", "score") if not re.search(rf"\b{name}\b", text)]
    if missing or not returns:
        wanted = " and ".join(missing) or "anything"
        raise ValueError(
            f"retrieval_query: it does not return {wanted}: end it with RETURN node.text AS text, score, … "
            "ORDER BY score DESC"
        )


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
