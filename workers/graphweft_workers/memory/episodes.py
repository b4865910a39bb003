"""Has a model read the episodes that do not say themselves what there is to know: each answer becomes an event."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncGenerator, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import structlog
from pydantic import ValidationError

from graphweft_contracts import DeadLetter, Event, InvalidEvent, Transient, channels, wire
from graphweft_contracts.episodes import EpisodeAdd, EpisodeExtracted, Structure, episode_id
from graphweft_contracts.memory import derived_id
from graphweft_rules.clock import utc_text
from graphweft_rules.ontologies import Ontologies
from graphweft_workers.bus.log import Bus, Entry
from graphweft_workers.extraction.protocol import ExtractionFailed, Extractor, TextEpisode
from graphweft_workers.memory.embedding import SOURCE
from graphweft_workers.memory.job import Job, Seen
from graphweft_workers.mutation.history import between
from graphweft_workers.mutation.reading import EXTRACT, WHOLE, letter_for

logger = structlog.get_logger("graphweft.memory")

_ADD: Final = "episode.add"
_EXTRACTED: Final = "episode.extracted"
_READ_AGAIN: Final = frozenset({EXTRACT, *((_ADD, mutation) for mutation in ("add", "add_unowned", WHOLE))})
"""What a retry is of for which an episode is read again: what was extracted before it was made found no episode."""
_LAST_PAUSE_S: Final = 60.0

type _Key = tuple[str, str]
"""App and id of an ``episode.extracted`` event of ours."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Task:
    """One episode that is to be read."""

    seen: Seen
    entry: Entry
    payload: EpisodeAdd
    episode: TextEpisode
    id: str
    """Of the event that follows."""

    @property
    def key(self) -> _Key:
        return (self.seen.event.appid, self.id)


class EpisodesJob(Job):
    """Emits an ``episode.extracted`` event for each ``episode.add`` event that is not structured.

    Its id follows from that event, so a repetition is a copy. An episode in which there is nothing to know gets an
    event, too. What stands on the bus already, as an event or a dead letter, is not asked of the model again.

    While the extractor is away nothing is passed over. An episode that fails by itself gets ``attempts`` tries, with
    pauses that grow; when the extractor reads others all the same, it becomes a dead letter with the entry as it stood
    on the bus, and a retry of that reads it again. What the mutation worker refuses is its to report.
    """

    group = channels.EPISODES_GROUP
    types = frozenset({_ADD})

    def __init__(
        self,
        extractor: Extractor,
        bus: Bus,
        ontologies: Ontologies | None = None,
        *,
        timeout_s: float = 120.0,
        attempts: int = 5,
        at_once: int = 4,
        pause_s: float = 1.0,
    ) -> None:
        """Closes extractor and bus with itself; the bus is there to be read, for whatever group it was opened.

        ``timeout_s`` limits one try of an episode; up to ``at_once`` episodes of a partition are read at a time;
        ``pause_s`` is the first pause between two tries.
        """
        self._extractor = extractor
        self._bus = bus
        self._ontologies = ontologies or Ontologies()
        self._timeout_s = timeout_s
        self._attempts = attempts
        self._at_once = at_once
        self._pause_s = pause_s
        self._begun: set[int] = set()
        """Partitions that were not searched yet for what an earlier owner has emitted."""
        self._done: dict[int, set[_Key]] = {}
        """Partition -> what is on the bus of episodes whose position has not moved yet."""

    async def begin(self, partition: int) -> None:
        """See ``Job.begin``."""
        self._begun.add(partition)
        self._done[partition] = set()

    async def handle(self, seen: Sequence[Seen]) -> AsyncGenerator[Sequence[Event | DeadLetter]]:
        """See ``Job.handle``. Raises ``ExtractorUnavailable``, but first yields what was read meanwhile."""
        tasks = [task for each in seen if (task := self._task(each)) is not None]
        if not tasks:
            return
        partition = int(seen[0].position.partition(":")[0])
        if partition in self._begun:
            self._done[partition] = await self._emitted(partition, tasks[0].entry.offset)
            self._begun.remove(partition)
        done = self._done.setdefault(partition, set())
        async with contextlib.aclosing(self._read(task for task in tasks if task.key not in done)) as outcomes:
            async for some in outcomes:
                yield [outcome for _, outcome in some if outcome is not None]
                done.update(task.key for task, _ in some)
        done.difference_update(task.key for task in tasks)

    async def aclose(self) -> None:
        """See ``Job.aclose``."""
        await self._extractor.aclose()
        await self._bus.aclose()

    def _task(self, each: Seen) -> _Task | None:
        """Return what is to be read; None for what is structured, is refused, or is there to retry something else."""
        event, retried = each.event, each.retried
        if retried is not None and (retried.rule, retried.mutation) not in _READ_AGAIN:
            return None
        try:
            payload = EpisodeAdd.model_validate(event.data)
            ontology = self._ontologies.resolve(payload.schema_id, payload.text)
            if payload.structure is not None:
                return None
        except (InvalidEvent, ValidationError):
            return None
        episode = TextEpisode(
            text=payload.text,
            episode_type=payload.episode_type,
            reference_time=payload.reference_time or event.time,
            source_description=payload.source_description or "",
            ontology=ontology,
        )
        again = () if retried is None else (retried.letter,)
        id = derived_id(event.source, event.id, "extracted", *again)
        assert each.entry is not None
        return _Task(seen=each, entry=each.entry, payload=payload, episode=episode, id=id)

    async def _emitted(self, partition: int, after: str) -> set[_Key]:
        """Return what stands on a partition behind an offset: an earlier owner may not have come to move on."""
        end = next((each.end for each in await self._bus.status() if each.id == partition), "")
        found: set[_Key] = set()
        async for page in between(self._bus, partition, after, end):
            for entry in page:
                if _EXTRACTED.encode() not in entry.fields.get(wire.DATA, b""):  # most are not: decoding takes longer
                    continue
                with contextlib.suppress(InvalidEvent):
                    event = wire.decode(entry.fields, received=entry.received)
                    if (event.type, event.source) == (_EXTRACTED, SOURCE):
                        found.add((event.appid, event.id))
        return found

    async def _read(self, tasks: Iterable[_Task]) -> AsyncGenerator[Sequence[tuple[_Task, Event | DeadLetter | None]]]:
        """Read episodes, some at a time, and yield what comes of them as it comes; None: there is a letter already.

        When the extractor is away no more are begun, and its error is raised when those in work have ended.
        """
        waiting = iter(tasks)
        running: dict[asyncio.Task[Event | DeadLetter | None], _Task] = {}
        away: Transient | None = None
        try:
            while True:
                while away is None and len(running) < self._at_once and (task := next(waiting, None)) is not None:
                    running[asyncio.create_task(self._outcome(task))] = task
                if not running:
                    break
                ended, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                outcomes: list[tuple[_Task, Event | DeadLetter | None]] = []
                for each in ended:
                    task = running.pop(each)
                    try:
                        outcomes.append((task, each.result()))
                    except Transient as error:
                        away = error
                yield outcomes
        finally:
            for each in running:
                each.cancel()
            await asyncio.gather(*running, return_exceptions=True)
        if away is not None:
            raise away

    async def _outcome(self, task: _Task) -> Event | DeadLetter | None:
        """Return what comes of one episode. Raises ``ExtractorUnavailable``, and ``BusUnavailable``."""
        failed = ExtractionFailed("no try was made")
        if await self._bus.dead_letter(self._letter(task, failed).id) is not None:
            return None
        for attempt in range(self._attempts):
            if attempt:
                pause_s = min(self._pause_s * 2 ** min(attempt - 1, 10), _LAST_PAUSE_S)
                await asyncio.sleep(pause_s * random.uniform(1.0, 1.5))
            try:
                async with asyncio.timeout(self._timeout_s):
                    said = await self._extractor.extract(task.episode)
                return self._event(task, said)
            except TimeoutError:
                failed = ExtractionFailed(
                    f"{self._extractor.model!r} has not read the episode in {self._timeout_s:g} s", reason="timeout"
                )
            except ExtractionFailed as error:
                failed = error
        await self._extractor.check()
        letter = self._letter(task, failed)
        logger.error(
            "episode_not_extracted", event_id=task.seen.event.id, position=task.seen.position, letter=letter.id,
            attempts=self._attempts, error=str(failed),
        )  # fmt: skip
        return letter

    def _event(self, task: _Task, said: Structure) -> Event:
        added, payload, ontology = task.seen.event, task.payload, task.episode.ontology
        data = {
            **payload.scope.given,
            "episode_id": episode_id(added.source, added.id),
            "reference_time": utc_text(task.episode.reference_time),
            "model": self._extractor.model,
            **({} if ontology is None else {"schema_id": ontology.schema_id}),
            **said.model_dump(mode="json", exclude_none=True),
        }
        try:
            EpisodeExtracted.model_validate(data).structure  # noqa: B018 - it raises
            return Event.create(
                _EXTRACTED, app_id=added.appid, chat_id=added.chatid, id=task.id, source=SOURCE, time=added.time,
                data=data,
            )  # fmt: skip
        except (ValidationError, InvalidEvent):
            message = f"what {self._extractor.model!r} says cannot stand in an event"
            raise ExtractionFailed(message) from None

    def _letter(self, task: _Task, failed: ExtractionFailed) -> DeadLetter:
        partition, _, _ = task.seen.position.partition(":")
        rule, mutation = EXTRACT
        letter = letter_for(
            int(partition),
            task.entry,
            failed.reason,
            f"the episode was not read, in {self._attempts} tries: {failed}; mend that, then retry this letter",
            event=task.seen.event,
            rule=rule,
            mutation=mutation,
        )
        if _is_timed(task.entry):
            return letter
        # A retry would be of another time, and so about another episode.
        return letter.model_copy(update={"fields": wire.pack(wire.encode(task.seen.event))})


def _is_timed(entry: Entry) -> bool:
    try:
        wire.decode(entry.fields)
    except InvalidEvent:
        return False
    return True
