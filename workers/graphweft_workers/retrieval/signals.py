"""How well the records of a scope fit a question, by several signals. Pure.

Each signal is scaled to 0 to 1 among the candidates, so that a weighted sum ranks them: see ``linear``. What does not
depend on the question is in the index of the scope.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

import numpy as np

from graphweft_workers.retrieval.questions import REQUEST_WORDS, RankedQuestion
from graphweft_workers.retrieval.ranking import K1, B, idf
from graphweft_workers.retrieval.scope_columns import ScopeColumns, joined
from graphweft_workers.retrieval.scope_index import (
    ANOTHER,
    ASKS,
    EMPTY,
    NUMBER,
    OF_LAST,
    OF_OWN,
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
    """The candidates, as places of parts and numbers of records; the values of each signal are in the same order."""

    candidates: list[tuple[int, int]]
    rest: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    """Further records that fit less, the best first."""
    values: dict[str, Floats] = field(default_factory=dict[str, Floats])
    """A signal that says nothing is missing."""
    fits: bool = True
    """Whether a record is about what is asked for: it holds a word of weight, is near, or of a day that is named."""
    reach: float = 1.0
    """How well the best candidate fits: the share of the question's words, weighted by their rarity, that it and its
    neighbours hold, or the fit of its day, or its cosine."""


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
    return _Finder(asked, parts, near).found(weights, limit)


def content_terms(asked: RankedQuestion) -> frozenset[str]:
    """Return the terms of a question that say what it asks for."""
    return frozenset(asked.terms) - STOP_WORDS - REQUEST_WORDS


def linear(signals: Signals, weights: Mapping[str, float]) -> Floats:
    """Return the weighted sum of the signals of each candidate."""
    sums = np.zeros(len(signals.candidates))
    for name, weight in weights.items():
        if name in signals.values:
            sums += weight * signals.values[name]
    return sums


class _Finder:
    """The signals of one question. Records are places in ``ScopeColumns``."""

    def __init__(self, asked: RankedQuestion, parts: Sequence[KindIndex], near: Near) -> None:
        self._asked = asked
        self._parts = parts
        self._near = near
        self._of = of = ScopeColumns([part.index for part in parts])
        self._is_of_another = np.repeat([part.of_another for part in parts], np.diff(of.starts))
        """Which records are of another user than who asks."""
        self._words = np.zeros(of.count)
        """BM25 of each record."""
        self._held: list[tuple[str, float, Numbers, Numbers]] = []
        """Each term, its weight, the records that hold it, and how often each does."""
        self._sessions = np.zeros(of.session_count)
        """BM25 of each session."""
        self._counts = {term: self._holding(term) for term in asked.terms}
        """How many records hold each term."""
        self._weights = {term: idf(of.count, count) for term, count in self._counts.items()}

    def found(self, weights: Mapping[str, float], limit: int) -> Signals:
        """Return the signals of the candidates, and up to ``limit`` records with the rest."""
        of = self._of
        self._count()
        days = self._on_days()
        candidates, rest, (covered, around, window) = self._candidates(days, limit)
        signals = Signals(of.named(candidates), of.named(rest))
        asked_for = sum(self._weights.values()) or 1.0
        nearest = max(self._near.cosines.values(), default=0.0)
        if len(candidates):
            signals.reach = min(1.0, max(_most(around) / asked_for, _most(days), nearest, 0.0))
        signals.fits = bool(_most(days)) or nearest >= _NEAR or self._shares_words()
        alone = of.sessions[candidates] == 0
        sequences = _Sequences(of, candidates, self._asked.terms)
        values = signals.values
        values["words"] = words = _scaled(self._passages(candidates, sequences))
        values["covered"] = covered / asked_for
        values["window"] = _scaled(window)
        # What has no session has no neighbours that could speak for it.
        values["session"] = np.where(alone, values["window"], _scaled(self._sessions[of.sessions[candidates]]))
        values["session_best"] = np.where(alone, words, _scaled(self._best_of_sessions(candidates)))
        values["after_question"] = _scaled(self._after_question(candidates))
        values["pairs"] = _scaled(self._pairs(candidates, covered, sequences))
        values["date"] = days[of.days[candidates]]
        flags = of.flags[candidates]
        for name, flag, applies in (
            ("when", TIME, self._asked.is_when), ("number", NUMBER, self._asked.is_count),
            ("asks", ASKS, True), ("empty", EMPTY, True), ("short", SHORT, True),
        ):  # fmt: skip
            if applies:
                values[name] = (flags & flag != 0).astype(np.float64)
        if self._asked.is_own:
            values["own"] = ((flags & USERS != 0) & ~self._is_of_another[candidates]).astype(np.float64)
        values["named"] = self._named(candidates)
        values["condenses"] = np.array([part.condenses for part in self._parts], dtype=np.float64)[of.parts(candidates)]
        if self._asked.days is not None and any(part.index.stated for part in self._parts):
            values["over"] = np.array([not self._holds(*each) for each in signals.candidates], dtype=np.float64)
        if (latest := self._latest(candidates, covered)) is not None:
            values["latest"] = latest
        if self._near.cosines:
            values["vector"] = self._vectors(signals.candidates, words)
        values["first_hits"] = self._like_first_hits(candidates, linear(signals, weights))
        return signals

    def _holding(self, term: str) -> int:
        """Return how many records hold a term, or one that counts like it, valid or not; those with two count twice."""
        alike = self._asked.alike.get(term, (term,))
        return sum(part.index.holding(each) for part in self._parts for each in alike)

    def _count(self) -> None:
        """Add the terms to the scores of records and sessions, the rarest first."""
        of, room = self._of, [MOST_POSTINGS for _ in self._parts]
        for held, term in sorted((held, term) for term, held in self._counts.items()):
            if not held or not any(room):
                continue
            found: list[tuple[Numbers, Numbers]] = []
            for place, part in enumerate(self._parts):
                if room[place] and (some := self._postings(part, term, room[place])) is not None:
                    numbers, times = some
                    room[place] -= len(numbers)
                    found.append((numbers + of.starts[place], times))
            if not found:
                continue
            records, times = (joined(each) for each in zip(*found, strict=True))
            weight = self._weights[term]
            self._held.append((term, weight, records, times))
            self._words[records] += weight * times / (times + _BASE + of.norms[records])
            counts = np.bincount(of.sessions[records], minlength=of.session_count)
            counts[0] = 0  # of no session
            sessions = np.flatnonzero(counts)
            times = counts[sessions]
            self._sessions[sessions] += weight * times / (times + _BASE + of.session_norms[sessions])

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
        counted = {term for term, *_ in self._held}
        held = {term for term, _, records, _ in self._held if term in asked_for and self._of.have_content(records)}
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
        later = of.after[answers]
        about = (answers != asked) & (of.flags[answers] & OF_LAST != 0)
        add(answers[about], words[asked[about]] / 2)
        about = (answers != asked) & (later != answers) & (of.flags[later] & OF_OWN != 0)
        add(later[about], words[asked[about]] / 2)
        if cosines := self._near.cosines:
            near = np.array([of.starts[place] + number for place, number in cosines], dtype=np.int64)
            add(near, np.maximum(0.0, np.fromiter(cosines.values(), np.float64)) * best)
        if _most(days):
            fits, left = days[of.days], _MOST_OF_DAYS
            for place, part in enumerate(self._parts):
                start, end = of.starts[place : place + 2]
                is_of_day = (fits[start:end] > 0) & (True if part.valid is None else part.valid)
                latest = start + np.flatnonzero(is_of_day)[max(0, np.count_nonzero(is_of_day) - left) :]
                left -= len(latest)
                add(latest, fits[latest] * best)
        for place, part in enumerate(self._parts):
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
        norms = _BASE + K1 * B * (lengths[records] + lengths[before] + lengths[after]) / (3 * of.means[records])
        covered, around, window = (np.zeros(len(records)) for _ in range(3))
        held = np.zeros(of.count + 1, dtype=np.int64)  # the last is of no record
        for _, weight, holding, times in self._held:
            held[holding] = times
            own = held[records]
            together = own + held[before] + held[after]
            held[holding] = 0
            covered += weight * (own > 0)
            around += weight * (together > 0)
            window += weight * together / (together + norms)
        return covered, around, window

    def _best_of_sessions(self, candidates: Numbers) -> Floats:
        """Return the sum of the best three turns of the session of each candidate."""
        of = self._of
        wanted = np.zeros(of.session_count, dtype=np.bool_)
        wanted[of.sessions[candidates]] = True
        wanted[0] = False
        turns = np.flatnonzero((self._words > 0) & wanted[of.sessions])
        turns = turns[np.lexsort((-self._words[turns], of.sessions[turns]))]
        sessions = of.sessions[turns]
        first = np.searchsorted(sessions, sessions)
        turns, sessions = (each[np.arange(len(first)) - first < _BEST_TURNS] for each in (turns, sessions))
        best: Floats = np.bincount(sessions, self._words[turns], minlength=of.session_count)
        of_candidates: Floats = best[of.sessions[candidates]]
        return of_candidates

    def _passages(self, candidates: Numbers, sequences: _Sequences) -> Floats:
        """Return the score of each candidate by its words; a long one has that of its best passage."""
        found = self._words[candidates]
        lengths = sequences.lengths
        is_long = (found > 0) & (self._of.lengths[candidates] > PASSAGE)
        if not is_long.any():
            return found
        ends = np.minimum(np.cumsum(np.where(is_long, lengths, 0)), _MOST_READ)
        read = np.where(is_long, np.diff(ends, prepend=0), 0)
        for at, matches in sequences.matches(read):
            found[at] = max(found[at], self._best_passage(matches, float(self._of.means[candidates[at]])))
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

    def _after_question(self, candidates: Numbers) -> Floats:
        """Return the score of what a turn answers: of a question before it, or of what it corrects or completes."""
        of, words = self._of, self._words
        flags, before = of.flags[candidates], of.before[candidates]
        scores = np.where(flags & OF_LAST, words[before], 0.0)
        scores = np.maximum(scores, np.where(flags & OF_OWN, words[of.before[before]], 0.0))
        return np.where(of.flags[before] & ASKS, scores, _CONTINUED * scores)

    def _pairs(self, candidates: Numbers, covered: Floats, sequences: _Sequences) -> Floats:
        """Return the weight of the pairs of the question that each candidate holds, next to each other or almost."""
        found = np.zeros(len(candidates))
        if not self._asked.pairs:
            return found
        count = len(self._asked.terms)
        place = {term: at for at, term in enumerate(self._asked.terms)}
        wanted = np.zeros((count, count))
        for first, second in self._asked.pairs:
            wanted[place[first], place[second]] = self._weights[first] + self._weights[second]
        owners, ats, terms_at = sequences.found(np.minimum(sequences.lengths, 4 * PASSAGE))
        held: list[Numbers] = []
        for step in (1, 2):
            ones, others = terms_at[:-step], terms_at[step:]
            is_pair = (owners[:-step] == owners[step:]) & (ats[step:] - ats[:-step] <= _LAST_OF_PAIR)
            is_pair &= wanted[ones, others] > 0
            held.append(owners[:-step][is_pair] * count**2 + ones[is_pair] * count + others[is_pair])
        held_once = np.unique(np.concatenate(held))
        owners, pairs = np.divmod(held_once, count**2)
        return np.bincount(owners, wanted.reshape(-1)[pairs], minlength=len(candidates))

    def _named(self, candidates: Numbers) -> Floats:
        """Return 1 for each turn whose author the question names."""
        of, asked = self._of, self._asked.terms
        authors, places = np.unique(of.authors[candidates], return_inverse=True)
        is_named = np.array([not of.names[author].isdisjoint(asked) for author in map(int, authors)], dtype=np.float64)
        return is_named[places] * (of.sessions[candidates] > 0)

    def _latest(self, candidates: Numbers, covered: Floats) -> Floats | None:
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
        told = np.flatnonzero(is_told & ~self._is_of_another[candidates])
        days = [of.day_names[int(day)] for day in of.days[candidates[told]]]
        by_time = sorted(
            (
                (day, number, int(at))
                for day, (place, number), at in zip(days, of.named(candidates[told]), told, strict=True)
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

    def _vectors(self, candidates: Sequence[tuple[int, int]], words: Floats) -> Floats:
        """Return how near each candidate is; one without a vector is as near as its words say."""
        near, found = self._near.cosines, self._near
        least, most = min(near.values()), max(near.values())
        values: list[float] = []
        for each, of_words in zip(candidates, words.tolist(), strict=True):
            if each in near:
                values.append((near[each] - least) / (most - least) if most > least else max(0.0, near[each]))
            else:
                values.append(of_words if found.is_all or each[0] not in found.parts else 0.0)
        return np.array(values)

    def _like_first_hits(self, candidates: Numbers, sums: Floats) -> Floats:
        """Return how many words of the first hits each candidate holds."""
        of = self._of
        counts: Counter[str] = Counter()
        for place, number in of.named(candidates[np.argsort(-sums, kind="stable")[:_FIRST_HITS]]):
            index = self._parts[place].index
            counts.update(index.first_terms(number, 2 * PASSAGE))
        most = max(2.0, of.count * _COMMON)
        added = sorted(
            (-count * idf(of.count, held), term)
            for term, count in counts.items()
            if count > 1 and term not in self._weights and (held := self._holding(term)) <= most
        )
        values = np.zeros(len(candidates))
        rows = of.holding([term for _, term in added[:_MOST_ADDED]], candidates)
        for (score, _), of_term in zip(added, rows, strict=False):
            values -= score * of_term
        return _scaled(values)


class _Sequences:
    """The terms of a question in the texts of candidates."""

    def __init__(self, of: ScopeColumns, candidates: Numbers, wanted: Sequence[str]) -> None:
        self._of = of
        self._candidates = candidates
        self._wanted = wanted
        self.lengths = of.term_counts(candidates)
        """The number of terms of each."""

    def found(self, read: Numbers) -> tuple[Numbers, Numbers, Numbers]:
        """Return each match among the first ``read`` terms of each candidate, in order.

        That is the candidate, the place in its text, and the term.
        """
        ends = np.cumsum(read)
        owners = np.repeat(np.arange(len(read)), read)
        ats = np.arange(len(owners)) - np.repeat(ends - read, read)
        terms_at = self._of.places_of(self._wanted, self._of.first_terms[self._candidates][owners] + ats)
        matches = np.flatnonzero(terms_at >= 0)
        return owners[matches], ats[matches], terms_at[matches]

    def matches(self, read: Numbers) -> Iterator[tuple[int, list[tuple[int, str]]]]:
        """Yield the matches among the first ``read`` terms of each candidate that has some."""
        owners, ats, terms_at = self.found(read)
        firsts = np.flatnonzero(np.diff(owners, prepend=-1)).tolist()
        for first, end in pairwise([*firsts, len(owners)]):
            terms_of = [self._wanted[int(term)] for term in terms_at[first:end]]
            yield int(owners[first]), list(zip(map(int, ats[first:end]), terms_of, strict=True))


def _most(values: Floats) -> float:
    return float(values.max(initial=0.0))


def _scaled(values: Floats) -> Floats:
    most = _most(values)
    return values / most if most > 0 else np.zeros(len(values))
