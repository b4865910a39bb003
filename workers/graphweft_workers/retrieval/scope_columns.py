"""The records of several indexes as one sequence, for one question: a column for each thing known of them. Pure.

A record is a number in it: those of an index follow those of the one before. Ties go by index, then by time, the latest
first.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from graphweft_workers.retrieval.scope_index import EMPTY, ColumnName, Floats, Mask, Numbers, ScopeIndex


class ScopeColumns:
    """The columns of indexes, of which one has records at least.

    Nobody writes to them: they may be those that an index keeps.
    """

    def __init__(self, indexes: Sequence[ScopeIndex]) -> None:
        self.filled = [(place, index) for place, index in enumerate(indexes) if index.keys]
        """The place of each index that has records, and the index: most kinds are rare."""
        self.starts = _starts(len(index.keys) for index in indexes)
        """The first record of each index, and the number of all."""
        self.count = self.starts[-1]
        self._firsts, self._ends = np.array(self.starts[:-1]), np.array(self.starts[1:])
        self._means = np.array([index.mean for index in indexes])
        self.lengths = self._joined("lengths")
        norms = [index.norms for _, index in self.filled]
        self.norms = joined([of_records for of_records, _ in norms])
        """The part of BM25's divisor that depends on the length."""
        self.before = self._joined("before", self.starts)
        """The turn before each record in its session; the record itself if there is none."""
        self.after = self._joined("after", self.starts)
        self.continued = self._joined("continued", self.starts)
        """The turn that each record corrects or changes; the record itself if there is none."""
        self.corrections = np.flatnonzero(self.continued != np.arange(self.count))
        self.flags = self._joined("flags")
        starts = _starts(len(index.session_lengths) - 1 for index in indexes)
        self.sessions = self._joined("sessions", starts, of_none=0)
        """The session of each turn; 0 for other records."""
        self.session_count = 1 + starts[-1]
        self.session_norms = joined([each[bool(place) :] for place, (_, each) in enumerate(norms)])
        """As ``norms``, of the sessions; the first is of none."""
        self.day_names = [day for _, index in self.filled for day in index.days]
        self.days = self._joined("days_of", _starts(len(index.days) for index in indexes))
        self._author_starts = _starts(len(index.names) for index in indexes)
        self.authors = self._joined("authors", self._author_starts)
        self._sequence_starts = _starts(len(index.sequences) for index in indexes)
        self.first_terms = self._joined("starts", self._sequence_starts)
        """Where the terms of each record begin, in one sequence of all."""

    def _joined(self, name: ColumnName, starts: Sequence[int] | None = None, of_none: int | None = None) -> Numbers:
        """Return a column of all indexes, whose numbers count from 0 in each, or from its start.

        ``of_none`` is the number that stands for none, in each.
        """
        columns: list[Numbers] = []
        for place, index in self.filled:
            own, start = index.copy(name), 0 if starts is None else starts[place]
            if start:
                own = own + start if of_none is None else np.where(own == of_none, own, own + start)
            columns.append(own)
        return joined(columns)

    def term_counts(self, records: Numbers) -> Numbers:
        """Return the number of terms of each record."""
        ends = np.append(self.first_terms, self._sequence_starts[-1])
        counts: Numbers = ends[records + 1] - ends[records]
        return counts

    def holding(self, terms: Sequence[str], records: Numbers) -> Mask:
        """Return a row for each term: which of the records hold it."""
        found = np.zeros((len(terms), len(records)), dtype=np.bool_)
        for _, index, of_part, numbers in self.by_part(records):
            for place, term in enumerate(terms):
                found[place, of_part] = index.holds(term, numbers)
        return found

    def parts(self, records: Numbers) -> Numbers:
        """Return the place of the index of each record."""
        if len(self.filled) == 1:
            return np.full(len(records), self.filled[0][0])
        return np.searchsorted(self._ends, records, side="right")

    def by_part(self, records: Numbers) -> Sequence[tuple[int, ScopeIndex, Numbers | slice, Numbers]]:
        """Return each index that has records: its place, itself, the places of its records, and their numbers in it."""
        if len(self.filled) == 1:
            [(part, index)] = self.filled
            return [(part, index, slice(None), records)]
        parts = self.parts(records)
        of_parts = ((part, index, np.flatnonzero(parts == part)) for part, index in self.filled)
        return [(part, index, places, records[places] - self.starts[part]) for part, index, places in of_parts]

    def located(self, records: Numbers) -> tuple[Numbers, Numbers]:
        """Return the place of the index of each record, and its number there."""
        parts = self.parts(records)
        return parts, records - self._firsts[parts]

    def means(self, records: Numbers) -> Floats:
        """Return the mean length of the records of the same index, for each record."""
        return self._means[self.parts(records)]

    def neighbours(self, records: Numbers) -> tuple[Numbers, Numbers]:
        """Return the turn before each record, and the one after: ``count`` if there is none."""
        before, after = self.before[records], self.after[records]
        return np.where(before == records, self.count, before), np.where(after == records, self.count, after)

    def have_content(self, records: Numbers) -> bool:
        """Tell whether one of the records tells something, or is a question that one answers."""
        answers = self.after[records]
        is_empty, is_answer_empty = (self.flags[each] & EMPTY != 0 for each in (records, answers))
        return bool((~is_empty | ((answers != records) & ~is_answer_empty)).any())

    def order(self, records: Numbers, scores: Floats) -> Numbers:
        """Return the places of records in falling order of their scores; those that tell nothing are the last."""
        ties = -records if len(self.filled) == 1 else (self._firsts + self._ends)[self.parts(records)] - records
        return np.lexsort((ties, -scores, self.flags[records] & EMPTY))

    def best(self, records: Numbers, scores: Floats, count: int) -> Numbers:
        """Return the ``count`` first of records by the scores of all, in their order."""
        if len(records) > count:  # few are left to compare by all
            telling = records[self.flags[records] & EMPTY == 0]
            if len(telling) >= count:
                of_telling = scores[telling]
                records = telling[of_telling >= np.partition(of_telling, -count)[-count]]
        return records[self.order(records, scores[records])[:count]]

    def are_named(self, records: Numbers, terms: Sequence[str]) -> Floats:
        """Return 1 for each record whose author's name holds one of the terms."""
        found = np.zeros(len(records))
        for part, index, places, _ in self.by_part(records):
            authors: list[int] = (self.authors[records[places]] - self._author_starts[part]).tolist()
            named = {author for author in set(authors) if not index.names[author].isdisjoint(terms)}
            if named:
                found[places] = [author in named for author in authors]
        return found

    def texts(self, records: Numbers, read: Numbers, terms: Sequence[str]) -> tuple[Numbers, Numbers, Numbers]:
        """Return where the first ``read`` terms of each record are one of ``terms``, in order.

        That is the place of the record among the records, the place in its text, and the place of the term.
        """
        owners = np.repeat(np.arange(len(read)), read)
        ats = np.arange(len(owners)) - np.repeat(np.cumsum(read) - read, read)
        in_all = self.first_terms[records][owners] + ats
        found = np.full(len(owners), -1)
        for part, index, places, _ in self.by_part(records):
            is_of_part = np.zeros(len(records), dtype=np.bool_)
            is_of_part[places] = True
            here = is_of_part[owners]
            numbers = np.frombuffer(index.sequences, dtype=np.uint32)[in_all[here] - self._sequence_starts[part]]
            place_of = np.full(index.term_count, -1)
            for place, term in enumerate(terms):
                if (number := index.number_of(term)) is not None:
                    place_of[number] = place
            found[here] = place_of[numbers]
        matches = np.flatnonzero(found >= 0)
        return owners[matches], ats[matches], found[matches]


def joined[Item: np.generic](columns: Sequence[NDArray[Item]]) -> NDArray[Item]:
    """Return columns, of which there is one at least, as one."""
    return columns[0] if len(columns) == 1 else np.concatenate(columns)


def _starts(counts: Iterable[int]) -> Sequence[int]:
    return [0, *accumulate(counts)]
