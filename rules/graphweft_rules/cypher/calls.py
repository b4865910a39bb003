"""What a rule's query may call, and the Cypher by which a query would leave its graph or hide what it names.

Only listed procedures are allowed: a procedure can read files and URLs, change the server, or write what the analysis
of a query does not see. Functions without a namespace are allowed, because all servers' own functions only compute.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from graphweft_rules.cypher.clauses import Clause, Outline, QueryWords
from graphweft_rules.cypher.named_calls import named_calls
from graphweft_rules.cypher.tokens import CypherToken

_PROCEDURES: Final = (
    "db.labels",
    "db.relationshiptypes",
    "db.propertykeys",
    "db.index.fulltext.querynodes",
    "db.index.fulltext.queryrelationships",
    "db.index.vector.querynodes",
    "db.index.vector.queryrelationships",
    "db.idx.fulltext.querynodes",
    "db.idx.fulltext.queryrelationships",
    "db.idx.vector.querynodes",
    "db.idx.vector.queryrelationships",
    "algo.",
    "apoc.algo.",
    "apoc.coll.",
    "apoc.neighbors.",
    "apoc.path.",
)
"""Procedures that only read the graph, in lower case; an entry that ends with a dot allows all names below it."""
_FUNCTIONS: Final = (
    "date.",
    "datetime.",
    "duration.",
    "localdatetime.",
    "localtime.",
    "time.",
    "point.",
    "vector.similarity.",
    "vec.",
    "string.",
    "list.",
    "text.",
    "coll.",
    "apoc.any.",
    "apoc.coll.",
    "apoc.convert.",
    "apoc.date.",
    "apoc.label.exists",
    "apoc.map.",
    "apoc.math.",
    "apoc.meta.cypher.",
    "apoc.node.",
    "apoc.number.",
    "apoc.rel.",
    "apoc.temporal.",
    "apoc.text.",
    "apoc.util.md5",
    "apoc.util.sha1",
    "apoc.util.sha256",
    "apoc.util.sha512",
)
"""Functions with a namespace that only compute."""
_ESCAPE: Final = re.compile(r"\\u+([0-9A-Fa-f]{4})")
_ENDING: Final = frozenset("'\"`\\*/\n\r")
"""Characters that end a string or a comment, or begin an escape."""

type Call = tuple[str, str, int]
"""Code, message and offset of a problem."""


def call_problems(query: Outline) -> Iterator[Call]:
    """Yield the refused calls, ``USE``, labels by expression and escaped characters of a query, in no fixed order."""
    words = query.words
    checked: set[int] = set()
    for clause in query.clauses:
        if clause.keyword == "CALL":
            first = clause.words[0] + 1
            name = _dotted(words, first)
            checked.add(first)
            if name and not _listed(name, _PROCEDURES) and not is_index_change(words, clause):
                message = f"rules cannot call the procedure {name!r}: use plain Cypher, or one of {_shown(_PROCEDURES)}"
                yield "procedure", message, words.tokens[first].start
    for index, word in enumerate(words.tokens):
        if word.keyword == "USE" and _begins_query(words, index) and words.identifier(index + 1):
            checked.add(index + 1)
            yield "use", "USE selects another graph, and a rule has the graph of its app: remove USE", word.start
        # ``:$name`` is a parameter as a label, which ``problems`` reports with or without a bracket behind it.
        if word.text == "$" or (word.kind == "param" and words.text(index + 1) == "(" and words.text(index - 1) != ":"):
            message = "a label or type cannot be an expression: write the name itself, or use a property"
            yield "param-as-label", message, word.start
    for call in named_calls(query):
        if "." in call.name and call.place not in checked and not _listed(call.name, _FUNCTIONS):
            message = f"rules cannot call the function {call.name!r}: use a function of Cypher itself"
            yield "function", message, words.tokens[call.place].start
    for token in (*words.tokens, *query.comments):
        if escape := _hidden(token):
            message = f"{escape} hides a character from checks: write the character itself"
            yield "escaped-character", message, token.start + token.text.index(escape)


def is_index_change(words: QueryWords, clause: Clause) -> bool:
    """Tell whether a ``CALL`` creates or drops an index."""
    lower = _dotted(words, clause.words[0] + 1).lower()
    return lower.startswith(("db.idx.", "db.index.")) and (".create" in lower or ".drop" in lower)


def _dotted(words: QueryWords, index: int) -> str:
    """Return the dotted name that begins at the index, without quotes. A procedure may have no parentheses."""
    parts: list[str] = []
    while words.identifier(index):
        parts.append(words.identifier(index))
        index += 1
        if words.text(index) != ".":
            break
        index += 1
    return ".".join(parts)


def _listed(name: str, allowed: tuple[str, ...]) -> bool:
    lower = name.lower()
    return any(lower.startswith(entry) if entry.endswith(".") else lower == entry for entry in allowed)


def _shown(allowed: tuple[str, ...]) -> str:
    return ", ".join(entry + "*" if entry.endswith(".") else entry for entry in allowed)


def _begins_query(words: QueryWords, index: int) -> bool:
    return (
        index == 0
        or words.text(index - 1) in ("{", ";")
        or words.keyword(index - 1) in ("UNION", "ALL", "DISTINCT", "NEXT")
    )


def _hidden(token: CypherToken) -> str:
    r"""Return the first ``\uXXXX`` that changes how the text is read, or an empty text.

    Some servers replace these escapes before they read the query. In a string they may stand for letters.
    """
    if token.kind == "number" or "\\u" not in token.text:
        return ""
    inside = token.kind in ("string", "comment")
    for match in _ESCAPE.finditer(token.text):
        if not inside or chr(int(match[1], 16)) in _ENDING:
            return match[0]
    return ""
