"""How well the records of a scope fit a question, by several signals. Pure.

Each signal is scaled to 0 to 1 among the candidates, so that a weighted sum ranks them: see ``linear``. What does not
depend on the question is in the index of the scope.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

from graphweft_workers.retrieval.questions import RankedQuestion
from graphweft_workers.retrieval.ranking import K1, B, idf
from graphweft_workers.retrieval.scope_index import ANSWERS, CORRECTS, EMPTY, ScopeIndex
from graphweft_workers.text.terms import STOP_WORDS, terms

PASSAGE: Final = 80
"""Terms of a passage: a long turn counts as its best one."""
MOST_POSTINGS: Final = 3_000
"""Of a question, over all its terms: one takes about 2 us. Of the first term beyond, the latest count."""
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
_REQUEST_WORDS: Final = frozenset(
    terms("tell know remember remind recall say please everything anything something give show mention talk")
)
"""Words of requests, which say nothing about what is asked for."""
_BASE: Final = K1 * (1 - B)
"""The part of BM25's divisor that does not depend on a length."""
_NEAR: Final = 0.45
"""A cosine from which on a record is about what is asked for."""
_FEW: Final = 8
"""Records that may hold a word that tells records apart, or else half of all."""
_NEARLY: Final = 0.999
_MOST_LATEST: Final = 5
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
    valid: frozenset[int] | None = None
    """The records that are valid at the time of the question; None: all."""
    condenses: bool = False
    """Whether a record stands for many turns: it holds many words, but few of one thing."""


@dataclass(slots=True)
class Signals:
    """The candidates, as places of parts and numbers of records; the values of each signal are in the same order."""

    candidates: list[tuple[int, int]]
    rest: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    """Further records that fit less, the best first."""
    values: dict[str, list[float]] = field(default_factory=dict[str, list[float]])
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
    return frozenset(asked.terms) - STOP_WORDS - _REQUEST_WORDS


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

    def __init__(self, asked: RankedQuestion, parts: Sequence[KindIndex], near: Near) -> None:
        self._asked = asked
        self._parts = parts
        self._near = near
        self._total = sum(len(part.index.keys) for part in parts)
        self._words: list[dict[int, float]] = [{} for _ in parts]
        """BM25 of each record that holds a term, by part and number."""
        self._held: list[list[tuple[str, float, Mapping[int, int]]]] = [[] for _ in parts]
        """By part: each term, its weight, and how often each record holds it."""
        self._sessions: list[dict[int, float]] = [{} for _ in parts]
        self._means = [part.index.mean for part in parts]
        self._weights = {term: idf(self._total, self._holding(term)) for term in asked.terms}

    def found(self, weights: Mapping[str, float], limit: int) -> Signals:
        """Return the signals of the candidates, and up to ``limit`` records with the rest."""
        self._count()
        days = self._on_days()
        candidates, rest, near = self._candidates(days, limit)
        signals = Signals(candidates, rest)
        asked_for = sum(self._weights.values()) or 1.0
        covered, around, window = ([each[place] for each in near] for place in range(3))
        if candidates:
            signals.reach = min(1.0, max(max(around) / asked_for, *days.values(), *self._near.cosines.values(), 0.0))
        nearest = max(self._near.cosines.values(), default=0.0)
        signals.fits = bool(days) or nearest >= _NEAR or self._shares_words()
        values = signals.values
        values["words"] = _scaled(self._passages(candidates))
        values["covered"] = [each / asked_for for each in covered]
        values["window"] = _scaled(window)
        best = self._best_of_sessions(candidates)
        of_sessions = [
            self._sessions[place].get(self._parts[place].index.sessions[number], 0.0) for place, number in candidates
        ]
        for name, scores, alone in (("session", of_sessions, "window"), ("session_best", best, "words")):
            values[name] = _scaled(scores)
            for at, (place, number) in enumerate(candidates):
                if not self._parts[place].index.sessions[number]:  # it has no neighbours that could speak for it
                    values[name][at] = values[alone][at]
        values["after_question"] = _scaled([self._after_question(each) for each in candidates])
        values["pairs"] = _scaled(self._pairs(candidates, covered))
        values["date"] = [days.get(self._day_of(each), 0.0) for each in candidates]
        values["when"] = self._flagged(candidates, "tells_time", self._asked.is_when)
        values["number"] = self._flagged(candidates, "tells_number", self._asked.is_count)
        values["own"] = self._flagged(candidates, "is_of_user", self._asked.is_own)
        values["named"] = [float(self._is_named(each)) for each in candidates]
        values["asks"] = self._flagged(candidates, "asks")
        values["empty"] = self._flagged(candidates, "is_empty")
        values["short"] = self._flagged(candidates, "is_short")
        values["condenses"] = [float(self._parts[place].condenses) for place, _ in candidates]
        values["latest"] = self._latest(candidates, covered)
        values["vector"] = self._vectors(candidates, values["words"])
        values["first_hits"] = self._like_first_hits(candidates, linear(signals, weights))
        return signals

    def _holding(self, term: str) -> int:
        """Return how many records hold a term, or one that counts like it, valid or not; those with two count twice."""
        alike = self._asked.alike.get(term, (term,))
        return sum(part.index.holding(each) for part in self._parts for each in alike)

    def _count(self) -> None:
        """Add the terms to the scores of records and sessions, the rarest first."""
        room = MOST_POSTINGS
        ordered = sorted((self._holding(term), term) for term in self._weights)
        for held, term in ordered:
            if not held or room <= 0:
                continue
            for place, part in enumerate(self._parts):
                numbers, times = self._postings(part, term, room)
                room -= len(numbers)
                self._add(place, part.index, numbers, times, term)

    def _postings(self, part: KindIndex, term: str, room: int) -> tuple[Sequence[int], Sequence[int]]:
        """Return the latest ``room`` records that hold a term or one that counts like it, and how often each does."""
        if (alike := self._asked.alike.get(term)) is None:
            return part.index.postings(term, part.valid, room)
        held: Counter[int] = Counter()
        for each in sorted(alike):
            held.update(dict(zip(*part.index.postings(each, part.valid, room), strict=True)))
        latest = sorted(held)[-room:]
        return latest, [held[number] for number in latest]

    def _add(self, place: int, index: ScopeIndex, numbers: Sequence[int], times: Sequence[int], term: str) -> None:
        words, lengths, weight = self._words[place], index.lengths, self._weights[term]
        slope = K1 * B / self._means[place]
        for number, held in zip(numbers, times, strict=True):
            words[number] = words.get(number, 0.0) + weight * held / (held + _BASE + slope * lengths[number])
        self._held[place].append((term, weight, dict(zip(numbers, times, strict=True))))
        of_sessions, session_lengths = self._sessions[place], index.session_lengths
        slope = K1 * B / index.session_mean
        for session, held in Counter(map(index.sessions.__getitem__, numbers)).items():
            if session:
                score = weight * held / (held + _BASE + slope * session_lengths[session])
                of_sessions[session] = of_sessions.get(session, 0.0) + score

    def _shares_words(self) -> bool:
        """Tell whether records share words of weight with the question: rare ones, or many."""
        asked_for = content_terms(self._asked)
        counted: set[str] = set()
        held: set[str] = set()
        for part, of_part in zip(self._parts, self._held, strict=True):
            for term, _, records in of_part:
                counted.add(term)
                if term in asked_for and any(_is_content(part.index, number) for number in records):
                    held.add(term)
        # So many records hold a term that was not counted that one of them tells something.
        held |= {term for term in asked_for - counted if self._holding(term)}
        rare = max(_FEW, self._total // 2)
        if any(self._holding(term) <= rare for term in held):
            return True
        return len(held) >= _SHARE * len(asked_for)

    def _on_days(self) -> dict[tuple[int, str], float]:
        """Return the days that the question names, by part, and how well each fits.

        Of each period the days that fit best: those around a day count only if nothing is of the day itself.
        """
        fits = {
            (place, day): [period.fit(day) for period in self._asked.periods]
            for place, part in enumerate(self._parts if self._asked.periods else ())
            for day in dict.fromkeys(part.index.days)
        }
        best = [max(of_period) for of_period in zip(*fits.values(), strict=True)]
        found = {
            key: max((fit for fit, most in zip(each, best, strict=True) if fit == most), default=0.0)
            for key, each in fits.items()
        }
        return {key: fit for key, fit in found.items() if fit}

    def _candidates(
        self, days: Mapping[tuple[int, str], float], limit: int
    ) -> tuple[list[tuple[int, int]], list[tuple[int, int]], list[tuple[float, float, float]]]:
        """Return the records of which all signals are computed, and the next ones; of the former also ``_around``.

        They hold a word, are near, are of a day that is asked for, or answer a question that holds a word.
        """
        rough = {(place, number): score for place, words in enumerate(self._words) for number, score in words.items()}
        best = max(rough.values(), default=0.0) or 1.0
        for place, words in enumerate(self._words):
            index = self._parts[place].index
            for number, score in words.items():
                for answer in _answers(index, number):
                    rough[place, answer] = rough.get((place, answer), 0.0) + score / 2
        for key, cosine in self._near.cosines.items():
            rough[key] = rough.get(key, 0.0) + max(0.0, cosine) * best
        left = _MOST_OF_DAYS
        for place, part in enumerate(self._parts) if days else ():
            for number in range(len(part.index.days) - 1, -1, -1):  # the latest first
                fit = days.get((place, part.index.days[number]), 0.0)
                if fit and left and (part.valid is None or number in part.valid):
                    rough[place, number] = rough.get((place, number), 0.0) + fit * best
                    left -= 1
        found = self._best(rough, max(limit, _MOST_LOOKED_AT))
        looked_at, rest = found[:_MOST_LOOKED_AT], found[_MOST_LOOKED_AT:]
        covered, around, window = self._around(looked_at)
        near = dict(zip(looked_at, zip(covered, around, window, strict=True), strict=True))
        most = max(window, default=0.0) or 1.0
        empty = [part.index.is_empty for part in self._parts]
        better = {key: rough[key] / best + score / most for key, score in zip(looked_at, window, strict=True)}
        looked_at.sort(key=lambda key: (empty[key[0]](key[1]), -better[key], key[0], -key[1]))
        more = max(0, limit - MOST_CANDIDATES)
        candidates = looked_at[:MOST_CANDIDATES]
        return candidates, [*looked_at[MOST_CANDIDATES:], *rest][:more], [near[key] for key in candidates]

    def _best(self, rough: Mapping[tuple[int, int], float], count: int) -> list[tuple[int, int]]:
        """Return the ``count`` best records; those that tell nothing are behind all others."""
        flags = [part.index.flags for part in self._parts]
        keys = list(rough)
        if len(keys) > count:  # a sort of numbers is quick: it leaves few to compare by all
            telling = sorted((score for (place, number), score in rough.items() if not flags[place][number] & EMPTY),
                             reverse=True)  # fmt: skip
            if len(telling) >= count:
                least = telling[count - 1]
                keys = [key for key, score in rough.items() if score >= least and not flags[key[0]][key[1]] & EMPTY]
        keys.sort(key=lambda key: (flags[key[0]][key[1]] & EMPTY, -rough[key], key[0], -key[1]))
        return keys[:count]

    def _around(self, keys: Sequence[tuple[int, int]]) -> tuple[list[float], list[float], list[float]]:
        """Return what each record covers, what it covers with its neighbours, and BM25 of these together."""
        covered: list[float] = []
        around: list[float] = []
        window: list[float] = []
        held = self._held_by(keys)
        of_terms = [[weight for _, weight, _ in of_part] for of_part in self._held]
        none: dict[int, int] = {}
        for place, number in keys:
            index, of_part = self._parts[place].index, held[place]
            before, after = index.before[number], index.after[number]
            own = of_part.get(number, none)
            times = own
            if (before != number and before in of_part) or (after != number and after in of_part):
                times = dict(own)
                for other in (before, after):
                    if other != number:
                        for term, count in of_part.get(other, none).items():
                            times[term] = times.get(term, 0) + count
            if not times:
                covered.append(0.0)
                around.append(0.0)
                window.append(0.0)
                continue
            norm = _BASE + K1 * B * index.window_length(number) / (3 * self._means[place])
            weights = of_terms[place]
            near = score = mine = 0.0
            for term, count in times.items():
                weight = weights[term]
                near += weight
                score += weight * count / (count + norm)
            for term in own:
                mine += weights[term]
            covered.append(mine)
            around.append(near)
            window.append(score)
        return covered, around, window

    def _held_by(self, keys: Sequence[tuple[int, int]]) -> list[dict[int, dict[int, int]]]:
        """Return, by part, the terms that records and their neighbours hold: the place of each in ``_held``, and times.

        Records that hold none are missing.
        """
        found: list[dict[int, dict[int, int]]] = []
        for place, part in enumerate(self._parts):
            index = part.index
            numbers = {number for at, number in keys if at == place}
            numbers |= {index.before[number] for number in numbers} | {index.after[number] for number in numbers}
            of_part: dict[int, dict[int, int]] = {}
            for term, (_, _, held) in enumerate(self._held[place]):
                for number in held.keys() & numbers:
                    of_part.setdefault(number, {})[term] = held[number]
            found.append(of_part)
        return found

    def _day_of(self, key: tuple[int, int]) -> tuple[int, str]:
        place, number = key
        return place, self._parts[place].index.days[number]

    def _best_of_sessions(self, candidates: Sequence[tuple[int, int]]) -> list[float]:
        """Return the sum of the best three turns of the session of each candidate."""
        scores: dict[tuple[int, int], list[float]] = {
            (place, session): []
            for place, number in candidates
            if (session := self._parts[place].index.sessions[number])
        }
        for place, words in enumerate(self._words):
            sessions = self._parts[place].index.sessions
            for number, score in words.items():
                if (of_session := scores.get((place, sessions[number]))) is not None:
                    of_session.append(score)
        best: dict[tuple[int, int], float] = {}
        values: list[float] = []
        for place, number in candidates:
            key = (place, self._parts[place].index.sessions[number])
            if key not in best:
                best[key] = sum(sorted(scores.get(key, ()), reverse=True)[:3])
            values.append(best[key])
        return values

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
        norm = K1 * (1 - B + B * PASSAGE / index.mean)
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

    def _after_question(self, key: tuple[int, int]) -> float:
        """Return the score of what a turn answers: of a question before it, or of what it corrects or completes."""
        place, number = key
        index, words = self._parts[place].index, self._words[place]
        score = max((words.get(before, 0.0) for before in _answered(index, number)), default=0.0)
        return score if index.asks(index.before[number]) else _CONTINUED * score

    def _pairs(self, candidates: Sequence[tuple[int, int]], covered: Sequence[float]) -> list[float]:
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
        for (place, number), share in zip(candidates, covered, strict=True):
            if share < least[place]:  # it does not hold two terms
                found.append(0.0)
                continue
            sequence = self._parts[place].index.sequence(number)[: 4 * PASSAGE]
            pairs = wanted[place]
            held = pairs.keys() & {*pairwise(sequence), *zip(sequence, sequence[2:], strict=False)}
            found.append(math.fsum(pairs[pair] for pair in held))
        return found

    def _is_named(self, key: tuple[int, int]) -> bool:
        place, number = key
        index = self._parts[place].index
        if not index.sessions[number]:
            return False
        return not index.names[index.authors[number]].isdisjoint(self._asked.terms)

    def _latest(self, candidates: Sequence[tuple[int, int]], covered: Sequence[float]) -> list[float]:
        """Return 1 for what the user told last of all that says as much, half of it for the one before, and so on.

        It counts half where the question has no topic: then two texts with the same words may tell different things.
        """
        until = self._asked.until
        most = max(covered, default=0.0)
        if not until or not most:
            return []
        told = [
            at
            for at, ((place, number), share) in enumerate(zip(candidates, covered, strict=True))
            if share > _NEARLY * most
            and (index := self._parts[place].index).is_of_user(number)
            and not index.is_empty(number)
            and index.days[number] <= until
        ]
        told.sort(key=lambda at: self._time_of(candidates[at]), reverse=True)
        first = 1.0 if self._asked.alike else 0.5
        values = [0.0] * len(candidates)
        for place, at in enumerate(told[:_MOST_LATEST]):
            values[at] = first / 2**place
        return values

    def _time_of(self, key: tuple[int, int]) -> tuple[str, int]:
        place, number = key
        return self._parts[place].index.days[number], number

    def _flagged(self, candidates: Sequence[tuple[int, int]], name: str, applies: bool = True) -> list[float]:
        if not applies:
            return []
        return [float(getattr(self._parts[place].index, name)(number)) for place, number in candidates]

    def _vectors(self, candidates: Sequence[tuple[int, int]], words: Sequence[float]) -> list[float]:
        """Return how near each candidate is; one without a vector is as near as its words say."""
        near, found = self._near.cosines, self._near
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
            held = self._holding(term)
            if count > 1 and term not in self._weights and held <= most:
                added.append((-count * idf(self._total, held), term))
        weights = {term: -score for score, term in sorted(added)[:_MOST_ADDED]}
        values = [0.0] * len(candidates)
        for term, weight in weights.items():
            held_by = [frozenset(part.index.postings(term, None, part.index.holding(term))[0]) for part in self._parts]
            for at, (place, number) in enumerate(candidates):
                if number in held_by[place]:
                    values[at] += weight
        return _scaled(values)


def _is_content(index: ScopeIndex, number: int) -> bool:
    """Tell whether a record tells something, or is a question that one answers."""
    answer = index.after[number]
    return not index.is_empty(number) or (answer != number and not index.is_empty(answer))


def _answered(index: ScopeIndex, number: int) -> list[int]:
    """Return the turns that a turn is about: a question before it, or what it corrects or completes.

    That is the turn before, or, behind a few words of somebody else, the own turn before these.
    """
    before = index.before[number]
    if before == number:
        return []
    if index.asks(before):
        return [before] if index.authors[before] != index.authors[number] else []
    if not index.flags[number] & CORRECTS:
        is_answer = index.flags[number] & ANSWERS and index.authors[before] != index.authors[number]
        return [before] if is_answer else []
    own = index.before[before]
    if own != before and index.authors[own] == index.authors[number] != index.authors[before]:
        return [before, own]
    return [before]


def _answers(index: ScopeIndex, number: int) -> list[int]:
    """Return the turns that are about a turn: see ``_answered``."""
    after = index.after[number]
    near = (after, index.after[after])
    return [each for each in dict.fromkeys(near) if each != number and number in _answered(index, each)]


def _scaled(values: Sequence[float]) -> list[float]:
    most = max(values, default=0.0)
    return [value / most for value in values] if most > 0 else [0.0] * len(values)
