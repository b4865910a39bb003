"""Turns what was remembered into vectors: each becomes an event, behind the one that brought the text."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from itertools import batched
from typing import Final

import structlog

from graphweft_contracts import Event, channels
from graphweft_contracts.memory import MemoryAdd, derived_id, memory_id
from graphweft_workers.embedding.protocol import Embedder, EmbedderUnavailable, as_vector, embed_each
from graphweft_workers.memory.job import Job, Seen

logger = structlog.get_logger("graphweft.memory")

SOURCE: Final = "/graphweft/memory"
"""The source of the events that memory workers make."""
_ADD: Final = "memory.add"
_TEXTS_AT_ONCE: Final = 256
"""Texts whose vectors are in memory at once; the embedder makes requests of its own size of them."""


class EmbeddingJob(Job):
    """Emits a ``memory.embedded`` event for each message of each ``memory.add`` event.

    Ids and times follow from the event that brought the text, so a repetition makes the same events. A text that the
    embedder never takes is told of in the log and gets no vector: its memory is still found by words and by time. It
    gets no dead letter, for what is tried again then is a mutation, and here none has failed.

    A retry of a mutation that adds memories is embedded again under other ids: the vector that came behind the event at
    first found no memory.
    """

    group = channels.MEMORY_GROUP
    types = frozenset({_ADD})

    def __init__(self, embedder: Embedder) -> None:
        """Closes the embedder with itself."""
        self._embedder = embedder
        self.embedded: int = 0
        """Vectors that were handed on."""
        self.refused: int = 0
        """Texts without a vector."""

    async def handle(self, seen: Sequence[Seen]) -> AsyncGenerator[Sequence[Event]]:
        """See ``Job.handle``. Raises ``EmbedderUnavailable``."""
        wanted = [
            (each, number, message.searched)
            for each in seen
            if each.retried is None or each.retried.rule == _ADD
            for number, message in enumerate(MemoryAdd.model_validate(each.event.data).messages)
        ]
        for some in batched(wanted, _TEXTS_AT_ONCE):
            vectors = await embed_each(self._embedder, [text for _, _, text in some])
            if len(vectors) != len(some):
                raise EmbedderUnavailable(
                    f"the embedder {self._embedder.model!r} gave {len(vectors)} vectors for {len(some)} texts"
                )
            events: list[Event] = []
            for (each, number, _), given in zip(some, vectors, strict=True):
                vector = as_vector(given) if given is not None else None
                if vector is None:
                    self._tell_refused(each, number)
                else:
                    events.append(self._event(each, number, vector))
            yield events
            self.embedded += len(events)

    async def aclose(self) -> None:
        """See ``Job.aclose``."""
        await self._embedder.aclose()

    def _event(self, each: Seen, number: int, vector: list[float]) -> Event:
        added, model = each.event, self._embedder.model
        again = (each.retried.letter,) if each.retried else ()
        return Event.create(
            "memory.embedded",
            app_id=added.appid,
            chat_id=added.chatid,
            id=derived_id(added.source, added.id, "embedded", number, model, *again),
            source=SOURCE,
            time=added.time,
            data={"memory_id": memory_id(added.source, added.id, number), "model": model, "embedding": vector},
        )

    def _tell_refused(self, each: Seen, number: int) -> None:
        self.refused += 1
        logger.error(
            "text_not_embedded", memory_id=memory_id(each.event.source, each.event.id, number),
            position=each.position, model=self._embedder.model,
            message="the embedder never takes this text, or gives it no vector that has a direction: as a rule it is "
            "blank, or longer than the model takes; the memory is found by words and by time only",
        )  # fmt: skip
