"""The outline of a query: where each clause begins and ends, found without a grammar.

A grammar refuses unknown syntax and lags behind the servers. Rules only need to know which words are clause keywords,
and which clause each word belongs to. Any text has an outline; the server decides on the syntax.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import wraps
from typing import Final, Literal, cast

from graphweft_rules.cypher.tokens import CypherToken, tokenize

WRITING: Final = frozenset({"CREATE", "MERGE", "SET", "DELETE", "DETACH", "REMOVE", "FOREACH", "DROP", "LOAD"})
PARTS: Final = frozenset({"WHERE", "ORDER", "SKIP", "LIMIT", "YIELD"})
"""Keywords that belong to the clause before them."""
_STARTING: Final = WRITING | PARTS | {"MATCH", "OPTIONAL", "WITH", "UNWIND", "RETURN", "CALL", "UNION", "ON"}

_OPERATORS: Final = frozenset(
    {"AS", "AND", "OR", "XOR", "NOT", "IN", "BY", "CASE", "WHEN", "THEN", "ELSE", "CONTAINS", "DISTINCT", "WITH"}
)
_WAITING: Final = _STARTING - {"OPTIONAL", "DETACH", "UNION", "ORDER", "CALL", "FOREACH", "LOAD", "DROP", "ON"}
"""Keywords before a name or an expression, so the next word is not a keyword: ``WITH set``."""
_JOINING: Final = frozenset(".:,=<>+-/%^&$")
_CLOSING: Final = {"(": ")", "[": "]", "{": "}"}
_CLOSERS: Final = frozenset(_CLOSING.values())

_Scope = Literal["query", "foreach", "map", "other"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Clause:
    """A clause or a part of one. ``words`` holds the indices of its words: keyword first, no nested clauses."""

    keyword: str
    depth: int
    """0 for the query itself; more inside subqueries and FOREACH."""
    conditional: bool
    """After ON CREATE or ON MATCH."""
    words: list[int] = field(default_factory=list[int])


@dataclass(frozen=True, slots=True)
class QueryWords:
    """The tokens of a query without spaces and comments. An index out of range gives the empty text."""

    tokens: tuple[CypherToken, ...]
    closings: Mapping[int, int]
    """Index of an opening bracket -> the index where it closes."""

    def text(self, index: int) -> str:
        """Return the word at the index."""
        return self.tokens[index].text if 0 <= index < len(self.tokens) else ""

    def keyword(self, index: int) -> str:
        """Return the bare name at the index in upper case; empty for other words."""
        return self.tokens[index].keyword if 0 <= index < len(self.tokens) else ""

    def identifier(self, index: int) -> str:
        """Return the bare or quoted name at the index, without its quotes; empty for other words."""
        if not 0 <= index < len(self.tokens) or self.tokens[index].kind not in ("name", "quoted"):
            return ""
        return self.tokens[index].identifier

    def closing(self, index: int) -> int:
        """Return the index where the bracket at the index closes, or the number of words."""
        return self.closings.get(index, len(self.tokens))


@dataclass(frozen=True, slots=True, kw_only=True)
class Outline:
    """The words of a query, and its clauses in the order of their keywords. Outlines of equal texts are equal."""

    text: str
    words: QueryWords = field(repr=False, compare=False)
    comments: tuple[CypherToken, ...] = field(repr=False, compare=False)
    clauses: tuple[Clause, ...] = field(repr=False, compare=False)
    in_map: frozenset[int] = field(repr=False, compare=False)
    """Indices of the words directly inside the braces of a map."""
    stray: CypherToken | None = field(repr=False, compare=False)
    """The first unmatched bracket."""
    found: dict[object, object] = field(default_factory=dict[object, object], init=False, repr=False, compare=False)
    """The results of analyses: see ``once``."""


def once[T](analysis: Callable[[Outline], T]) -> Callable[[Outline], T]:
    """Let an analysis run once for each outline, which keeps the result. The analysis must not raise."""

    @wraps(analysis)
    def kept(query: Outline) -> T:
        if analysis not in query.found:
            query.found[analysis] = analysis(query)
        return cast("T", query.found[analysis])

    return kept


@dataclass(slots=True)
class _Frame:
    scope: _Scope
    opener: int
    depth: int
    clause: Clause | None = None
    open: bool = True
    """Whether a clause may begin here; in FOREACH only after the bar."""


def outline(text: str) -> Outline:
    """Return the outline of any text. Never raises."""
    tokens = tokenize(text)
    solid = tuple(token for token in tokens if token.kind not in ("space", "comment"))
    words = QueryWords(solid, _closings(solid))
    clauses: list[Clause] = []
    in_map: set[int] = set()
    stray: CypherToken | None = None
    stack = [_Frame("query", -1, 0)]
    for index, word in enumerate(words.tokens):
        frame = stack[-1]
        if word.text in _CLOSERS:
            if frame.opener >= 0 and _CLOSING[words.text(frame.opener)] == word.text:
                stack.pop()
                frame = stack[-1]
            else:
                stray = stray or word
        elif word.text == "|" and frame.scope == "foreach":
            frame.open = True
        elif _starts(words, index, frame):
            conditional = words.keyword(index - 2) == "ON" and words.keyword(index - 1) in ("CREATE", "MATCH")
            frame.clause = Clause(keyword=word.keyword, depth=frame.depth, conditional=conditional)
            clauses.append(frame.clause)
        if frame.scope == "map":
            in_map.add(index)
        for outer in reversed(stack):
            if outer.clause is not None:
                outer.clause.words.append(index)
                break
        if word.text in _CLOSING:
            stack.append(_inner(words, index, frame))
    if len(stack) > 1:
        stray = stray or words.tokens[stack[-1].opener]
    return Outline(
        text=text,
        words=words,
        comments=tuple(token for token in tokens if token.kind == "comment"),
        clauses=tuple(clauses),
        in_map=frozenset(in_map),
        stray=stray,
    )


def _closings(tokens: Iterable[CypherToken]) -> Mapping[int, int]:
    found: dict[int, int] = {}
    opened: list[int] = []
    for index, token in enumerate(tokens):
        if token.text in _CLOSING:
            opened.append(index)
        elif token.text in _CLOSERS and opened:
            found[opened.pop()] = index
    return found


def _starts(words: QueryWords, index: int, frame: _Frame) -> bool:
    keyword = words.tokens[index].keyword
    if keyword not in _STARTING or frame.scope not in ("query", "foreach") or not frame.open:
        return False
    if index - 1 == frame.opener:
        return True
    before = words.text(index - 1)
    if before == "*":  # WITH * CREATE …, but 2 * set
        return words.keyword(index - 2) in ("WITH", "RETURN", "DISTINCT")
    if before in _JOINING:
        return False
    previous = words.keyword(index - 1)
    begins = frame.clause is not None and frame.clause.words[-1:] == frame.clause.words[:1] == [index - 1]
    if frame.clause and frame.clause.keyword == "ON" and previous in ("CREATE", "MATCH"):
        return keyword == "SET"
    if (begins and previous == "ON") or (keyword == "WITH" and previous in ("STARTS", "ENDS")):
        return False
    if begins:
        return previous not in _WAITING
    # A property, a label or an alias may have the name of an operator.
    is_name = words.text(index - 2) in (".", ":", "&", "|") or words.keyword(index - 2) == "AS"
    return previous not in _OPERATORS or is_name


def _inner(words: QueryWords, index: int, frame: _Frame) -> _Frame:
    """Return the frame opened by the bracket at the index."""
    before = words.keyword(index - 1)
    if words.text(index) == "(":
        if before == "FOREACH" and frame.clause and frame.clause.keyword == "FOREACH":
            return _Frame("foreach", index, frame.depth + 1, open=False)
        return _Frame("other", index, frame.depth)
    if words.text(index) == "[":
        return _Frame("other", index, frame.depth)
    subquery = before in ("CALL", "EXISTS", "COUNT", "COLLECT") or (
        words.text(index - 1) == ")" and frame.clause is not None and frame.clause.keyword == "CALL"
    )
    empty_or_map = words.text(index + 1) in (".", "}", "") or words.text(index + 2) == ":"
    if subquery and not empty_or_map:
        return _Frame("query", index, frame.depth + 1)
    return _Frame("map", index, frame.depth)
