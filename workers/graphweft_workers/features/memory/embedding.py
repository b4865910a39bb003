"""Embeds memories: emits a ``memory.embedded`` event for each text, or anew for what a graph holds."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import batched
from typing import Any, Final
from uuid import uuid4

from graphweft_contracts import BusUnavailable, Event, GraphUnavailable, MemoryMessage, channels
from graphweft_contracts.memory import MemoryAdd, MemoryUpdate, derived_id, memory_id, version_of
from graphweft_workers.embedding.protocol import Embedder, EmbedderUnavailable, as_vector, embed_each
from graphweft_workers.engine.log.known_erasures import KnownErasures
from graphweft_workers.features.declarations import SOURCE
from graphweft_workers.ports.basis_comparison import BasisComparison
from graphweft_workers.ports.graph_store import GraphStore
from graphweft_workers.ports.job import Job, JobEvent, JobSkip
from graphweft_workers.ports.records import RecordLog
from graphweft_workers.retrieval.records import MEMORY_LABEL
from graphweft_workers.support.lazy_logger import get_logger

logger = get_logger("graphweft.memory")

_ADD: Final = "memory.add"
_UPDATE: Final = "memory.update"
_TEXTS_AT_ONCE: Final = 256
"""Texts whose vectors are in memory at a time; the embedder chooses the size of its requests."""
_MOST_APPS: Final = 1_000
_READ_S: Final = 60.0
_WITHOUT: Final = (
    f"MATCH (m:{MEMORY_LABEL}) WHERE coalesce(m.id, '') > $after AND m.chat_id IS NOT NULL "
    "AND ($again OR coalesce(m.embedding_model, '') <> $model) "
    "WITH m ORDER BY m.id LIMIT $limit RETURN m.id, m.chat_id, m.version, m.user_id, m.role, m.text, m.author_name"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Text:
    """A text to embed, and what it is of."""

    of: JobEvent
    number: int
    memory_id: str
    version: str | None
    text: str


class EmbeddingJob(Job):
    """Emits a ``memory.embedded`` event for each message of each ``memory.add`` event, and each new text of an update.

    Ids and times derive from that event, so a repetition emits the same events. If the embedder refuses a
    text, an error is logged and the memory has no vector; a search finds it by words and by time. No dead letter is
    written, because a retry repeats mutations, and none failed.

    A retry of a mutation of such an event embeds its memories again under new ids, because the first vectors found no
    memory.
    """

    group = channels.MEMORY_GROUP
    types = frozenset({_ADD, _UPDATE})

    def __init__(self, embedder: Embedder) -> None:
        """Closes the embedder with itself."""
        self._embedder = embedder
        self.embedded: int = 0
        """Number of emitted vectors."""
        self.refused: int = 0
        """Number of refused texts."""
        self._with_refused: OrderedDict[str, None] = OrderedDict()
        """Apps with a refused text in their last call, at most ``_MOST_APPS``."""

    async def handle(self, seen: Sequence[JobEvent]) -> AsyncGenerator[Sequence[Event | JobSkip]]:
        """See ``Job.handle``. Raises ``EmbedderUnavailable``."""
        wanted = [
            text
            for each in seen
            if each.retried is None or each.retried.rule in self.types
            for text in _texts_of(each)
            if text.number not in each.parts
        ]
        for some in self._together(wanted):
            vectors = await embed_each(self._embedder, [each.text for each in some])
            if len(vectors) != len(some):
                raise EmbedderUnavailable(
                    f"the embedder {self._embedder.model!r} returned {len(vectors)} vectors for {len(some)} texts"
                )
            outcomes: list[Event | JobSkip] = []
            for text, given in zip(some, vectors, strict=True):
                vector = as_vector(given) if given is not None else None
                outcomes.append(self._refused(text) if vector is None else self._event(text, vector))
            yield outcomes
            for text in some:
                text.of.parts.add(text.number)
            self.embedded += sum(isinstance(each, Event) for each in outcomes)
            refusing = {each.app_id for each in outcomes if isinstance(each, JobSkip)}
            for app_id in {text.of.event.appid for text in some}:
                self._note_app(app_id, refuses=app_id in refusing)

    def _together(self, wanted: Sequence[_Text]) -> Iterator[Sequence[_Text]]:
        """Divide texts into those of one call of the embedder.

        To find refused texts takes about two requests for each. So apps with such texts are asked by themselves, behind
        the others; and texts of an app stand together, because a request that is refused is halved.
        """
        for some in batched(wanted, _TEXTS_AT_ONCE):
            by_app: dict[str, list[_Text]] = {}
            for text in some:
                by_app.setdefault(text.of.event.appid, []).append(text)
            last = [app_id for app_id in by_app if app_id in self._with_refused]
            alone = [by_app.pop(app_id) for app_id in last]
            if by_app:
                yield [text for texts in by_app.values() for text in texts]
            yield from alone

    def _note_app(self, app_id: str, *, refuses: bool) -> None:
        self._with_refused.pop(app_id, None)
        if refuses:
            self._with_refused[app_id] = None
            if len(self._with_refused) > _MOST_APPS:
                self._with_refused.popitem(last=False)

    async def aclose(self) -> None:
        """See ``Job.aclose``."""
        await self._embedder.aclose()

    def _event(self, text: _Text, vector: list[float]) -> Event:
        said, model = text.of.event, self._embedder.model
        again = (text.of.retried.letter,) if text.of.retried else ()
        return Event.create(
            "memory.embedded",
            app_id=said.appid,
            chat_id=said.chatid,
            user_id=said.data.get("user_id") or said.userid,
            id=derived_id(said.source, said.id, "embedded", text.number, model, *again),
            source=SOURCE,
            time=said.time,
            data=_data(text.memory_id, text.version, model, vector),
        )

    def _refused(self, text: _Text) -> JobSkip:
        self.refused += 1
        logger.error(
            "text_not_embedded", memory_id=text.memory_id, position=text.of.position, model=self._embedder.model,
            message="the embedder refuses this text, fails on it or returns a zero vector: usually the text is blank "
            "or too long for the model; a search finds the memory by words and by time only",
        )  # fmt: skip
        return JobSkip(app_id=text.of.event.appid, reason="text_refused")


def _texts_of(each: JobEvent) -> list[_Text]:
    event = each.event
    if event.type == _UPDATE:
        update = MemoryUpdate.model_validate(event.data)
        if update.searched is None:
            return []
        version = version_of(event.source, event.id, event.chatid, update.memory_id)
        return [_Text(of=each, number=0, memory_id=update.memory_id, version=version, text=update.searched)]
    return [
        _Text(
            of=each,
            number=number,
            memory_id=memory_id(event.source, event.id, number),
            version=None,
            text=message.searched,
        )
        for number, message in enumerate(MemoryAdd.model_validate(event.data).messages)
    ]


def _data(id: str, version: str | None, model: str, vector: list[float]) -> dict[str, Any]:
    data: dict[str, Any] = {"memory_id": id, "model": model, "embedding": vector}
    return data if version is None else {**data, "version": version}


async def embed_again(
    graph: GraphStore, purges: RecordLog, app_id: str, embedder: Embedder, *, time: datetime, again: bool
) -> AsyncIterator[list[Event]]:
    """Yield events with new vectors of an app's memories: of those without one of this model, or ``again`` of all.

    The graph says which memories there are. Texts that were read before an erasure was announced in ``purges`` are read
    again, and give no event if they are gone. A text that the embedder refuses has no event. Raises
    ``EmbedderUnavailable``, as ``GraphStore.read`` does, ``GraphUnavailable`` for a graph from before an erasure, and
    ``BusUnavailable`` if an erasure was announced while the events of a page were taken, and may have missed them.
    """
    run, after, model = uuid4().hex, "", embedder.model
    compared, erasures = BasisComparison(graph, purges), KnownErasures(purges)
    await erasures.follow()
    while True:
        known = erasures.number  # each round ends with a look at them
        if older := await compared.older(app_id):
            raise GraphUnavailable(older)
        asked = {"after": after, "again": again, "model": model, "limit": _TEXTS_AT_ONCE}
        rows = (await graph.read(app_id, _WITHOUT, asked, timeout_s=_READ_S)).rows
        if not rows:
            return
        texts = [MemoryMessage(role=role, text=text, author_name=name).searched for *_, role, text, name in rows]
        vectors = await embed_each(embedder, texts)
        await erasures.follow()
        if erasures.has_later(app_id, known):
            continue
        yield [
            Event.create(
                "memory.embedded", app_id=app_id, chat_id=str(chat), user_id=user,
                id=derived_id(id, "embedded again", model, run), source=SOURCE, time=time,
                data=_data(str(id), version, model, vector),
            )
            for (id, chat, version, user, *_), given in zip(rows, vectors, strict=True)
            if given is not None and (vector := as_vector(given)) is not None
        ]  # fmt: skip
        after = str(rows[-1][0])
        await erasures.follow()
        if erasures.has_later(app_id, known):
            raise BusUnavailable(
                f"something of {app_id!r} was erased while new vectors were put on the bus, and the erasure may not "
                "have found them: give the same `graphweft erase` again, and then this command"
            )
