"""The statement that goes to the graph server, made from the text of a rule's query.

Calls of the clock and of ``randomUUID()`` become parameters, so that a replay repeats them. Comments are removed, so
that a driver can append to the statement.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from graphweft_rules.cypher.clauses import Outline
from graphweft_rules.cypher.named_calls import NamedCall, named_calls
from graphweft_rules.matching.clock import CALLS, UUID_PREFIX

type Edit = tuple[int, int, str]
"""Start and end of the replaced text, and the replacement."""
type Piece = tuple[int, int, bool]
"""Offset in the statement, offset in the author's text, and whether both texts are equal from there on."""

_CLOCK_VARIANTS: Final = frozenset({"", "transaction", "statement", "realtime"})


def clock_edits(query: Outline, clock: set[str]) -> Iterator[Edit]:
    """Yield the edits that turn clock calls into parameters; add the parameters' names to ``clock``."""
    for call in named_calls(query):
        function = clock_function(call)
        if function and query.words.text(call.opening + 1) == ")":
            name, replacement = CALLS[function]
            clock.add(name)
            yield _edit(query, call, replacement)


def clock_function(call: NamedCall) -> str:
    """Return the function of the clock that is called, without its variant; empty for other calls."""
    function, _, variant = call.lower.partition(".")
    return function if function in CALLS and variant in _CLOCK_VARIANTS else ""


def uuid_edits(query: Outline) -> Iterator[Edit]:
    """Yield the edits that turn calls of ``randomUUID()`` into parameters."""
    found = (call for call in named_calls(query) if call.lower == "randomuuid")
    calls = [call for call in found if query.words.text(call.opening + 1) == ")"]
    for number, call in enumerate(calls):
        yield _edit(query, call, f"${UUID_PREFIX}{number}")


def _edit(query: Outline, call: NamedCall, replacement: str) -> Edit:
    """Return the edit that replaces a call without arguments."""
    tokens = query.words.tokens
    return tokens[call.place].start, tokens[call.opening + 1].end, replacement


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
