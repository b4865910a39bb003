"""Has a model compare what a user states with what the user stated before: each verdict becomes an event.

The model sees candidates: earlier statements of the same author that hold, and that are about the same or share a word.
It may only choose a verdict for each. What a verdict may end is decided by the mutation of ``statement.judged``, not by
the model. A verdict that is ``unrelated`` is counted, and is no event.

When a verdict comes back in the log, the job compares what the graph holds with what the model saw: if a statement has
changed, it asks again. Between chats, an app has an order only if its layout says so; without one, candidates are of
the same chat.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, override

from graphweft_contracts import DeadLetter, Event, QueryFailed, channels
from graphweft_contracts.bounded_dict import BoundedDict
from graphweft_contracts.memory import MemoryAdd, StatementJudged, derived_id, memory_id
from graphweft_workers.engine.log.read import EXTRACT, letter_for
from graphweft_workers.features.memory.graph_progress import GraphProgress
from graphweft_workers.features.memory.judge import JudgementFailed, StatementJudge, StatementsFailed, StatementText
from graphweft_workers.features.memory.mutations import MOST_ENDED, SAME_OWNER
from graphweft_workers.ports.bus import Bus
from graphweft_workers.ports.graph_store import GraphStore
from graphweft_workers.ports.job import AppWait, Job, JobEvent
from graphweft_workers.retrieval.records import JUDGED, STATEMENT
from graphweft_workers.support.lazy_logger import get_logger
from graphweft_workers.support.timing import TIMING, MemoryTiming
from graphweft_workers.telemetry.metrics import VERDICTS
from graphweft_workers.text.terms import query_terms

logger = get_logger("graphweft.memory")

SOURCE: Final = "/graphweft/verdicts"
"""The source of ``statement.judged`` events."""
CANDIDATES: Final = 20
"""Limit of the earlier statements that a model compares with one."""
_LOOKED_AT: Final = 1_000
"""Limit of the earlier statements of an author among which candidates are."""
_ATTEMPTS: Final = 3
"""How often a pair is judged whose statements change meanwhile."""
_TRIES: Final = 5
"""How often the model may fail for a statement while it answers others: then the event becomes a dead letter."""
_REMEMBERED: Final = 10_000
"""Limit of events of which the tries are counted."""
_ADD: Final = "memory.add"
_JUDGED: Final = "statement.judged"

_SHOWN: Final = "{0}.id, {0}.text, {0}.timestamp, {0}.digest"
_NEW: Final = (
    f"UNWIND $memory_ids AS memory_id MATCH (s:{STATEMENT} {{memory_id: memory_id}}) WHERE s.chat_id = $chat_id AND "
    f"s.digest IS NOT NULL RETURN {_SHOWN.format('s')} ORDER BY s.rank"
)
_ONE: Final = (
    f"MATCH (s:{STATEMENT} {{id: $id}}) WHERE s.chat_id = $chat_id AND s.digest IS NOT NULL RETURN {_SHOWN.format('s')}"
)


def _candidates(by: str, one_chat: str) -> str:
    return (
        f"MATCH (n:{STATEMENT} {{id: $id}}) MATCH (o:{STATEMENT} {{{by}: n.{by}}}) "
        "WHERE o.rank < n.rank AND o.memory_id <> n.memory_id AND o.until IS NULL AND o.digest IS NOT NULL "
        f"AND {SAME_OWNER}{one_chat} WITH n, o ORDER BY o.rank DESC LIMIT {_LOOKED_AT} "
        "WITH o, CASE WHEN o.predicate = n.predicate OR o.predicate IN coalesce(n.topics, []) THEN 1 ELSE 0 END "
        "AS alike, size([word IN $words WHERE word IN split(o.known_terms, ' ')]) AS shared "
        f"WHERE alike + shared > 0 RETURN {_SHOWN.format('o')} "
        f"ORDER BY alike DESC, shared DESC, o.rank DESC LIMIT {CANDIDATES}"
    )


_SAW: Final = (
    f"MATCH (n:{STATEMENT} {{id: $new}}) MATCH (o:{STATEMENT} {{id: $old}}) "
    f"OPTIONAL MATCH (n)-[j:{JUDGED}]->(o) RETURN n.digest, o.digest, count(j)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """A statement of the graph."""

    said: StatementText
    digest: str


class VerdictsJob(Job):
    """Emits ``statement.judged`` events for new statements that have candidates.

    Ids derive from the statements, so a repetition is a duplicate and the first answer counts. While the model is
    unavailable, the job waits. An event whose statements the model cannot compare, or the graph does not return,
    becomes a dead letter; a retry has them compared again.

    Events that must wait, for the graph of their app or because the model fails for them alone, keep no other event of
    the batch back, and no statement of the batch is compared twice on their account.
    """

    group = channels.VERDICTS_GROUP
    types = frozenset({_ADD, _JUDGED})

    def __init__(
        self, graph: GraphStore, bus: Bus, judge: StatementJudge, *, timing: MemoryTiming = TIMING.memory
    ) -> None:
        """``bus`` is open for the mutation workers' group. Closes ``bus`` and ``judge`` with itself, not ``graph``."""
        self._graph = graph
        self._bus = bus
        self._judge = judge
        self._timing = timing
        self._progress = GraphProgress(graph, bus, timing=timing)
        self._tries: BoundedDict[str, int] = BoundedDict(_REMEMBERED)
        """By position of an event: how often the model failed for a statement of it alone."""

    @override
    async def handle(self, seen: Sequence[JobEvent]) -> AsyncGenerator[Sequence[Event | DeadLetter | AppWait]]:
        """See ``Job.handle``. Raises ``JudgeUnavailable``."""
        behind = await self._progress.behind({each.event.appid: each.position for each in seen})
        if behind:
            yield behind
        waits = {each.app_id for each in behind}
        for each in seen:
            if each.event.appid in waits:
                continue
            try:
                async for events in self._of(each):
                    yield events
            except StatementsFailed as error:
                tries = self._tries.pop(each.position, 0) + 1
                if tries < _TRIES:
                    self._tries[each.position] = tries
                    yield [AppWait(app_id=each.event.appid, error=error)]
                    continue
                yield [self._letter(each, error)]
            except (QueryFailed, JudgementFailed) as error:
                yield [self._letter(each, error)]
            each.done = True

    @override
    async def aclose(self) -> None:
        """See ``Job.aclose``."""
        await self._judge.aclose()
        await self._bus.aclose()

    async def _of(self, each: JobEvent) -> AsyncGenerator[Sequence[Event]]:
        """Yield the verdicts on the statements of an event that the bus does not hold yet."""
        if each.retried is not None and (each.retried.rule, each.retried.mutation) != EXTRACT:
            return
        event = each.event
        found, attempt = await (self._of_messages(event) if event.type == _ADD else self._outdated(event))
        also = () if each.retried is None or event.type != _ADD else (each.retried.letter,)
        for new in found:
            if new.said.id not in each.parts:
                yield await self._verdicts(event, new, attempt=attempt, also=also)
                each.parts.add(new.said.id)

    async def _of_messages(self, event: Event) -> tuple[Sequence[_Found], int]:
        messages = MemoryAdd.model_validate(event.data).messages
        ids = [memory_id(event.source, event.id, number) for number, one in enumerate(messages) if one.role == "user"]
        if not ids:
            return [], 1
        return await self._read(event.appid, _NEW, {"memory_ids": ids, "chat_id": event.chatid}), 1

    async def _outdated(self, event: Event) -> tuple[Sequence[_Found], int]:
        """Return the new statement of a verdict if one of the two has changed since the model saw it."""
        payload = StatementJudged.model_validate(event.data)
        pair = {"new": payload.new, "old": payload.old}
        attempt = payload.attempt + 1
        table = await self._graph.read(event.appid, _SAW, pair, timeout_s=self._timing.query_s)
        if not table.rows:
            VERDICTS.add(1, "gone")  # forgotten, or erased
            return [], attempt
        [(new, old, count)] = table.rows
        if payload.saw == {payload.new: new, payload.old: old}:
            VERDICTS.add(1, payload.verdict if count else "refused")
            return [], attempt
        VERDICTS.add(1, "outdated")
        if payload.attempt >= _ATTEMPTS:
            return [], attempt
        return await self._read(event.appid, _ONE, {"id": payload.new, "chat_id": event.chatid}), attempt

    async def _verdicts(self, event: Event, new: _Found, *, attempt: int, also: Sequence[str]) -> list[Event]:
        layout = await self._bus.partitions.layout()
        one_chat = "" if layout.order_of(event.appid) == "app" else " AND o.chat_id = n.chat_id"
        by = next((name for name in ("user_id", "thread_id", "agent_id", "application_id") if event.data.get(name)), "")
        query = _candidates(by or "chat_id", one_chat)
        given = {"id": new.said.id, "words": query_terms(new.said.text)}
        candidates = await self._read(event.appid, query, given)
        if not candidates:
            return []
        judged = await self._judge.judge(new.said, [each.said for each in candidates])
        digests = {each.said.id: each.digest for each in (new, *candidates)}
        VERDICTS.add(sum(each.verdict == "unrelated" for each in judged), "unrelated")
        related = [each for each in judged if each.verdict != "unrelated"]
        ends = [each for each in related if each.verdict == "ends"]
        if len(ends) > MOST_ENDED:
            VERDICTS.add(len(ends) - MOST_ENDED, "refused")
        kept = [*(each for each in related if each.verdict != "ends"), *ends[:MOST_ENDED]]
        return [
            Event.create(
                _JUDGED,
                app_id=event.appid,
                chat_id=event.chatid,
                user_id=event.data.get("user_id") or event.userid,
                id=derived_id("verdict", new.said.id, each.old, *sorted(digests[id] for id in (new.said.id, each.old)),
                              attempt, *also),
                source=SOURCE,
                time=event.time,
                data={
                    "new": new.said.id, "old": each.old, "verdict": each.verdict, "at": new.said.time,
                    "by": self._judge.model, "reason": each.reason,
                    "saw": {id: digests[id] for id in (new.said.id, each.old)}, "attempt": attempt,
                },
            )
            for each in kept
        ]  # fmt: skip

    async def _read(self, app_id: str, query: str, params: Mapping[str, Any]) -> list[_Found]:
        table = await self._graph.read(app_id, query, dict(params), timeout_s=self._timing.query_s)
        return [
            _Found(said=StatementText(id=id, text=text, time=time), digest=digest)
            for id, text, time, digest in table.rows
        ]

    def _letter(self, each: JobEvent, error: JudgementFailed | StatementsFailed | QueryFailed) -> DeadLetter:
        assert each.entry is not None
        VERDICTS.add(1, "failed")
        rule, mutation = EXTRACT
        logger.error("statements_not_judged", event_id=each.event.id, position=each.position, error=str(error))
        return letter_for(
            int(each.position.partition(":")[0]), each.entry, "extraction_failed",
            f"the statements were not compared: {error}; fix that, then retry this dead letter",
            event=each.event, rule=rule, mutation=mutation,
        )  # fmt: skip
