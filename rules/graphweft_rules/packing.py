"""Rows of several queries become the blocks of one answer, within a budget of tokens.

Pure. Blocks get their tokens by the priority of their rules, and stand in the text in the order of the rule files. A
block is cut behind whole rows.

A block's tokens are counted by itself, and tokenizers are not additive: two texts together may have more tokens than
one and the other. So the sum decides what fits, and the assembled text is counted once more before it is promised.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from graphweft_contracts import Block, Explanation, Missing, ReasonCode
from graphweft_rules.formats import Rows, heading
from graphweft_rules.ruleset import BoundQuery
from graphweft_rules.token_count import TokenCounter, count_characters

_USUAL: Final = 4
"""Characters of a token, to begin the search with."""
_LONGEST: Final = 32
"""Characters of a token, on the average of a text, that no counter reaches. What is longer than the budget allows by
this is not counted at all: a tokenizer takes longer over a megabyte than a turn may wait."""
_BREAK: Final = "\n\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The rows of one query as the graph gave them: all of them, ``max_results`` is not applied yet.

    They are read only, and nothing of them is in the blocks. ``age_ms`` and ``explanation`` go into the block.
    """

    bound: BoundQuery
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    age_ms: int | None = None
    explanation: Explanation | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    """Blocks and what is missing, in the order of the queries, and the text of the blocks with its tokens.

    ``errors`` holds what was raised for the blocks that are missing as ``internal_error``: something for a log.
    """

    blocks: tuple[Block, ...]
    missing: tuple[Missing, ...]
    text: str
    tokens: int
    errors: tuple[tuple[BoundQuery, Exception], ...] = ()


def pack(found: Sequence[Found], *, max_tokens: int | None = None, count: TokenCounter = count_characters) -> Packed:
    """Return the blocks of an answer; ``found`` is in the order in which they are to stand.

    ``count`` of the text is at most ``max_tokens``, and the blocks of a rule together have at most the ``max_tokens``
    of the rule. A block's tokens include its heading and, but for the first block, the blank line before it. Where
    nothing bounds a block, its tokens are a quarter of its characters, whatever ``count`` is.

    A block of which no row fits is missing as ``token_budget``; one that cannot be rendered is missing as
    ``internal_error`` and costs the others nothing. A query that found no rows gives an empty block, which takes no
    tokens. ``count`` must not raise.
    """
    budget = _Budget(found, max_tokens, count)
    sections = budget.sections
    text, tokens = budget.spend()
    return Packed(
        blocks=tuple([section.block() for section in sections if section.missing is None]),
        missing=tuple([section.missing for section in sections if section.missing is not None]),
        text=text,
        tokens=tokens,
        errors=tuple([(section.bound, section.error) for section in sections if section.error is not None]),
    )


class _Section:
    """What becomes of the rows of one query: ``kept`` rows from the first on, or ``missing``."""

    __slots__ = ("_found", "_lead", "bound", "error", "kept", "missing", "rows", "tokens")

    def __init__(self, found: Found, before: str) -> None:
        self._found = found
        self.bound = found.bound
        query = self.bound.query
        self.rows = Rows(query.format, found.columns, found.rows, query.max_results)
        self._lead = before + heading(query.inject_as)
        self.kept = 0
        self.tokens = 0
        self.missing: Missing | None = None
        self.error: Exception | None = None

    def text(self, kept: int) -> str:
        """Return what stands in the answer when so many rows are kept."""
        text = self.rows.text(kept)
        return self._lead + text if text else ""

    def drop(self, reason: ReasonCode, detail: str) -> None:
        self.kept = self.tokens = 0
        query = self.bound.query
        self.missing = Missing(
            name=query.inject_as,
            rule=self.bound.rule,
            query=query.id,
            reason=reason,
            detail=f"{query.place}: {detail}",
        )

    def block(self) -> Block:
        query = self.bound.query
        return Block(
            name=query.inject_as,
            format=query.format,
            value=self.rows.value(self.kept),
            rows=self.kept,
            rule=self.bound.rule,
            query=query.id,
            tokens=self.tokens,
            cut=self.rows.count - self.kept,
            age_ms=self._found.age_ms,
            explanation=self._found.explanation,
        )


class _Budget:
    """The tokens of a request and of its rules, and the sections among which they are divided."""

    def __init__(self, found: Sequence[Found], max_tokens: int | None, count: TokenCounter) -> None:
        self.sections: list[_Section] = []
        before = ""
        for each in found:
            section = _Section(each, before)
            self.sections.append(section)
            if section.rows.count:
                before = _BREAK
        self._max_tokens = max_tokens
        self._count = count
        self._left = max_tokens
        self._left_of_rule = {
            each.bound.rule: each.bound.max_tokens for each in found if each.bound.max_tokens is not None
        }

    def spend(self) -> tuple[str, int]:
        """Decide for every section what is kept, and return the text and its tokens."""
        by_priority = sorted(self.sections, key=lambda section: -section.bound.priority)  # ties stay in their order
        for section in by_priority:
            try:
                self._place(section)
            except Exception as error:  # noqa: BLE001 - a value that we do not understand must not cost the other blocks
                section.error = error
                section.drop("internal_error", f"the rows cannot be rendered ({type(error).__name__})")
        text = self._assemble()
        if self._max_tokens is None:
            return text, count_characters(text)
        tokens = self._count(text)
        for section in reversed(by_priority):
            if tokens <= self._max_tokens:
                break
            if section.kept:
                self._shrink(section, self._max_tokens)
                text = self._assemble()
                tokens = self._count(text)
        return text, tokens

    def _place(self, section: _Section) -> None:
        of_request, of_rule = self._left, self._left_of_rule.get(section.bound.rule)
        if of_request is None and of_rule is None:
            section.kept = section.rows.count
            section.tokens = count_characters(section.text(section.kept))
            return
        limit = min(left for left in (of_request, of_rule) if left is not None)
        section.kept = rows = section.rows.count
        if section.rows.within(limit * _LONGEST) == rows:
            section.tokens = self._count(section.text(rows))
            if section.tokens <= limit:
                self._take(section, of_request, of_rule)
                return
            if self._just_fits(section, of_request, of_rule):
                return
        section.kept, section.tokens = _most(section.rows, rows, limit, section.text, self._count)
        if section.kept:
            self._take(section, of_request, of_rule)
        else:
            self._refuse(section, limit, of_rule is not None and of_rule == limit)

    def _take(self, section: _Section, of_request: int | None, of_rule: int | None) -> None:
        if of_request is not None:
            self._left = of_request - section.tokens
        if of_rule is not None:
            self._left_of_rule[section.bound.rule] = of_rule - section.tokens

    def _just_fits(self, section: _Section, of_request: int | None, of_rule: int | None) -> bool:
        """Tell whether only the rounding of each section's count is too much for the request; if so, take it whole."""
        if of_request is None or self._max_tokens is None or section.tokens > of_request + len(self.sections):
            return False
        if of_rule is not None and section.tokens > of_rule:
            return False
        tokens = self._count(self._assemble())
        if tokens > self._max_tokens:
            return False
        self._take(section, self._max_tokens - tokens + section.tokens, of_rule)
        return True

    def _shrink(self, section: _Section, max_tokens: int) -> None:
        """Keep less of a section, so that the whole text fits, or nothing of it."""

        def text(kept: int) -> str:
            section.kept = kept
            return self._assemble()

        section.kept, _ = _most(section.rows, section.kept, max_tokens, text, self._count)
        if section.kept:
            section.tokens = self._count(section.text(section.kept))
        else:
            self._refuse(section, 0, by_rule=False)

    def _refuse(self, section: _Section, left: int, by_rule: bool) -> None:
        total = section.bound.max_tokens if by_rule else self._max_tokens
        assert total is not None
        enough = section.rows.within(total * _LONGEST) > 0
        needed = f"{self._count(section.text(1))}" if enough else f"more than {total}"
        whose, remedy = (
            ("rule", "raise it in the rule, or let the query return less")
            if by_rule
            else ("request", "ask for more, give the rule a higher priority, or let the query return less")
        )
        detail = (
            f"the first row takes {needed} tokens with its heading, and of the {whose}'s max_tokens {total}, {left} "
        )
        section.drop("token_budget", f"{detail}are left: {remedy}")

    def _assemble(self) -> str:
        return "".join([section.text(section.kept) for section in self.sections]).removeprefix(_BREAK)


def _most(rows: Rows, over: int, limit: int, text: Callable[[int], str], count: TokenCounter) -> tuple[int, int]:
    """Return the number of rows below ``over`` whose ``text`` has at most ``limit`` tokens, and how many it has.

    One row more has too many, where more text never has fewer tokens. Each try follows from the tokens of those
    before, as if rows were equally long, which finds it in three or four; every third halves what is left, so that no
    rows make it slow.
    """
    fits = fits_tokens = over_tokens = 0
    over = min(over, rows.within(limit * _LONGEST) + 1)
    tried = rows.within(limit * _USUAL)
    step = 0
    while over - fits > 1:
        tried = min(max(tried, fits + 1), over - 1)
        tokens = count(text(tried))
        if tokens <= limit:
            fits, fits_tokens = tried, tokens
        else:
            over, over_tokens = tried, tokens
        step += 1
        if step % 3 == 0:
            tried = (fits + over) // 2
        elif over_tokens:
            tried = fits + (over - fits) * (limit - fits_tokens) // (over_tokens - fits_tokens)
        else:
            tried = tried * limit // max(tokens, 1)
    return fits, fits_tokens
