"""The records of several indexes as one sequence, for one question: a column for each thing known of them. Pure.

A record is a number in it: those of an index follow those of the one before. Ties go by index, then by time, the latest
first.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from graphweft_workers.retrieval.ranking import K1, B
from graphweft_workers.retrieval.scope_index import EMPTY, ColumnName, Floats, Mask, Numbers, ScopeIndex, column


class ScopeColumns:
    """The columns of indexes. Nobody writes to them: they may be those that an index keeps."""

    def __init__(self, indexes: Sequence[ScopeIndex]) -> None:
        self._filled = [(place, index) for place, index in enumerate(indexes) if index.keys]
        """The place of each index that has records: most kinds are rare."""
        self.starts = _starts([len(index.keys) for index in indexes])
        """The first record of each index, and the number of all."""
        self.count = int(self.starts[-1])
        self.lengths = self._joined("lengths")
        self.means = np.repeat([index.mean for index in indexes], np.diff(self.starts))
        """The mean length of the records of the same index."""
        self.norms = K1 * B / self.means * self.lengths
        """The part of BM25's divisor that depends on the length."""
        self.before = self._joined("before", self.starts)
        """The turn before each record in its session; the record itself if there is none."""
        self.after = self._joined("after", self.starts)
        self.flags = self._joined("flags")
        starts = _starts([len(index.session_lengths) - 1 for index in indexes])
        self.sessions = self._joined("sessions", starts, of_none=0)
        """The session of each turn; 0 for other records."""
        self.session_count = 1 + int(starts[-1])
        self.session_norms = np.concatenate([
            np.zeros(1), *(K1 * B / each.session_mean * column(each.session_lengths)[1:] for each in indexes)
        ])  # fmt: skip
        self.day_names = [day for index in indexes for day in index.days]
        self.days = self._joined("days_of", _starts([len(each.days) for each in indexes]))
        self.names = [names for index in indexes for names in index.names]
        """The terms of each author's name."""
        self.authors = self._joined("authors", _starts([len(each.names) for each in indexes]))
        self._sequence_starts = _starts([len(index.sequences) for index in indexes])
        self.first_terms = self._joined("starts", self._sequence_starts)
        """Where the terms of each record begin, in one sequence of all."""

    def _joined(self, name: ColumnName, starts: Numbers | None = None, of_none: int | None = None) -> Numbers:
        """Return a column of all indexes, whose numbers count from 0 in each, or from its start.

        ``of_none`` is the number that stands for none, in each.
        """
        columns: list[Numbers] = []
        for place, index in self._filled:
            own, start = index.copy(name), 0 if starts is None else int(starts[place])
            if start:
                own = own + start if of_none is None else np.where(own == of_none, own, own + start)
            columns.append(own)
        return joined(columns) if columns else np.zeros(0, dtype=np.int64)

    def term_counts(self, records: Numbers) -> Numbers:
        """Return the number of terms of each record."""
        ends = np.append(self.first_terms, self._sequence_starts[-1])
        counts: Numbers = ends[records + 1] - ends[records]
        return counts

    def holding(self, terms: Sequence[str], records: Numbers) -> Mask:
        """Return a row for each term: which of the records hold it."""
        parts = self.parts(records)
        found = np.zeros((len(terms), len(records)), dtype=np.bool_)
        for part, index in self._filled:
            of_part = np.flatnonzero(parts == part)
            numbers = records[of_part] - self.starts[part]
            for place, term in enumerate(terms):
                found[place, of_part] = index.holds(term, numbers)
        return found

    def parts(self, records: Numbers) -> Numbers:
        """Return the place of the index of each record."""
        return np.searchsorted(self.starts, records, side="right") - 1

    def named(self, records: Numbers) -> list[tuple[int, int]]:
        """Return the place of the index of each record, and its number there."""
        parts = self.parts(records)
        return list(zip(parts.tolist(), (records - self.starts[parts]).tolist(), strict=True))

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
        parts = self.parts(records)
        ties = self.starts[parts] + self.starts[parts + 1] - records
        return np.lexsort((ties, -scores, self.flags[records] & EMPTY))

    def best(self, records: Numbers, scores: Floats, count: int) -> Numbers:
        """Return the ``count`` first of records by the scores of all, in their order."""
        if len(records) > count:  # few are left to compare by all
            telling = records[self.flags[records] & EMPTY == 0]
            if len(telling) >= count:
                of_telling = scores[telling]
                records = telling[of_telling >= np.partition(of_telling, -count)[-count]]
        return records[self.order(records, scores[records])[:count]]

    def places_of(self, terms: Sequence[str], ats: Numbers) -> Numbers:
        """Return which of ``terms`` is at each place of the sequence of all terms; -1 for another."""
        found = np.full(len(ats), -1, dtype=np.int64)
        parts = np.searchsorted(self._sequence_starts, ats, side="right") - 1
        for part, index in self._filled:
            of_part = parts == part
            places = np.full(index.term_count, -1, dtype=np.int64)
            for place, term in enumerate(terms):
                if (number := index.number_of(term)) is not None:
                    places[number] = place
            numbers = np.frombuffer(index.sequences, dtype=np.uint32)[ats[of_part] - self._sequence_starts[part]]
            found[of_part] = places[numbers]
        return found


def joined[Item: np.generic](columns: Sequence[NDArray[Item]]) -> NDArray[Item]:
    """Return columns as one."""
    return columns[0] if len(columns) == 1 else np.concatenate(columns)


def _starts(counts: Sequence[int]) -> Numbers:
    return np.array([0, *accumulate(counts)], dtype=np.int64)
