"""Memories as their events would leave them, and a plain model of searching them."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import accumulate
from typing import Any, Final

from graphweft_contracts import Event
from graphweft_contracts.memory import SCOPES
from graphweft_workers.embedding.hashing import HashingEmbedder
from graphweft_workers.features.memory.mutations import MemoryMutations
from graphweft_workers.retrieval.empty_turns import tells_nothing
from graphweft_workers.text.terms import query_terms, terms

DIMENSIONS: Final = 64
T0: Final = datetime(2026, 2, 1, 10, 0, tzinfo=UTC)
NASTY: Final = (
    "a-b", "a", "b", "u1} OR", "*", '"', "'", "\\", "日本", "日", "u 1", "u.", "u|", "U1", "u1", "u1*", "@terms:(dog)",
    "user_id:*", "AND", "u1) OR (terms:dog", "|", "%", "é", "e\u0301", "🙂", "x" * 256, "-", "~u1", "null", "1", "01",
)  # fmt: skip
"""Ids with which a filter may go wrong; some are the beginning of others, or equal but for blanks or case."""
_WORDS: Final = r"""
dog dogs cat running run runs ran the of and to be or not only on it is tea coffee Oslo Rome river
state-of-the-art don't O'Brien C++ x_1 e-mail@example.org 2026 3.14 #42 naïve NAÏVE Straße strasse
日本語を話す 東京 서울 Привет мир سلام 🙂 (dog|cat) @terms:(dog) scopes:* dog* *og -dog ~dog %dog% dog^9
"dog cat" [a TO z] {x} <y> \ / && || ! ? : ; $q `q` NOT AND OR
"""
WORDS: Final = tuple(_WORDS.split())


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelMemory:
    """One memory with what a search goes by."""

    id: str
    text: str
    role: str
    timestamp: str
    scope: Mapping[str, str]
    vector: Sequence[float] | None

    def within(self, scope: Mapping[str, str]) -> bool:
        """Tell whether a memory is of a scope."""
        return all(self.scope.get(name) == value for name, value in scope.items())


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryBatch:
    """What an event has brought: the mutations with their parameters, and the memories that come of them."""

    written: Sequence[tuple[str, dict[str, Any]]]
    memories: Sequence[ModelMemory]


async def batches(
    said: Iterable[tuple[Mapping[str, str], Sequence[str]]],
    *,
    source: str = "/test",
    embedded: float = 1.0,
    seed: int = 0,
) -> list[MemoryBatch]:
    """Turn (scope, texts) into memories; ``embedded`` is the part of them that has a vector."""
    pack, embedder, rnd = MemoryMutations(), HashingEmbedder(DIMENSIONS), random.Random(seed)
    made: list[MemoryBatch] = []
    for number, (scope, texts) in enumerate(said):
        # Some of the times are equal.
        messages = [
            {
                "role": rnd.choice(["user", "assistant"]),
                "text": text,
                "time": T0 + timedelta(minutes=rnd.randrange(500)),
            }
            for text in texts
        ]
        data = {"messages": messages, **scope}
        event = Event.create("memory.add", app_id="a", chat_id="c", data=data, id=f"e{number}", source=source, time=T0)
        written = [(mutation.cypher.statement, params) for mutation, params in pack.match(event)]
        [added] = [params for _, params in written if "messages" in params]
        vectors = await embedder.embed([message["text"] for message in added["messages"]])
        memories: list[ModelMemory] = []
        for message, vector in zip(added["messages"], vectors, strict=True):
            has = rnd.random() < embedded
            memories.append(
                ModelMemory(
                    id=message["id"],
                    text=message["text"],
                    role=message["role"],
                    timestamp=message["timestamp"],
                    scope=dict(scope),
                    vector=vector if has else None,
                )
            )
            if has:
                embedded_data = {"memory_id": message["id"], "model": embedder.model, "embedding": vector}
                vector_event = Event.create(
                    "memory.embedded", app_id="a", chat_id="c", data=embedded_data, id=f"v{message['id']}",
                    source=source, time=T0,
                )  # fmt: skip
                written += [(mutation.cypher.statement, params) for mutation, params in pack.match(vector_event)]
        made.append(MemoryBatch(written=written, memories=memories))
    return made


class MemoryModel:
    """Searches memories in the plainest way."""

    def __init__(self, made: Iterable[MemoryBatch]) -> None:
        self.memories = [memory for batch in made for memory in batch.memories]
        self.by_id = {memory.id: memory for memory in self.memories}
        self._terms = {memory.id: Counter(terms(memory.text)) for memory in self.memories}

    def within(self, scope: Mapping[str, str]) -> list[ModelMemory]:
        """Return the memories of a scope."""
        return [memory for memory in self.memories if memory.within(scope)]

    def holds(self, id: str, wanted: Iterable[str]) -> bool:
        """Tell whether a memory holds one of the terms."""
        return any(term in self._terms[id] for term in wanted)

    def latest(self, scope: Mapping[str, str]) -> list[str]:
        """Return the ids of a scope, the newest first."""
        found = sorted(self.within(scope), key=lambda memory: memory.id)
        return [memory.id for memory in sorted(found, key=lambda memory: memory.timestamp, reverse=True)]

    @staticmethod
    def said(memory: ModelMemory) -> tuple[str, str]:
        """Return what is shown once: the author and the words, whatever their case and the blanks between them."""
        return memory.role, " ".join(memory.text.casefold().split())

    def shown(self, scores: Mapping[str, float], most: int) -> list[str]:
        """Return the ids of the best: what tells nothing behind, equal texts once, of equally good ones the newest."""
        found = [self.by_id[id] for id in sorted(scores)]
        found.sort(key=lambda memory: memory.timestamp, reverse=True)
        found.sort(key=lambda memory: -scores[memory.id])
        newest: dict[tuple[str, str], ModelMemory] = {}
        for memory in found:
            known = newest.setdefault(self.said(memory), memory)
            if memory.timestamp > known.timestamp:
                newest[self.said(memory)] = memory
        kept = sorted(newest.values(), key=lambda memory: tells_nothing(memory.text, memory.role))
        return [memory.id for memory in kept[:most]]

    def scores(self, scores: Mapping[str, float], shown: Sequence[str]) -> list[float]:
        """Return the scores of what is shown: each one, or the lowest before it; 0 for what tells nothing."""
        empty = [tells_nothing(self.by_id[id].text, self.by_id[id].role) for id in shown]
        return list(accumulate((0.0 if none else scores[id] for id, none in zip(shown, empty, strict=True)), min))

    def by_vector(self, scope: Mapping[str, str], vector: Sequence[float]) -> dict[str, float]:
        """Return the score of each memory that has a vector."""
        return {
            memory.id: (1 + _cosine(memory.vector, vector)) / 2
            for memory in self.within(scope)
            if memory.vector is not None
        }

    def by_words(self, scope: Mapping[str, str], text: str) -> dict[str, float]:
        """BM25 as it is in books (without the factor k1 + 1), with Lucene's idf."""
        wanted, inside = query_terms(text), self.within(scope)
        if not inside:
            return {}
        mean = sum(sum(self._terms[memory.id].values()) for memory in inside) / len(inside)
        holding = {term: sum(1 for memory in inside if self._terms[memory.id][term]) for term in wanted}
        scores: dict[str, float] = {}
        for memory in inside:
            counts, score = self._terms[memory.id], 0.0
            for term in wanted:
                if counts[term]:
                    idf = math.log(1 + (len(inside) - holding[term] + 0.5) / (holding[term] + 0.5))
                    norm = 1.2 * (1 - 0.75 + 0.75 * sum(counts.values()) / mean)
                    score += idf * counts[term] / (counts[term] + norm)
            if any(counts[term] for term in wanted):
                scores[memory.id] = score
        return scores

    def some_scope(self, rnd: random.Random) -> dict[str, str]:
        """Return a scope: of a memory, or of a part of one, or mixed up, or of nothing."""
        scope = dict(rnd.choice(self.memories).scope)
        if rnd.random() < 0.2:
            scope |= {name: value for name, value in rnd.choice(self.memories).scope.items() if rnd.random() < 0.7}
        if rnd.random() < 0.1:
            scope[rnd.choice(SCOPES)] = rnd.choice(NASTY)
        names = rnd.sample(sorted(scope), rnd.randint(1, len(scope)))
        return {name: scope[name] for name in names}


def _cosine(one: Sequence[float], other: Sequence[float]) -> float:
    both = math.fsum(a * b for a, b in zip(one, other, strict=True))
    return both / math.sqrt(math.fsum(a * a for a in one) * math.fsum(b * b for b in other))
