"""Problems that graphweft itself finds in a rule's query. Problems of one graph server come from its ``Dialect``."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches
from typing import Final, Literal, NamedTuple

from graphweft_rules.cypher.calls import call_problems, is_index_change
from graphweft_rules.cypher.clauses import PARTS, WRITING, Clause, Outline, QueryWords
from graphweft_rules.cypher.growth import MOST_GROWTH, growth_problem
from graphweft_rules.cypher.named_calls import named_calls
from graphweft_rules.cypher.ranges import range_problems
from graphweft_rules.cypher.reduce_names import repeated_reduce_names
from graphweft_rules.cypher.statement import clock_function
from graphweft_rules.matching.clock import OWN_PREFIX

Role = Literal["injection", "mutation"]
Level = Literal["error", "warning"]


class QueryProblem(NamedTuple):
    """Something to change in a query."""

    level: Level
    """An ``error`` keeps the rules from loading."""
    code: str
    """Kebab-case and stable."""
    message: str
    start: int
    """Offset in the query's text, in characters."""


_TEXT_CALLS: Final = frozenset({"datetime", "time"})
"""Clock calls that graphweft replaces by text, because not every graph server has the type."""
_SCHEMA: Final = frozenset({"INDEX", "CONSTRAINT", "VECTOR", "FULLTEXT", "RANGE", "UNIQUE", "LOOKUP", "TEXT", "POINT"})
_PREFIXES: Final = frozenset({"CYPHER", "EXPLAIN", "PROFILE"})
_FIRST: Final = WRITING | {"MATCH", "OPTIONAL", "WITH", "UNWIND", "RETURN", "CALL"}
_NO_DATETIME: Final = "pass the time as ISO 8601 text in a parameter"
_OWN_PROPERTIES: Final = frozenset(
    {"partition", "pos", "plan", "done", "note", "app", "app_id", "only", "lock", "kept", "rejected", "erasures"}
)


def own_problems(query: Outline, role: Role, uuids: int) -> Iterator[QueryProblem]:
    """Yield the problems of a query that calls ``randomUUID()`` ``uuids`` times, in no particular order."""
    words = query.words
    if not words.tokens:
        yield QueryProblem("error", "empty", "the query is empty: write Cypher, or remove the entry", 0)
        return
    yield from _text_problems(query)
    yield from _outer_problems(query)
    yield from _name_problems(query)
    yield from _clock_problems(query, role)
    for code, message, start in call_problems(query):
        yield QueryProblem("error", code, message, start)
    for message, start in range_problems(query):
        yield QueryProblem("error", "range-bound", message, start)
    if (grows := growth_problem(query, MOST_GROWTH)) is not None:
        yield QueryProblem("error", "growth", grows[0], words.tokens[grows[1]].start)
    for name, start in repeated_reduce_names(query):
        message = (
            f"the variable {name!r} of reduce() has the name of another one, and then a graph server may never end: "
            "rename it"
        )
        yield QueryProblem("error", "reduce-name", message, start)
    admin = [clause for clause in query.clauses if _is_admin(words, clause)]
    for clause in admin:
        message = "a rule cannot change the schema or load files: remove the clause; graphweft indexes the look-up keys"
        yield QueryProblem("error", "admin", message, words.tokens[clause.words[0]].start)
    writing = [clause for clause in query.clauses if clause.keyword in WRITING and clause not in admin]
    if role == "injection":
        for clause in writing[:1]:
            message = f"{clause.keyword} writes, and injection rules only read: move it to a mutation rule"
            yield QueryProblem("error", "write-in-injection", message, words.tokens[clause.words[0]].start)
        return
    if not writing and not admin:
        message = "the mutation changes nothing: add CREATE, MERGE, SET or DELETE, or make it an injection rule"
        yield QueryProblem("warning", "no-write", message, words.tokens[0].start)
    rows = next((clause for clause in query.clauses if clause.keyword in ("UNWIND", "FOREACH")), None)
    if uuids and rows:
        message = "randomUUID() gives the same id to every item of the list: pass an id in each item"
        yield QueryProblem("warning", "uuid-per-row", message, words.tokens[rows.words[0]].start)
    for keyword, start in bare_nodes(query):
        message = f"{keyword} without a label also matches graphweft's own nodes: give the node a label"
        yield QueryProblem("error", "bare-node", message, start)


def _text_problems(query: Outline) -> Iterator[QueryProblem]:
    words = query.words.tokens
    broken = next((word for word in words if word.kind == "broken"), None)
    if broken:
        kind = "comment" if broken.text.startswith("/*") else "string" if broken.text[0] in "'\"" else "quoted name"
        yield QueryProblem("error", "unterminated", f"the {kind} that begins here does not end: close it", broken.start)
    elif query.stray:
        message = f"the bracket {query.stray.text!r} has no partner: add the partner, or remove the bracket"
        yield QueryProblem("error", "unbalanced", message, query.stray.start)
    end = next((index for index, word in enumerate(words) if word.text == ";"), len(words))
    after = next((word for word in words[end:] if word.text != ";"), None)
    if after:
        message = "a second statement begins here: give it an entry of its own"
        yield QueryProblem("error", "several-statements", message, after.start)
    if words[0].keyword in _PREFIXES:
        message = f"the query begins with {words[0].text!r}, which rules cannot use: remove it"
        yield QueryProblem("error", "cypher-prefix", message, words[0].start)


def _outer_problems(query: Outline) -> Iterator[QueryProblem]:
    """Yield problems of the first and last clause, which a server reports only when the query runs."""
    first = query.words.tokens[0]
    if first.kind not in ("name", "broken") or (first.keyword not in _FIRST | _PREFIXES):
        near = get_close_matches(first.keyword, _FIRST, n=1)
        hint = f"did you mean {near[0]}?" if near else "begin with MATCH, MERGE, CREATE or CALL, for example"
        if first.kind != "broken":
            yield QueryProblem("error", "no-clause", f"a query cannot begin with {first.text!r}: {hint}", first.start)
        return
    main = [clause for clause in query.clauses if clause.depth == 0 and clause.keyword not in PARTS]
    whole = query.stray is None and query.words.tokens[-1].kind != "broken"
    if whole and main and main[-1].keyword in ("MATCH", "OPTIONAL", "UNWIND", "WITH"):
        last = query.words.tokens[main[-1].words[0]]
        message = f"the query ends with {last.text}: add RETURN, or a clause that writes"
        yield QueryProblem("error", "no-end", message, last.start)


def _name_problems(query: Outline) -> Iterator[QueryProblem]:
    words = query.words
    reserved: set[str] = set()
    for index, word in enumerate(words.tokens):
        if word.identifier.startswith(OWN_PREFIX) and word.identifier not in reserved:
            reserved.add(word.identifier)
            message = f"the name {word.identifier!r} starts with two underscores, which graphweft reserves: rename it"
            yield QueryProblem("error", "reserved-name", message, word.start)
        if word.kind == "param" and words.text(index - 1) == ":" and index - 1 not in query.in_map:
            message = f"the parameter {word.text!r} cannot be a label or type: write the name itself, or use a property"
            yield QueryProblem("error", "param-as-label", message, word.start)


def _clock_problems(query: Outline, role: Role) -> Iterator[QueryProblem]:
    words = query.words
    for call in named_calls(query):
        start, after = words.tokens[call.place].start, call.opening + 2
        if role == "mutation" and call.lower == "rand":
            message = "rand() gives another value when events are replayed: take the number from the event"
            yield QueryProblem("error", "nondeterministic", message, start)
        name = call.lower.partition(".")[0]
        if name not in _TEXT_CALLS:
            continue
        if not clock_function(call) or words.text(call.opening + 1) != ")":
            message = f"{name}() takes no arguments in rules: {_NO_DATETIME}"
        elif words.text(after) == ".":
            message = f"{name}() returns text in rules and has no fields: {_NO_DATETIME}"
        elif words.text(after) in ("+", "-") and words.keyword(after + 1) == "DURATION":
            message = f"{name}() returns text in rules: {_NO_DATETIME}, or add the duration to localdatetime()"
        else:
            continue
        yield QueryProblem("error", "no-datetime", message, start)


def _is_admin(words: QueryWords, clause: Clause) -> bool:
    after = clause.words[0] + 1
    match clause.keyword:
        case "LOAD" | "DROP":
            return True
        case "CREATE":
            return words.keyword(after) in _SCHEMA and words.text(after + 1) != "="
        case "CALL":
            return is_index_change(words, clause)
        case _:
            return False


def bare_nodes(query: Outline) -> Iterator[tuple[str, int]]:
    """Yield (keyword, offset) for each lone node pattern that may match graphweft's own nodes, such as checkpoints.

    Such a pattern names no label that each node must have, and has no properties or one that these nodes have.
    """
    words = query.words
    seen: set[str] = set()
    for clause in query.clauses:
        for index in clause.words:
            name = words.identifier(index + 1) if words.keyword(index + 1) not in ("WHERE", "IS") else ""
            alone = (
                clause.keyword in ("MATCH", "MERGE")
                and words.text(index) == "("
                and _begins_path(words, index - 1)
                and _may_be_own(words, index + 2 if name else index + 1)
                and not _begins_relationship(words, words.closing(index) + 1)
            )
            if alone and name not in seen:
                yield clause.keyword, words.tokens[index].start
            if words.identifier(index) and _names_variable(words, index, clause):
                seen.add(words.identifier(index))


def _begins_path(words: QueryWords, before: int) -> bool:
    """Tell whether a path may begin behind the index: in a clause, in an assignment, or in brackets of one."""
    while words.text(before) == "(":
        before -= 2 if words.keyword(before - 1) in ("SHORTESTPATH", "ALLSHORTESTPATHS") else 1
    return words.keyword(before) in ("MATCH", "MERGE") or words.text(before) in (",", "=")


def _may_be_own(words: QueryWords, index: int) -> bool:
    """Tell whether a node that has none but graphweft's labels may match a pattern, which goes on at the index."""
    may_be = True
    if words.text(index) == ":" or words.keyword(index) == "IS":
        may_be, index = _without_labels(words, index + 1)
    return may_be and (words.text(index) == ")" or words.keyword(index) == "WHERE" or _own_map(words, index))


def _without_labels(words: QueryWords, index: int) -> tuple[bool, int]:
    """Return whether a label expression is true for a node without any label that it names, and where it ends."""
    found, index = _with_each(words, index)
    while words.text(index) == "|":
        other, index = _with_each(words, index + 2 if words.text(index + 1) == ":" else index + 1)
        found = found or other
    return found, index


def _with_each(words: QueryWords, index: int) -> tuple[bool, int]:
    found, index = _negated(words, index)
    while words.text(index) in ("&", ":"):
        other, index = _negated(words, index + 1)
        found = found and other
    return found, index


def _negated(words: QueryWords, index: int) -> tuple[bool, int]:
    turned = False
    while words.text(index) == "!":
        turned, index = not turned, index + 1
    if words.text(index) == "(":
        found, _ = _without_labels(words, index + 1)
        return found != turned, words.closing(index) + 1
    return (words.text(index) == "%") != turned, index + 1


def _own_map(words: QueryWords, brace: int) -> bool:
    """Tell whether a map begins at the index that is empty or names a property of graphweft's own nodes."""
    inside = range(brace + 1, words.closing(brace))
    return words.text(brace) == "{" and (
        not inside
        or any(words.identifier(index) in _OWN_PROPERTIES and words.text(index + 1) == ":" for index in inside)
    )


def _begins_relationship(words: QueryWords, index: int) -> bool:
    """Tell whether a mandatory relationship begins at the index; graphweft's own nodes have no relationships."""
    if words.text(index) not in ("-", "<"):
        return False
    # A path of length 0 is the node itself: ``*0..2``, ``{0,2}``, ``{,2}``, or ``*`` behind the arrow.
    bracket = next((place for place in range(index, index + 3) if words.text(place) == "["), None)
    if bracket is not None:
        inside = range(bracket + 1, words.closing(bracket))
        if any(words.text(place) == "*" and words.text(place + 1).startswith("0") for place in inside):
            return False
        index = words.closing(bracket) + 1
    while words.text(index) in ("-", "<", ">"):
        index += 1
    return words.text(index) != "*" and not (words.text(index) == "{" and words.text(index + 1) in ("0", ","))


def _names_variable(words: QueryWords, index: int, clause: Clause) -> bool:
    """Tell whether the name at the index is a variable and not a label, a map key or a property."""
    before = words.text(index - 1)
    return before in ("(", "[") or words.keyword(index - 1) in ("AS", "YIELD") or clause.keyword in ("WITH", "YIELD")
