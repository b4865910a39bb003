"""A rule's query, parsed: its statement, parameters, look-up keys and problems."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Final

from graphweft_rules.cypher.batch_query import BatchQuery, Dialect
from graphweft_rules.cypher.clauses import PARTS, WRITING, Outline, QueryWords, outline
from graphweft_rules.cypher.names import Name, graph_names
from graphweft_rules.cypher.problems import Level, QueryProblem, Role, own_problems
from graphweft_rules.cypher.ranges import range_parameters
from graphweft_rules.cypher.statement import Piece, clock_edits, edited, uuid_edits
from graphweft_rules.cypher.tokens import pieces_of
from graphweft_rules.matching.clock import UUID_PREFIX
from graphweft_rules.text_limits import QUERY, TextLimits, TextProblem, length_problem, problem_of


@dataclass(frozen=True, slots=True, kw_only=True)
class CypherProblem:
    """Something to change in a query; line and column count from 1 inside its text."""

    code: str
    level: Level
    message: str
    line: int
    column: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Cypher:
    """A parsed query. If a problem has the level ``error``, only ``text`` and ``problems`` are reliable."""

    text: str
    outline: Outline
    """That of ``statement``. It keeps what analyses find, so that no text is read twice."""
    params: frozenset[str]
    """The author's parameters, without the dollar sign."""
    clock: frozenset[str]
    """The clock parameters of ``statement``; ``clock_values`` gives their values."""
    uuids: int
    """Number of ``uuid_values`` parameters in ``statement``."""
    writes: bool
    deletes: bool
    returns: bool
    keys: frozenset[tuple[str, str]]
    """(label, property) by which MATCH and MERGE look nodes up; each needs an index."""
    names: frozenset[Name]
    """The labels and relationship types in the text."""
    problems: tuple[CypherProblem, ...]
    ranges: frozenset[str] = frozenset()
    """The parameters that are bounds of ``range()``: ``range_problem`` checks their values before the query runs."""
    pieces: tuple[Piece, ...] = field(default=(), repr=False, compare=False)
    """The pieces of ``statement``, for ``origin``."""

    @property
    def statement(self) -> str:
        """The query to run: one statement without ``;`` and comments; clock calls are parameters."""
        return self.outline.text

    @property
    def needs_match(self) -> bool:
        """Whether the query begins with MATCH, and so changes nothing where that finds nothing."""
        return self.statement.lstrip()[:5].upper() == "MATCH"

    def origin(self, line: int, column: int) -> tuple[int, int]:
        """Return the line and column in ``text`` of a line and column in ``statement``; all count from 1.

        A replacement has the place where the replaced text begins.
        """
        before = self.statement.split("\n")[: line - 1]
        offset = sum(map(len, before)) + len(before) + column - 1
        start, origin, kept = next((piece for piece in reversed(self.pieces) if piece[0] <= offset), (0, 0, True))
        offset = min(origin + (offset - start if kept else 0), len(self.text))
        return line_and_column(self.text, offset)

    @property
    def columns(self) -> tuple[str, ...]:
        """The parameters of ``statement``, always in one order: the author's, the clock's, those of ``uuid_values``."""
        return (*sorted(self.params), *sorted(self.clock), *(f"{UUID_PREFIX}{number}" for number in range(self.uuids)))

    def batch_query(self, dialect: Dialect, shared: frozenset[str] | None = None) -> BatchQuery:
        """Return the batch query of this query: see ``Dialect.batch_query``."""
        return _batch_query(self.outline, self.columns, dialect, shared)


@lru_cache(maxsize=16_384)
def _batch_query(
    query: Outline, columns: tuple[str, ...], dialect: Dialect, shared: frozenset[str] | None
) -> BatchQuery:
    return dialect.batch_query(query, columns, shared=shared)


def parse(
    text: str,
    *,
    role: Role,
    dialects: Iterable[Dialect] = (),
    limits: TextLimits = QUERY,
    further: Callable[[Outline], Iterable[QueryProblem]] = lambda _: (),
) -> Cypher:
    """Parse a query. Never raises: ``problems`` holds what is wrong, including what each of ``dialects`` reports.

    A text beyond the ``limits`` is not analysed, and has this one problem. ``further`` finds problems of a query that
    has no error.
    """
    if (long := length_problem(text, limits)) is not None:
        return _refused(text, long)
    # Only rules have the limits ``QUERY``. Other texts come from requests, too, of which nothing may stay here.
    query = rule_outline(text) if limits is QUERY else outline(text)
    cypher, problems = _parsed(query, role) if limits is QUERY else _analysed(query, role, limits)
    if not _is_refused(problems):
        problems += tuple(problem for dialect in dialects for problem in dialect.problems(query, role))
    problems = tuple(sorted(problems, key=lambda problem: problem.start))
    if not any(problem.level == "error" for problem in problems):
        problems += tuple(further(query))
    # A copy, because rows of different mutations are told apart by the identity of their queries.
    return replace(cypher, problems=tuple(placed(text, problem) for problem in problems))


_TOO_MUCH: Final = "too-much"


def _refused(text: str, problem: TextProblem) -> Cypher:
    """Return what is known about a text that is not analysed."""
    placed_there = placed(text, QueryProblem("error", _TOO_MUCH, problem.message, problem.start))
    return Cypher(
        text=text,
        outline=outline(""),
        params=frozenset(),
        clock=frozenset(),
        uuids=0,
        writes=False,
        deletes=False,
        returns=False,
        keys=frozenset(),
        names=frozenset(),
        problems=(placed_there,),
    )


def _is_refused(problems: Iterable[QueryProblem]) -> bool:
    return any(problem.code == _TOO_MUCH for problem in problems)


def rule_outline(text: str) -> Outline:
    """Return the outline of a text of a rule, of which the checks of its file and the compiler read the same one."""
    return _kept_outline(text) if length_problem(text, QUERY) is None else outline(text)


_kept_outline: Final = lru_cache(maxsize=16_384)(outline)


def parse_own(text: str, *, role: Role) -> Cypher:
    """Parse a query that graphweft brings itself, in half the time of ``parse``. ``problems`` is empty.

    Whoever writes the query looks for its problems, by ``parse`` in a test.
    """
    return replace(_kept_cypher(rule_outline(text), role))  # a copy, as of ``parse``


@lru_cache(maxsize=16_384)
def _parsed(query: Outline, role: Role) -> tuple[Cypher, tuple[QueryProblem, ...]]:
    return _analysed(query, role, QUERY)


def _analysed(query: Outline, role: Role, limits: TextLimits) -> tuple[Cypher, tuple[QueryProblem, ...]]:
    """Return a query without problems, and the problems that it has on any server."""
    if (much := problem_of(pieces_of(query.words.tokens), limits)) is not None:
        return _refused(query.text, much), (QueryProblem("error", _TOO_MUCH, much.message, much.start),)
    cypher = _read(query, role)
    return cypher, tuple(own_problems(query, role, cypher.uuids))


def _read(query: Outline, role: Role) -> Cypher:
    text, words = query.text, query.words
    clock: set[str] = set()
    edits = list(clock_edits(query, clock))
    uuids = list(uuid_edits(query)) if role == "mutation" else []
    main = [clause for clause in query.clauses if clause.depth == 0 and clause.keyword not in PARTS]
    statement, pieces = edited(query, text, edits + uuids)
    return Cypher(
        text=text,
        outline=query if statement == text else outline(statement),
        params=frozenset(word.identifier for word in words.tokens if word.kind == "param"),
        clock=frozenset(clock),
        uuids=len(uuids),
        writes=any(clause.keyword in WRITING for clause in query.clauses),
        deletes=any(clause.keyword in ("DELETE", "DETACH") for clause in query.clauses),
        returns=bool(main) and main[-1].keyword == "RETURN",
        keys=frozenset(_keys(query)),
        names=frozenset(graph_names(query)),
        problems=(),
        ranges=range_parameters(query),
        pieces=pieces,
    )


_kept_cypher: Final = lru_cache(maxsize=16_384)(_read)


def placed(text: str, problem: QueryProblem) -> CypherProblem:
    """Return a problem of a text with its line and column."""
    line, column = line_and_column(text, problem.start)
    return CypherProblem(code=problem.code, level=problem.level, message=problem.message, line=line, column=column)


def line_and_column(text: str, offset: int) -> tuple[int, int]:
    """Return line and column of an offset, both from 1."""
    return text.count("\n", 0, offset) + 1, offset - text.rfind("\n", 0, offset)


def _keys(query: Outline) -> Iterator[tuple[str, str]]:
    words = query.words
    for clause in query.clauses:
        if clause.keyword not in ("MATCH", "MERGE"):
            continue
        for index in clause.words:
            if words.text(index) != "(":
                continue
            colon = index + 2 if words.identifier(index + 1) else index + 1
            label = words.identifier(colon + 1) if words.text(colon) == ":" else ""
            brace = colon + 2
            while words.text(brace) in (":", "&") and words.identifier(brace + 1):
                brace += 2
            if label and words.text(brace) == "{":
                yield from ((label, key) for key in _map_keys(words, brace))


def _map_keys(words: QueryWords, brace: int) -> Iterator[str]:
    index, end = brace + 1, words.closing(brace)
    while index < end:
        if words.text(index + 1) == ":" and words.identifier(index):
            yield words.identifier(index)
        while index < end and words.text(index) != ",":
            index = words.closing(index) + 1 if words.text(index) in ("(", "[", "{") else index + 1
        index += 1
