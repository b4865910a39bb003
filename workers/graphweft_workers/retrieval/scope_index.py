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
from bisect import insort
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice
from typing import Any, Final

from graphweft_workers.retrieval.continued_turns import corrects, is_bare_answer
from graphweft_workers.retrieval.empty_turns import tells_nothing
from graphweft_workers.retrieval.questions import has_number, has_time, tells_words
from graphweft_workers.retrieval.ranking import K1, B, Candidate, idf
from graphweft_workers.retrieval.selection import select
from graphweft_workers.text.terms import terms as terms_of

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
_INDEX_BYTES: Final = 4_000
"""Of an index without nodes: there may be one for any scope that a request names."""
_VECTORS_BYTES: Final = 1_000
_COLUMN_BYTES: Final = 128
"""Of a component of all vectors, without its lanes."""
_PAIR_BYTES: Final = sys.getsizeof((None, None))
_NUMBER_BYTES: Final = sys.getsizeof(2**20)
_TERM_BYTES: Final = _PAIR_BYTES + 2 * (sys.getsizeof(array("I")) + 7 * LANE_BYTES)
"""Of the two lists of a term: an array has room for up to 7 more items, and for a sixteenth more."""
_POSTING_BYTES: Final = 2 * LANE_BYTES + 1
_ALWAYS: Final = (None, None)
_GAP: Final = timedelta(hours=1)
"""Turns of a thread that are further apart belong to different sessions."""
_TIME, _NUMBER, EMPTY, ASKS, _SHORT, _USERS, CORRECTS, ANSWERS = 1, 2, 4, 8, 16, 32, 64, 128
_FEW: Final = 4
"""Terms of a short turn, without stop words."""


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
    thread: str = ""
    """The conversation of a turn; empty for other records."""
    who: str = ""
    """The author of a turn, or the role."""
    role: str = ""
    said: str = ""
    """The text of a short turn."""


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
        self.later: list[int] = []
        """Nodes that got a vector later: a few, which a server always compares."""
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
    """The nodes of one target, numbered from the oldest; of equal times, from the last key. Later ones can be added."""

    def __init__(self, nodes: Sequence[IndexedNode]) -> None:
        """``read`` reads the nodes. Raises ``Unfit`` for nodes that share a key."""
        self._waiting = _in_order(nodes)
        """Nodes that are not read yet, the next one last."""
        self._waiting.reverse()
        self.keys: list[str] = []
        self.numbers: dict[str, int] = {}
        """The number of each key."""
        if len({node.key for node in nodes}) < len(nodes):
            raise Unfit("two of its nodes have one id")
        self._size = 0
        """Bytes of all strings, pairs and postings, never too few: a character takes up to 4."""
        self._by_key = array("I")
        """The numbers of the nodes in the order of their keys; empty if servers may sort these differently."""
        self._sorts_keys = all(node.key.isascii() for node in nodes)
        self.vectors: Vectors | None = None
        self.newest = ""
        """The time of the last node."""
        self._validity: list[tuple[str | None, str | None]] = []
        self._is_limited = False
        """Whether the validity of a node begins or ends."""
        self.days: list[str] = []
        self.lengths = array("I")
        self.total_length = 0
        self._postings: dict[str, tuple[array[int], array[int]]] = {}
        self._term_numbers: dict[str, int] = {}
        """The number of each term, in the sequences of the nodes."""
        self._terms: list[str] = []
        self._sequences = array("I")
        self._starts = array("I", [0])
        self.flags = bytearray()
        """What is known of each node: ``EMPTY``, ``ASKS``, ``CORRECTS`` and others."""
        self.before = array("I")
        """The turn before each node in its session; the node itself if there is none."""
        self.after = array("I")
        self.sessions = array("I")
        """The session of each turn; 0 for other records."""
        self.session_lengths = array("I", [0])
        self._last: dict[str, tuple[int, str]] = {}
        """The last turn of each thread, and its time."""
        self.authors = array("I")
        self._authors: dict[str, int] = {}
        self.names: list[frozenset[str]] = []
        """The terms of each author's name."""

    def read(self, count: int) -> bool:
        """Read the next ``count`` nodes; return whether all are read."""
        for _ in range(min(count, len(self._waiting))):
            self._read(self._waiting.pop())
        if self._waiting:
            return False
        if self._sorts_keys and len(self._by_key) != len(self.keys):
            self._by_key = array("I", sorted(range(len(self.keys)), key=self.keys.__getitem__))
        return True

    def add(self, nodes: Sequence[IndexedNode]) -> None:
        """Add nodes that are later than all others. Raises ``Unfit``, before anything is added, if one is not."""
        ordered = _in_order(nodes)
        if len({node.key for node in nodes} - self.numbers.keys()) < len(nodes):
            raise Unfit("two of its nodes have one id")
        if ordered and ordered[0].time <= self.newest:
            raise Unfit("a node that was added is not later than the others")
        if self._sorts_keys and not all(node.key.isascii() for node in nodes):
            raise Unfit("servers may sort the key of a node that was added differently")
        for node in ordered:
            self._read(node)
            if self._sorts_keys:
                insort(self._by_key, len(self.keys) - 1, key=self.keys.__getitem__)

    def _read(self, node: IndexedNode) -> None:
        number = len(self.keys)
        self.keys.append(node.key)
        self.numbers[node.key] = number
        self.newest = node.time
        day = sys.intern(node.time[:10])
        self.days.append(day)
        self._size += sys.getsizeof(node.key) + _NUMBER_BYTES + sys.getsizeof(day)
        if node.begins is None and node.ends is None:
            self._validity.append(_ALWAYS)
        else:
            self._validity.append((node.begins, node.ends))
            self._is_limited = True
            self._size += _PAIR_BYTES + sys.getsizeof(node.begins) + sys.getsizeof(node.ends)
        self.lengths.append(node.length)
        self.total_length += node.length
        of_node = node.terms.split(" ") if node.terms else []
        self.flags.append(_flags_of(node, of_node))
        for term, times in Counter(of_node).items():
            held = self._postings.get(term)
            if held is None:
                held = self._postings[term] = array("I"), array("I")
                self._term_numbers[term] = len(self._terms)
                self._terms.append(term)
                self._size += _TERM_BYTES + sys.getsizeof(term) + _NUMBER_BYTES
            held[0].append(number)
            held[1].append(times)
            self._size += _POSTING_BYTES
        self._sequences.extend(map(self._term_numbers.__getitem__, of_node))
        self._starts.append(len(self._sequences))
        self._link(number, node)

    def _link(self, number: int, node: IndexedNode) -> None:
        """Find the turn before a node, its session and its author."""
        self.before.append(number)
        self.after.append(number)
        author = self._authors.get(node.who)
        if author is None:
            author = self._authors[node.who] = len(self.names)
            self.names.append(frozenset(terms_of(node.who)))
            self._size += sys.getsizeof(node.who) + sys.getsizeof(self.names[-1])
            self._size += sum(map(sys.getsizeof, self.names[-1]))
        self.authors.append(author)
        session = 0
        if node.thread:
            previous, time = self._last.get(node.thread, (number, ""))
            if previous == number:
                self._size += sys.getsizeof(node.thread) + _PAIR_BYTES + _NUMBER_BYTES + sys.getsizeof(node.time)
            self._last[node.thread] = number, node.time
            if previous != number and _is_near(time, node.time):
                self.before[number], self.after[previous] = previous, number
                session = self.sessions[previous]
            else:
                session = len(self.session_lengths)
                self.session_lengths.append(0)
            self.session_lengths[session] += node.length
        self.sessions.append(session)

    @property
    def mean(self) -> float:
        """The mean length of the nodes."""
        return (self.total_length / len(self.lengths) if self.lengths else 0.0) or 1.0

    @property
    def session_mean(self) -> float:
        """The mean length of the sessions."""
        return sum(self.session_lengths) / max(1, len(self.session_lengths) - 1) or 1.0

    def window_length(self, number: int) -> int:
        """Return the length of a turn with the one before and the one after."""
        lengths, before, after = self.lengths, self.before[number], self.after[number]
        return (
            lengths[number] + (lengths[before] if before != number else 0) + (lengths[after] if after != number else 0)
        )

    @property
    def bytes(self) -> int:
        """The size: never less than it is, and at most about twice as much."""
        lists = (
            self.keys, self.numbers, self._by_key, self.lengths, self._postings, self._validity, self.days,
            self._term_numbers, self._terms, self._sequences, self._starts, self.flags, self.before, self.after,
            self.sessions, self.session_lengths, self._last, self.authors, self._authors, self.names,
        )  # fmt: skip
        vectors = self.vectors.bytes if self.vectors is not None else 0
        return _INDEX_BYTES + sum(map(sys.getsizeof, lists)) + self._size + vectors

    def postings(self, term: str, valid: frozenset[int] | None, limit: int) -> tuple[Sequence[int], Sequence[int]]:
        """Return the latest ``limit`` nodes that hold a term, the oldest first, and how often each does."""
        if term not in self._postings:
            return (), ()
        numbers, times = self._postings[term]
        if valid is None:
            return (numbers, times) if len(numbers) <= limit else (numbers[-limit:], times[-limit:])
        pairs = [pair for pair in zip(numbers, times, strict=True) if pair[0] in valid][-limit:]
        return [number for number, _ in pairs], [held for _, held in pairs]

    def holding(self, term: str) -> int:
        """Return the number of nodes that hold a term, valid or not."""
        return len(self._postings[term][0]) if term in self._postings else 0

    def number_of(self, term: str) -> int | None:
        """Return the number of a term in the sequences; None for an unknown one."""
        return self._term_numbers.get(term)

    def term(self, number: int) -> str:
        """Return the term with a number."""
        return self._terms[number]

    def sequence(self, number: int) -> Sequence[int]:
        """Return the numbers of the terms of a node, in order."""
        return self._sequences[self._starts[number] : self._starts[number + 1]]

    def tells_time(self, number: int) -> bool:
        """Tell whether a node names a time."""
        return bool(self.flags[number] & _TIME)

    def tells_number(self, number: int) -> bool:
        """Tell whether a node names a number."""
        return bool(self.flags[number] & _NUMBER)

    def is_empty(self, number: int) -> bool:
        """Tell whether a turn tells nothing."""
        return bool(self.flags[number] & EMPTY)

    def asks(self, number: int) -> bool:
        """Tell whether a turn ends with a question."""
        return bool(self.flags[number] & ASKS)

    def is_short(self, number: int) -> bool:
        """Tell whether a turn has few words."""
        return bool(self.flags[number] & _SHORT)

    def is_of_user(self, number: int) -> bool:
        """Tell whether a turn is the user's; what is known beside turns is about the user."""
        return bool(self.flags[number] & _USERS)

    def words(
        self, terms: Sequence[str], *, most: int, valid_at: str | None, valid_since: str | None = None
    ) -> TermMatches:
        """Return what the terms find among the nodes that are valid then, with at most ``most`` candidates."""
        valid = self.valid(valid_at, valid_since)
        postings: list[tuple[str, Sequence[int], Sequence[int]]] = []
        for term in terms:
            numbers: Sequence[int]
            times: Sequence[int]
            numbers, times = (held[:] for held in self._postings.get(term, ((), ())))  # nodes may be added meanwhile
            if valid is not None and numbers:
                pairs = [pair for pair in zip(numbers, times, strict=True) if pair[0] in valid]
                numbers, times = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
            postings.append((term, numbers, times))
        holding = {term: len(numbers) for term, numbers, _ in postings}
        total = len(self.keys) if valid is None else len(valid)
        length = self.total_length if valid is None else sum(self.lengths[number] for number in valid)
        allowed: set[int] | None = None
        if total > most:
            selection = select(holding, most)
            if len(selection.whole) < sum(map(bool, holding.values())):
                found = {term: numbers for term, numbers, _ in postings}
                allowed = {number for term in selection.whole for number in found[term]}
                if selection.cut is not None and selection.room:  # the latest nodes have the last numbers
                    allowed.update(found[selection.cut][-selection.room :])
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
        lengths, allowed = self.lengths, words.allowed
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
            Candidate(self.keys[number], self.keys[number], lengths[number], held, of, -number)
            for number, held in counts.items()
        ]

    def near(self, vector: Sequence[float], count: int) -> list[str] | None:
        """Return the keys of the nodes of which the ``count`` nearest are a part; None if the server must find them."""
        if self.vectors is None or self.vectors.dimensions != len(vector):
            return None
        if not _LEAST_SIZE < math.hypot(*vector) < 1 / _LEAST_SIZE:  # the sums of its numbers may overflow
            return None
        near = self.vectors.near(vector, count)
        if self.vectors.later:
            near = [*near, *self.vectors.later]
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

    def valid(self, at: str | None, since: str | None = None) -> frozenset[int] | None:
        """Return the numbers of the nodes that are valid then, or at any time since ``since``; None for all."""
        if at is None or not self._is_limited:
            return None
        return frozenset(
            number
            for number, (begins, ends) in enumerate(self._validity)
            if (begins is None or begins <= at) and (ends is None or ends > (since or at))
        )


def _in_order(nodes: Iterable[IndexedNode]) -> list[IndexedNode]:
    """Return nodes in the order of their numbers."""
    ordered = sorted(nodes, key=lambda node: node.key, reverse=True)
    ordered.sort(key=lambda node: node.time)
    return ordered


def node_of(row: Sequence[Any]) -> IndexedNode:
    """Return the node of a row of ``statements.nodes``. Raises ``Unfit`` for a value that an index cannot hold."""
    key, time, length, terms, begins, ends, *turn = row
    if not isinstance(key, str) or not isinstance(time, str) or type(length) is not int or not 0 <= length < 2**32:
        raise Unfit("one of its nodes lacks its id, its time or its length")
    if any(value is not None and not isinstance(value, str) for value in (terms, begins, ends)):
        raise Unfit("one of its nodes has terms or times that are not text")
    thread, role, name, said = (value if isinstance(value, str) else "" for value in (*turn, "", "", "", "")[:4])
    return IndexedNode(
        key, time, terms or "", length, begins, ends, thread=thread, who=name or role, role=role, said=said
    )


def _flags_of(node: IndexedNode, of_node: Sequence[str]) -> int:
    is_turn = bool(node.role)
    return (
        _TIME * has_time(of_node)
        | _NUMBER * has_number(of_node)
        | EMPTY * (is_turn and bool(node.said) and tells_nothing(node.said, node.role))
        | ASKS * node.said.rstrip(" \"')").endswith(("?", "\uff1f", "\u061f"))
        | _SHORT * (is_turn and tells_words(of_node) < _FEW)
        | _USERS * (node.role == "user" or not is_turn)
        | CORRECTS * (is_turn and corrects(node.said))
        | ANSWERS * (is_turn and is_bare_answer(node.said, node.role))
    )


def _is_near(earlier: str, later: str) -> bool:
    """Return whether two turns of a thread belong to one session."""
    try:
        return datetime.fromisoformat(later) - datetime.fromisoformat(earlier) <= _GAP
    except (ValueError, TypeError):  # a rule may write anything
        return True
