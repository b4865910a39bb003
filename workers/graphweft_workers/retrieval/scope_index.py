"""The terms and vectors of the nodes of one target, in this process. Pure.

It counts the same as the server: see ``fulltext`` for words. For vectors it names the nodes that may be among the
nearest; the server compares these, so scores are the server's.

Vectors have no library to multiply them: each component of all vectors is one large integer, a lane of 32 bits for each
vector. An integer times a small number, and a sum of integers, run in C at 1 ns for each vector.
"""

from __future__ import annotations

import heapq
import math
import sys
from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

from graphweft_workers.retrieval.ranking import K1, B, Candidate, idf
from graphweft_workers.retrieval.selection import select

LANE_BYTES: Final = 4
_HALF: Final = 2**13 - 1
"""Components of unit vectors are whole numbers of 1 / _HALF: 14 bits with their sign."""
_ROOM: Final = 2**32 // (2 * _HALF + 1)
"""What the whole numbers of a question's vector may sum up to, so that no lane overflows."""
_LEAST_SIZE: Final = 1e-12
_SLACK: Final = 5e-5
"""Cosines that differ by less may be equal for a server: it rounds scores to five decimals and computes in 32 bits."""
_NEARLY: Final = 1e-9
"""Part of a score by which two ways to sum it differ at most."""
_INDEX_BYTES: Final = 2_000
"""Of an index without nodes: there may be one for any scope that a request names."""
_VECTORS_BYTES: Final = 1_000
_COLUMN_BYTES: Final = 128
"""Of a component of all vectors, without its lanes."""
_PAIR_BYTES: Final = sys.getsizeof((None, None))
_TERM_BYTES: Final = _PAIR_BYTES + 2 * (sys.getsizeof(array("I")) + 7 * LANE_BYTES)
"""Of the two lists of a term: an array has room for up to 7 more items, and for a sixteenth more."""
_POSTING_BYTES: Final = 2 * LANE_BYTES + 1


class Unfit(Exception):
    """The nodes cannot be indexed; the message says why, without any of their content."""


@dataclass(frozen=True, slots=True)
class IndexedNode:
    """A node, as a server lists it."""

    key: str
    time: str
    terms: str
    """Joined by blanks."""
    length: int
    begins: str | None = None
    ends: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TermMatches:
    """What a question's terms find: the input of ``ScopeIndex.best``."""

    total: int
    length: int
    holding: Mapping[str, int]
    postings: Sequence[tuple[str, Sequence[int], Sequence[int]]]
    """Term, numbers of the nodes that hold it, and how often each does."""
    allowed: frozenset[int] | None
    """The numbers of the candidates; None: all nodes that hold a term."""


class Vectors:
    """Unit vectors of one length, to which more are added until ``close``."""

    def __init__(self) -> None:
        self.numbers = array("I")
        """The node of each vector."""
        self.dimensions = 0
        self.error = 0.0
        """How far a vector may be from its whole numbers."""
        self._usual = True
        """Whether the squares of all sizes are numbers of 32 bits."""
        self._parts: list[bytearray] = []
        self._columns: list[int] = []

    def add(self, vectors: Sequence[tuple[int, Sequence[float]]]) -> None:
        """Add the vectors of nodes; a zero vector is left out. Raises ``Unfit`` if lengths differ or one is tiny."""
        rows: list[list[int]] = []
        for number, vector in vectors:
            size = math.hypot(*vector)
            if not size or not math.isfinite(size):  # its score is no number, and servers leave it out
                continue
            if not self.dimensions:
                self.dimensions = len(vector)
                self._parts = [bytearray() for _ in vector]
            if len(vector) != self.dimensions:
                raise Unfit("its vectors have several lengths")
            if not math.isfinite(_HALF / size):
                raise Unfit("one of its vectors is too small")
            scale = _HALF / size
            scaled = [value * scale for value in vector]
            row = list(map(round, scaled))
            if 0 in row:  # only a component that is 0 becomes 0: see ``apart``
                row = [whole or (value > 0) - (value < 0) for whole, value in zip(row, scaled, strict=True)]
            self._usual = self._usual and _LEAST_SIZE < size < 1 / _LEAST_SIZE
            self.error = max(self.error, math.dist(scaled, row) / _HALF)
            rows.append(row)
            self.numbers.append(number)
        for part, values in zip(self._parts, zip(*rows, strict=True), strict=True) if rows else ():
            part.extend(array("I", [value + _HALF for value in values]).tobytes())

    def close(self, count: int) -> bool:
        """Turn the next ``count`` components into integers; return whether all are."""
        for place in range(len(self._columns), min(len(self._columns) + count, len(self._parts))):
            self._columns.append(int.from_bytes(self._parts[place], sys.byteorder))
            self._parts[place] = bytearray()
        return len(self._columns) == self.dimensions

    @property
    def bytes(self) -> int:
        """The size: never less than it is."""
        columns = self.dimensions * (len(self.numbers) * 32 // 7 + _COLUMN_BYTES)
        return _VECTORS_BYTES + columns + sys.getsizeof(self.numbers)

    def near(self, vector: Sequence[float], count: int) -> list[int]:
        """Return the nodes of which the ``count`` nearest are a part; more, where cosines are nearly equal."""
        size = math.hypot(*vector)
        if len(self.numbers) <= count:
            return list(self.numbers)
        scale = (_ROOM - len(vector)) / sum(map(abs, vector))
        whole = [round(value * scale) for value in vector]
        error = math.dist([value * scale for value in vector], whole) / scale / size
        above = below = 0
        for column, number in zip(self._columns, whole, strict=True):
            if number > 0:
                above += column * number
            elif number:
                below -= column * number
        # The lanes of a column hold its numbers plus _HALF. No lane of the sum is less than 0.
        most = -2 * _HALF * sum(number for number in whole if number < 0)
        cosines = self._numbers_of(above + self._filled(most) - below)
        unit = scale * size * _HALF
        margin = math.ceil((2 * (error * (1 + self.error) + self.error) + _SLACK) * unit)
        least = heapq.nlargest(count, cosines)[-1] - margin
        return [number for number, cosine in zip(self.numbers, cosines, strict=True) if cosine >= least]

    def apart(self, vector: Sequence[float]) -> set[int]:
        """Return nodes that every server gives one and the same score: no component is other than 0 in both vectors."""
        if not self._usual:
            return set()
        zeros, common = self._filled(_HALF), 0
        for column, value in zip(self._columns, vector, strict=True):
            if value:
                common |= column ^ zeros
        return {number for number, lane in zip(self.numbers, self._numbers_of(common), strict=True) if not lane}

    def _filled(self, number: int) -> int:
        """Return an integer with the number in each lane."""
        return int.from_bytes(array("I", [number]) * len(self.numbers), sys.byteorder)

    def _numbers_of(self, column: int) -> memoryview:
        return memoryview(column.to_bytes(len(self.numbers) * LANE_BYTES, sys.byteorder)).cast("I")


class ScopeIndex:
    """The nodes of one target, latest first."""

    def __init__(self, nodes: Sequence[IndexedNode]) -> None:
        """Raises ``Unfit`` for nodes that share a key."""
        self.keys: list[str] = sorted(node.key for node in nodes)
        if any(one == other for one, other in zip(self.keys, self.keys[1:], strict=False)):
            raise Unfit("two of its nodes have one id")
        ordered = sorted(nodes, key=lambda node: node.key)
        ordered.sort(key=lambda node: node.time, reverse=True)
        self.keys = [node.key for node in ordered]
        self._size = sum(map(sys.getsizeof, self.keys))
        """Bytes of all strings, pairs and postings, never too few: a character takes up to 4."""
        self._by_key = array("I")
        """The numbers of the nodes in the order of their keys; empty if servers may sort these differently."""
        if all(map(str.isascii, self.keys)):
            self._by_key.extend(sorted(range(len(self.keys)), key=self.keys.__getitem__))
        self.vectors: Vectors | None = None
        self._validity: list[tuple[str | None, str | None]] | None = None
        if any(node.begins is not None or node.ends is not None for node in ordered):
            self._validity = [(node.begins, node.ends) for node in ordered]
            self._size += sum(
                _PAIR_BYTES + sys.getsizeof(begins) + sys.getsizeof(ends) for begins, ends in self._validity
            )
        self._lengths = array("I")
        self._total_length = 0
        self._postings: dict[str, tuple[array[int], array[int]]] = {}
        self._ordered = ordered

    def read(self, count: int) -> bool:
        """Read the terms of the next ``count`` nodes; return whether all are read."""
        postings = self._postings
        first = len(self._lengths)
        for number, node in enumerate(self._ordered[first : first + count], first):
            self._lengths.append(node.length)
            self._total_length += node.length
            for term, times in Counter(node.terms.split(" ")).items() if node.terms else ():
                held = postings.get(term)
                if held is None:
                    held = postings[term] = array("I"), array("I")
                    self._size += _TERM_BYTES + sys.getsizeof(term)
                held[0].append(number)
                held[1].append(times)
                self._size += _POSTING_BYTES
        if len(self._lengths) < len(self._ordered):
            return False
        self._ordered = []
        return True

    @property
    def bytes(self) -> int:
        """The size: never less than it is, and at most about twice as much."""
        lists = (self.keys, self._by_key, self._lengths, self._postings, self._validity)
        vectors = self.vectors.bytes if self.vectors is not None else 0
        return _INDEX_BYTES + sum(map(sys.getsizeof, lists)) + self._size + vectors

    def words(self, terms: Sequence[str], *, most: int, valid_at: str | None) -> TermMatches:
        """Return what the terms find among the nodes that are valid then, with at most ``most`` candidates."""
        valid = self._valid(valid_at)
        postings: list[tuple[str, Sequence[int], Sequence[int]]] = []
        for term in terms:
            numbers: Sequence[int]
            times: Sequence[int]
            numbers, times = self._postings.get(term, ((), ()))
            if valid is not None and numbers:
                pairs = [pair for pair in zip(numbers, times, strict=True) if pair[0] in valid]
                numbers, times = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
            postings.append((term, numbers, times))
        holding = {term: len(numbers) for term, numbers, _ in postings}
        total = len(self.keys) if valid is None else len(valid)
        length = self._total_length if valid is None else sum(self._lengths[number] for number in valid)
        allowed: set[int] | None = None
        if total > most:
            selection = select(holding, most)
            if len(selection.whole) < sum(map(bool, holding.values())):
                found = {term: numbers for term, numbers, _ in postings}
                allowed = {number for term in selection.whole for number in found[term]}
                if selection.cut is not None:  # the latest nodes have the first numbers
                    allowed.update(found[selection.cut][: selection.room])
        return TermMatches(
            total=total,
            length=length,
            holding=holding,
            postings=postings,
            allowed=None if allowed is None else frozenset(allowed),
        )

    def best(
        self, words: TermMatches, *, total: int, mean_length: float, holding: Mapping[str, int], count: int, of: int
    ) -> list[Candidate]:
        """Return the candidates of which the ``count`` best by BM25 are a part; see ``ranking.bm25``."""
        norms: dict[int, float] = {}
        lengths, allowed = self._lengths, words.allowed
        scores: dict[int, float] = {}
        for term, numbers, times in words.postings:
            weight = idf(total, holding.get(term, 0))
            for number, held in zip(numbers, times, strict=True):
                if allowed is not None and number not in allowed:
                    continue
                length = lengths[number]
                norm = norms.get(length)
                if norm is None:
                    norm = norms[length] = K1 * (1 - B + B * length / (mean_length or 1.0))
                scores[number] = scores.get(number, 0.0) + weight * held / (held + norm)
        if len(scores) > count:
            least = heapq.nlargest(count, scores.values())[-1] * (1 - _NEARLY)
            scores = {number: score for number, score in scores.items() if score >= least}
        counts: dict[int, dict[str, int]] = {number: {} for number in scores}
        for term, numbers, times in words.postings:
            for number, held in zip(numbers, times, strict=True):
                if number in counts:
                    counts[number][term] = held
        return [
            Candidate(self.keys[number], self.keys[number], lengths[number], held, of, number)
            for number, held in counts.items()
        ]

    def near(self, vector: Sequence[float], count: int) -> list[str] | None:
        """Return the keys of the nodes of which the ``count`` nearest are a part; None if the server must find them."""
        if self.vectors is None or self.vectors.dimensions != len(vector):
            return None
        if not _LEAST_SIZE < math.hypot(*vector) < 1 / _LEAST_SIZE:  # the sums of its numbers may overflow
            return None
        near = self.vectors.near(vector, count)
        if len(near) > 2 * count:
            near = self._without_ties(near, self.vectors.apart(vector), count)
        return [self.keys[number] for number in near]

    def _without_ties(self, near: list[int], equal: set[int], count: int) -> list[int]:
        """Leave out all but the ``count`` first by key of nodes with equal scores: ties go by key."""
        if not self._by_key:
            return near
        tied = equal.intersection(near)
        kept = islice((number for number in self._by_key if number in tied), count)
        return [*(number for number in near if number not in tied), *kept]

    def _valid(self, at: str | None) -> frozenset[int] | None:
        if at is None or self._validity is None:
            return None
        return frozenset(
            number
            for number, (begins, ends) in enumerate(self._validity)
            if (begins is None or begins <= at) and (ends is None or ends > at)
        )


def node_of(row: Sequence[Any]) -> IndexedNode:
    """Return the node of a row of ``statements.nodes``. Raises ``Unfit`` for a value that an index cannot hold."""
    key, time, length, terms, begins, ends = row
    if not isinstance(key, str) or not isinstance(time, str) or type(length) is not int or not 0 <= length < 2**32:
        raise Unfit("one of its nodes lacks its id, its time or its length")
    if any(value is not None and not isinstance(value, str) for value in (terms, begins, ends)):
        raise Unfit("one of its nodes has terms or times that are not text")
    return IndexedNode(key, time, terms or "", length, begins, ends)
