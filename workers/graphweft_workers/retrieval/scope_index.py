"""The terms and vectors of the nodes of one target, in this process. Pure.

It counts the same as the server: see ``fulltext`` for words, and ``GRID`` for vectors.

Columns grow as arrays of the standard library. Searches use copies of them, which are kept until a node is read: a view
of numpy would forbid an array to grow.
"""

from __future__ import annotations

import math
import sys
from array import array
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from graphweft_workers.retrieval.continued_turns import corrects, is_bare_answer, is_correction, quotes_another
from graphweft_workers.retrieval.empty_turns import tells_nothing
from graphweft_workers.retrieval.questions import has_number, has_time, tells_words
from graphweft_workers.retrieval.ranking import GRID, K1, B, Candidate, idf
from graphweft_workers.retrieval.selection import select
from graphweft_workers.retrieval.stated_time import ALWAYS, StatedTime, stated_time
from graphweft_workers.retrieval.topics import tells_of_another
from graphweft_workers.text.terms import terms as terms_of

type Numbers = NDArray[np.int64]
"""Of nodes, terms or sessions; or counts."""
type Floats = NDArray[np.float64]
type Mask = NDArray[np.bool_]
type ColumnName = Literal[
    "lengths", "before", "after", "continued", "flags", "sessions", "days_of", "authors", "starts"
]

ITEM_BYTES: Final = 4
"""Of a number in a column, and of a component of a vector."""
_LEAST_SIZE: Final = 1e-12
_MORE: Final = 16
"""Vectors for which there is room beside those of a build; of more vectors, one for so many."""
_NEARLY: Final = 1e-9
"""Part of a score by which two ways to sum it differ at most."""
_INDEX_BYTES: Final = 4_000
"""Of an index without nodes: there may be one for any scope that a request names."""
_COPY_BYTES: Final = 8 * (len(get_args(ColumnName.__value__)) + 2)
"""Of the copies of the columns and of the norms, for a node."""
_VECTORS_BYTES: Final = 1_000
_FREED_BYTES: Final = 4_000
"""Beside vectors, what numpy keeps of freed arrays for its next ones."""
_PAIR_BYTES: Final = sys.getsizeof((None, None))
_NUMBER_BYTES: Final = sys.getsizeof(2**20)
_TERM_BYTES: Final = _PAIR_BYTES + 2 * (sys.getsizeof(array("I")) + 7 * ITEM_BYTES)
"""Of the two lists of a term: an array has room for up to 7 more items, and for a sixteenth more."""
_POSTING_BYTES: Final = 2 * ITEM_BYTES + 1
_STATED_BYTES: Final = 2 * sys.getsizeof("2026-12-04") + 100
_NO_POSTINGS: Final = (array("I"), array("I"))
_GAP: Final = timedelta(hours=1)
"""Turns of a thread that are further apart belong to different sessions."""
TIME, NUMBER, EMPTY, ASKS, SHORT, USERS, OF_LAST, QUOTES, ANOTHER = 1, 2, 4, 8, 16, 32, 64, 128, 256
"""What is known of a node: it names a time or a number; it is a turn that tells nothing; it ends with a question; it is
a turn of few words; it is the user's, or known beside turns; it is about the turn before, a question that it answers or
what it corrects or completes; it quotes somebody who speaks of themselves; it tells of a relative or a friend of the
user alone."""
_BACK: Final = 6
"""Turns before a correction in which the turn that it corrects is looked for."""
_NODE_TERMS: Final = 10
"""A node without terms takes as long to read as a node of so many, about."""
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
    postings: Sequence[tuple[str, Numbers, Numbers]]
    """Term, numbers of the nodes that hold it, and how often each does."""
    allowed: Mask | None
    """The candidates, by number; None: all nodes that hold a term."""


class Vectors:
    """Unit vectors of one length, with room for ``most`` of them; it makes more room where it must."""

    def __init__(self, most: int) -> None:
        self.numbers = array("I")
        """The node of each vector."""
        self._most = most
        self._components: NDArray[np.float32] = np.empty((0, 0), dtype=np.float32)
        """A row for each component, of all vectors: a question without a component does not read its row."""

    @property
    def dimensions(self) -> int:
        """The length of the vectors; 0 if there is none."""
        return len(self._components)

    def add(self, vectors: Sequence[tuple[int, Sequence[float]]]) -> None:
        """Add the vectors of nodes; a zero vector is left out. Raises ``Unfit`` if lengths differ or one is extreme."""
        numbers, units = array("I"), list[NDArray[np.float64]]()
        for number, vector in vectors:
            size = math.hypot(*vector)
            if not size or not math.isfinite(size):  # its score is no number, and servers leave it out
                continue
            if len(vector) != (self.dimensions or len(units[0] if units else vector)):
                raise Unfit("its vectors have several lengths")
            if not _LEAST_SIZE < size < 1 / _LEAST_SIZE:
                raise Unfit("the squares of one of its vectors are no numbers of 32 bits")
            numbers.append(number)
            units.append(np.asarray(vector, dtype=np.float64) / size)
        if not units:
            return
        if not self.dimensions:
            self._components = np.empty((len(units[0]), self._most), dtype=np.float32)
        first, end, room = len(self.numbers), len(self.numbers) + len(units), self._components.shape[1]
        if end > room:
            more = np.empty((self.dimensions, end - room + _MORE + room // _MORE), dtype=np.float32)
            self._components = np.concatenate([self._components, more], axis=1)
        self._components[:, first:end] = np.array(units).T
        self.numbers.extend(numbers)

    @property
    def bytes(self) -> int:
        """The size: never less than it is."""
        rows = _FREED_BYTES + self._components.nbytes if self.dimensions else 0
        return _VECTORS_BYTES + rows + sys.getsizeof(self.numbers)

    def near(self, vector: Sequence[float], count: int) -> tuple[Numbers, Numbers]:
        """Return the places of the ``count`` nearest, and all that are as near as the last; and the score of each.

        A score is (1 + cosine) / 2, in units of 1 / ``GRID``.
        """
        wanted = (np.asarray(vector, dtype=np.float64) / math.hypot(*vector)).astype(np.float32)
        rows, asked = self._components[:, : len(self.numbers)], np.flatnonzero(wanted)
        if len(asked) < self.dimensions:
            rows, wanted = rows[asked], wanted[asked]
        # Without BLAS, whose threads take the processors of others.
        cosines = np.einsum("ji,j->i", rows, wanted)
        places = np.arange(len(cosines))
        if len(cosines) > count:
            places = np.flatnonzero(cosines >= _at_place(cosines, count) - 3 / GRID)
        scores = np.floor((1 + cosines[places].astype(np.float64)) * (GRID / 2) + 0.5).astype(np.int64)
        if len(places) > count:
            is_near = scores >= np.sort(scores)[-count]
            places, scores = places[is_near], scores[is_near]
        return places, scores


def _at_place(cosines: NDArray[np.float32], place: int) -> float:
    """Return the cosine at a place of their falling order."""
    above = cosines[cosines > 0]
    if len(above) < place:
        return float(np.sort(cosines)[-place])
    return float(np.partition(above, -place)[-place])  # of many equal ones, such as 0, it takes ten times as long


class ScopeIndex:
    """The nodes of one target, numbered from the oldest; of equal times, from the last key. Later ones can be added."""

    def __init__(self, nodes: Sequence[IndexedNode]) -> None:
        """``read`` reads the nodes. Raises ``Unfit`` for nodes that share a key."""
        self._waiting = _in_order(nodes)[::-1]
        """Nodes that are not read yet, the next one last."""
        self._unread: list[str] = []
        """The terms of the last node that are not read yet."""
        self.keys: list[str] = []
        self.numbers: dict[str, int] = {}
        """The number of each key."""
        self._size = 0
        """Bytes of all strings, pairs and postings, never too few: a character takes up to 4."""
        self.vectors: Vectors | None = None
        self.newest = ""
        """The time of the last node."""
        self._limited: dict[int, tuple[str | None, str | None]] = {}
        """The nodes whose validity begins or ends."""
        self.stated: dict[int, StatedTime] = {}
        """When turns of users hold by what they say themselves, of those that say it."""
        self.days: list[str] = []
        """The days of the nodes, the first one first."""
        self.days_of = array("I")
        """The place of the day of each node."""
        self.lengths = array("I")
        self.total_length = 0
        self._postings: dict[str, tuple[array[int], array[int]]] = {}
        self._term_numbers: dict[str, int] = {}
        """The number of each term, in the sequences of the nodes."""
        self._terms: list[str] = []
        self.sequences = array("I")
        """The numbers of the terms of all nodes, in order."""
        self.starts = array("I", [0])
        """Where the terms of each node begin, and the end of the last."""
        self.flags = array("H")
        """What is known of each node: ``EMPTY``, ``ASKS`` and others."""
        self.before, self.after, self.continued = array("I"), array("I"), array("I")
        """The turn before each node in its session, the one after it, and the one that it corrects or changes; the node
        itself if there is none."""
        self.sessions = array("I")
        """The session of each turn; 0 for other records."""
        self.session_lengths = array("Q", [0])
        self._length_of_turns = 0
        self._last: dict[str, tuple[int, str]] = {}
        """The last turn of each thread, and its time."""
        self.authors = array("I")
        self._authors: dict[str, int] = {}
        self.names: list[frozenset[str]] = []
        """The terms of each author's name."""
        self._copies: dict[str, Numbers] = {}
        """Copies of columns, by their names."""
        self._norms: tuple[Floats, Floats] | None = None

    def read(self, terms: int) -> bool:
        """Read nodes of about ``terms`` terms, or a part of a longer one; return whether all are read."""
        left = terms
        while self._unread or self._waiting:
            if not self._unread:
                if left < terms and left < terms_in(self._waiting[-1]):
                    return False
                self._begin(self._waiting.pop())
            some = self._unread[: max(1, left)]
            del self._unread[: len(some)]
            self._hold(some)
            if self._unread:
                return False
            left -= len(some) + _NODE_TERMS
        return True

    def add(self, nodes: Sequence[IndexedNode]) -> None:
        """Take nodes that are later than all others, for ``read``. Raises ``Unfit``, and takes none, if one is not.

        While they are read, the index is always as if there were no others than those read.
        """
        ordered = _in_order(nodes, self.numbers)
        if ordered and ordered[0].time <= self.newest:
            raise Unfit("a node that was added is not later than the others")
        self._waiting = ordered[::-1]

    def _begin(self, node: IndexedNode) -> None:
        """Read all of a node but which terms it has."""
        self._copies.clear()
        self._norms = None
        number = len(self.keys)
        self.keys.append(node.key)
        self.numbers[node.key] = number
        self.newest = node.time
        self._size += sys.getsizeof(node.key) + _NUMBER_BYTES
        if not self.days or self.days[-1] != node.time[:10]:  # times rise
            self.days.append(node.time[:10])
            self._size += sys.getsizeof(self.days[-1])
        self.days_of.append(len(self.days) - 1)
        if node.begins is not None or node.ends is not None:
            self._limited[number] = (node.begins, node.ends)
            self._size += _PAIR_BYTES + sys.getsizeof(node.begins) + sys.getsizeof(node.ends)
        self.lengths.append(node.length)
        self.total_length += node.length
        self._unread = node.terms.split(" ") if node.terms else []
        self.flags.append(_flags_of(node, self._unread))
        if node.role == "user" and (stated := stated_time(node.said, node.time)) != ALWAYS:
            self.stated[number] = stated
            self._size += _STATED_BYTES
        self.starts.append(len(self.sequences))
        self._link(number, node)

    def _hold(self, terms: Sequence[str]) -> None:
        """Read terms of the last node."""
        self._copies.clear()
        self._norms = None
        number = len(self.keys) - 1
        for term, times in Counter(terms).items():
            held = self._postings.get(term)
            if held is None:
                held = self._postings[term] = array("I"), array("I")
                self._term_numbers[term] = len(self._terms)
                self._terms.append(term)
                self._size += _TERM_BYTES + sys.getsizeof(term) + _NUMBER_BYTES
            if held[0] and held[0][-1] == number:
                held[1][-1] += times
                continue
            held[0].append(number)
            held[1].append(times)
            self._size += _POSTING_BYTES
        self.sequences.extend(map(self._term_numbers.__getitem__, terms))
        self.starts[-1] = len(self.sequences)

    def _link(self, number: int, node: IndexedNode) -> None:
        """Find the turn before a node, its session and its author."""
        self.before.append(number)
        self.after.append(number)
        self.continued.append(number)
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
            self._length_of_turns += node.length
        self.sessions.append(session)
        if is_correction(node.said) or (self.flags[self.before[number]] & ASKS == 0 and corrects(node.said)):
            self.continued[number] = self._corrected(number)
        self.flags[number] |= OF_LAST * self._is_of_last(number, node)

    def _is_of_last(self, number: int, node: IndexedNode) -> bool:
        """Return whether a turn is about the turn before it."""
        before = self.before[number]
        is_other = self.authors[before] != self.authors[number]
        if self.flags[before] & ASKS:
            return is_other
        if self.continued[number] != number:
            return self.continued[number] == before
        return bool(node.role) and is_other and is_bare_answer(node.said, node.role)

    def _corrected(self, number: int) -> int:
        """Return the turn that a correction is about: the last that its author told, or else the one before it."""
        before = at = self.before[number]
        for _ in range(_BACK):
            if self.authors[at] == self.authors[number] and self.flags[at] & (ASKS | EMPTY) == 0 and at != number:
                return at
            at = self.before[at]
        return before

    def copy(self, name: ColumnName) -> Numbers:
        """Return a column with a value for each node, until the next one is read. Nobody writes to it."""
        found = self._copies.get(name)
        if found is None:
            values: array[int] = getattr(self, name)
            found = self._copies[name] = column(values)[: len(self.keys)]
            found.flags.writeable = False
        return found

    @property
    def norms(self) -> tuple[Floats, Floats]:
        """The part of BM25's divisor that depends on the length, of each node and of each session; kept as ``copy``."""
        if self._norms is None:
            of_nodes = K1 * B / self.mean * self.copy("lengths").astype(np.float64)
            of_sessions = K1 * B / self.session_mean * column(self.session_lengths).astype(np.float64)
            self._norms = of_nodes, of_sessions
        return self._norms

    @property
    def mean(self) -> float:
        """The mean length of the nodes."""
        return (self.total_length / len(self.lengths) if self.lengths else 0.0) or 1.0

    @property
    def session_mean(self) -> float:
        """The mean length of the sessions."""
        return self._length_of_turns / max(1, len(self.session_lengths) - 1) or 1.0

    @property
    def bytes(self) -> int:
        """The size: never less than it is, and at most about twice as much."""
        lists = (
            self.keys, self.numbers, self.lengths, self._postings, self._limited, self.stated, self.days,
            self.days_of, self._term_numbers, self._terms, self.sequences, self.starts, self.flags, self.before,
            self.after, self.continued, self.sessions, self.session_lengths, self._last, self.authors, self._authors,
            self.names,
        )  # fmt: skip
        vectors = self.vectors.bytes if self.vectors is not None else 0
        copies = _COPY_BYTES * len(self.keys)
        return _INDEX_BYTES + sum(map(sys.getsizeof, lists)) + self._size + copies + vectors

    def postings(self, term: str, valid: Mask | None, limit: int | None = None) -> tuple[Numbers, Numbers]:
        """Return the latest ``limit`` nodes that hold a term, the oldest first, and how often each does; None: all."""
        held = self._postings.get(term, _NO_POSTINGS)
        if valid is None and limit is not None and len(held[0]) > limit:
            held = held[0][-limit:], held[1][-limit:]
        numbers, times = column(held[0]), column(held[1])
        if valid is not None:
            kept = valid[numbers]
            numbers, times = numbers[kept], times[kept]
        return (numbers, times) if limit is None else (numbers[-limit:], times[-limit:])

    def holding(self, term: str) -> int:
        """Return the number of nodes that hold a term, valid or not."""
        return len(self._postings[term][0]) if term in self._postings else 0

    def number_of(self, term: str) -> int | None:
        """Return the number of a term in the sequences; None for an unknown one."""
        return self._term_numbers.get(term)

    def first_terms(self, number: int, count: int) -> set[str]:
        """Return the terms among the first ``count`` of a node."""
        start, end = self.starts[number : number + 2]
        return set(map(self._terms.__getitem__, self.sequences[start : min(end, start + count)]))

    def holds(self, term: str, numbers: Numbers) -> Mask:
        """Return which of the nodes hold a term."""
        if term not in self._postings:
            return np.zeros(len(numbers), dtype=np.bool_)
        held = np.frombuffer(self._postings[term][0], dtype=np.uint32)
        holds: Mask = held[np.searchsorted(held[:-1], numbers)] == numbers
        return holds

    @property
    def term_count(self) -> int:
        """The number of different terms."""
        return len(self._terms)

    def words(
        self, terms: Sequence[str], *, most: int, valid_at: str | None, valid_since: str | None = None
    ) -> TermMatches:
        """Return what the terms find among the nodes that are valid then, with at most ``most`` candidates."""
        valid = self.valid(valid_at, valid_since)
        postings = [(term, *self.postings(term, valid)) for term in terms]
        holding = {term: len(numbers) for term, numbers, _ in postings}
        total = len(self.keys) if valid is None else int(valid.sum())
        length = self.total_length if valid is None else int(self.copy("lengths")[valid].sum())
        allowed: Mask | None = None
        if total > most:
            selection = select(holding, most)
            if len(selection.whole) < sum(map(bool, holding.values())):
                allowed = np.zeros(len(self.keys), dtype=np.bool_)
                for term, numbers, _ in postings:
                    if term in selection.whole:
                        allowed[numbers] = True
                    elif term == selection.cut and selection.room:  # the latest nodes have the last numbers
                        allowed[numbers[-selection.room :]] = True
        return TermMatches(total=total, length=length, holding=holding, postings=postings, allowed=allowed)

    def best(
        self, words: TermMatches, *, total: int, mean_length: float, holding: Mapping[str, int], count: int, of: int
    ) -> list[Candidate]:
        """Return the candidates of which the ``count`` best by BM25 are a part; see ``ranking.bm25``."""
        norms = K1 * (1 - B + B * self.copy("lengths") / (mean_length or 1.0))
        scores = np.zeros(len(norms))
        for term, numbers, times in words.postings:
            scores[numbers] += idf(total, holding.get(term, 0)) * times / (times + norms[numbers])
        if words.allowed is not None:
            scores[: len(words.allowed)][~words.allowed] = 0.0
        found = scores > 0
        if np.count_nonzero(found) > count:
            found = scores >= np.partition(scores, -count)[-count] * (1 - _NEARLY)
        counts: dict[int, dict[str, int]] = {}
        for term, numbers, times in words.postings:
            held = found[numbers]
            for number, count_of in zip(numbers[held].tolist(), times[held].tolist(), strict=True):
                counts.setdefault(number, {})[term] = count_of
        return [
            Candidate(self.keys[number], self.keys[number], self.lengths[number], held, of, -number)
            for number, held in counts.items()
        ]

    def near(self, vector: Sequence[float], count: int) -> list[tuple[float, str]] | None:
        """Return score and key of the ``count`` nearest nodes, ties by key; None if the server must find them.

        A score is (1 + cosine) / 2, rounded to 5 decimals as the server's; the last of these may differ by one.
        """
        if (found := self.nearest(vector, count)) is None:
            return None
        near = sorted((-score, self.keys[number]) for number, score in found)
        return [(-score / GRID, key) for score, key in near]

    def nearest(self, vector: Sequence[float], count: int) -> list[tuple[int, int]] | None:
        """Return the nodes of ``near`` by their numbers in any order, with scores in units of 1 / ``GRID``."""
        if self.vectors is None or self.vectors.dimensions != len(vector):
            return None
        if not _LEAST_SIZE < math.hypot(*vector) < 1 / _LEAST_SIZE:  # the sums of its numbers may overflow
            return None
        places, scores = self.vectors.near(vector, count)
        numbers: list[int] = np.frombuffer(self.vectors.numbers, dtype=np.uint32)[places].tolist()
        of_numbers: list[int] = scores.tolist()
        found = list(zip(numbers, of_numbers, strict=True))
        if len(found) > count:
            last = int(scores.min())
            ties = sorted((each for each in found if each[1] == last), key=lambda each: self.keys[each[0]])
            found = [each for each in found if each[1] > last]
            found += ties[: count - len(found)]
        return found

    def valid(self, at: str | None, since: str | None = None) -> Mask | None:
        """Return which nodes are valid then, or at any time since ``since``, by number; None for all."""
        if at is None or not self._limited:
            return None
        valid = np.ones(len(self.keys), dtype=np.bool_)
        valid[[
            number
            for number, (begins, ends) in self._limited.items()
            if not ((begins is None or begins <= at) and (ends is None or ends > (since or at)))
        ]] = False  # fmt: skip
        return valid


def column(numbers: array[int]) -> Numbers:
    """Return a copy of the numbers of a column."""
    return np.frombuffer(numbers, dtype=f"u{numbers.itemsize}").astype(np.int64)


def _in_order(nodes: Sequence[IndexedNode], there: Collection[str] = frozenset()) -> list[IndexedNode]:
    """Return nodes in the order of their numbers. Raises ``Unfit`` if one has the key of another, or one of these."""
    if len({node.key for node in nodes}.difference(there)) < len(nodes):
        raise Unfit("two of its nodes have one id")
    ordered = sorted(nodes, key=lambda node: node.key, reverse=True)
    ordered.sort(key=lambda node: node.time)
    return ordered


def terms_in(node: IndexedNode) -> int:
    """Return how many terms a node has."""
    return node.terms.count(" ") + 1 if node.terms else 0


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
        TIME * has_time(of_node)
        | NUMBER * has_number(of_node)
        | EMPTY * (is_turn and bool(node.said) and tells_nothing(node.said, node.role))
        | ASKS * node.said.rstrip(" \"')").endswith(("?", "\uff1f", "\u061f"))
        | SHORT * (is_turn and tells_words(of_node) < _FEW)
        | USERS * (node.role == "user" or not is_turn)
        | QUOTES * quotes_another(node.said)
        | ANOTHER * tells_of_another(node.said)
    )


def _is_near(earlier: str, later: str) -> bool:
    """Return whether two turns of a thread belong to one session."""
    try:
        return datetime.fromisoformat(later) - datetime.fromisoformat(earlier) <= _GAP
    except (ValueError, TypeError):  # a rule may write anything
        return True
