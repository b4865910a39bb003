"""How well the records of a scope fit a question, by several signals. Pure.

Each signal is scaled to 0 to 1 among the candidates, so that a weighted sum ranks them: see ``linear``. What does not
depend on the question is in the index of the scope.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

import numpy as np

from graphweft_workers.retrieval.questions import REQUEST_WORDS, RankedQuestion
from graphweft_workers.retrieval.ranking import K1, B, idf
from graphweft_workers.retrieval.scope_columns import ScopeColumns
from graphweft_workers.retrieval.scope_index import (
    ANOTHER,
    ASKS,
    EMPTY,
    NUMBER,
    OF_LAST,
    QUOTES,
    SHORT,
    TIME,
    USERS,
    Floats,
    Mask,
    Numbers,
    ScopeIndex,
)  # fmt: skip
from graphweft_workers.text.terms import STOP_WORDS

PASSAGE: Final = 80
"""Terms of a passage: a long turn counts as its best one."""
MOST_POSTINGS: Final = 3_000
"""Of a question in an index, over all its terms. Of the first term beyond, the latest count."""
MOST_CANDIDATES: Final = 150
"""Records of which all signals are computed."""
_MOST_LOOKED_AT: Final = 400
"""Records that may be candidates, by their words and neighbours."""
_MOST_READ: Final = 40_000
"""Terms of long texts that are read for passages."""
_MOST_OF_DAYS: Final = 500
_FIRST_HITS: Final = 5
_MOST_ADDED: Final = 10
"""Terms of the first hits."""
_COMMON: Final = 0.1
"""Share of all records from which on a term of the first hits says nothing."""
_BASE: Final = K1 * (1 - B)
"""The part of BM25's divisor that does not depend on a length."""
_NEAR: Final = 0.45
"""A cosine from which on a record is about what is asked for."""
_FEW: Final = 8
"""Records that may hold a word that tells records apart, or else half of all."""
_NEARLY: Final = 0.999
_MOST_LATEST: Final = 5
_LAST_OF_PAIR: Final = 2
"""How far the second word of a pair may be from the first."""
_BEST_TURNS: Final = 3
"""Turns that speak for their session."""
_CONTINUED: Final = 0.5
"""Share of the score of a turn that its correction or completion has: less than the answer to a question."""
_NONE: Final = np.zeros(0, dtype=np.int64)
_SHARE: Final = 1 / 3
"""Part of the question's words that says enough if all records hold them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KindIndex:
    """The records of one kind."""

    of: int
    """See ``Hit.of``."""
    index: ScopeIndex
    valid: Mask | None = None
    """Which records are valid at the time of the question, by number; None: all."""
    condenses: bool = False
    """Whether a record stands for many turns: it holds many words, but few of one thing."""
    of_another: bool = False
    """Whether the records are of another user than who asks: their "I" is not the user's."""


@dataclass(slots=True)
class Signals:
    """The candidates, and the values of each signal in the same order."""

    places: Numbers
    """The part of each candidate and then of further records, which fit less, the best first."""
    numbers: Numbers
    """The numbers of all these."""
    count: int
    """How many are candidates."""
    values: dict[str, Floats] = field(default_factory=dict[str, Floats])
    """A signal that says nothing is missing."""
    sums: Floats = field(default_factory=lambda: np.zeros(0))
    """The weighted sum of each candidate; a correction has at least that of what it corrects."""
    fits: bool = True
    """Whether a record is about what is asked for: it holds a word of weight, is near, or of a day that is named."""
    reach: float = 1.0
    """How well the best candidate fits: the share of the question's words, weighted by their rarity, that it and its
    neighbours hold, or the fit of its day, or its cosine."""

    @property
    def candidates(self) -> list[tuple[int, int]]:
        """The part and the number of each candidate."""
        return list(zip(self.places[: self.count].tolist(), self.numbers[: self.count].tolist(), strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class Near:
    """What a search by vector found."""

    cosines: Mapping[tuple[int, int], float] = field(default_factory=dict[tuple[int, int], float])
    """Of the nearest records, by part and number."""
    parts: frozenset[int] = frozenset()
    """The parts whose records have vectors."""
    is_all: bool = False
    """Whether all vectors were compared: a record that is not among them has none."""


def find_signals(
    asked: RankedQuestion,
    parts: Sequence[KindIndex],
    near: Near,
    weights: Mapping[str, float],
    *,
    limit: int = MOST_CANDIDATES,
) -> Signals:
    """Return the signals of the candidates for a question; ``weights`` choose the first hits, whose words are one.

    With the rest there are about ``limit`` records, if so many fit at all.
    """
    if not any(part.index.keys for part in parts):
        return Signals(_NONE, _NONE, 0)
    return _Finder(asked, parts, near).found(weights, limit)


def content_terms(asked: RankedQuestion) -> frozenset[str]:
    """Return the terms of a question that say what it asks for."""
    return frozenset(asked.terms) - STOP_WORDS - REQUEST_WORDS


def linear(signals: Signals, weights: Mapping[str, float]) -> Floats:
    """Return the weighted sum of the signals of each candidate."""
    there = [(weight, signals.values[name]) for name, weight in weights.items() if name in signals.values]
    sums: Floats = (np.array([weight for weight, _ in there])[:, np.newaxis] * [each for _, each in there]).sum(axis=0)
    return sums


class _Finder:
    """The signals of one question. Records are places in ``ScopeColumns``."""

    def __init__(self, asked: RankedQuestion, parts: Sequence[KindIndex], near: Near) -> None:
        self._asked = asked
        self._parts = parts
        self._near = near
        self._of = of = ScopeColumns([part.index for part in parts])
        self._filled = [(place, parts[place]) for place, _ in of.filled]
        self._is_of_another = np.array([part.of_another for part in parts])
        """Whether the records of a part are of another user than who asks."""
        self._counts = {term: self._holding(term) for term in asked.terms}
        """How many records hold each term."""
        self._weights = {term: idf(of.count, count) for term, count in self._counts.items()}
        self._count()
        self._near_records = np.array([of.starts[place] + number for place, number in near.cosines], dtype=np.int64)
        self._cosines = np.fromiter(near.cosines.values(), np.float64, len(near.cosines))

    def found(self, weights: Mapping[str, float], limit: int) -> Signals:
        """Return the signals of the candidates, and up to ``limit`` records with the rest."""
        of, asked = self._of, self._asked
        days = self._on_days()
        candidates, rest, (covered, around, window) = self._candidates(days, limit)
        signals = Signals(*of.located(np.concatenate([candidates, rest])), len(candidates))
        asked_for = sum(self._weights.values()) or 1.0
        nearest = _most(self._cosines)
        if len(candidates):
            signals.reach = min(1.0, max(_most(around) / asked_for, _most(days), nearest))
        signals.fits = bool(_most(days)) or nearest >= _NEAR or self._shares_words()
        sessions, flags = of.sessions[candidates], of.flags[candidates]
        alone = sessions == 0
        lengths = of.term_counts(candidates)
        values = signals.values
        values["words"] = words = _scaled(self._passages(candidates, lengths))
        values["covered"] = covered / asked_for
        values["window"] = _scaled(window)
        # What has no session has no neighbours that could speak for it.
        values["session"] = np.where(alone, values["window"], _scaled(self._sessions[sessions]))
        values["session_best"] = np.where(alone, words, _scaled(self._best_of_sessions(sessions)))
        values["after_question"] = _scaled(self._after_question(candidates, flags))
        values["pairs"] = _scaled(self._pairs(candidates, lengths))
        values["date"] = days[of.days[candidates]]
        for name, flag, applies in (
            ("when", TIME, asked.is_when), ("number", NUMBER, asked.is_count),
            ("asks", ASKS, True), ("empty", EMPTY, True), ("short", SHORT, True),
        ):  # fmt: skip
            if applies:
                values[name] = (flags & flag != 0).astype(np.float64)
        of_parts = signals.places[: len(candidates)]
        if asked.is_own:
            values["own"] = ((flags & USERS != 0) & ~self._is_of_another[of_parts]).astype(np.float64)
        values["named"] = of.are_named(candidates, asked.terms) * ~alone
        values["condenses"] = np.array([part.condenses for part in self._parts], dtype=np.float64)[of_parts]
        if asked.days is not None and any(part.index.stated for part in self._parts):
            values["over"] = np.array([not self._holds(*each) for each in signals.candidates], dtype=np.float64)
        if (latest := self._latest(signals, candidates, covered)) is not None:
            values["latest"] = latest
        if len(self._cosines):
            values["vector"] = self._vectors(candidates, of_parts, words)
        sums = linear(signals, weights)
        values["first_hits"] = self._like_first_hits(signals, candidates, sums)
        signals.sums = sums + weights.get("first_hits", 0.0) * values["first_hits"]
        self._raise_corrections(candidates, signals.sums)
        return signals

    def _holding(self, term: str) -> int:
        """Return how many records hold a term, or one that counts like it, valid or not; those with two count twice."""
        alike = self._asked.alike.get(term, (term,))
        return sum(part.index.holding(each) for _, part in self._filled for each in alike)

    def _count(self) -> None:
        """Find the records that hold the terms, the rarest first; count BM25 of records and sessions."""
        of, room = self._of, dict.fromkeys((place for place, _ in self._filled), MOST_POSTINGS)
        self._held: list[str] = []
        """The terms that are counted."""
        found: list[tuple[Numbers, Numbers, int]] = [(_NONE, _NONE, 0)]
        for term in sorted(filter(self._counts.get, self._counts), key=lambda term: (self._counts[term], term)):
            for place, part in self._filled:
                if room[place] and (some := self._postings(part, term, room[place])) is not None:
                    numbers, times = some
                    room[place] -= len(numbers)
                    if not self._held or self._held[-1] != term:
                        self._held.append(term)
                    found.append((numbers + of.starts[place], times, len(self._held) - 1))
        records, times = (np.concatenate(each) for each in list(zip(*found, strict=True))[:2])
        terms = np.repeat([term for *_, term in found], [len(numbers) for numbers, *_ in found])
        self._postings_of = records, times, terms
        """Records that hold a term, how often each does, and the place of the term in ``_held``."""
        weights = self._weights_of_held = np.array([self._weights[term] for term in self._held])
        scores = weights[terms] * times / (times + _BASE + of.norms[records])
        self._words = _added(records, scores, of.count)
        """BM25 of each record."""
        # One number for a term and a session.
        in_sessions = (terms * of.session_count + of.sessions[records])[of.sessions[records] > 0]
        pairs, times = np.unique(in_sessions, return_counts=True)
        terms, sessions = np.divmod(pairs, of.session_count)
        scores = weights[terms] * times / (times + _BASE + of.session_norms[sessions])
        self._sessions = _added(sessions, scores, of.session_count)
        """BM25 of each session."""

    def _postings(self, part: KindIndex, term: str, room: int) -> tuple[Numbers, Numbers] | None:
        """Return the latest ``room`` records that hold a term or one that counts like it, and how often each does.

        None if the part has no such record.
        """
        alike = [each for each in sorted(self._asked.alike.get(term, (term,))) if part.index.holding(each)]
        if not alike:
            return None
        found = [part.index.postings(each, part.valid, room) for each in alike]
        if len(found) == 1:
            return found[0]
        numbers, places = np.unique(np.concatenate([each for each, _ in found]), return_inverse=True)
        times = np.bincount(places, np.concatenate([each for _, each in found])).astype(np.int64)
        return numbers[-room:], times[-room:]

    def _shares_words(self) -> bool:
        """Tell whether records share words of weight with the question: rare ones, or many."""
        asked_for = content_terms(self._asked)
        counted = frozenset(self._held)
        records, _, terms = self._postings_of
        held = {
            term
            for place, term in enumerate(self._held)
            if term in asked_for and self._of.have_content(records[terms == place])
        }
        # So many records hold a term that was not counted that one of them tells something.
        held |= {term for term in asked_for - counted if self._counts[term]}
        rare = max(_FEW, self._of.count // 2)
        if any(self._counts[term] <= rare for term in held):
            return True
        return len(held) >= _SHARE * len(asked_for)

    def _on_days(self) -> Floats:
        """Return how well each day fits those that the question names.

        Of each period the days that fit best: those around a day count only if nothing is of the day itself.
        """
        days, periods = self._of.day_names, self._asked.periods
        if not periods or not days:
            return np.zeros(len(days))
        fits = np.array([[period.fit(day) for period in periods] for day in days], dtype=np.float64)
        return np.where(fits == fits.max(axis=0), fits, 0.0).max(axis=1)

    def _candidates(self, days: Floats, limit: int) -> tuple[Numbers, Numbers, tuple[Floats, Floats, Floats]]:
        """Return the records of which all signals are computed, and the next ones; of the former also ``_around``.

        They hold a word, are near, are of a day that is asked for, or answer a question that holds a word.
        """
        of, words = self._of, self._words
        rough, is_found = words.copy(), words > 0
        best = _most(words) or 1.0

        def add(records: Numbers, scores: Floats) -> None:
            rough[records] += scores
            is_found[records] = True

        asked = np.flatnonzero(is_found)
        answers = of.after[asked]
        about = (answers != asked) & (of.flags[answers] & OF_LAST != 0)
        add(answers[about], words[asked[about]] / 2)
        later = of.corrections[words[of.continued[of.corrections]] > 0]
        later = later[of.before[later] != of.continued[later]]
        add(later, words[of.continued[later]] / 2)
        add(self._near_records, np.maximum(0.0, self._cosines) * best)
        if _most(days):
            fits, left = days[of.days], _MOST_OF_DAYS
            for place, part in self._filled:
                start, end = of.starts[place : place + 2]
                is_of_day = (fits[start:end] > 0) & (True if part.valid is None else part.valid)
                latest = start + np.flatnonzero(is_of_day)[max(0, np.count_nonzero(is_of_day) - left) :]
                left -= len(latest)
                add(latest, fits[latest] * best)
        for place, part in self._filled:
            if part.valid is not None:
                is_found[of.starts[place] : of.starts[place + 1]] &= part.valid
        found = of.best(np.flatnonzero(is_found), rough, max(limit, _MOST_LOOKED_AT))
        looked_at, rest = found[:_MOST_LOOKED_AT], found[_MOST_LOOKED_AT:]
        covered, around, window = self._around(looked_at)
        better = rough[looked_at] / best + window / (_most(window) or 1.0)
        order = of.order(looked_at, better)
        chosen, others = order[:MOST_CANDIDATES], order[MOST_CANDIDATES:]
        more = np.concatenate([looked_at[others], rest])[: max(0, limit - MOST_CANDIDATES)]
        return looked_at[chosen], more, (covered[chosen], around[chosen], window[chosen])

    def _around(self, records: Numbers) -> tuple[Floats, Floats, Floats]:
        """Return what each record covers, what it covers with its neighbours, and BM25 of these together."""
        of = self._of
        before, after = of.neighbours(records)
        lengths = np.append(of.lengths, 0)
        norms = _BASE + K1 * B * (lengths[records] + lengths[before] + lengths[after]) / (3 * of.means(records))
        # A column for each of these records.
        wanted = np.array([records, before, after])
        column_of = np.full(of.count + 1, -1)  # the last is of no record
        column_of[wanted] = np.arange(wanted.size).reshape(wanted.shape)
        holding, times, terms = self._postings_of
        columns = column_of[holding]
        known = np.flatnonzero(columns >= 0)
        held = np.zeros((len(self._held), wanted.size))
        held[terms[known], columns[known]] = times[known]
        own, of_before, of_after = held.take(column_of[wanted], axis=1).swapaxes(0, 1)
        together = own + of_before + of_after
        weights = self._weights_of_held[:, np.newaxis]
        parts = weights * (own > 0), weights * (together > 0), weights * together / (together + norms)
        covered, around, window = (each.sum(axis=0) for each in parts)
        return covered, around, window

    def _best_of_sessions(self, wanted: Numbers) -> Floats:
        """Return the sum of the best three turns of each of the sessions, several of which may be the same."""
        of = self._of
        is_wanted = np.zeros(of.session_count, dtype=np.bool_)
        is_wanted[wanted] = True
        is_wanted[0] = False
        turns = np.flatnonzero(self._words > 0)
        turns = turns[is_wanted[of.sessions[turns]]]
        turns = turns[np.argsort(-self._words[turns])]
        turns = turns[np.argsort(of.sessions[turns], kind="stable")]
        sessions = of.sessions[turns]
        places = np.arange(len(sessions))
        first = np.maximum.accumulate(np.where(np.diff(sessions, prepend=0), places, 0))
        turns, sessions = (each[places - first < _BEST_TURNS] for each in (turns, sessions))
        best: Floats = _added(sessions, self._words[turns], of.session_count)[wanted]
        return best

    def _passages(self, candidates: Numbers, lengths: Numbers) -> Floats:
        """Return the score of each candidate by its words; a long one has that of its best passage."""
        found = self._words[candidates]
        is_long = (found > 0) & (self._of.lengths[candidates] > PASSAGE)
        if not is_long.any():
            return found
        ends = np.minimum(np.cumsum(np.where(is_long, lengths, 0)), _MOST_READ)
        read = np.where(is_long, np.diff(ends, prepend=0), 0)
        means = self._of.means(candidates)
        owners, ats, terms_at = self._of.texts(candidates, read, self._asked.terms)
        firsts = np.flatnonzero(np.diff(owners, prepend=-1)).tolist()
        for first, end in pairwise([*firsts, len(owners)]):
            at = int(owners[first])
            matches = [
                (int(place), self._asked.terms[int(term)])
                for place, term in zip(ats[first:end], terms_at[first:end], strict=True)
            ]
            found[at] = max(found[at], self._best_passage(matches, float(means[at])))
        return found

    def _best_passage(self, matches: Sequence[tuple[int, str]], mean: float) -> float:
        """Return the score of the best passage of a text; ``matches`` are its places with a term of the question."""
        norm = K1 * (1 - B + B * PASSAGE / mean)
        best, score, end = 0.0, 0.0, 0
        held: Counter[str] = Counter()

        def count(term: str, more: int) -> float:
            """Count a term in the passage, or no more; return by how much its score rises."""
            before, now = held[term], held[term] + more
            held[term] = now
            return self._weights[term] * (now / (now + norm) - before / (before + norm))

        for at, term in matches:
            while end < len(matches) and matches[end][0] < at + PASSAGE:
                score += count(matches[end][1], 1)
                end += 1
            best = max(best, score)
            score += count(term, -1)
        return best

    def _after_question(self, candidates: Numbers, flags: Numbers) -> Floats:
        """Return the score of what a turn answers: of a question before it, or of what it corrects or completes."""
        of, words = self._of, self._words
        before = of.before[candidates]
        scores = np.where(flags & OF_LAST, words[before], 0.0)
        continued = of.continued[candidates]
        scores = np.maximum(scores, np.where(continued != candidates, words[continued], 0.0))
        return np.where(of.flags[before] & ASKS, scores, _CONTINUED * scores)

    def _raise_corrections(self, candidates: Numbers, sums: Floats) -> None:
        """Give each correction the sum of what it corrects, if that is more: of equal ones the later is first."""
        continued = self._of.continued[candidates]
        corrections = np.flatnonzero(continued != candidates)
        if len(corrections):
            place_of = {record: at for at, record in enumerate(candidates.tolist())}
            for at in corrections[np.argsort(candidates[corrections])].tolist():
                of = place_of.get(int(continued[at]))
                if of is not None:
                    sums[at] = max(sums[at], sums[of])

    def _pairs(self, candidates: Numbers, lengths: Numbers) -> Floats:
        """Return the weight of the pairs of the question that each candidate holds, next to each other or almost."""
        found = np.zeros(len(candidates))
        if not self._asked.pairs:
            return found
        count = len(self._asked.terms)
        place = {term: at for at, term in enumerate(self._asked.terms)}
        wanted = np.zeros((count, count))
        for first, second in self._asked.pairs:
            wanted[place[first], place[second]] = self._weights[first] + self._weights[second]
        owners, ats, terms_at = self._of.texts(candidates, np.minimum(lengths, 4 * PASSAGE), self._asked.terms)
        is_held = np.zeros(len(candidates) * count**2, dtype=np.bool_)
        for step in (1, 2):
            ones, others = terms_at[:-step], terms_at[step:]
            is_pair = (owners[:-step] == owners[step:]) & (ats[step:] - ats[:-step] <= _LAST_OF_PAIR)
            is_pair &= wanted[ones, others] > 0
            is_held[owners[:-step][is_pair] * count**2 + ones[is_pair] * count + others[is_pair]] = True
        owners, pairs = np.divmod(np.flatnonzero(is_held), count**2)
        return _added(owners, wanted.reshape(-1)[pairs], len(candidates))

    def _latest(self, signals: Signals, candidates: Numbers, covered: Floats) -> Floats | None:
        """Return 1 for what the user told last of all that says as much, half of it for the one before, and so on.

        What quotes somebody's words about themselves, or tells of a relative alone, tells nothing of the user, and
        counts for none, as what by its own words does not hold on the days that are asked about. It counts half
        where the question has no topic: then two texts with the same words may tell different things.
        """
        of, until, most = self._of, self._asked.until, _most(covered)
        if not until or not most:
            return None
        others = EMPTY | QUOTES | (ANOTHER if self._asked.is_of_user else 0)
        is_told = (covered > _NEARLY * most) & (of.flags[candidates] & (USERS | others) == USERS)
        if self._asked.is_own:
            is_told &= ~self._is_of_another[signals.places[: len(candidates)]]
        told = np.flatnonzero(is_told)
        days = [of.day_names[int(day)] for day in of.days[candidates[told]]]
        by_time = sorted(
            (
                (day, number, at)
                for day, place, number, at in zip(
                    days, signals.places[told].tolist(), signals.numbers[told].tolist(), told.tolist(), strict=True
                )
                if day <= until and self._holds(place, number)
            ),
            key=lambda each: each[:2],
            reverse=True,
        )
        first = 1.0 if self._asked.has_topic else 0.5
        values = np.zeros(len(candidates))
        for place, (_, _, at) in enumerate(by_time[:_MOST_LATEST]):
            values[at] = first / 2**place
        return values

    def _holds(self, place: int, number: int) -> bool:
        """Tell whether a record of a part holds by its own words on the days that are asked about."""
        stated = self._parts[place].index.stated.get(number)
        return stated is None or self._asked.days is None or stated.holds(*self._asked.days)

    def _vectors(self, candidates: Numbers, of_parts: Numbers, words: Floats) -> Floats:
        """Return how near each candidate is; one without a vector is as near as its words say."""
        least, most = float(self._cosines.min()), float(self._cosines.max())
        cosines = np.full(self._of.count, np.nan)
        cosines[self._near_records] = self._cosines
        own = cosines[candidates]
        near = (own - least) / (most - least) if most > least else np.maximum(0.0, own)
        has_none = np.array([self._near.is_all or place not in self._near.parts for place in range(len(self._parts))])
        return np.where(np.isnan(own), words * has_none[of_parts], near)

    def _like_first_hits(self, signals: Signals, candidates: Numbers, sums: Floats) -> Floats:
        """Return how many words of the first hits each candidate holds."""
        of = self._of
        counts: Counter[str] = Counter()
        for at in map(int, np.argsort(-sums, kind="stable")[:_FIRST_HITS]):
            index = self._parts[int(signals.places[at])].index
            counts.update(index.first_terms(int(signals.numbers[at]), 2 * PASSAGE))
        most = max(2.0, of.count * _COMMON)
        added = sorted(
            (-count * idf(of.count, held), term)
            for term, count in counts.items()
            if count > 1 and term not in self._weights and (held := self._holding(term)) <= most
        )[:_MOST_ADDED]
        values = np.zeros(len(candidates))
        for (score, _), of_term in zip(added, of.holding([term for _, term in added], candidates), strict=True):
            values -= score * of_term
        return _scaled(values)


def _added(places: Numbers, values: Floats, count: int) -> Floats:
    """Return the sum of the values of each of ``count`` places, added in their order."""
    sums: Floats = np.bincount(places, values, minlength=count).astype(np.float64, copy=False)  # of none, integers
    return sums


def _most(values: Floats) -> float:
    return float(values.max(initial=0.0))


def _scaled(values: Floats) -> Floats:
    most = _most(values)
    return values / most if most > 0 else np.zeros(len(values))
