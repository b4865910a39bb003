"""Pack and reply: turns the rows of a request's queries into a ``ContextReply``."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

from graphweft_contracts import Block, ContextReply, ContextRequest, Explanation, Missing, ReasonCode
from graphweft_contracts.clock import SYSTEM_CLOCK, Clock
from graphweft_rules import BoundQuery, MatchedQueries, SkippedQuery
from graphweft_rules.files.model import Place
from graphweft_rules.output.packing import AllRows, PackedBlocks, pack
from graphweft_rules.output.token_count import TokenCounter
from graphweft_workers.injection.cache import Cache, key_of
from graphweft_workers.injection.rows import QueryFailure, RequestRows
from graphweft_workers.injection.shown_place import shown_place
from graphweft_workers.injection.work_turns import WorkTurns
from graphweft_workers.retrieval.passages import best_place
from graphweft_workers.retrieval.questions import answering_terms
from graphweft_workers.retrieval.scope_ranking import FITTING
from graphweft_workers.support.lazy_logger import get_logger
from graphweft_workers.text.long_values import are_long
from graphweft_workers.text.redaction import REDACTED, redact_cell
from graphweft_workers.text.terms import query_terms

logger = get_logger("graphweft.injection")

_MOST_EVENTS: Final = 100
"""Event ids in one explanation."""
_MAY_BE_ERASED: Final = (
    "; its last rows are not shown, because the bus did not say in time whether something of them was erased"
)
_NO_ROWS: Final[frozenset[ReasonCode]] = frozenset({"graph_unavailable", "timeout"})
"""Failures that are replaced by the last good rows."""


_MOST_REDACTED: Final = 200_000
"""Characters of a reply that are read for secrets; what is beyond is not shown."""
_LONG: Final = 8_000
"""Characters of rows that are packed in a thread: a hostile text takes 5 us for each."""


class _Redaction:
    """The gate of one reply."""

    def __init__(self) -> None:
        self._left = _MOST_REDACTED
        self._known: dict[tuple[str, str], str] = {}
        """Packing asks again for the rows that it keeps."""

    def __call__(self, label: str, text: str) -> str:
        known = self._known.get((label, text))
        if known is None:
            shown = text[: self._left]
            self._left -= len(shown)
            known = redact_cell(label, shown) + (REDACTED if len(shown) < len(text) else "")
            self._known[label, text] = known
        return known


class ReplyBuilder:
    """Builds replies; takes rows up to ``last_good_s`` old out of the cache when the graph gives none in time.

    With ``redact``, texts have no secrets (``graphweft_workers.text.redaction``); values for programs keep them. Places
    of rules are shown from ``root`` on.
    """

    def __init__(
        self, cache: Cache, last_good_s: float, count: TokenCounter, *, redact: bool, turns: WorkTurns,
        root: Path | None = None, clock: Clock = SYSTEM_CLOCK,
    ) -> None:  # fmt: skip
        self._cache = cache
        self._turns = turns
        self._clock = clock
        self._last_good_s = last_good_s
        self._count = count
        self._redact = redact
        self._root = root

    async def build(
        self,
        request: ContextRequest,
        started: float,
        matched: MatchedQueries,
        outcomes: Sequence[RequestRows | QueryFailure],
        *,
        stale_by: int | None,
        rules: str,
        may_be_erased: bool = False,
    ) -> ContextReply:
        """Return the reply for the outcomes of the matched queries, which are in the same order.

        ``started`` is the monotonic time at which work on the request began, ``rules`` the hash of the rules.
        With ``may_be_erased`` no last rows are taken: it is not known whether something of them was erased.
        """
        # A condition that is false since a variable is absent means that the rule does not apply: no block is missing.
        missing = [self._missing_skip(skip) for skip in matched.skipped if skip.reason != "missing_variable"]
        found: list[AllRows] = []
        for bound, outcome in zip(matched.queries, outcomes, strict=True):
            age_ms: int | None = None
            rows = outcome
            if isinstance(rows, QueryFailure):
                last = self._last_good(request.app_id, bound) if rows.reason in _NO_ROWS else None
                if last is not None and may_be_erased:
                    last, rows = None, replace(rows, detail=rows.detail + _MAY_BE_ERASED)
                missing.append(self._missing(bound, rows))
                if last is None:
                    continue
                rows, age_ms = last
            if rows.incomplete is not None:
                missing.append(self._missing(bound, rows.incomplete))
            explanation = self._explained(bound, rows) if request.explain else None
            table = rows.table
            found.append(
                AllRows(
                    bound=bound, columns=table.columns, rows=table.rows, age_ms=age_ms, explanation=explanation,
                    place=_place_of(bound), floor=_floor_of(bound),
                )
            )  # fmt: skip
        # The one block of a search needs no heading.
        packing = partial(
            pack,
            found,
            max_tokens=request.max_tokens,
            count=self._count,
            headings=request.search is None,
            enclosed=True,
            gate=_Redaction() if self._redact else None,
            today=self._clock.now().date(),
        )
        # A long text takes longer than others may wait; a thread lets them run between two patterns.
        if are_long([each.rows for each in found], _LONG):
            async with self._turns.turn(request.app_id):
                packed = await asyncio.to_thread(packing)
        else:
            packed = packing()
        places = {(each.bound.rule, each.bound.query.id): each.bound.query.place for each in found}
        missing += [self._without_path(one, places[one.rule, one.query]) for one in packed.missing]
        for bound, error in packed.errors:
            logger.error(
                "block_broken", rule=bound.rule, query=bound.query.id, place=str(bound.query.place), exc_info=error
            )
        blocks = packed.blocks
        if request.search is not None and blocks:
            blocks = (_as_rows(blocks[0], found[0], packed),)  # rows as values, for programs
        return ContextReply(
            id=request.id,
            context_id=uuid4().hex,
            blocks=blocks,
            missing=tuple(missing),
            text=packed.text,
            tokens=packed.tokens,
            stale_by=stale_by,
            partial=bool(missing),
            reason=missing[0].reason if missing and not blocks else None,
            detail=missing[0].detail if missing and not blocks else "",
            elapsed_ms=_milliseconds(self._clock.monotonic() - started),
            rules=rules,
        )

    def can_replace(self, app_id: str, matched: MatchedQueries, outcomes: Sequence[RequestRows | QueryFailure]) -> bool:
        """Tell whether the reply would have last rows."""
        return any(
            isinstance(outcome, QueryFailure)
            and outcome.reason in _NO_ROWS
            and self._last_good(app_id, bound) is not None
            for bound, outcome in zip(matched.queries, outcomes, strict=True)
        )

    def _explained(self, bound: BoundQuery, rows: RequestRows) -> Explanation:
        return Explanation(
            place=shown_place(bound.query.place, self._root),
            cypher=bound.cypher.statement if bound.cypher is not None else "",
            params=_params(bound),
            found=len(rows.table.rows),
            elapsed_ms=round(rows.elapsed_s * 1000, 3),
            cached=rows.cached,
            events=_events(rows),
        )

    def _missing(self, bound: BoundQuery, failure: QueryFailure) -> Missing:
        missing = Missing(
            name=bound.query.inject_as,
            rule=bound.rule,
            query=bound.query.id,
            reason=failure.reason,
            detail=failure.detail,
        )
        return self._without_path(missing, bound.query.place)

    def _without_path(self, missing: Missing, place: Place) -> Missing:
        shown = missing.detail.replace(str(place), shown_place(place, self._root))
        return missing if shown == missing.detail else missing.model_copy(update={"detail": shown})

    def _missing_skip(self, skip: SkippedQuery) -> Missing:
        reason: ReasonCode = "missing_param" if skip.reason == "missing_param" else "condition_error"
        detail = f"{shown_place(skip.place, self._root)}: {skip.detail}"
        return Missing(name=skip.query, rule=skip.rule, query=skip.query, reason=reason, detail=detail)

    def _last_good(self, app_id: str, bound: BoundQuery) -> tuple[RequestRows, int] | None:
        """Return the last rows of a query and their age in milliseconds; never memories, which may be erased."""
        if bound.graphrag is not None or (bound.search is not None and bound.search.memory is not None):
            return None
        key = key_of(app_id, bound) if self._cache.on else None
        entry = self._cache.get(key) if key is not None else None
        if entry is None:
            return None
        age_s = max(0.0, self._clock.monotonic() - entry.right_at)
        if age_s > self._last_good_s:
            return None
        return RequestRows(table=entry.table, elapsed_s=0.0, cached=True), int(age_s * 1000)


def empty_reply(request: ContextRequest, elapsed_s: float, reason: ReasonCode, detail: str) -> ContextReply:
    """Return a reply without blocks."""
    return ContextReply(
        id=request.id,
        context_id=uuid4().hex,
        reason=reason,
        detail=detail,
        partial=reason == "internal_error",
        elapsed_ms=_milliseconds(elapsed_s),
    )


def _place_of(bound: BoundQuery) -> Callable[[str, int], int] | None:
    """Return what finds the passages that fit the question of a search."""
    if bound.search is None or not bound.search.text:
        return None
    text, filtered = bound.search.text, bound.search.filter_stop_words
    # Few replies need them.
    terms = cache(lambda: (query_terms(text, filter_stop_words=filtered), answering_terms(text)))
    return lambda long, size: best_place(long, size, *terms())


def _floor_of(bound: BoundQuery) -> float | None:
    """Return the score below which a row hardly fits; None where scores do not say that."""
    search = bound.search
    if search is None or not search.finds_memory or search.index_type not in {None, "hybrid"}:
        return None
    return FITTING


def _as_rows(block: Block, found: AllRows, packed: PackedBlocks) -> Block:
    """Return the one block of a search with its rows as values; a text that was cut is the same passage there."""
    [places], [size] = packed.kept, packed.sizes
    value = [dict(zip(found.columns, found.rows[place], strict=True)) for place in places]
    if size is not None:
        for row in value:
            if isinstance(text := row.get("text"), str):
                row["text"] = found.passage(size, text)
    return block.model_copy(update={"format": "list", "value": value})


def _params(bound: BoundQuery) -> dict[str, Any]:
    if bound.graphrag is not None:
        query = bound.graphrag
        models = [("search", query.search), ("memory", query.memory)]
        shown = {name: model.model_dump(mode="json", exclude_none=True) for name, model in models if model is not None}
        return {"query": query.text, "seeds": len(query.seeds), **shown}
    return bound.params if bound.search is None else bound.search.model_dump(mode="json", exclude_none=True)


def _events(rows: RequestRows) -> tuple[str, ...]:
    """Return the event ids that rules stored in the rows, each once, in the order of the rows."""
    names = [column.rpartition(".")[2].strip("`") for column in rows.table.columns]
    found: dict[str, None] = {}
    for row in rows.table.rows:
        for name, cell in zip(names, row, strict=True):
            for event in _event_ids(name, cell):
                found[event] = None
                if len(found) == _MOST_EVENTS:
                    return tuple(found)
    return tuple(found)


def _event_ids(name: str, value: Any) -> Iterator[str]:
    if isinstance(value, str):
        if name == "event_id":
            yield value
    elif isinstance(value, Mapping):
        for inner, item in value.items():  # pyright: ignore[reportUnknownVariableType]
            yield from _event_ids(str(inner), item)  # pyright: ignore[reportUnknownArgumentType]
    elif isinstance(value, list | tuple):
        # The items of `event_ids` are ids; a list of any other name may hold maps with ids.
        each = "event_id" if name == "event_ids" else ""
        for item in value:  # pyright: ignore[reportUnknownVariableType]
            yield from _event_ids(each, item)


def _milliseconds(seconds: float) -> float:
    return round(seconds * 1000, 3)
