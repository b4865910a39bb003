"""Builds and checks searches from the arguments of callers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from pydantic import ValidationError

from graphweft_contracts import MemoryScope, SearchQuery
from graphweft_contracts.argument_names import unknown_argument
from graphweft_contracts.memory import SCOPES
from graphweft_contracts.search import EMBEDDED, query_text

_NOT_CODE: Final = re.compile(r"""//[^\n]*|/\*.*?\*/|'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*"|`[^`]*`""", re.DOTALL)
"""Comments, strings and quoted names of Cypher."""
_ARGUMENTS: Final = ("app_id", "budget_ms", "max_tokens", "after", "explain")
"""Arguments of a search that are no fields of ``SearchQuery``."""
_SCOPE_NAMES: Final = {
    **{name: name for name in SCOPES},
    "application": "application_id",
    "agent": "agent_id",
    "user": "user_id",
    **dict.fromkeys(("chat", "chat_id", "thread"), "thread_id"),
}
_SCOPE_PART: Final = re.compile(rf",(?=\s*(?:{'|'.join(_SCOPE_NAMES)})\s*=)")
_NEXT_CLAUSE: Final = "DESC|ASC|AS|IN|IS|AND|OR|RETURN|ORDER|LIMIT|SKIP|WHERE|WITH"
_REFUSED: Final = re.compile(
    rf"""(?<![.:$\w])(?<!\bAS\s)(
        (?:CREATE|MERGE|FOREACH)\s*\( | DETACH\s+DELETE\s | DELETE\s+(?!(?:{_NEXT_CLAUSE})\b)\w
        | SET\s+\w+\s*(?:[.:=]|\+=) | REMOVE\s+\w+\s*[.:] | (?:CREATE|DROP)\s+(?:INDEX|CONSTRAINT)\b
        | LOAD\s+CSV\b | CALL\s+[A-Za-z_]
    )""",
    re.IGNORECASE | re.VERBOSE,
)
"""Clauses that certainly write or call a procedure. The responder parses the query and refuses the others."""


def make_query(*, message_history_count: int, **fields: Any) -> SearchQuery:
    """Return a search with these fields of ``SearchQuery``. Raises ``ValueError`` if it can never work.

    Raises ``TypeError`` for another field. Leave out the text and the parameters, which come from a running
    conversation.
    """
    query_text((), message_history_count)
    if unknown := fields.keys() - SearchQuery.model_fields:
        raise TypeError(unknown_argument("search", min(unknown), (*SearchQuery.model_fields, *_ARGUMENTS)))
    if fields.get("memory") is None and fields.get("index_name") is None and fields.get("of", "all") in EMBEDDED:
        # A default index exists, but a caller who forgot the scope must not search the memories of everyone.
        raise ValueError("index_name is required: name the index, or pass a scope as memory")
    try:
        return SearchQuery(**fields)
    except ValidationError as error:
        raise ValueError(faults(error)) from None  # pydantic's text quotes the input


def check_retrieval_query(text: str) -> None:
    """Raise ``ValueError`` for Cypher that can never be a retrieval query, as far as a search of its text can tell."""
    code = _NOT_CODE.sub(" ", text)
    if not code.strip():
        raise ValueError("retrieval_query is empty: leave it out, or end it with RETURN node.text AS text, score")
    if found := _REFUSED.search(code):
        clause = found[1].split("(")[0].split()[0].upper()
        raise ValueError(f"retrieval_query may only read and must not call procedures: remove {clause}")
    returns = re.search(r"\bRETURN\b", code, re.IGNORECASE) is not None
    missing = [name for name in ("text", "score") if not re.search(rf"\b{name}\b", text)]
    if missing or not returns:
        wanted = " and ".join(missing) or "anything"
        raise ValueError(
            f"retrieval_query does not return {wanted}: end it with RETURN node.text AS text, score, … "
            "ORDER BY score DESC"
        )


def make_scope(**scopes: str | None) -> MemoryScope:
    """Return the scope. Raises ``ValueError`` for a scope without any id, or with an invalid id."""
    try:
        return MemoryScope(**scopes)
    except ValidationError as error:
        raise ValueError(faults(error)) from None


def read_scope(text: str) -> MemoryScope:
    """Return the scope that a text names, such as ``application=team`` or ``user=ada,chat=trip``.

    Names are those of ``MemoryScope``, or the short ones of the command line. Raises ``ValueError`` without the text.
    """
    given: dict[str, str] = {}
    for part in _SCOPE_PART.split(text):
        name, is_named, value = part.partition("=")
        own = _SCOPE_NAMES.get(name.strip())
        if own is None or not is_named or own in given:
            raise ValueError("expected NAME=VALUE, such as application=team, or user=ada,chat=trip")
        given[own] = value
    return make_scope(**given)


def text_of(query: str | Iterable[Any], message_history_count: int) -> str:
    """Return the text to search for: ``query`` itself, or the texts of its last messages (see ``query_text``)."""
    if isinstance(query, Mapping):
        raise TypeError("expected a text or a list of messages, not a map")
    return query if isinstance(query, str) else query_text(query, message_history_count)


def faults(error: ValidationError) -> str:
    """Return the validation errors in one line, without the input, which may hold personal data."""
    found: list[str] = []
    for fault in error.errors(include_input=False, include_url=False, include_context=False):
        where = ".".join(str(step) for step in fault["loc"])
        message = fault["msg"].removeprefix("Value error, ")
        found.append(f"{where}: {message}" if where else message)
    return "; ".join(found)
