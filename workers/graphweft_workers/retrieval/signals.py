"""How well the records of a scope fit a question, by several signals. Pure.

Each signal is scaled to 0 to 1 among the candidates, so that a weighted sum ranks them: see ``linear``. What does not
depend on the question is in the index of the scope.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from graphweft_workers.retrieval.questions import Asked
from graphweft_workers.retrieval.ranking import K1, B, idf
from graphweft_workers.retrieval.scope_index import ScopeIndex

PASSAGE: Final = 80
"""Terms of a passage: a long turn counts as its best one."""
MOST_POSTINGS: Final = 5_000
"""Of a question, over all its terms: one takes about 2 us. Of the first term beyond, the latest count."""
MOST_CANDIDATES: Final = 150
"""Records of which all signals are computed."""
_MOST_READ: Final = 40_000
"""Terms of long texts that are read for passages."""
_MOST_OF_DAYS: Final = 500
_FIRST_HITS: Final = 5
_MOST_ADDED: Final = 10
"""Terms of the first hits."""
_COMMON: Final = 0.1
"""Share of all records from which on a term of the first hits says nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """The records of one kind."""

    of: int
    """See ``Hit.of``."""
    index: ScopeIndex
    valid: frozenset[int] | None = None
    """The records that are valid at the time of the question; None: all."""


@dataclass(slots=True)
class Signals:
    """The candidates, as places of parts and numbers of records; the values of each signal are in the same order."""

    candidates: list[tuple[int, int]]
    rest: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    """Further records that fit less, the best first."""
    values: dict[str, list[float]] = field(default_factory=dict[str, list[float]])
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


def find_signals(asked: Asked, parts: Sequence[Part], near: Near, weights: Mapping[str, float]) -> Signals:
    """Return the signals of the candidates for a question; ``weights`` choose the first hits, whose words are one."""
    return _Finder(asked, parts, near).found(weights)


def linear(signals: Signals, weights: Mapping[str, float]) -> list[float]:
    """Return the weighted sum of the signals of each candidate."""
    sums = [0.0] * len(signals.candidates)
    for name, weight in weights.items():
        for place, value in enumerate(signals.values.get(name, ())):
            if value:
                sums[place] += weight * value
    return sums


class _Finder:
    """The signals of one question."""

    def __init__(self, asked: Asked, parts: Sequence[Part], near: Near) -> None:
        self._asked = asked
        self._parts = parts
        self._near = near.cosines
        self._vectors_of = near
        self._total = sum(len(part.index.keys) for part in parts)
        lengths = sum(part.index.total_length for part in parts)
        self._mean = lengths / self._total if self._total and lengths else 1.0
        self._words: list[dict[int, float]] = [{} for _ in parts]
        """By part and number, as the next ones."""
        self._window: list[dict[int, float]] = [{} for _ in parts]
        self._covered: list[dict[int, float]] = [{} for _ in parts]
        self._around: list[dict[int, float]] = [{} for _ in parts]
        """What is covered by a turn and its neighbours."""
        self._rest: list[tuple[int, int]] = []
        self._sessions: dict[tuple[int, int], float] = {}
        self._weights = {
            term: idf(self._total, sum(part.index.holding(term) for part in parts)) for term in asked.terms
        }

    def found(self, weights: Mapping[str, float]) -> Signals:
        """Return the signals."""
        self._count(self._asked.terms)
        days = self._on_days()
        candidates = self._candidates(days)
        signals = Signals(candidates, self._rest)
        asked_for = sum(self._weights.values())
        if candidates:
            around = max(self._around[place].get(number, 0.0) for place, number in candidates) / (asked_for or 1.0)
            signals.reach = min(1.0, max(around, *days.values(), *self._near.values(), 0.0))
        values = signals.values
        passages = self._passages(candidates)
        values["words"] = _scaled(passages)
        values["covered"] = [
            self._covered[place].get(number, 0.0) / (asked_for or 1.0) for place, number in candidates
        ]
        values["window"] = _scaled([self._window[place].get(number, 0.0) for place, number in candidates])
        best = self._best_of_sessions()
        for name, of_sessions, alone in (("session", self._sessions, "window"), ("session_best", best, "words")):
            values[name] = _scaled([of_sessions.get(self._session(each), 0.0) for each in candidates])
            for place, each in enumerate(candidates):
                if not self._session(each)[1]:  # it has no neighbours that could speak for it
                    values[name][place] = values[alone][place]
        values["after_question"] = _scaled([self._after_question(each) for each in candidates])
        values["pairs"] = _scaled(self._pairs(candidates))
        values["date"] = [days.get(self._day_of(each), 0.0) for each in candidates]
        values["when"] = self._flagged(candidates, "tells_time", self._asked.is_when)
        values["number"] = self._flagged(candidates, "tells_number", self._asked.is_count)
        values["own"] = self._flagged(candidates, "is_of_user", self._asked.is_own)
        values["named"] = [float(self._is_named(each)) for each in candidates]
        values["asks"] = self._flagged(candidates, "asks")
        values["empty"] = self._flagged(candidates, "is_empty")
        values["short"] = self._flagged(candidates, "is_short")
        values["vector"] = self._vectors(candidates, values["words"])
        values["first_hits"] = self._like_first_hits(candidates, linear(signals, weights))
        return signals

    def _count(self, terms: Iterable[str]) -> None:
        """Add the terms to the scores of turns, windows and sessions."""
        room = MOST_POSTINGS
        ordered = sorted((sum(part.index.holding(term) for part in self._parts), term) for term in terms)
        for held, term in ordered:
            if not held or room <= 0:
                continue
            weight = self._weights[term]
            for place, part in enumerate(self._parts):
                found = part.index.postings(term, part.valid)
                pairs = list(found)[: max(0, room)]
                room -= len(pairs)
                self._add(place, part.index, pairs, weight)

    def _add(self, place: int, index: ScopeIndex, pairs: Sequence[tuple[int, int]], weight: float) -> None:
        words, covered, lengths = self._words[place], self._covered[place], index.lengths
        least, slope = K1 * (1 - B), K1 * B / self._mean
        for number, times in pairs:
            words[number] = words.get(number, 0.0) + weight * times / (times + least + slope * lengths[number])
            covered[number] = covered.get(number, 0.0) + weight
        before, after, sessions = index.before, index.after, index.sessions
        near: dict[int, int] = {}
        of_session: dict[int, int] = {}
        for number, times in pairs:
            near[number] = near.get(number, 0) + times
            if (other := before[number]) != number:
                near[other] = near.get(other, 0) + times
            if (other := after[number]) != number:
                near[other] = near.get(other, 0) + times
            if session := sessions[number]:
                of_session[session] = of_session.get(session, 0) + times
        window, around = self._window[place], self._around[place]
        slope /= 3
        for number, times in near.items():
            length = lengths[number]
            if (other := before[number]) != number:
                length += lengths[other]
            if (other := after[number]) != number:
                length += lengths[other]
            window[number] = window.get(number, 0.0) + weight * times / (times + least + slope * length)
            around[number] = around.get(number, 0.0) + weight
        session_lengths = index.session_lengths
        usual = index.total_length / max(1, len(session_lengths) - 1) or 1.0
        for session, times in of_session.items():
            norm = K1 * (1 - B + B * session_lengths[session] / usual)
            known = (place, session)
            self._sessions[known] = self._sessions.get(known, 0.0) + weight * times / (times + norm)

    def _on_days(self) -> dict[tuple[int, str], float]:
        """Return the days that the question names, by part, and how well each fits."""
        found: dict[tuple[int, str], float] = {}
        if not self._asked.periods:
            return found
        for place, part in enumerate(self._parts):
            for day in dict.fromkeys(part.index.days):
                if fit := max(period.fit(day) for period in self._asked.periods):
                    found[place, day] = fit
        return found

    def _candidates(self, days: Mapping[tuple[int, str], float]) -> list[tuple[int, int]]:
        best = max((score for scores in self._words for score in scores.values()), default=0.0) or 1.0
        best_window = max((score for scores in self._window for score in scores.values()), default=0.0) or 1.0
        rough: dict[tuple[int, int], float] = {}
        for place, (words, window) in enumerate(zip(self._words, self._window, strict=True)):
            for number, score in window.items():
                rough[place, number] = score / best_window + words.get(number, 0.0) / best
        for key, cosine in self._near.items():
            rough[key] = rough.get(key, 0.0) + max(0.0, cosine)
        left = _MOST_OF_DAYS
        for place, part in enumerate(self._parts) if days else ():
            for number, day in enumerate(part.index.days):
                fit = days.get((place, day), 0.0)
                if fit and left and (part.valid is None or number in part.valid):
                    rough[place, number] = rough.get((place, number), 0.0) + fit
                    left -= 1
        # A neighbour of a hit is no hit.
        fitting = {
            key: score
            for key, score in rough.items()
            if key[1] in self._words[key[0]] or key in self._near or self._day_of(key) in days or self._after_question(key)
        }
        found = sorted(fitting, key=lambda key: (self._parts[key[0]].index.is_empty(key[1]), -fitting[key], key))
        self._rest = found[MOST_CANDIDATES:]
        return found[:MOST_CANDIDATES]

    def _day_of(self, key: tuple[int, int]) -> tuple[int, str]:
        place, number = key
        return place, self._parts[place].index.days[number]

    def _session(self, key: tuple[int, int]) -> tuple[int, int]:
        place, number = key
        return place, self._parts[place].index.sessions[number]

    def _best_of_sessions(self) -> dict[tuple[int, int], float]:
        """Return the sum of the best three turns of each session."""
        scores: dict[tuple[int, int], list[float]] = {}
        for place, words in enumerate(self._words):
            sessions = self._parts[place].index.sessions
            for number, score in words.items():
                if session := sessions[number]:
                    scores.setdefault((place, session), []).append(score)
        return {session: sum(heapq.nlargest(3, found)) for session, found in scores.items()}

    def _passages(self, candidates: Sequence[tuple[int, int]]) -> list[float]:
        """Return the score of each candidate by its words; a long one has that of its best passage."""
        found: list[float] = []
        room = _MOST_READ
        for place, number in candidates:
            score = self._words[place].get(number, 0.0)
            index = self._parts[place].index
            if score and index.lengths[number] > PASSAGE and room > 0:
                sequence = index.sequence(number)[:room]
                room -= len(sequence)
                score = max(score, self._best_passage(index, sequence))
            found.append(score)
        return found

    def _best_passage(self, index: ScopeIndex, sequence: Sequence[int]) -> float:
        wanted = {number: term for term in self._asked.terms if (number := index.number_of(term)) is not None}
        matches = [(at, wanted[number]) for at, number in enumerate(sequence) if number in wanted]
        norm = K1 * (1 - B + B * PASSAGE / self._mean)
        best, end = 0.0, 0
        held: Counter[str] = Counter()
        for at, term in matches:
            while end < len(matches) and matches[end][0] < at + PASSAGE:
                held[matches[end][1]] += 1
                end += 1
            best = max(best, sum(self._weights[each] * times / (times + norm) for each, times in held.items()))
            held[term] -= 1
            if not held[term]:
                del held[term]
        return best

    def _after_question(self, key: tuple[int, int]) -> float:
        place, number = key
        index = self._parts[place].index
        before = index.before[number]
        if before == number or not index.asks(before) or index.authors[before] == index.authors[number]:
            return 0.0
        return self._words[place].get(before, 0.0)

    def _pairs(self, candidates: Sequence[tuple[int, int]]) -> list[float]:
        """Return the weight of the pairs of the question that each candidate holds, next to each other or almost."""
        wanted = [
            {
                (one, other): self._weights[first] + self._weights[second]
                for first, second in self._asked.pairs
                if (one := part.index.number_of(first)) is not None
                and (other := part.index.number_of(second)) is not None
            }
            for part in self._parts
        ]
        least = [min(pairs.values(), default=math.inf) for pairs in wanted]
        found: list[float] = []
        for place, number in candidates:
            if self._covered[place].get(number, 0.0) < least[place]:  # it does not hold two terms
                found.append(0.0)
                continue
            sequence = self._parts[place].index.sequence(number)[: 4 * PASSAGE]
            pairs = wanted[place]
            held = pairs.keys() & {*zip(sequence, sequence[1:], strict=False), *zip(sequence, sequence[2:], strict=False)}
            found.append(sum(pairs[pair] for pair in sorted(held)))
        return found

    def _is_named(self, key: tuple[int, int]) -> bool:
        place, number = key
        index = self._parts[place].index
        name = index.names[index.authors[number]] if index.sessions[number] else None
        return bool(name) and not name.isdisjoint(self._asked.terms)

    def _flagged(self, candidates: Sequence[tuple[int, int]], name: str, applies: bool = True) -> list[float]:
        if not applies:
            return []
        return [float(getattr(self._parts[place].index, name)(number)) for place, number in candidates]

    def _vectors(self, candidates: Sequence[tuple[int, int]], words: Sequence[float]) -> list[float]:
        """Return how near each candidate is; one without a vector is as near as its words say."""
        near, found = self._near, self._vectors_of
        if not near:
            return []
        least, most = min(near.values()), max(near.values())
        values: list[float] = []
        for each, of_words in zip(candidates, words, strict=True):
            if each in near:
                values.append((near[each] - least) / (most - least) if most > least else max(0.0, near[each]))
            else:
                values.append(of_words if found.is_all or each[0] not in found.parts else 0.0)
        return values

    def _like_first_hits(self, candidates: Sequence[tuple[int, int]], sums: Sequence[float]) -> list[float]:
        """Return how many words of the first hits each candidate holds."""
        first = heapq.nlargest(_FIRST_HITS, range(len(candidates)), key=lambda at: (sums[at], -at))
        counts: Counter[str] = Counter()
        for at in first:
            place, number = candidates[at]
            index = self._parts[place].index
            counts.update({index.term(each) for each in index.sequence(number)[: 2 * PASSAGE]})
        most = max(2.0, self._total * _COMMON)
        added: list[tuple[float, str]] = []
        for term, count in counts.items():
            held = sum(part.index.holding(term) for part in self._parts)
            if count > 1 and term not in self._weights and held <= most:
                added.append((-count * idf(self._total, held), term))
        weights = {term: -score for score, term in sorted(added)[:_MOST_ADDED]}
        by_part = [
            {number: weight for term, weight in weights.items() if (number := part.index.number_of(term)) is not None}
            for part in self._parts
        ]
        values: list[float] = []
        for place, number in candidates:
            held = by_part[place].keys() & set(self._parts[place].index.sequence(number)[: 4 * PASSAGE])
            values.append(sum(by_part[place][each] for each in held))
        return _scaled(values)


def _scaled(values: Sequence[float]) -> list[float]:
    most = max(values, default=0.0)
    return [value / most for value in values] if most > 0 else [0.0] * len(values)
