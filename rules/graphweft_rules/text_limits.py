"""Limits of the texts that a native library parses: conditions, and the Cypher of rules and requests.

Such a library may take a time that doubles with each bracket, use up its stack, or end the process. So no text reaches
one before it was measured here, in one pass over its tokens. The limits are a quarter or less of the sizes at which the
libraries begin to suffer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple

type PieceKind = Literal["operand", "word", "operator", "open", "close", "comma", "end"]
"""``word``: a name that may be a keyword. ``end``: of a statement, or anything else behind which a new part begins."""


class Piece(NamedTuple):
    """A token without its content: where strings, comments and quoted names end, the tokenizers know."""

    kind: PieceKind
    text: str
    start: int


class TextProblem(NamedTuple):
    """What is too much in a text: a message that says what to do, and the offset where it begins."""

    message: str
    start: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TextLimits:
    """What a text may hold."""

    what: str
    """For messages: ``the condition``."""
    advice: str
    characters: int
    nesting: int
    """Open brackets at one place; a CASE counts as one."""
    chain: int
    """Operators and accesses between two commas or keywords of clauses, within one pair of brackets."""
    loops: int
    """Loops that are nested: ``all``, ``map``, a list comprehension."""
    names: int
    """Labels of one node, or types of one relationship."""
    items: int
    """Items of one list or map, arguments of one call, columns of one clause."""
    clauses: int
    groups: int
    """Parentheses."""
    work: int | None
    """Steps of a parser that reads the content of a bracket or of a prefix operator twice."""


CONDITION: Final = TextLimits(
    what="the condition",
    advice="write several rules, or publish a value that says what the condition asks",
    characters=4_000,
    nesting=32,
    chain=200,
    loops=4,
    names=200,
    items=1_000,
    clauses=1,
    groups=1_000,
    work=None,
)
QUERY: Final = TextLimits(
    what="the query",
    advice="divide it into several queries, or pass values as parameters",
    characters=16_000,
    nesting=12,
    chain=300,
    loops=4,
    names=64,
    items=1_000,
    clauses=200,
    groups=300,
    work=100_000,
)
RETRIEVAL: Final = TextLimits(
    what="the retrieval_query",
    advice="shorten it, or pass values as params",
    characters=2_000,
    nesting=8,
    chain=100,
    loops=2,
    names=32,
    items=200,
    clauses=32,
    groups=100,
    work=50_000,
)

MOST_KEYS_OF_LABEL: Final = 64
"""Indexed properties of one label. A graph server ends at about 350."""
MOST_KEYS: Final = 500
"""Look-up keys of a rule set, each of which is an index in the graph of each app."""
MOST_DIMENSIONS: Final = 4_096
"""Numbers of a vector in an index; graph servers allow no more."""
MOST_DIMENSIONS_OF_ALL: Final = 32_768
"""The sum over the vector indexes of a rule set. A graph server may reserve room for 1,024 vectors with the first one:
4.2 kB for each number (17.1 MB for 4,096 numbers, 1.8 MB for 384), so 137 MB in the graph of each app."""

_BOOLEANS: Final = frozenset({"AND", "OR", "XOR", "WHEN", "THEN", "ELSE", "|", "&&", "||", "?"})
"""Behind them a prefix operator no longer applies."""
_CLAUSES: Final = frozenset(
    {"CALL", "CREATE", "DELETE", "FOREACH", "MATCH", "MERGE", "REMOVE", "RETURN", "SET", "UNION", "UNWIND", "WITH"}
)
_PARTS: Final = frozenset({"BY", "LIMIT", "ON", "SKIP", "WHERE", "YIELD"})
_WORD_OPERATORS: Final = frozenset({"AND", "CONTAINS", "ENDS", "IN", "IS", "NOT", "OR", "STARTS", "XOR"})
_SIGNS: Final = frozenset("+-!")
_OF_LABELS: Final = frozenset(":|&!")
_LOOP_WORDS: Final = frozenset({"ALL", "ANY", "EXTRACT", "FILTER", "NONE", "REDUCE", "SINGLE"})
_LOOP_METHODS: Final = frozenset({"all", "exists", "exists_one", "filter", "map"})
_CLOSING: Final = {"(": ")", "[": "]", "{": "}"}
_MOST_DOUBLINGS: Final = 40
_NOTHING: Final = Piece("end", "", 0)


@dataclass(slots=True)
class _Frame:
    """A pair of brackets, the whole text, or a CASE."""

    opening: str
    start: int
    doublings: int
    """How often the parser's work doubles for a token here."""
    loop: bool = False
    chain: int = 0
    items: int = 1
    names: int = 0
    nots: int = 0
    signs: int = 0
    signs_before: int = 0

    def begin_part(self) -> None:
        self.chain = self.names = self.nots = self.signs = 0


@dataclass(slots=True)
class _Measure:
    """One pass over the pieces of a text."""

    limits: TextLimits
    frames: list[_Frame] = field(default_factory=lambda: [_Frame("", 0, 0)])
    before: Piece = _NOTHING
    second: Piece = _NOTHING
    """The piece before ``before``."""
    loops: int = 0
    clauses: int = 0
    groups: int = 0
    work: int = 0

    def problem(self, pieces: Iterable[Piece]) -> TextProblem | None:
        limits = self.limits
        for piece in pieces:
            frame = self.frames[-1]
            self._take(piece, frame)
            frame = self.frames[-1]
            self.work += 1 << min(frame.doublings + frame.nots + frame.signs, _MOST_DOUBLINGS)
            self.second, self.before = self.before, piece
            for count, most, said in (
                (len(self.frames) - 1, limits.nesting, "has more than {} brackets open here"),
                (frame.chain, limits.chain, "has more than {} operators in a row up to here"),
                (self.loops, limits.loops, "has more than {} loops within each other here"),
                (frame.names, limits.names, "has more than {} labels or types in one place here"),
                (frame.items, limits.items, "has more than {} items in a row up to here"),
                (self.clauses, limits.clauses, "has more than {} clauses up to here"),
                (self.groups, limits.groups, "has more than {} parentheses up to here"),
            ):
                if count > most:
                    return self._said(said.format(f"{most:,}"), piece.start)
            if limits.work is not None and self.work > limits.work:
                return self._said(
                    "has too many brackets, NOT and signs within each other here, and each doubles the server's work",
                    piece.start,
                )
        return None

    def _said(self, what: str, start: int) -> TextProblem:
        return TextProblem(f"{self.limits.what} {what}: {self.limits.advice}", start)

    def _take(self, piece: Piece, frame: _Frame) -> None:
        match piece.kind:
            case "open":
                self._open(piece, frame)
            case "close":
                self._close(piece)
            case "comma":
                frame.items += 1
                frame.begin_part()
            case "end":
                frame.begin_part()
            case "operator":
                self._operator(piece, frame)
            case "word":
                self._word(piece, frame)
            case "operand":
                pass

    def _open(self, piece: Piece, frame: _Frame) -> None:
        if _is_operand(self.before):
            frame.chain += 1  # a call or an index
        self.groups += piece.text == "("
        loop = (
            piece.text == "("
            and self.before.kind == "word"
            and (
                self.before.text.upper() in _LOOP_WORDS
                if self.limits.work is not None
                else self.before.text in _LOOP_METHODS and self.second.text == "."
            )
        )
        self.loops += loop
        doublings = frame.doublings + frame.nots + frame.signs + 1
        self.frames.append(_Frame(piece.text, piece.start, doublings, loop))

    def _close(self, piece: Piece) -> None:
        while len(self.frames) > 1 and self.frames[-1].opening == "CASE":
            self._pop()
        if len(self.frames) > 1 and _CLOSING[self.frames[-1].opening] == piece.text:
            self._pop()

    def _pop(self) -> None:
        self.loops -= self.frames.pop().loop
        self.frames[-1].signs = 0

    def _operator(self, piece: Piece, frame: _Frame) -> None:
        frame.chain += 1
        if piece.text in _BOOLEANS:
            frame.nots = frame.signs = 0
        elif piece.text in _SIGNS and not _is_operand(self.before):
            frame.signs += 1
        elif piece.text == "~" and self.before.text == "=":
            frame.signs = frame.signs_before  # =~ binds stronger than a sign, as IN and CONTAINS do
        elif piece.text != ".":
            frame.signs_before, frame.signs = frame.signs, 0
        frame.names = frame.names + (piece.text != "!") if piece.text in _OF_LABELS else 0

    def _word(self, piece: Piece, frame: _Frame) -> None:
        if self.before.text not in _OF_LABELS:
            frame.names = 0
        word = piece.text.upper() if self.limits.work is not None and self.before.text not in (".", ":") else ""
        if word == "WITH" and self.before.text.upper() in ("STARTS", "ENDS"):
            frame.chain += 1
        elif word in _CLAUSES:
            self.clauses += 1
            frame.items = 1
            frame.begin_part()
        elif word in _PARTS:
            frame.items = 1
            frame.begin_part()
        elif word == "CASE":
            self.frames.append(_Frame("CASE", piece.start, frame.doublings + frame.nots + frame.signs + 1))
        elif word == "END" and frame.opening == "CASE":
            self._pop()
        elif word in _WORD_OPERATORS or word in _BOOLEANS:
            frame.chain += 1
            if word in _BOOLEANS:
                frame.nots = frame.signs = 0
            frame.nots += word == "NOT"
            if word == "IN" and frame.opening == "[" and self.second.text == "[" and not frame.loop:
                frame.loop = True  # a list comprehension
                self.loops += 1


def _is_operand(piece: Piece) -> bool:
    """Tell whether a value ends with the piece, so that an operator behind it is no prefix."""
    return piece.kind in ("operand", "close") or (
        piece.kind == "word" and piece.text.upper() not in _WORD_OPERATORS | _CLAUSES | _PARTS | _BOOLEANS
    )


def length_problem(text: str, limits: TextLimits) -> TextProblem | None:
    """Return the problem of a text that is too long. Ask for it before you divide the text into tokens."""
    if len(text) <= limits.characters:
        return None
    message = f"{limits.what} has {len(text):,} characters, and {limits.characters:,} are allowed: {limits.advice}"
    return TextProblem(message, limits.characters)


def problem_of(pieces: Iterable[Piece], limits: TextLimits) -> TextProblem | None:
    """Return the first place where a text has more than its limits allow, or None. It takes one pass."""
    return _Measure(limits).problem(pieces)


def keys_problem(keys: Iterable[tuple[str, str]]) -> str | None:
    """Return why a rule set may not have these look-up keys (label, property), or None."""
    by_label: dict[str, int] = {}
    for label, _ in keys:
        by_label[label] = by_label.get(label, 0) + 1
    label, most = max(by_label.items(), key=lambda each: each[1], default=("", 0))
    if most > MOST_KEYS_OF_LABEL:
        return (
            f"the rules look up or search nodes with the label {label!r} by {most} properties, and each needs an "
            "index: "
            f"use at most {MOST_KEYS_OF_LABEL}"
        )
    if (total := sum(by_label.values())) > MOST_KEYS:
        return (
            f"the rules look up or search nodes by {total} pairs of label and property, and each needs an index: "
            f"use at most {MOST_KEYS}"
        )
    return None


def dimensions_problem(sizes: Mapping[str, int]) -> str | None:
    """Return why a rule set may not have these vector indexes (name -> length), or None."""
    if (total := sum(sizes.values())) <= MOST_DIMENSIONS_OF_ALL:
        return None
    return (
        f"the vector indexes of the rules have {total:,} dimensions in all, and each takes memory in the graph of each "
        f"app: use at most {MOST_DIMENSIONS_OF_ALL:,}, by fewer indexes or shorter vectors"
    )
