"""The author's text of a query, with the values of a row in the place of parameters."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from graphweft_rules.cypher.batch_query import ROW
from graphweft_rules.cypher.clauses import Outline, QueryWords
from graphweft_rules.cypher.part_parser import literal_map
from graphweft_rules.cypher.parts import NodePattern, Part, PathPattern, Property, RelationshipPattern, SetItem
from graphweft_workers.drivers.falkordb.batch_effects import RowsRefused

OWN: Final = "__gw_"
_NUMBER: Final = f"{OWN}no"
_VALUE: Final = f"{OWN}p"


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSource:
    """A query, and where each of its parameters is in a row."""

    query: Outline
    columns: dict[str, int]
    """Parameter -> its index in a row."""
    bound: bool = False
    """Whether each value of the row has a variable, and the row itself has none."""

    @property
    def words(self) -> QueryWords:
        """The words of the query."""
        return self.query.words

    def text(self, span: range) -> str:
        """Return the words as the author wrote them, with the row's values for parameters."""
        tokens = self.words.tokens
        if not span:
            return ""
        parts: list[str] = []
        position = tokens[span.start].start
        for index in span:
            if tokens[index].kind == "param":
                parts += (self.query.text[position : tokens[index].start], self.value(tokens[index].identifier))
                position = tokens[index].end
        return "".join(parts) + self.query.text[position : tokens[span.stop - 1].end]

    def value(self, parameter: str) -> str:
        """Return the expression of a parameter's value."""
        if parameter not in self.columns:
            raise RowsRefused(f"the parameter ${parameter} has no value in the rows")
        index = self.columns[parameter]
        return f"{_VALUE}{index - 1}" if self.bound else f"{ROW}[{index}]"

    @property
    def number(self) -> str:
        """The expression of the row's number."""
        return _NUMBER if self.bound else f"{ROW}[0]"

    @property
    def values(self) -> dict[str, str]:
        """Variable -> its place in the row; empty unless ``bound``."""
        numbered = {f"{_VALUE}{index - 1}": f"{ROW}[{index}]" for index in self.columns.values()}
        return {_NUMBER: f"{ROW}[0]", **numbered} if self.bound else {}

    def clause(self, part: Part) -> range:
        """Return the words of a clause after its keyword, nested clauses included."""
        return range(part.clause.words[0] + 1, _end(self.words, part))


def column_path(words: QueryWords, span: range, lists: dict[str, str]) -> str:
    """Return the path of ``$p``, ``$p.a``, ``x`` and ``x.a`` for an x that runs over a column; else empty."""
    if not span or len(span) % 2 == 0:
        return ""
    token = words.tokens[span.start]
    head = token.identifier if token.kind == "param" else lists.get(words.identifier(span.start), "")
    fields = [words.identifier(index) for index in range(span.start + 2, span.stop, 2)]
    dots = all(words.text(index) == "." for index in range(span.start + 1, span.stop, 2))
    return ".".join((head, *fields)) if head and dots and all(fields) else ""


def elements(path: PathPattern) -> tuple[NodePattern | RelationshipPattern, ...]:
    """Return the nodes and relationships of a path."""
    return (*path.nodes, *path.relationships)


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """``variable.name = value`` of a SET, or one entry of a literal map after ``+=``."""

    variable: str
    name: str
    target: str
    """``variable.name`` as the author wrote it."""
    value: range


def assignments(source: BatchSource, item: SetItem) -> Iterator[Assignment]:
    """Yield the assignments of an item of SET. Raises ``RowsRefused`` unless the query names each property."""
    words = source.words
    written = words.text(item.place)
    if item.kind == "property" and item.value is not None:
        target = f"{written}.{words.text(item.place + 2)}"
        yield Assignment(variable=item.variable, name=item.names[0], target=target, value=item.value)
        return
    entries: tuple[Property, ...] | None = None
    if item.kind == "update" and item.value is not None:
        entries = literal_map(source.query, item.value)
    if entries is None:
        form = "=" if item.kind == "replace" else "+="
        raise RowsRefused(f"`{item.variable} {form} …` writes properties that the query does not name")
    for entry in entries:
        target = f"{written}.{words.text(entry.place)}"
        yield Assignment(variable=item.variable, name=entry.name, target=target, value=entry.value)


def _end(words: QueryWords, part: Part) -> int:
    """Return the index after the last word of a clause, without semicolons."""
    stop = part.clause.words[-1] + 1
    while words.text(stop - 1) == ";":
        stop -= 1
    return stop


def conditions(words: QueryWords, span: range) -> frozenset[int]:
    """Return the words between WHEN and THEN: a read there decides and is not copied."""
    inside: set[int] = set()
    depth = 0
    for index in span:
        keyword = words.keyword(index)
        depth += keyword == "WHEN"
        depth -= keyword == "THEN" and depth > 0
        if depth:
            inside.add(index)
    return frozenset(inside)
