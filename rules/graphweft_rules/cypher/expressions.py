"""The variables, properties, labels, functions and parameters that an expression uses."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from graphweft_rules.cypher.clauses import Outline, QueryWords, once
from graphweft_rules.cypher.parts import PatternError
from graphweft_rules.cypher.pattern_parser import (
    KEYWORDS,
    OPENING,
    map_entries,
    outside_brackets,
    split_at_commas,
    variable_name,
)

AGGREGATES: Final = frozenset(
    {"avg", "collect", "count", "max", "min", "percentilecont", "percentiledisc", "stdev", "stdevp", "sum"}
)
"""Functions that make one value of many rows, in lower case."""
_QUANTIFIERS: Final = frozenset({"all", "any", "none", "single", "filter", "extract"})
_SUBQUERIES: Final = frozenset({"EXISTS", "COUNT", "COLLECT"})


@dataclass(frozen=True, slots=True, kw_only=True)
class PropertyRead:
    """``variable.name`` in an expression."""

    variable: str
    """Empty for a computed value or a comprehension's variable, which may be any entity."""
    name: str
    place: int


@dataclass(frozen=True, slots=True, kw_only=True)
class VariableUse:
    """A variable as a whole: returned, compared, passed to a function, indexed. This may read all of an entity."""

    variable: str
    """Empty for all properties of a comprehension's variable, ``x {.*}``, which may be any entity."""
    place: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelTest:
    """``variable:Label`` in an expression; ``labels`` holds all labels of the test."""

    variable: str
    labels: tuple[str, ...]
    place: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionCall:
    """``name(arguments)``; the name is in lower case, with its dots."""

    name: str
    arguments: range
    place: int


@dataclass(slots=True, kw_only=True)
class Uses:
    """The uses of an expression. Subqueries (EXISTS, COUNT, COLLECT) are not included: their clauses are parts."""

    reads: list[PropertyRead] = field(default_factory=list[PropertyRead])
    variables: list[VariableUse] = field(default_factory=list[VariableUse])
    labels: list[LabelTest] = field(default_factory=list[LabelTest])
    calls: list[FunctionCall] = field(default_factory=list[FunctionCall])
    parameters: list[tuple[str, int]] = field(default_factory=list[tuple[str, int]])
    """(name without the dollar, place)."""
    subqueries: list[int] = field(default_factory=list[int])
    """Places of subqueries."""


def uses(query: Outline, expression: range) -> Uses:
    """Return the uses of an expression of a part. Raises ``PatternError``."""
    found = Uses()
    _Walk(query, _first_words(query), found).expression(expression.start, expression.stop, frozenset())
    return found


@once
def _first_words(query: Outline) -> frozenset[int]:
    return frozenset(clause.words[0] for clause in query.clauses)


@dataclass(frozen=True, slots=True)
class _Walk:
    """Collects the uses of an expression, word by word."""

    query: Outline
    first_words: frozenset[int]
    found: Uses

    def expression(self, start: int, stop: int, local: frozenset[str]) -> None:
        """Note the uses of the words; ``local`` holds the variables of the comprehensions around them."""
        words = self.query.words
        index = start
        while index < stop:
            text = words.text(index)
            if text in OPENING:
                self._bracket(index, local, "")
                index = words.closing(index) + 1
                self._no_arrow(index, stop)
            elif words.tokens[index].kind == "param":
                self.found.parameters.append((words.tokens[index].identifier, index))
                index = self._chain(index + 1, stop, of_parameter=True)
            elif words.identifier(index):
                index = self._named(index, stop, local)
            elif text == "." and words.text(index + 1) == ".":  # from..to
                index += 2
            elif text == "." and words.identifier(index + 1) and index + 1 < stop:  # of a computed value
                index = self._chain(index, stop, of_parameter=False)
            elif text == ":" or words.tokens[index].kind == "broken":
                raise PatternError(index, f"{text[:10]!r} in an expression")
            else:
                index += 1

    def _named(self, index: int, stop: int, local: frozenset[str]) -> int:
        """Note the use that begins with a name; return the index after it."""
        words = self.query.words
        name, keyword = words.identifier(index), words.keyword(index)
        end = index + 1
        while words.text(end) == "." and words.identifier(end + 1) and end + 1 < stop:
            end += 2
        if keyword in KEYWORDS and end == index + 1:
            if keyword == "IS" and words.keyword(end + (words.keyword(end) == "NOT")) != "NULL":
                raise PatternError(index, "IS without NULL")
            return end
        if words.text(end) == "(" and end < stop:
            self._function(index, end, local)
            after = words.closing(end) + 1
            self._no_arrow(after, stop)
            return after
        if words.text(end) == "{" and end < stop:
            return self._braces(index, end, local)
        if end > index + 1:
            variable = "" if name in local or keyword in KEYWORDS else name
            self.found.reads.append(PropertyRead(variable=variable, name=words.identifier(index + 2), place=index))
            return self._chain(index + 3, stop, of_parameter=False)
        if words.text(end) == ":" and end < stop:
            return self._label_test(index, stop, local)
        if name not in local:
            self.found.variables.append(VariableUse(variable=name, place=index))
        return end

    def _chain(self, index: int, stop: int, *, of_parameter: bool) -> int:
        """Note each ``.name`` of a chain; those of a parameter read nothing from the graph."""
        words = self.query.words
        while index + 1 < stop and words.text(index) == "." and words.identifier(index + 1):
            if not of_parameter:
                self.found.reads.append(PropertyRead(variable="", name=words.identifier(index + 1), place=index + 1))
            index += 2
        return index

    def _label_test(self, index: int, stop: int, local: frozenset[str]) -> int:
        words = self.query.words
        end = index + 1
        while end < stop and words.text(end) in (":", "&", "|", "!"):
            while end < stop and words.text(end) in (":", "&", "|", "!"):
                end += 1
            if not words.identifier(end):
                raise PatternError(index, "a label test of an unknown form")
            end += 1
        name = words.identifier(index)
        names = tuple(words.identifier(position) for position in range(index + 1, end) if words.identifier(position))
        self.found.labels.append(LabelTest(variable="" if name in local else name, labels=names, place=index))
        return end

    def _function(self, index: int, opening: int, local: frozenset[str]) -> None:
        words = self.query.words
        name = "".join(words.identifier(position) or "." for position in range(index, opening)).lower()
        closing = words.closing(opening)
        self.found.calls.append(FunctionCall(name=name, arguments=range(opening + 1, closing), place=index))
        if name == "reduce":
            self._reduce(opening, local)
        else:
            self._bracket(opening, local, name)

    def _bracket(self, opening: int, local: frozenset[str], function: str) -> None:
        """Note the uses in a bracket, which may be a comprehension or a map."""
        words = self.query.words
        closing = words.closing(opening)
        binds = words.text(opening) == "[" or function in _QUANTIFIERS
        if binds and words.identifier(opening + 1) and words.keyword(opening + 2) == "IN":
            self._comprehension(opening + 1, closing, local)
        elif words.text(opening) == "{":
            for entry in map_entries(words, opening):
                self.expression(entry.value.start, entry.value.stop, local)
        else:
            self.expression(opening + 1, closing, local)

    def _comprehension(self, index: int, closing: int, local: frozenset[str]) -> None:
        """Note ``x IN list WHERE … | …``; ``x`` is not visible in the list."""
        words = self.query.words
        middle = next(
            (place for place in outside_brackets(words, range(index + 2, closing)) if _ends_list(words, place)),
            closing,
        )
        self.expression(index + 2, middle, local)
        inner = local | {variable_name(words, index)}
        self.expression(min(middle + 1, closing), closing, inner)

    def _reduce(self, opening: int, local: frozenset[str]) -> None:
        """Note ``reduce(sum = start, x IN list | …)``."""
        words = self.query.words
        closing = words.closing(opening)
        flat = list(outside_brackets(words, range(opening + 1, closing)))
        comma = next((place for place in flat if words.text(place) == ","), None)
        bar = next((place for place in flat if words.text(place) == "|"), None)
        if comma is None or bar is None or words.text(opening + 2) != "=" or words.keyword(comma + 2) != "IN":
            raise PatternError(opening, "reduce() of an unknown form")
        self.expression(opening + 3, comma, local)
        self.expression(comma + 3, bar, local)
        self.expression(bar + 1, closing, local | {variable_name(words, opening + 1), variable_name(words, comma + 1)})

    def _braces(self, index: int, opening: int, local: frozenset[str]) -> int:
        """Note a subquery or the projection of a map, ``n {.x, .*, y: …, z}``."""
        words = self.query.words
        closing = words.closing(opening)
        if opening + 1 in self.first_words:
            if words.keyword(index) not in _SUBQUERIES:
                raise PatternError(index, "a subquery of an unknown form")
            self.found.subqueries.append(index)
            return closing + 1
        if words.keyword(index) in _SUBQUERIES:
            raise PatternError(index, "a subquery that is only a pattern")
        name = variable_name(words, index)
        if opening != index + 1:
            raise PatternError(index, "a projection of a property")
        for entry in split_at_commas(words, range(opening + 1, closing)) if closing > opening + 1 else ():
            self._projected(entry, "" if name in local else name, local)
        if closing == opening + 1 and name not in local:
            self.found.variables.append(VariableUse(variable=name, place=index))
        return closing + 1

    def _projected(self, entry: range, owner: str, local: frozenset[str]) -> None:
        words = self.query.words
        start = entry.start
        if words.text(start) == "." and words.text(start + 1) == "*":
            self.found.variables.append(VariableUse(variable=owner, place=start))
        elif words.text(start) == "." and words.identifier(start + 1):
            self.found.reads.append(PropertyRead(variable=owner, name=words.identifier(start + 1), place=start + 1))
        elif words.text(start + 1) == ":":
            self.expression(start + 2, entry.stop, local)
        else:
            self.expression(start, entry.stop, local)

    def _no_arrow(self, index: int, stop: int) -> None:
        """Raise ``PatternError`` if a relationship may follow a bracket: patterns as expressions are not supported."""
        words = self.query.words
        after = words.text(index) + words.text(index + 1) if index + 1 < stop else ""
        third = words.text(index + 2) if index + 2 < stop else ""
        if after in ("-[", "--") or (after == "<-" and third in ("[", "-")):
            raise PatternError(index, "a pattern in an expression")


def _ends_list(words: QueryWords, index: int) -> bool:
    return words.text(index) == "|" or words.keyword(index) == "WHERE"
