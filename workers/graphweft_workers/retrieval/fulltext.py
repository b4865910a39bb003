"""Fulltext search: the server's index finds candidates, and BM25 scores them here."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from graphweft_workers.ports.dialect import GraphDialect, SearchTarget
from graphweft_workers.ports.graph_store import Table
from graphweft_workers.retrieval import statements
from graphweft_workers.retrieval.ranking import Candidate, Hit, bm25
from graphweft_workers.retrieval.scope_index import ScopeIndex
from graphweft_workers.retrieval.selection import Selection, select
from graphweft_workers.retrieval.statements import Statement
from graphweft_workers.text.terms import terms as terms_of

type Ask = Callable[[Statement], Awaitable[Table]]
"""Runs a read query within the remaining time."""

MOST_TERMED: Final = 5_000
"""Limit of candidates if nodes store their terms; one takes 10 to 20 us."""
MOST_TEXTS: Final = 1_000
"""Limit of candidates if their terms come from the text; 200 words take 200 us."""
_STEP: Final = 5_000
"""Characters of texts that are read before the event loop runs other tasks: 1 to 3 us for each word."""
_EACH: Final = 25
"""A candidate counts as so many characters of a text; so many characters of stored terms count as one."""


async def by_words(
    ask: Ask,
    dialect: GraphDialect,
    targets: Sequence[SearchTarget],
    terms: Sequence[str],
    *,
    limit: int,
    indexes: Mapping[int, ScopeIndex],
) -> list[Hit]:
    """Return the nodes that hold at least one term, best first, with BM25 scores; ``Hit.of`` indexes ``targets``.

    At least the ``limit`` best are among them. ``indexes`` has the indexes of targets by their place; the server finds
    the nodes of other targets.

    Document frequency and mean length are measured within the scope and over all targets, so scores of different kinds
    compare. If nodes store no terms, the mean length is that of the candidates. Each target has at most 5,000
    candidates (1,000 without stored terms): in a larger scope, the nodes of the rarest terms. Of the first term that
    does not fit, the latest nodes count, or the first by key if nodes have no time. A target without a fulltext index
    gives no hits.
    """
    searched = {of: target for of, target in enumerate(targets) if target.text is not None}
    if not terms or not searched:
        return []
    asked = {of: target for of, target in searched.items() if of not in indexes}
    words = {
        of: indexes[of].words(terms, most=MOST_TERMED, valid_at=target.valid_at, valid_since=target.valid_since)
        for of, target in searched.items()
        if of in indexes
    }
    sizes = await asyncio.gather(*(ask(statements.size(dialect, target)) for target in asked.values()))
    totals = [(table.rows[0][0], table.rows[0][1]) if table.rows else (0, 0) for table in sizes]
    parts = await asyncio.gather(
        *(
            _part(ask, dialect, target, terms, of=of, total=total)
            for (of, target), (total, _) in zip(asked.items(), totals, strict=True)
            if total  # a label without nodes may have no index either
        )
    )
    totals += [(each.total, each.length) for each in words.values()]
    total = sum(count for count, _ in totals)
    if not total:
        return []
    found = [candidate for part in parts for candidate in part.candidates]
    if all(target.text is not None and target.text.length for target in searched.values()):
        mean = sum(length for _, length in totals) / total
    else:
        mean = sum(each.length for each in found) / max(1, len(found))
    holding: Counter[str] = Counter()
    for holds in (*(part.holding for part in parts), *(each.holding for each in words.values())):
        holding.update(holds)
    for of, each in words.items():
        if not any(each.holding.values()):
            continue
        best = indexes[of].best(each, total=total, mean_length=mean, holding=holding, count=limit, of=of)
        found += best
        await asyncio.sleep(0)
    return bm25(found, terms, total=total, mean_length=mean, holding=holding)


@dataclass(frozen=True, slots=True)
class _Part:
    """The candidates of one target."""

    candidates: Sequence[Candidate]
    holding: Mapping[str, int]
    """Term -> number of nodes that hold it."""


async def _part(
    ask: Ask, dialect: GraphDialect, target: SearchTarget, terms: Sequence[str], *, of: int, total: int
) -> _Part:
    has_terms = target.text is not None and target.text.terms is not None
    most = MOST_TERMED if has_terms else MOST_TEXTS
    holding: Mapping[str, int] | None = None
    if total <= most:
        asked = [statements.candidates(dialect, target, found_by=terms)]
    else:
        counted = await ask(statements.counts(dialect, target, terms))
        holding = {str(term): int(count) for term, count in counted.rows}
        asked = _selected(dialect, target, select(holding, most))
    tables = await asyncio.gather(*map(ask, asked))
    at = 3 if has_terms else 1
    rows = {row[at]: row for table in tables for row in table.rows}
    long = [row[at] for row in rows.values() if has_terms and row[1] is None]
    counts = dict((await ask(statements.long_counts(dialect, target, long, terms))).rows) if long else {}
    found = await _weighable(list(rows.values()), target, of, terms, counts)
    if holding is None:
        holding = {term: sum(each.counts.get(term, 0) > 0 for each in found) for term in terms}
    return _Part(found, holding)


def _selected(dialect: GraphDialect, target: SearchTarget, selection: Selection) -> list[Statement]:
    asked: list[Statement] = []
    if selection.whole:
        asked.append(statements.candidates(dialect, target, found_by=selection.whole))
    if selection.cut is not None:
        found_by = [selection.cut]
        asked.append(statements.candidates(dialect, target, found_by=found_by, limit=selection.room))
    return asked


async def _weighable(
    rows: Sequence[Sequence[Any]], target: SearchTarget, of: int, terms: Sequence[str], counts: Mapping[Any, str]
) -> list[Candidate]:
    """Return the candidates that hold a term; ``counts`` are those of long texts, by key."""
    wanted = frozenset(terms)
    with_terms = target.text is not None and target.text.terms is not None
    if with_terms:  # the latest first, as an index has them
        rows = sorted(rows, key=lambda row: str(row[-1]))
        rows.sort(key=lambda row: str(row[2] or ""), reverse=True)
    found: list[Candidate] = []
    work = 0
    for number, row in enumerate(rows):
        work += _EACH + (len(row[1] or "") // _EACH if with_terms else sum(len(text or "") for text in row[0]))
        if work > _STEP:
            work = 0
            await asyncio.sleep(0)
        candidate = _with_terms(row, of, wanted, terms, counts) if with_terms else _with_texts(row, of, wanted)
        if candidate.counts:
            found.append(replace(candidate, place=number) if with_terms else candidate)
    return found


def _with_terms(
    row: Sequence[Any], of: int, wanted: frozenset[str], terms: Sequence[str], counted: Mapping[Any, str]
) -> Candidate:
    length, held, _, handle = row[:4]
    counts: Mapping[str, int] = {}
    if held is None:  # a node that was deleted meanwhile has no counts
        numbers = counted[handle].split() if handle in counted else []
        counts = {term: int(count) for term, count in zip(terms, numbers, strict=False) if count != "0"}
    else:
        counts = Counter(term for term in held.split(" ") if term in wanted)
    return Candidate(handle, row[-1], length, counts, of)


def _with_texts(row: Sequence[Any], of: int, wanted: frozenset[str]) -> Candidate:
    texts, handle = row[:2]
    found = [term for text in texts if text for term in terms_of(text)]
    return Candidate(handle, row[-1], len(found), Counter(term for term in found if term in wanted), of)
