"""Packs the rows of several queries into the blocks of one reply, within a token budget. Pure.

Blocks get tokens by the priority of their rules, and appear in the order of the rule files. If the rows of a block do
not fit, long texts of ``results`` and ``memory`` are cut to a passage, ``memory`` loses its headings, and a row that
still does not fit is left out. So is a row of ``memory`` that a block with a higher priority, or before it, shows.
Each block is counted separately, but tokenizers are not additive, so the assembled text is counted once more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from functools import partial
from typing import Any, Final

from graphweft_contracts import Block, Explanation, Missing, ReasonCode
from graphweft_contracts.prompt_text import enclose
from graphweft_rules.matching.rule_set import BoundQuery
from graphweft_rules.output.formats import Gate, RenderedRows, heading
from graphweft_rules.output.passages import passage
from graphweft_rules.output.token_count import TokenCounter, count_characters

_USUAL: Final = 4
"""Characters of a token, as a first estimate."""
_LONGEST: Final = 32
"""Upper bound of the average characters of a token. A text that exceeds the budget by this bound is not counted at all,
because a tokenizer takes too long for a megabyte."""
_BREAK: Final = "\n\n"
_PASSAGES: Final = (6_400, 1_600, 400, 150, 50)
"""Characters of a passage."""
_LONG_PASSAGE: Final = 400
"""Longer ones are for a few rows that all fit with them, shorter ones for a budget that has no room for this size."""
_BARE: Final = (150, 50)
"""Characters of a passage without the headings of ``memory``, where no other one of the first row fits."""
_WITH_PASSAGES: Final = frozenset({"results", "memory"})
_LATER: Final = 200
"""Rows behind the first one that does not fit of which some may fit."""
_MOST_MISSES: Final = 8
"""Of these, rows that are counted in vain: a count may take long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AllRows:
    """All rows of one query, before ``max_results``.

    Packing only reads them, and blocks share nothing with them. ``age_ms`` and ``explanation`` go into the block.
    ``place`` tells where a passage of so many characters begins in a text; without it, passages begin at the start.
    If no row has a score of at least ``floor``, the format ``memory`` says so.
    """

    bound: BoundQuery
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    age_ms: int | None = None
    explanation: Explanation | None = None
    place: Callable[[str, int], int] | None = None
    floor: float | None = None

    def passage(self, size: int, text: str) -> str:
        """Return a text, or of a longer one a passage of about ``size`` characters."""
        if len(text) <= size:
            return text
        return passage(text, size, 0 if self.place is None else self.place(text, size))


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedBlocks:
    """Blocks and missing blocks in the order of the queries, and the text of the blocks with its tokens.

    ``kept`` holds the places of each block's rows among all rows of its query, ``sizes`` the size of the passages to
    which its long texts were cut, and ``errors`` the exceptions behind the missing blocks with ``internal_error``, for
    a log.
    """

    blocks: tuple[Block, ...]
    missing: tuple[Missing, ...]
    text: str
    tokens: int
    errors: tuple[tuple[BoundQuery, Exception], ...] = ()
    kept: tuple[tuple[int, ...], ...] = ()
    sizes: tuple[int | None, ...] = ()


def pack(
    found: Sequence[AllRows],
    *,
    max_tokens: int | None = None,
    count: TokenCounter = count_characters,
    headings: bool = True,
    enclosed: bool = False,
    gate: Gate | None = None,
    today: date | None = None,
) -> PackedBlocks:
    """Return the blocks of a reply, in the order of ``found``.

    The text has at most ``max_tokens`` by ``count``, and the blocks of a rule have at most the rule's ``max_tokens``
    together. A block's tokens include its heading and the blank line before it. The tokens of a block without a limit
    are a quarter of its characters. Without ``headings``, the text has none. With ``enclosed``, it is what
    ``envelope.enclose`` returns, within the same budget. ``gate`` replaces each string of the text; it must not raise.
    ``today`` is the day of the request, for the format ``memory``.

    A block is missing with ``token_budget`` if no row fits, not even a passage of one, and with ``internal_error`` if
    it cannot be rendered, which does not affect other blocks. A query without rows gives an empty block without tokens.
    ``count`` must not raise.
    """
    budget = _Budget(found, max_tokens, count, headings=headings, enclosed=enclosed, gate=gate, today=today)
    sections = budget.sections
    text, tokens = budget.spend()
    return PackedBlocks(
        blocks=tuple([section.block() for section in sections if section.missing is None]),
        missing=tuple([section.missing for section in sections if section.missing is not None]),
        text=text,
        tokens=tokens,
        errors=tuple([(section.bound, section.error) for section in sections if section.error is not None]),
        kept=tuple([section.places for section in sections if section.missing is None]),
        sizes=tuple([section.size for section in sections if section.missing is None]),
    )


@dataclass(frozen=True, slots=True)
class _Fit:
    """Rows of a section that fit: ``rows`` begins with them, or holds all of them."""

    rows: RenderedRows
    size: int | None
    places: tuple[int, ...]
    tokens: int


class _Section:
    """The result for one query: the first ``kept`` of ``rows``, or ``missing``.

    ``rows`` are all rows, or those of them that fit one by one.
    """

    __slots__ = (
        "_among", "_chosen", "_found", "_lead", "bound", "error", "kept", "missing", "rows", "size", "tokens", "total",
    )  # fmt: skip

    def __init__(self, found: AllRows, before: str, *, headings: bool, gate: Gate | None, today: date | None) -> None:
        self._found = found
        self.bound = found.bound
        query = self.bound.query
        self.rows = RenderedRows(
            query.format, found.columns, found.rows, query.max_results, gate, today=today, floor=found.floor
        )
        self.total = self.rows.count
        self.size: int | None = None
        """Characters of a passage, if long texts are cut."""
        self._chosen: tuple[int, ...] | None = None
        self._among: Sequence[int] | None = None
        """The places of ``rows`` among all rows, if some were left out."""
        self._lead = before + (heading(query.inject_as) if headings else "")
        self.kept = 0
        self.tokens = 0
        self.missing: Missing | None = None
        self.error: Exception | None = None

    def text(self, kept: int) -> str:
        """Return the text of the first ``kept`` rows with their heading."""
        return self._under_heading(self.rows, kept)

    @property
    def places(self) -> tuple[int, ...]:
        """The places of the kept rows among all rows."""
        kept = tuple(range(self.kept)) if self._chosen is None else self._chosen[: self.kept]
        return kept if self._among is None else tuple(self._among[place] for place in kept)

    def leave_out(self, said: Sequence[str]) -> None:
        """Leave out rows whose texts are said above; call it before rows are kept."""
        if (places := self.rows.not_said(said)) is not None:
            self._among = places
            self.rows = self.rows.chosen(places)
            self.total = self.rows.count

    def forms(self) -> Iterator[tuple[RenderedRows, int | None]]:
        """Yield the rows as they may be shown if not all fit, and the size of passages; the best form first."""
        rows = self.rows
        if self.bound.query.format not in _WITH_PASSAGES:
            yield rows, None
            return
        for size in _PASSAGES:
            yield rows.shortened(partial(self._found.passage, size)), size
        if self.bound.query.format == "memory":
            for size in _BARE:
                yield rows.shortened(partial(self._found.passage, size), bare=True), size

    def fill(self, limit: int, count: TokenCounter) -> None:
        """Keep as many rows as fit: the first ones, and of later ones those that fit one by one.

        A shorter passage of the first row is better than others without it.
        """
        best: _Fit | None = None
        for rows, size in self.forms():
            if size is not None and size > _LONG_PASSAGE:
                fit = self._fit_all(rows, size, limit, count)
            else:
                fit = self._fit(rows, size, limit, count)
            if fit.places and (best is None or fit.places[0] == 0 or len(fit.places) > len(best.places)):
                best = fit
            if best is not None and best.places[0] == 0:
                break
        if best is not None:
            self.rows, self.size, self._chosen, self.tokens = best.rows, best.size, best.places, best.tokens
            self.kept = len(best.places)
        else:
            self.kept = self.tokens = 0

    def _fit_all(self, rows: RenderedRows, size: int, limit: int, count: TokenCounter) -> _Fit:
        """Return all rows, or none."""
        if rows.within(limit * _LONGEST) == rows.count:
            tokens = count(self._under_heading(rows, rows.count))
            if tokens <= limit:
                return _Fit(rows, size, tuple(range(rows.count)), tokens)
        return _Fit(rows, size, (), 0)

    def _fit(self, rows: RenderedRows, size: int | None, limit: int, count: TokenCounter) -> _Fit:
        over = rows.count if rows is self.rows else rows.count + 1  # the rows as they are do not all fit
        kept, tokens = _most(rows, over, limit, partial(self._under_heading, rows), count)
        places, chosen = list(range(kept)), rows
        misses = 0
        # A row as long as one that did not fit will not fit either, nearly always.
        least = rows.size(kept) if kept < rows.count else 0
        for place in range(kept + 1, min(rows.count, kept + _LATER)):
            if misses >= _MOST_MISSES or tokens >= limit:
                break
            length = rows.size(place)
            if length >= least or length > (limit - tokens) * _LONGEST:
                continue
            more = rows.chosen([*places, place])
            more_tokens = count(self._under_heading(more, more.count))
            if more_tokens > limit:
                least = length
                misses += 1
                continue
            places.append(place)
            chosen, tokens = more, more_tokens
        return _Fit(chosen, size, tuple(places), tokens)

    def _under_heading(self, rows: RenderedRows, kept: int) -> str:
        text = rows.text(kept)
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
            cut=self.total - self.kept,
            age_ms=self._found.age_ms,
            explanation=self._found.explanation,
        )


class _Budget:
    """Divides the tokens of a request and of its rules among sections."""

    def __init__(
        self,
        found: Sequence[AllRows],
        max_tokens: int | None,
        count: TokenCounter,
        *,
        headings: bool,
        enclosed: bool,
        gate: Gate | None,
        today: date | None,
    ) -> None:
        self.sections: list[_Section] = []
        before = ""
        for each in found:
            section = _Section(each, before, headings=headings, gate=gate, today=today)
            self.sections.append(section)
            if section.rows.count:
                before = _BREAK
        self._max_tokens = max_tokens
        self._count = count
        self._enclosed = enclosed
        self._left = max_tokens
        if enclosed and max_tokens is not None:
            self._left = max(0, max_tokens - count(enclose(_BREAK)))
        self._left_of_rule = {
            each.bound.rule: each.bound.max_tokens for each in found if each.bound.max_tokens is not None
        }

    def spend(self) -> tuple[str, int]:
        """Decide the rows of each section; return the text and its tokens."""
        by_priority = sorted(self.sections, key=lambda section: -section.bound.priority)
        said: list[str] = []
        for section in by_priority:
            try:
                section.leave_out(said)
                self._place(section)
                said += section.rows.said(section.kept)
            except Exception as error:  # noqa: BLE001 - other blocks must not be affected
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
        section.fill(limit, self._count)
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
        """Take a whole section if the assembled text fits although the sum of counts does not; tell whether."""
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
        """Keep fewer rows of a section, or none, so that the whole text fits."""

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
        text = "".join([section.text(section.kept) for section in self.sections]).removeprefix(_BREAK)
        return enclose(text) if self._enclosed else text


def _most(
    rows: RenderedRows, over: int, limit: int, text: Callable[[int], str], count: TokenCounter
) -> tuple[int, int]:
    """Return the greatest number of rows below ``over`` whose ``text`` has at most ``limit`` tokens, and its tokens.

    An interpolation search, which usually needs three or four counts. Every third step halves the interval, so rows of
    very different length do not make it slow.
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
