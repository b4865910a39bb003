"""What a rule's query does and what is wrong with it, known before the first event.

The statement that goes to the server differs from the author's text in what a replay must repeat: calls of the clock
and of ``randomUUID()`` have become parameters. Comments are gone too, so that whoever wraps a statement may add to it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import lru_cache
from typing import Final, Literal

from graphweft_rules.batching import BatchForm, Dialect, batch_form
from graphweft_rules.clauses import PARTS, WRITING, Clause, Outline, Words, outline
from graphweft_rules.clock import CALLS, OWN_PREFIX, UUID_PREFIX
from graphweft_rules.names import Name, graph_names
from graphweft_rules.traps import (
    bare_nodes,
    copied_writes,
    filtered_optionals,
    names_from_data,
    old_reads,
    path_merges,
    repeated_merges,
)

Role = Literal["injection", "mutation"]
_Level = Literal["error", "warning"]
_Problem = tuple[_Level, str, str, int]
"""Level, code, message, offset in the text."""
_Edit = tuple[int, int, str]
"""Start and end of what is replaced, and what comes instead."""
_Piece = tuple[int, int, bool]
"""An offset in a statement, the one in its author's text, and whether the text goes on from there as it was."""

_CLOCK_VARIANTS: Final = frozenset({"TRANSACTION", "STATEMENT", "REALTIME"})
_TEXT_CALLS: Final = frozenset({"datetime", "time"})
"""Clock calls whose value is text with us, because the server has no such type."""
_SCHEMA: Final = frozenset({"INDEX", "CONSTRAINT", "VECTOR", "FULLTEXT", "RANGE", "UNIQUE", "LOOKUP", "TEXT", "POINT"})
_PREFIXES: Final = frozenset({"CYPHER", "EXPLAIN", "PROFILE"})
_FIRST: Final = WRITING | {"MATCH", "OPTIONAL", "WITH", "UNWIND", "RETURN", "CALL"}
_NO_DATETIME: Final = "FalkorDB has no datetime type: pass the time as ISO 8601 text in a parameter"


@dataclass(frozen=True, slots=True, kw_only=True)
class CypherProblem:
    """Something to mend in a query; line and column count from 1 inside its text."""

    code: str
    level: _Level
    message: str
    line: int
    column: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Cypher:
    """A query of a rule, read. With a problem of level ``error`` only ``text`` and ``problems`` can be relied on."""

    text: str
    statement: str
    """What to execute: one statement without ``;`` and comments."""
    params: frozenset[str]
    """Names that the author uses, without the dollar."""
    clock: frozenset[str]
    """Names of the clock parameters in ``statement``: give them to ``clock_values``."""
    uuids: int
    """How many parameters of ``uuid_values`` the statement takes."""
    writes: bool
    deletes: bool
    returns: bool
    keys: frozenset[tuple[str, str]]
    """(label, property) by which MATCH and MERGE look nodes up: each deserves an index."""
    names: frozenset[Name]
    """The labels and relationship types that the text names."""
    problems: tuple[CypherProblem, ...]
    pieces: tuple[_Piece, ...] = field(default=(), repr=False, compare=False)
    """What ``statement`` is made of, for ``origin``."""

    def origin(self, line: int, column: int) -> tuple[int, int]:
        """Return where in ``text`` a line and column of ``statement`` (all from 1) come from.

        What was put in place of a part of the text comes from where that part begins.
        """
        before = self.statement.split("\n")[: line - 1]
        offset = sum(map(len, before)) + len(before) + column - 1
        start, origin, kept = next((piece for piece in reversed(self.pieces) if piece[0] <= offset), (0, 0, True))
        offset = min(origin + (offset - start if kept else 0), len(self.text))
        return self.text.count("\n", 0, offset) + 1, offset - self.text.rfind("\n", 0, offset)

    @property
    def columns(self) -> tuple[str, ...]:
        """All parameters of ``statement`` in a fixed order: the author's, the clock's and those of ``uuid_values``."""
        return (*sorted(self.params), *sorted(self.clock), *(f"{UUID_PREFIX}{number}" for number in range(self.uuids)))

    def form(self, dialect: Dialect, shared: frozenset[str] | None = None) -> BatchForm:
        """Return which rows of the query may share a query on a kind of server, and its text: see ``batch_form``."""
        return _form(self.statement, self.columns, dialect, shared)


@lru_cache(maxsize=16_384)
def _form(
    statement: str,
    columns: tuple[str, ...],
    dialect: Dialect,
    shared: frozenset[str] | None,
) -> BatchForm:
    return batch_form(statement, columns, dialect, shared=shared)


def parse(text: str, *, role: Role) -> Cypher:
    """Read a query; never raises, whatever the text: see ``problems``."""
    query = outline(text)
    words = query.words
    clock: set[str] = set()
    edits = list(_clock_edits(words, clock))
    uuids = list(_uuid_edits(words)) if role == "mutation" else []
    main = [clause for clause in query.clauses if clause.depth == 0 and clause.keyword not in PARTS]
    problems = sorted(_problems(query, role, len(uuids)), key=lambda problem: problem[3])
    statement, pieces = _edited(query, text, edits + uuids)
    return Cypher(
        text=text,
        statement=statement,
        params=frozenset(word.identifier for word in words.tokens if word.kind == "param"),
        clock=frozenset(clock),
        uuids=len(uuids),
        writes=any(clause.keyword in WRITING for clause in query.clauses),
        deletes=any(clause.keyword in ("DELETE", "DETACH") for clause in query.clauses),
        returns=bool(main) and main[-1].keyword == "RETURN",
        keys=frozenset(_keys(query)),
        names=frozenset(graph_names(query)),
        problems=tuple(_placed(text, problem) for problem in problems),
        pieces=pieces,
    )


def _clock_edits(words: Words, clock: set[str]) -> Iterator[_Edit]:
    for index in range(len(words.tokens)):
        call = _clock_call(words, index)
        if call and words.text(call + 1) == ")":
            name, replacement = CALLS[words.identifier(index).lower()]
            clock.add(name)
            yield words.tokens[index].start, words.tokens[call + 1].end, replacement


def _clock_call(words: Words, index: int) -> int:
    """Return the index of the parenthesis when a clock function is called at the index, else 0."""
    if words.identifier(index).lower() not in CALLS or words.text(index - 1) == ".":
        return 0
    after = index + 1
    if words.text(after) == "." and words.keyword(after + 1) in _CLOCK_VARIANTS:
        after += 2
    return after if words.text(after) == "(" else 0


def _uuid_edits(words: Words) -> Iterator[_Edit]:
    calls = [index for index in range(len(words.tokens)) if _calls(words, index, "randomuuid")]
    for number, index in enumerate(calls):
        yield words.tokens[index].start, words.tokens[words.closing(index + 1)].end, f"${UUID_PREFIX}{number}"


def _calls(words: Words, index: int, function: str) -> bool:
    called = words.identifier(index).lower() == function and words.text(index - 1) != "."
    return called and words.text(index + 1) == "(" and words.text(index + 2) == ")"


def _edited(query: Outline, text: str, edits: list[_Edit]) -> tuple[str, tuple[_Piece, ...]]:
    for token in query.tokens:
        if token.kind == "comment":  # the same number of lines, so that the server's messages fit the author's text
            edits.append((token.start, token.end, "\n" * token.text.count("\n") or " "))
    for word in reversed(query.words.tokens):
        if word.text != ";":
            break
        edits.append((word.start, word.end, " "))
    edited = ""
    pieces: list[_Piece] = []
    position = 0
    for start, end, replacement in sorted(edits):
        if start >= position:  # else: a comment inside a call that is replaced
            pieces.append((len(edited), position, True))
            edited += text[position:start]
            pieces.append((len(edited), start, False))
            edited += replacement
            position = end
    pieces.append((len(edited), position, True))
    return (edited + text[position:]).rstrip(), tuple(pieces)


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


def _map_keys(words: Words, brace: int) -> Iterator[str]:
    index, end = brace + 1, words.closing(brace)
    while index < end:
        if words.text(index + 1) == ":" and words.identifier(index):
            yield words.identifier(index)
        while index < end and words.text(index) != ",":
            index = words.closing(index) + 1 if words.text(index) in ("(", "[", "{") else index + 1
        index += 1


def _problems(query: Outline, role: Role, uuids: int) -> Iterator[_Problem]:
    words = query.words
    if not words.tokens:
        yield "error", "empty", "the query is empty: write Cypher, or remove the entry", 0
        return
    yield from _text_problems(query)
    yield from _outer_problems(query)
    yield from _name_problems(query)
    yield from _call_problems(words, role)
    admin = [clause for clause in query.clauses if _is_admin(words, clause)]
    for clause in admin:
        message = "rules do not change the schema or load files: indexes are made from the keys in MATCH and MERGE"
        yield "error", "admin", message, words.tokens[clause.words[0]].start
    writing = [clause for clause in query.clauses if clause.keyword in WRITING and clause not in admin]
    for name, start in filtered_optionals(query):
        message = (
            f"{name!r} comes from OPTIONAL MATCH as the first clause, and FalkorDB lets its null pass this condition: "
            "put a MATCH or UNWIND before it"
        )
        yield "warning", "optional-first", message, start
    if role == "injection":
        for clause in writing[:1]:
            message = f"{clause.keyword} writes, and injection rules only read: move it to a mutation rule"
            yield "error", "write-in-injection", message, words.tokens[clause.words[0]].start
        return
    if not writing and not admin:
        message = "the mutation changes nothing: add CREATE, MERGE, SET or DELETE, or make it an injection rule"
        yield "warning", "no-write", message, words.tokens[0].start
    rows = next((clause for clause in query.clauses if clause.keyword in ("UNWIND", "FOREACH")), None)
    if uuids and rows:
        message = "randomUUID() gives every row the same id, so that a replay repeats it: pass ids in the list itself"
        yield "warning", "uuid-per-row", message, words.tokens[rows.words[0]].start
    for keyword, start in bare_nodes(query) if role == "mutation" else ():
        message = f"{keyword} without a label takes every node, graphweft's own among them: give the node a label"
        yield "error", "bare-node", message, start
    for kind, start in repeated_merges(query):
        message = f"{kind!r} is merged twice; FalkorDB makes one edge or two of it: use two mutations"
        yield "warning", "two-merges-one-type", message, start
    for label, start in path_merges(query):
        message = f"MERGE of a path with {label!r} behind UNWIND loses rows on FalkorDB: merge the nodes first"
        yield "warning", "path-merge-many", message, start
    for name, start in copied_writes(query):
        message = (
            f"{name!r} is copied and overwritten by one SET over several rows, and FalkorDB copies a wrong value: "
            "use two mutations"
        )
        yield "warning", "copy-and-write", message, start
    for name, start in old_reads(query):
        message = f"{name!r} is read as it was before this run of SET: repeat the expression, or use two mutations"
        yield "warning", "set-reads-old", message, start
    for text, start in names_from_data(query) if role == "mutation" else ():
        message = (
            f"{text!r} makes keys of the data names of properties, of which a graph on FalkorDB has 65,535 for ever, "
            "and each new one makes all apps wait: name the properties, as in SET n.city = $map.city"
        )
        yield "warning", "names-from-data", message, start


def _text_problems(query: Outline) -> Iterator[_Problem]:
    words = query.words.tokens
    broken = next((word for word in words if word.kind == "broken"), None)
    if broken:
        what = "comment" if broken.text.startswith("/*") else "string" if broken.text[0] in "'\"" else "quoted name"
        yield "error", "unterminated", f"the {what} that begins here has no end: close it", broken.start
    elif query.stray:
        message = f"the bracket {query.stray.text!r} has no partner: add it, or remove this one"
        yield "error", "unbalanced", message, query.stray.start
    end = next((index for index, word in enumerate(words) if word.text == ";"), len(words))
    after = next((word for word in words[end:] if word.text != ";"), None)
    if after:
        yield "error", "several-statements", "a second statement begins here: make it an entry of its own", after.start
    if words[0].keyword in _PREFIXES:
        message = f"the query begins with {words[0].text!r}: remove it, parameters are passed and plans are not kept"
        yield "error", "cypher-prefix", message, words[0].start


def _outer_problems(query: Outline) -> Iterator[_Problem]:
    """Yield what is wrong with the first and the last clause, which the server would say only when the query runs."""
    first = query.words.tokens[0]
    if first.kind not in ("name", "broken") or (first.keyword not in _FIRST | _PREFIXES):
        near = get_close_matches(first.keyword, _FIRST, n=1)
        hint = f"did you mean {near[0]}?" if near else "MATCH, MERGE, CREATE, WITH, UNWIND or CALL, for example"
        if first.kind != "broken":
            yield "error", "no-clause", f"no query begins with {first.text!r}: {hint}", first.start
        return
    main = [clause for clause in query.clauses if clause.depth == 0 and clause.keyword not in PARTS]
    whole = query.stray is None and query.words.tokens[-1].kind != "broken"
    if whole and main and main[-1].keyword in ("MATCH", "OPTIONAL", "UNWIND", "WITH"):
        last = query.words.tokens[main[-1].words[0]]
        yield "error", "no-end", f"the query ends with {last.text}: add RETURN, or a clause that writes", last.start


def _name_problems(query: Outline) -> Iterator[_Problem]:
    words = query.words
    reserved: set[str] = set()
    for index, word in enumerate(words.tokens):
        if word.identifier.startswith(OWN_PREFIX) and word.identifier not in reserved:
            reserved.add(word.identifier)
            message = f"the name {word.identifier!r} starts with two underscores, as graphweft's own do: rename it"
            yield "error", "reserved-name", message, word.start
        if word.kind == "param" and words.text(index - 1) == ":" and index - 1 not in query.in_map:
            message = f"the parameter {word.text!r} cannot be a label or type: write the name itself, or use a property"
            yield "error", "param-as-label", message, word.start


def _call_problems(words: Words, role: Role) -> Iterator[_Problem]:
    for index, word in enumerate(words.tokens):
        name = words.identifier(index).lower()
        if role == "mutation" and name == "rand" and words.text(index + 1) == "(" and words.text(index - 1) != ".":
            yield (
                "error",
                "nondeterministic",
                "rand() gives a replay another graph: take the number from the event",
                word.start,
            )
        if name not in _TEXT_CALLS or words.text(index - 1) == ".":
            continue
        call = _clock_call(words, index)
        other = (
            not call and words.text(index + 1) == "." and words.identifier(index + 2) and words.text(index + 3) == "("
        )
        if other or (call and words.text(call + 1) != ")"):
            yield "error", "no-datetime", f"{name}() takes no arguments here: {_NO_DATETIME}", word.start
        elif call and words.text(call + 2) == ".":
            yield "error", "no-datetime", f"{name}() is text here and has no fields: {_NO_DATETIME}", word.start
        elif call and words.text(call + 2) in ("+", "-") and words.keyword(call + 3) == "DURATION":
            message = f"{name}() is text here and cannot be counted with: {_NO_DATETIME}, or use localdatetime()"
            yield "error", "no-datetime", message, word.start


def _is_admin(words: Words, clause: Clause) -> bool:
    after = clause.words[0] + 1
    match clause.keyword:
        case "LOAD" | "DROP":
            return True
        case "CREATE":
            return words.keyword(after) in _SCHEMA and words.text(after + 1) != "="
        case "CALL":
            procedure = "".join(words.text(index).lower() for index in clause.words[1:])
            return procedure.startswith(("db.idx.", "db.index.")) and (".create" in procedure or ".drop" in procedure)
        case _:
            return False


def _placed(text: str, problem: _Problem) -> CypherProblem:
    level, code, message, start = problem
    return CypherProblem(
        code=code,
        level=level,
        message=message,
        line=text.count("\n", 0, start) + 1,
        column=start - text.rfind("\n", 0, start),
    )
