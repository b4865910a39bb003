"""The ranking of a scope in loops over single records: slow, and what ``signals`` must equal. No test."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise

from graphweft_workers.retrieval.questions import RankedQuestion
from graphweft_workers.retrieval.ranking import K1, B, idf
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
    IndexedNode,
)  # fmt: skip
from graphweft_workers.retrieval.scope_ranking import WEIGHTS
from graphweft_workers.retrieval.signals import MOST_CANDIDATES, MOST_POSTINGS, PASSAGE, KindIndex, Near

type Record = tuple[int, int]
"""The place of an index, and the number of a record in it."""

LOOKED_AT, OF_DAYS, READ = 400, 500, 40_000


class PlainRanking:
    """The order of the records for one question, and the signals of the candidates."""

    def __init__(
        self, asked: RankedQuestion, parts: Sequence[KindIndex], nodes: Sequence[Sequence[IndexedNode]], near: Near
    ) -> None:
        self.asked = asked
        self.parts = parts
        self.near = near
        self.indexes = [part.index for part in parts]
        self.texts = {
            (place, part.index.numbers[node.key]): node.terms.split()
            for place, (part, of_part) in enumerate(zip(parts, nodes, strict=True))
            for node in of_part
        }
        self.total = len(self.texts)
        self.weights = {term: idf(self.total, self.holding(term)) for term in asked.terms}
        self.held: dict[Record, dict[str, int]] = {}
        self.words: dict[Record, float] = {}
        self.sessions: dict[Record, float] = {}
        self.count()

    def alike(self, term: str) -> frozenset[str]:
        return self.asked.alike.get(term, frozenset({term}))

    def holding(self, term: str) -> int:
        return sum(index.holding(each) for index in self.indexes for each in self.alike(term))

    def flag(self, record: Record, flag: int) -> bool:
        return bool(self.indexes[record[0]].flags[record[1]] & flag)

    def is_valid(self, record: Record) -> bool:
        valid = self.parts[record[0]].valid
        return valid is None or bool(valid[record[1]])

    def session(self, record: Record) -> Record:
        return record[0], self.indexes[record[0]].sessions[record[1]]

    def day(self, record: Record) -> str:
        index = self.indexes[record[0]]
        return index.days[index.days_of[record[1]]]

    def before(self, record: Record) -> Record:
        return record[0], self.indexes[record[0]].before[record[1]]

    def after(self, record: Record) -> Record:
        return record[0], self.indexes[record[0]].after[record[1]]

    def count(self) -> None:
        room = [MOST_POSTINGS] * len(self.parts)
        for _, term in sorted((self.holding(term), term) for term in self.weights):
            for place, index in enumerate(self.indexes):
                numbers = sorted(
                    number
                    for number in range(len(index.keys))
                    if self.is_valid((place, number)) and not self.alike(term).isdisjoint(self.texts[place, number])
                )
                numbers = numbers[-room[place] :] if room[place] else []
                room[place] -= len(numbers)
                in_sessions: Counter[int] = Counter()
                for number in numbers:
                    times = sum(each in self.alike(term) for each in self.texts[place, number])
                    norm = K1 * (1 - B) + K1 * B / index.mean * index.lengths[number]
                    self.words[place, number] = self.words.get((place, number), 0.0) + self.weights[term] * times / (
                        times + norm
                    )
                    self.held.setdefault((place, number), {})[term] = times
                    in_sessions[index.sessions[number]] += 1
                for session, times in in_sessions.items():
                    norm = K1 * (1 - B) + K1 * B / index.session_mean * index.session_lengths[session]
                    score = self.weights[term] * times / (times + norm) if session else 0.0
                    self.sessions[place, session] = self.sessions.get((place, session), 0.0) + score

    def days(self) -> dict[str, float]:
        names = {day for index in self.indexes for day in index.days}
        found = dict.fromkeys(names, 0.0)
        for period in self.asked.periods:
            most = max((period.fit(day) for day in names), default=0.0)
            found |= {day: max(found[day], period.fit(day)) for day in names if period.fit(day) == most}
        return found

    def about(self, record: Record) -> list[Record]:
        """Return the turns that a turn is about."""
        before = self.before(record)
        of_last = [before] if self.flag(record, OF_LAST) else []
        return list(dict.fromkeys([*of_last, *self.continued(record)]))

    def continued(self, record: Record) -> list[Record]:
        """Return the turn that a turn corrects."""
        found = record[0], self.indexes[record[0]].continued[record[1]]
        return [] if found == record else [found]

    def together(self, record: Record) -> Counter[str]:
        """Return how often a record and its neighbours hold each term."""
        found: Counter[str] = Counter()
        for each in {record, self.before(record), self.after(record)}:
            found.update(self.held.get(each, {}))
        return found

    def window(self, record: Record) -> float:
        index = self.indexes[record[0]]
        length = sum(index.lengths[number] for _, number in {record, self.before(record), self.after(record)})
        norm = K1 * (1 - B) + K1 * B * length / (3 * index.mean)
        return sum(self.weights[term] * times / (times + norm) for term, times in self.together(record).items())

    def order(self, records: Sequence[Record], scores: Mapping[Record, float]) -> list[Record]:
        return sorted(records, key=lambda each: (self.flag(each, EMPTY), -scores[each], each[0], -each[1]))

    def candidates(self, limit: int) -> tuple[list[Record], list[Record]]:
        best, days = max(self.words.values(), default=0.0) or 1.0, self.days()
        rough = dict(self.words)
        for record in self.texts:
            for asked in self.about(record):
                if score := self.words.get(asked):
                    rough[record] = rough.get(record, 0.0) + score / 2
        for record, cosine in self.near.cosines.items():
            rough[record] = rough.get(record, 0.0) + max(0.0, cosine) * best
        of_days = [each for each in self.texts if days.get(self.day(each)) and self.is_valid(each)]
        for record in sorted(of_days, key=lambda each: (each[0], -each[1]))[:OF_DAYS]:
            rough[record] = rough.get(record, 0.0) + days[self.day(record)] * best
        found = self.order([each for each in rough if self.is_valid(each)], rough)[: max(limit, LOOKED_AT)]
        looked_at, rest = found[:LOOKED_AT], found[LOOKED_AT:]
        most = max(map(self.window, looked_at), default=0.0) or 1.0
        looked_at = self.order(looked_at, {each: rough[each] / best + self.window(each) / most for each in looked_at})
        more = [*looked_at[MOST_CANDIDATES:], *rest][: max(0, limit - MOST_CANDIDATES)]
        return looked_at[:MOST_CANDIDATES], more

    def passages(self, candidates: Sequence[Record]) -> list[float]:
        found: list[float] = []
        room = READ
        for record in candidates:
            score, text = self.words.get(record, 0.0), self.texts[record]
            index = self.indexes[record[0]]
            if score and index.lengths[record[1]] > PASSAGE:
                text, room = text[:room], max(0, room - len(text))
                norm = K1 * (1 - B + B * PASSAGE / index.mean)
                for first in range(len(text)):
                    times = Counter(text[first : first + PASSAGE])
                    wanted = [(self.weights[term], times[term]) for term in self.asked.terms]
                    score = max(score, sum(weight * each / (each + norm) for weight, each in wanted))
            found.append(score)
        return found

    def best_of_session(self, record: Record) -> float:
        if not self.session(record)[1]:
            return 0.0
        turns = [score for each, score in self.words.items() if self.session(each) == self.session(record)]
        return sum(sorted(turns, reverse=True)[:3])

    def after_question(self, record: Record) -> float:
        score = max((self.words.get(each, 0.0) for each in self.about(record)), default=0.0)
        return score if self.flag(self.before(record), ASKS) else score / 2

    def pairs(self, record: Record) -> float:
        text = self.texts[record][: 4 * PASSAGE]
        held = {*pairwise(text), *zip(text, text[2:], strict=False)} & self.asked.pairs
        return sum(self.weights[first] + self.weights[second] for first, second in held)

    def is_named(self, record: Record) -> bool:
        index = self.indexes[record[0]]
        names = index.names[index.authors[record[1]]]
        return bool(index.sessions[record[1]]) and not names.isdisjoint(self.asked.terms)

    def latest(self, candidates: Sequence[Record]) -> list[float]:
        covered = {each: self.covered(each) for each in candidates}
        told = [
            each for each in candidates
            if covered[each] > 0.999 * max(covered.values()) and self.flag(each, USERS)
            and not (self.asked.is_own and self.parts[each[0]].of_another)
            and not self.flag(each, EMPTY | QUOTES | (ANOTHER if self.asked.is_of_user else 0))
            and self.day(each) <= self.asked.until and self.holds(each)
        ]  # fmt: skip
        told = sorted(told, key=lambda each: (self.day(each), each[1]), reverse=True)[:5]
        return [
            (1.0 if self.asked.has_topic else 0.5) / 2 ** told.index(each) if each in told else 0.0
            for each in candidates
        ]

    def holds(self, record: Record) -> bool:
        stated = self.parts[record[0]].index.stated.get(record[1])
        return stated is None or self.asked.days is None or stated.holds(*self.asked.days)

    def covered(self, record: Record) -> float:
        return sum(self.weights[term] for term in self.held.get(record, ()))

    def vector(self, record: Record, of_words: float) -> float:
        near = self.near.cosines
        least, most = min(near.values()), max(near.values())
        if record not in near:
            return of_words if self.near.is_all or record[0] not in self.near.parts else 0.0
        return (near[record] - least) / (most - least) if most > least else max(0.0, near[record])

    def first_hits(self, candidates: Sequence[Record], sums: Sequence[float]) -> list[float]:
        first = sorted(range(len(candidates)), key=lambda at: (-sums[at], at))[:5]
        counts = Counter(term for at in first for term in set(self.texts[candidates[at]][: 2 * PASSAGE]))
        most = max(2.0, self.total * 0.1)
        added = sorted(
            (-times * idf(self.total, self.holding(term)), term)
            for term, times in counts.items()
            if times > 1 and term not in self.weights and self.holding(term) <= most
        )[:10]
        return [sum(-score for score, term in added if term in self.texts[each]) for each in candidates]

    def found(self, limit: int) -> tuple[list[Record], list[float]]:
        """Return the first ``limit`` records in their order, and the sums of those that are candidates."""
        candidates, rest = self.candidates(limit)
        days, asked_for = self.days(), sum(self.weights.values()) or 1.0
        values: dict[str, list[float]] = {
            "words": (words := scaled(self.passages(candidates))),
            "covered": [self.covered(each) / asked_for for each in candidates],
            "window": (window := scaled([self.window(each) for each in candidates])),
            "after_question": scaled([self.after_question(each) for each in candidates]),
            "pairs": scaled([self.pairs(each) for each in candidates]),
            "date": [days[self.day(each)] for each in candidates],
            "named": [float(self.is_named(each)) for each in candidates],
            "condenses": [float(self.parts[each[0]].condenses) for each in candidates],
            "latest": self.latest(candidates) if candidates and self.asked.until else [],
        }
        of_sessions = scaled([self.sessions.get(self.session(each), 0.0) for each in candidates])
        best = scaled([self.best_of_session(each) for each in candidates])
        for name, scores, alone in (("session", of_sessions, window), ("session_best", best, words)):
            values[name] = [scores[at] if self.session(each)[1] else alone[at] for at, each in enumerate(candidates)]
        for name, flag, applies in (
            ("when", TIME, self.asked.is_when), ("number", NUMBER, self.asked.is_count), ("asks", ASKS, True),
            ("own", USERS, self.asked.is_own), ("empty", EMPTY, True), ("short", SHORT, True),
        ):  # fmt: skip
            values[name] = [float(applies and self.flag(each, flag)) for each in candidates]
        of_another = [self.parts[each[0]].of_another for each in candidates]
        values["own"] = [own * (not another) for own, another in zip(values["own"], of_another, strict=True)]
        values["over"] = [float(not self.holds(each)) for each in candidates]
        if self.near.cosines:
            values["vector"] = [self.vector(each, words[at]) for at, each in enumerate(candidates)]
        values["first_hits"] = scaled(self.first_hits(candidates, self.sums(values, len(candidates))))
        sums = self.sums(values, len(candidates))
        for record in sorted(candidates):
            for of in self.continued(record):
                if of in candidates:
                    at = candidates.index(record)
                    sums[at] = max(sums[at], sums[candidates.index(of)])
        sums = [max(0.0, each) for each in sums]
        order = sorted(range(len(candidates)), key=lambda at: (-sums[at], candidates[at][0], -candidates[at][1]))
        return [*(candidates[at] for at in order), *rest][:limit], [sums[at] for at in order][:limit]

    @staticmethod
    def sums(values: Mapping[str, Sequence[float]], count: int) -> list[float]:
        found = [0.0] * count
        for name, weight in WEIGHTS.items():
            found = [
                score + weight * each for score, each in zip(found, values.get(name) or [0.0] * count, strict=True)
            ]
        return found


def scaled(values: Sequence[float]) -> list[float]:
    most = max(values, default=0.0)
    return [value / most for value in values] if most > 0 else [0.0] * len(values)
