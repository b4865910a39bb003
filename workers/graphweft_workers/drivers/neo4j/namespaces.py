"""Several graphs in one database: the live graph of an app, and second ones beside it that nobody sees by accident.

Neo4j Community has one database, and no database can take the place of another one in one step. So a second graph is in
the database of the live one. Its nodes have other labels, and two more: one for all second graphs, one for each. No
relationship leads from one graph to another. So a query stays in its graph if each of its patterns has a label, or
begins at a node that it has found before. Each statement is written anew for its graph:

- For a second graph, labels get their other names, and patterns without a label that of the graph.
- For the live graph, a path without any label leaves second graphs out. All other texts stay as they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final

from graphweft_contracts import InvalidSettings
from graphweft_rules.cypher.clauses import Clause, Outline, QueryWords, once, outline
from graphweft_rules.cypher.named_calls import named_calls
from graphweft_rules.cypher.names import colons, operands
from graphweft_rules.cypher.query import Cypher
from graphweft_workers.drivers.neo4j.dialect import quoted
from graphweft_workers.drivers.search_text import string
from graphweft_workers.ports.graph_store import INTERNAL_PREFIX, Write

BESIDE: Final = f"{INTERNAL_PREFIX}Beside"
"""The label of all nodes of second graphs."""
_PATTERNS: Final = frozenset({"MATCH", "CREATE", "MERGE"})
_MAKING: Final = frozenset({"CREATE", "MERGE"})
_SUBQUERIES: Final = frozenset({"EXISTS", "COUNT", "COLLECT"})
_OF_LABELS: Final = ("apoc.label.", "apoc.node.", "apoc.path.", "apoc.neighbors.", "apoc.algo.")
"""Beginnings of functions that see labels, or find nodes by their own means."""

type _Edit = tuple[int, int, str]


@dataclass(frozen=True, slots=True)
class Namespace:
    """The labels of one graph in a database."""

    name: str = ""
    """That of the second graph; empty for the live one."""

    @property
    def mark(self) -> str:
        """The label of all nodes of this second graph."""
        return f"{INTERNAL_PREFIX}{self.name}"

    @property
    def prefix(self) -> str:
        """What is before each label of rules."""
        return f"{self.mark} "

    @property
    def within(self) -> str:
        """The condition that a node ``n`` is in this graph."""
        return f"n:{quoted(self.mark)}" if self.name else f"NOT n:{BESIDE}"

    def label(self, label: str) -> str:
        """Return the name of a label in the database."""
        return f"{self.prefix}{label}" if self.name else label

    def stored(self, labels: Iterable[str]) -> tuple[str, ...]:
        """Return the labels of a node in the database."""
        return (*map(self.label, labels), self.mark, BESIDE) if self.name else tuple(labels)

    def plain(self, labels: Iterable[str]) -> tuple[str, ...]:
        """Return the labels of a node as rules name them."""
        if not self.name:
            return tuple(labels)
        size = len(self.prefix)
        return tuple(label[size:] for label in labels if label.startswith(self.prefix))

    def statement(self, text: str) -> str:
        """Return a statement, or a part of one, for this graph. Raises ``InvalidSettings`` if there is none."""
        return _statement(text, self)

    def query(self, query: Cypher) -> Cypher:
        """Return a query of a rule for this graph. Raises like ``statement``."""
        written = _written(query.outline, self)
        return query if written is query.outline else replace(query, outline=written)

    def write(self, write: Write) -> Write:
        """Return a write for this graph. Raises like ``statement``."""
        if write.query is None:
            return write
        query = self.query(write.query)
        return write if query is write.query else replace(write, query=query, batch_query=None)


LIVE: Final = Namespace()


@once
def refusal(query: Outline) -> str:
    """Return why a mutation keeps an app from having a second graph in the database; empty if it does not."""
    words = query.words
    if query.stray is not None:
        return "a bracket has no partner"
    for clause in query.clauses:
        if clause.keyword == "CALL" and words.text(clause.words[0] + 1) not in ("{", "("):
            return "it calls a procedure, which may find nodes of both graphs"
    for call in named_calls(query):
        if call.lower.startswith(_OF_LABELS):
            return f"it calls {call.lower}, which sees the labels of both graphs"
    seen: set[str] = set()
    for chain in _chains(query):
        if chain[0].keyword == "MERGE" and _is_loose(chain, seen):
            return "MERGE without a label may find nodes of both graphs: give the node a label"
        seen |= {node.name for node in chain if node.name}
    return ""


@lru_cache(maxsize=16_384)
def _statement(text: str, space: Namespace) -> str:
    return _changed(outline(text), space)


@lru_cache(maxsize=16_384)
def _written(query: Outline, space: Namespace) -> Outline:
    text = _changed(query, space)
    return query if text == query.text else outline(text)


def _changed(query: Outline, space: Namespace) -> str:
    if not space.name:
        return _edited(query.text, list(_hiding(query)))
    if reason := refusal(query):
        raise InvalidSettings(
            f"a query cannot run in a second graph of its database: {reason}. Give --into with the URL of another "
            f"graph server. The query: {query.text}"
        )
    return _edited(query.text, list(_moving(query, space)))


def _edited(text: str, edits: list[_Edit]) -> str:
    if not edits:
        return text
    parts: list[str] = []
    position = 0
    for start, end, new in sorted(edits, key=lambda edit: (edit[0], edit[1])):
        parts += (text[position:start], new)
        position = end
    return "".join(parts) + text[position:]


# For the live graph


def _hiding(query: Outline) -> Iterator[_Edit]:
    """Yield the edits that leave second graphs out."""
    seen = set(_aliases(query))
    for chain in _chains(query):
        first = chain[0]
        if first.keyword not in _MAKING and _is_loose(chain, seen):
            yield from _also(query, first, f"!{BESIDE}")
        seen |= {node.name for node in chain if node.name}


# For a second graph


def _moving(query: Outline, space: Namespace) -> Iterator[_Edit]:
    """Yield the edits that let a query find and make nodes of a second graph only."""
    words = query.words
    for index in _label_words(query):
        word = words.tokens[index]
        yield word.start, word.end, quoted(space.label(word.identifier))
    mark = quoted(space.mark)
    seen = set(_aliases(query))
    for chain in _chains(query):
        for node in chain:
            if node.keyword not in _MAKING:
                if not node.is_labelled:
                    yield from _also(query, node, mark)
            elif node.labels:
                joint = "&" if any(words.text(index) == "&" for index in node.labels) else ":"
                end = words.tokens[node.labels.stop - 1].end
                yield end, end, f"{joint}{mark}{joint}{BESIDE}"
            elif not node.name or node.name not in seen:
                end = words.tokens[node.labels.start - 1].end
                yield end, end, f":{mark}:{BESIDE}"
            seen.add(node.name)
    for call in named_calls(query):
        if call.lower == "labels":
            start, end = words.tokens[call.place].start, words.tokens[words.closing(call.opening)].end
            yield start, start, "[__gw_label IN "
            yield (
                end, end,
                f" WHERE __gw_label STARTS WITH {string(space.prefix)} | substring(__gw_label, {len(space.prefix)})]",
            )  # fmt: skip


def _also(query: Outline, node: _Node, label: str) -> Iterator[_Edit]:
    """Yield the edits by which a pattern asks for a further label."""
    words = query.words
    if not node.labels:
        end = words.tokens[node.labels.start - 1].end
        yield end, end, f":{label}"
        return
    colon, last = words.tokens[node.labels.start].end, words.tokens[node.labels.stop - 1].end
    yield colon, colon, "("
    yield last, last, f")&{label}"


# What a query says


@dataclass(frozen=True, slots=True)
class _Node:
    """A pattern of a node."""

    place: int
    """The opening parenthesis."""
    end: int
    """The closing one."""
    name: str
    labels: range
    """The words of the label expression with its colon; an empty range where it would begin."""
    is_labelled: bool
    """Whether every node has a label that the pattern names."""
    keyword: str
    """That of the clause."""


def _is_loose(chain: list[_Node], seen: set[str]) -> bool:
    """Tell whether a path may begin anywhere."""
    return not any(node.is_labelled or (node.name and node.name in seen) for node in chain)


def _chains(query: Outline) -> Iterator[list[_Node]]:
    """Yield the nodes of each path."""
    words = query.words
    chain: list[_Node] = []
    for node in _nodes(query):
        if chain and _after_arrow(words, chain[-1].end + 1) == node.place:
            chain.append(node)
            continue
        if chain:
            yield chain
        chain = [node]
    if chain:
        yield chain


def _after_arrow(words: QueryWords, index: int) -> int:
    """Return the index of the next node if a relationship begins at the index, else -1."""
    if words.text(index) not in ("-", "<"):
        return -1
    while True:
        text = words.text(index)
        if text == "(":
            return index
        if text in ("[", "{"):
            index = words.closing(index) + 1
        elif text in ("-", "<", ">", "+", "*"):
            index += 1
        else:
            return -1


def _nodes(query: Outline) -> Iterator[_Node]:
    """Yield the patterns of nodes: of clauses, of subqueries, and of patterns in expressions."""
    words = query.words
    clauses = {index: clause for clause in query.clauses for index in clause.words}
    openers = _openers(words)
    for index in range(len(words.tokens)):
        if words.text(index) != "(":
            continue
        after = index + 1
        name = "" if words.keyword(after) in ("WHERE", "IS") else words.identifier(after)
        labels = after + 1 if name else after
        stop = _label_end(words, labels) if words.text(labels) == ":" else labels
        ends = words.text(stop) in (")", "{") or words.keyword(stop) == "WHERE"
        if not ends and not (stop < len(words.tokens) and words.tokens[stop].kind == "param"):
            continue
        clause = clauses.get(index)
        if not _is_pattern(words, index, clause, openers):
            continue
        span = range(labels, stop)
        yield _Node(
            index, words.closing(index), name, span,
            bool(span) and not any(words.text(each) in ("!", "%") for each in span),
            clause.keyword if clause is not None else "",
        )  # fmt: skip


def _is_pattern(words: QueryWords, index: int, clause: Clause | None, openers: dict[int, int]) -> bool:
    """Tell whether the parenthesis at the index begins a node, given that its content may be one."""
    before = words.text(index - 1)
    if clause is not None and clause.keyword in _PATTERNS:
        outer = openers[index]
        while outer > clause.words[0] and words.text(outer) == "(":  # shortestPath(…), and a path in parentheses
            outer = openers[outer]
        begins = index - 1 == clause.words[0] or before in (",", "=", "(")
        if begins and outer < clause.words[0]:
            return True
    if before == "{" and words.keyword(index - 2) in _SUBQUERIES:
        return True
    end = words.closing(index) + 1
    one, two, three = (words.text(end + number) for number in range(3))
    if (one == "-" and two in ("[", "-")) or (one == "<" and two == "-" and three in ("[", "-")):
        return True
    return _ends_arrow(words, index - 1)


def _ends_arrow(words: QueryWords, index: int) -> bool:
    """Tell whether a relationship ends at the index."""
    if words.text(index) in ("+", "*") and words.text(index - 1) in (">", "-"):
        index -= 1
    elif words.text(index) == "}":
        opening = _opening(words, index)
        if words.text(opening - 1) not in (">", "-"):
            return False
        index = opening - 1
    if words.text(index) == ">":
        index -= 1
    if words.text(index) != "-":
        return False
    if words.text(index - 1) == "-":
        return True
    return words.text(index - 1) == "]" and words.text(_opening(words, index - 1) - 1) == "-"


def _opening(words: QueryWords, closing: int) -> int:
    """Return the index of the bracket that closes at the index."""
    depth = 0
    for index in range(closing, -1, -1):
        depth += (words.text(index) in (")", "]", "}")) - (words.text(index) in ("(", "[", "{"))
        if not depth:
            return index
    return 0


def _openers(words: QueryWords) -> dict[int, int]:
    """Return, for each opening bracket, the one around it; -1 for none."""
    found: dict[int, int] = {}
    stack: list[int] = []
    for index in range(len(words.tokens)):
        if words.text(index) in ("(", "[", "{"):
            found[index] = stack[-1] if stack else -1
            stack.append(index)
        elif words.text(index) in (")", "]", "}") and stack:
            stack.pop()
    return found


def _label_end(words: QueryWords, index: int) -> int:
    """Return the index after the label expression that begins at a colon."""
    while index < len(words.tokens):
        text = words.text(index)
        if text in (")", "{") or words.tokens[index].kind == "param" or words.keyword(index) == "WHERE":
            return index
        index = words.closing(index) + 1 if text == "(" else index + 1
    return index


def _label_words(query: Outline) -> Iterator[int]:
    """Yield the index of each name of a label; types of relationships and of values are none."""
    words = query.words
    for index, place in colons(query):
        if place != "relationship" and ":" not in (words.text(index - 1), words.text(index + 1)):
            yield from operands(words, index + 1, ("&",) if place == "list" else ("&", "|"))


def _aliases(query: Outline) -> Iterator[str]:
    """Yield the variables that are bound otherwise than by a pattern of a node."""
    words = query.words
    for index in range(len(words.tokens)):
        if words.keyword(index) in ("AS", "YIELD"):
            yield words.identifier(index + 1)
        elif words.keyword(index) == "IN" and words.text(index - 2) in ("(", "["):
            yield words.identifier(index - 1)
        elif words.text(index) == "[" and words.text(index - 1) == "-":
            yield words.identifier(index + 1)
