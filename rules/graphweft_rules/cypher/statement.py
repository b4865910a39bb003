"""The statement that goes to the graph server, made from the text of a rule's query.

Calls of the clock and of ``randomUUID()`` become parameters, so that a replay repeats them. Comments are removed, so
that a driver can append to the statement.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from graphweft_rules.cypher.clauses import Outline, QueryWords
from graphweft_rules.matching.clock import CALLS, UUID_PREFIX

type Edit = tuple[int, int, str]
"""Start and end of the replaced text, and the replacement."""
type Piece = tuple[int, int, bool]
"""Offset in the statement, offset in the author's text, and whether both texts are equal from there on."""

_CLOCK_VARIANTS: Final = frozenset({"TRANSACTION", "STATEMENT", "REALTIME"})


def clock_edits(words: QueryWords, clock: set[str]) -> Iterator[Edit]:
    """Yield the edits that turn clock calls into parameters; add the parameters' names to ``clock``."""
    for index in range(len(words.tokens)):
        call = clock_call(words, index)
        if call and words.text(call + 1) == ")":
            name, replacement = CALLS[words.identifier(index).lower()]
            clock.add(name)
            yield words.tokens[index].start, words.tokens[call + 1].end, replacement


def clock_call(words: QueryWords, index: int) -> int:
    """Return the index of the parenthesis when a clock function is called at the index, else 0."""
    if words.identifier(index).lower() not in CALLS or words.text(index - 1) == ".":
        return 0
    after = index + 1
    if words.text(after) == "." and words.keyword(after + 1) in _CLOCK_VARIANTS:
        after += 2
    return after if words.text(after) == "(" else 0


def uuid_edits(words: QueryWords) -> Iterator[Edit]:
    """Yield the edits that turn calls of ``randomUUID()`` into parameters."""
    calls = [index for index in range(len(words.tokens)) if _calls(words, index, "randomuuid")]
    for number, index in enumerate(calls):
        yield words.tokens[index].start, words.tokens[words.closing(index + 1)].end, f"${UUID_PREFIX}{number}"


def _calls(words: QueryWords, index: int, function: str) -> bool:
    called = words.identifier(index).lower() == function and words.text(index - 1) != "."
    return called and words.text(index + 1) == "(" and words.text(index + 2) == ")"


def edited(query: Outline, text: str, edits: list[Edit]) -> tuple[str, tuple[Piece, ...]]:
    """Return the statement and its pieces: the text with the edits, without comments and a closing semicolon."""
    for token in query.comments:  # keep the line count: servers report lines
        edits.append((token.start, token.end, "\n" * token.text.count("\n") or " "))
    for word in reversed(query.words.tokens):
        if word.text != ";":
            break
        edits.append((word.start, word.end, " "))
    edited = ""
    pieces: list[Piece] = []
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
