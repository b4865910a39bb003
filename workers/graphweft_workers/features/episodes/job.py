"""Extracts entities and relations from unstructured episodes: each answer of the model becomes an event."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncGenerator, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from pydantic import ValidationError

from graphweft_contracts import DeadLetter, Event, InvalidEvent, Transient, channels, wire
from graphweft_contracts.clock import SYSTEM_CLOCK, Clock
from graphweft_contracts.episodes import EpisodeAdd, EpisodeExtracted, Structure, episode_id
from graphweft_contracts.memory import derived_id
from graphweft_contracts.wire import WHOLE
from graphweft_rules.matching.clock import utc_text
from graphweft_workers.engine.log.read import EXTRACT, letter_for
from graphweft_workers.features.declarations import SOURCE
from graphweft_workers.features.episodes.extraction.protocol import ExtractionFailed, Extractor, TextEpisode
from graphweft_workers.features.episodes.ontologies import Ontologies
from graphweft_workers.ports.bus import Bus
from graphweft_workers.ports.dead_letters import letter_with
from graphweft_workers.ports.event_log import Entry
from graphweft_workers.ports.job import AppWait, Job, JobEvent
from graphweft_workers.ports.pages import pages
from graphweft_workers.support.lazy_logger import get_logger
from graphweft_workers.support.timing import TIMING, MemoryTiming

logger = get_logger("graphweft.memory")

_ADD: Final = "episode.add"
_EXTRACTED: Final = "episode.extracted"
_READ_AGAIN: Final = frozenset({EXTRACT, *((_ADD, mutation) for mutation in ("add", "add_unowned", WHOLE))})
"""Retries of these mutations read the episode again: its first extraction found no episode."""

type _Outcome = Event | DeadLetter | AppWait
type _Key = tuple[str, str]
"""App and id of an ``episode.extracted`` event."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Task:
    """An episode to read."""

    seen: JobEvent
    entry: Entry
    payload: EpisodeAdd
    episode: TextEpisode
    id: str
    """Id of the ``episode.extracted`` event."""

    @property
    def key(self) -> _Key:
        return (self.seen.event.appid, self.id)


class EpisodesJob(Job):
    """Emits an ``episode.extracted`` event for each unstructured ``episode.add`` event, also if it is empty.

    The id of the event derives from the episode, so a repetition is a duplicate. An episode that has an event or a dead
    letter is not sent to the model again.

    While the extractor is unavailable, or fails a test request after a try that failed, the job waits. An episode that
    fails alone has ``attempts`` tries with growing pauses. Then it becomes a dead letter with its original entry, and a
    retry reads it again. After a try without an answer in time, the app waits for the next one, with all its episodes
    that are not begun: otherwise they hold up those of other apps. Invalid episodes are skipped; the mutation worker
    reports them.
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
        clock: Clock = SYSTEM_CLOCK,
        timing: MemoryTiming = TIMING.memory,
    ) -> None:
        """Closes ``extractor`` and ``bus``, which may be open for any group, with itself.

        ``timeout_s`` applies to one try of an episode; up to ``at_once`` episodes of a partition are read at a time;
        ``pause_s`` is the first pause between tries.
        """
        self._extractor = extractor
        self._bus = bus
        self._ontologies = ontologies or Ontologies()
        self._timeout_s = timeout_s
        self._attempts = attempts
        self._at_once = at_once
        self._pause_s = pause_s
        self._clock = clock
        self._timing = timing
        self._earlier: dict[int, set[_Key]] = {}
        """Partition -> events of an earlier owner, of episodes that were not committed; once they were looked for."""

    async def begin(self, partition: int) -> None:
        """See ``Job.begin``."""
        self._earlier.pop(partition, None)

    async def handle(self, seen: Sequence[JobEvent]) -> AsyncGenerator[Sequence[_Outcome]]:
        """See ``Job.handle``. Raises ``ExtractorUnavailable`` after it has yielded all results."""
        tasks = [task for each in seen if (task := self._task(each)) is not None]
        if not tasks:
            return
        partition = int(seen[0].position.partition(":")[0])
        if partition not in self._earlier:
            self._earlier[partition] = await self._emitted(partition, tasks[0].entry.offset)
        earlier = self._earlier[partition]
        for task in tasks:
            task.seen.done |= task.key in earlier
        async with contextlib.aclosing(self._read(task for task in tasks if not task.seen.done)) as outcomes:
            async for some in outcomes:
                yield [outcome for _, outcome in some if outcome is not None]
                for task, outcome in some:
                    task.seen.done = not isinstance(outcome, AppWait)
        earlier.difference_update(task.key for task in tasks)

    async def aclose(self) -> None:
        """See ``Job.aclose``."""
        await self._extractor.aclose()
        await self._bus.aclose()

    def _task(self, each: JobEvent) -> _Task | None:
        """Return the episode to read; None if it is structured or invalid, or retries another mutation."""
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
        """Return the events on a partition behind an offset: an earlier owner may not have committed its position."""
        end = next((each.end for each in await self._bus.partitions.status() if each.id == partition), "")
        found: set[_Key] = set()
        async for page in pages(self._bus.log, partition, after, to=end):
            for entry in page:
                if _EXTRACTED.encode() not in entry.fields.get(wire.DATA, b""):  # decode few: it is slow
                    continue
                with contextlib.suppress(InvalidEvent):
                    event = entry.event()
                    if (event.type, event.source) == (_EXTRACTED, SOURCE):
                        found.add((event.appid, event.id))
        return found

    async def _read(self, tasks: Iterable[_Task]) -> AsyncGenerator[Sequence[tuple[_Task, _Outcome | None]]]:
        """Read episodes, some at a time, and yield results as they arrive; None: there is a dead letter already.

        When the extractor is unavailable, it starts no more, and raises the error when the running ones have ended. Of
        an app that waits it starts no more, either.
        """
        waits: set[str] = set()
        waiting = (task for task in tasks if task.seen.event.appid not in waits)
        running: dict[asyncio.Task[_Outcome | None], _Task] = {}
        unavailable: Transient | None = None
        try:
            while True:
                while (
                    unavailable is None and len(running) < self._at_once and (task := next(waiting, None)) is not None
                ):
                    running[asyncio.create_task(self._outcome(task))] = task
                if not running:
                    break
                ended, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                outcomes: list[tuple[_Task, _Outcome | None]] = []
                for each in ended:
                    task = running.pop(each)
                    try:
                        outcome = each.result()
                        outcomes.append((task, outcome))
                        if isinstance(outcome, AppWait):
                            waits.add(outcome.app_id)
                    except Transient as error:
                        unavailable = error
                yield outcomes
        finally:
            for each in running:
                each.cancel()
            await asyncio.gather(*running, return_exceptions=True)
        if unavailable is not None:
            raise unavailable

    async def _outcome(self, task: _Task) -> _Outcome | None:
        """Return the event or dead letter of one episode, or that its app waits for the next try.

        Raises ``ExtractorUnavailable`` and ``BusUnavailable``.
        """
        failed = ExtractionFailed("not tried")
        if await letter_with(self._bus.dead_letters, self._letter(task, failed).id) is not None:
            return None
        first = len(task.seen.parts)  # the tries before this call
        for attempt in range(first, self._attempts):
            if attempt > first:
                pause_s = min(self._pause_s * 2 ** min(attempt - 1, 10), self._timing.last_pause_s)
                await self._clock.sleep(pause_s * random.uniform(1.0, 1.5))
            try:
                async with asyncio.timeout(self._timeout_s):
                    said = await self._extractor.extract(task.episode)
                return self._event(task, said)
            except TimeoutError:
                failed = ExtractionFailed(
                    f"{self._extractor.model!r} did not read the episode in {self._timeout_s:g} s", reason="timeout"
                )
            except ExtractionFailed as error:
                failed = error
            await self._extractor.check()  # an outage is seen at the first try, however many there are
            task.seen.parts.add(attempt)
            if failed.reason == "timeout" and attempt + 1 < self._attempts:
                return AppWait(app_id=task.seen.event.appid, error=Transient(str(failed), retry_after_s=self._pause_s))
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
                _EXTRACTED, app_id=added.appid, chat_id=added.chatid, user_id=added.userid, id=task.id, source=SOURCE,
                time=added.time, data=data,
            )  # fmt: skip
        except (ValidationError, InvalidEvent):
            message = f"the answer of {self._extractor.model!r} does not fit into an event"
            raise ExtractionFailed(message) from None

    def _letter(self, task: _Task, failed: ExtractionFailed) -> DeadLetter:
        partition, _, _ = task.seen.position.partition(":")
        rule, mutation = EXTRACT
        letter = letter_for(
            int(partition),
            task.entry,
            failed.reason,
            f"the episode was not read in {self._attempts} tries: {failed}; fix that, then retry this dead letter",
            event=task.seen.event,
            rule=rule,
            mutation=mutation,
        )
        if _is_timed(task.entry):
            return letter
        # Without a time of its own, a retry would get another time and id.
        return letter.model_copy(update={"fields": wire.pack(wire.encode(task.seen.event))})


def _is_timed(entry: Entry) -> bool:
    try:
        wire.decode(entry.fields)
    except InvalidEvent:
        return False
    return True
