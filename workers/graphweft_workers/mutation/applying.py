"""Runs plans against the graph: finds the rows that cannot be applied, and sees to it that nothing is lost by them.

A query with many rows fails as a whole, so it is cut until the failing row stands alone. That row is left out in one
write to the graph, which also notes it; then its dead letter is written. In this order a crash in between costs
nothing: who goes on finds the note and writes the letter, and the row does not run again.

A mutation of which one row after the other fails is broken rather than unlucky with an event. It is put in quarantine:
its rows are left out together, one letter stands for all of them, and from time to time a row is tried again.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import structlog

from graphweft_contracts import DeadLetter, DeadLetterReason, GraphUnavailable, GraphweftError, QueryFailed, wire
from graphweft_rules import BoundMutation
from graphweft_workers.bus.log import Bus
from graphweft_workers.graph.store import Applied, GraphStore, Mark, Progress, Write
from graphweft_workers.mutation.order import MOST_ROWS, Arranger
from graphweft_workers.mutation.plan import LeftOut, Plan, Row, resumed, unwritten
from graphweft_workers.mutation.reading import EventWork, defect_of, internal_error, letter_for
from graphweft_workers.mutation.skips import MOST_OFFSETS

logger = structlog.get_logger("graphweft.mutation")

FAILURES_TO_QUARANTINE: Final = 20
"""Rows of a mutation in one app that fail one after the other, with none in between that takes effect."""
STRIKES: Final = 3
"""How often the server may stop answering at one write, while it answers otherwise, before the write is left out."""
FIRST_PROBE_S: Final = 10.0
"""After which time a mutation in quarantine is tried again, the first time."""
_LAST_PROBE_S: Final = 600.0
_REMEMBERED: Final = 10_000
"""Mutations of apps whose failures are counted."""

_NO_ANSWER: Final = "unresponsive"
_UNRESPONSIVE: Final = (
    f"the graph server stopped answering {STRIKES} times when it got this mutation, and answered otherwise: make the "
    "query cheaper or the event smaller, then retry this letter"
)
_REASONS: Final[dict[str, DeadLetterReason]] = {
    "timeout": "timeout",
    _NO_ANSWER: "unresponsive",
    "internal_error": "internal_error",
}
"""Codes of ``QueryFailed`` that are reasons of their own."""

type _Broken = tuple[str, str | None, str, str]
"""App, workflow, rule, mutation."""


@dataclass(slots=True, kw_only=True)
class _Failures:
    """What happened to a mutation in one app since it last took effect."""

    rows: int = 0
    quarantined: bool = False
    probe_at: float = 0.0
    probe_after_s: float = field(default_factory=lambda: FIRST_PROBE_S)
    letters: dict[int, DeadLetter] = field(default_factory=dict[int, DeadLetter])
    """By partition: the last letter that stands for rows left out. A letter never reaches into another partition."""


@dataclass(slots=True)
class _Careful:
    """How many rows of a statement share a query while it is sought which of them fails."""

    statement: str
    size: int


class Applier:
    """Applies works of any partition and app; what it knows of failures lasts as long as the process."""

    def __init__(self, bus: Bus, graph: GraphStore, arranger: Arranger) -> None:
        self._bus = bus
        self._graph = graph
        self._arranger = arranger
        self._failures: dict[_Broken, _Failures] = {}
        self._most: dict[str, int] = {}
        """Statement -> rows of one query, where more took longer than the server allows."""
        self._buried: dict[tuple[str, ...], int] = {}

    async def apply(
        self, partition: int, app_id: str, mark: Mark, works: Sequence[EventWork], *, strikes: int = 0
    ) -> Mark:
        """Apply works that stand behind ``mark``, in the log's order; return where the graph stands then.

        ``strikes`` is how often the server stopped answering at the first write behind ``mark``: from then on rows go
        one by one, and after ``STRIKES`` the row there is left out.
        """
        if not works:
            return mark
        try:
            plan = Plan.of(mark, works, self._arranger)
        except GraphweftError:
            raise
        except Exception as error:  # noqa: BLE001 - one event must not hold up the others
            _log_defect(error, app_id)
            return await self._apply_singly(partition, app_id, mark, works)
        return await self._run(partition, app_id, plan, strikes)

    async def resume(
        self, partition: int, app_id: str, progress: Progress, works: Sequence[EventWork], *, strikes: int = 0
    ) -> Mark:
        """Go on with the plan under way; ``works`` are at least the events up to its end."""
        left_out = unwritten(progress)
        if left_out:
            await self._tell(partition, left_out, works)
        plan, gone = resumed(progress, works)
        await self._tell_gone(partition, gone)
        return await self._run(partition, app_id, plan, strikes)

    async def _apply_singly(self, partition: int, app_id: str, mark: Mark, works: Sequence[EventWork]) -> Mark:
        """Apply event by event; a mutation for which no plan can be made becomes a dead letter."""
        for work in works:
            sound: list[BoundMutation] = []
            for bound in work.mutations:
                try:
                    Plan.of(mark, [replace(work, mutations=(bound,))], self._arranger)
                except Exception as error:  # noqa: BLE001
                    message = internal_error(error)
                    names = {"rule": bound.mutation.rule, "mutation": bound.mutation.id}
                    await self._bury(partition, work, reason="internal_error", message=message, **names)
                else:
                    sound.append(bound)
            if sound:
                plan = Plan.of(mark, [replace(work, mutations=tuple(sound))], self._arranger)
                mark = await self._run(partition, app_id, plan, 0)
        return mark

    async def refuse(self, partition: int, works: Sequence[EventWork], failure: QueryFailed) -> None:
        """Write dead letters for works of an app that has no graph."""
        for work in works:
            for bound in work.mutations:
                await self._bury(
                    partition,
                    work,
                    rule=bound.mutation.rule,
                    mutation=bound.mutation.id,
                    reason="query_error",
                    message=str(failure),
                )

    async def _run(self, partition: int, app_id: str, plan: Plan, strikes: int) -> Mark:
        done = 0
        careful: _Careful | None = None
        alone: Row | None = None
        singly = bool(strikes)
        """Whether writes are sent one at a time."""
        if strikes and plan.rows:
            careful = _Careful(plan.rows[0].bound.mutation.cypher.statement, 1)
            if strikes >= STRIKES:
                plan = await self._leave_out(partition, app_id, plan, 0, QueryFailed(_UNRESPONSIVE, code=_NO_ANSWER))
        while True:
            if self._failures:
                plan, done = await self._without_quarantined(partition, app_id, plan, done)
                careful = careful or self._probing(app_id, plan, done)
            writes = self._writes(plan, done, careful)[: 1 if singly else None]
            applied = await self._send(app_id, partition, writes)
            if applied is None:
                singly = True
                continue
            for write in writes[: applied.count]:
                if self._failures:
                    self._succeeded(app_id, plan.rows[done : done + len(write.rows)])
                done += len(write.rows)
                if careful and write.query and write.query.statement == careful.statement:
                    careful.size *= 2
            if careful and careful.size > MOST_ROWS:
                careful = None
            if applied.failure is None:
                if applied.count == len(writes) and writes[-1].after.offset == plan.end and not writes[-1].after.plan:
                    return writes[-1].after
                continue
            failed = writes[applied.count]
            if failed.query is None:
                # Nothing of a rule is in it, so this is the server's state and no query's fault.
                raise GraphUnavailable(f"the position in the graph cannot be moved: {applied.failure}")
            size = len(failed.rows)
            if size > 1:
                careful = _Careful(failed.query.statement, max(1, size // 2))
                if applied.failure.code == "timeout":
                    careful.size = max(1, size // 4)
                    self._most[failed.query.statement] = careful.size
                continue
            careful = _Careful(failed.query.statement, 1)
            if applied.failure.code == "timeout" and alone is not plan.rows[done]:
                # Waiting for other writers counts toward the limit: a row that is not slow itself gets through.
                alone = plan.rows[done]
                continue
            plan = await self._leave_out(partition, app_id, plan, done, applied.failure)
            done = 0

    async def _send(self, app_id: str, partition: int, writes: Sequence[Write]) -> Applied | None:
        """Apply writes; None where an error that nobody expected leaves open which of several it was."""
        try:
            return await self._graph.apply(app_id, partition, writes)
        except GraphweftError:
            raise
        except Exception as error:  # noqa: BLE001 - a row that cannot even be sent is found like one that fails
            _log_defect(error, app_id)
            if len(writes) > 1:
                return None
            return Applied(count=0, failure=QueryFailed(internal_error(error), code="internal_error"))

    def _writes(self, plan: Plan, done: int, careful: _Careful | None) -> list[Write]:
        def most(bound: BoundMutation) -> int:
            statement = bound.mutation.cypher.statement
            if careful and careful.statement == statement:
                return careful.size
            return self._most.get(statement, MOST_ROWS)

        writes = plan.writes(done, most)
        if careful:
            # What is sent behind a failing write has no effect: look first, and send the rest afterwards.
            for number, write in enumerate(writes):
                if write.query and write.query.statement == careful.statement:
                    return writes[: number + 1]
        return writes

    async def _leave_out(self, partition: int, app_id: str, plan: Plan, done: int, failure: QueryFailed) -> Plan:
        row = plan.rows[done]
        mutation = row.bound.mutation
        reason = _REASONS.get(failure.code, "query_error")
        why = LeftOut(
            rule=mutation.rule,
            mutation=mutation.id,
            offsets=(row.work.entry.offset,),
            reason=reason,
            message=str(failure),
        )
        self._failed(app_id, row, str(failure))
        return await self._pass_over(partition, app_id, plan, done, why)

    async def _pass_over(self, partition: int, app_id: str, plan: Plan, done: int, why: LeftOut) -> Plan:
        works = [row.work for row in plan.rows]
        plan = plan.without(done, why, self._arranger)
        moved = await self._graph.apply(app_id, partition, [plan.opening()])
        if moved.failure is not None:
            raise GraphUnavailable(f"the position in the graph cannot be moved: {moved.failure}")
        await self._tell(partition, why, works)
        return plan.told()

    # Quarantine

    async def _without_quarantined(self, partition: int, app_id: str, plan: Plan, done: int) -> tuple[Plan, int]:
        """Leave out the rows of mutations in quarantine."""
        out: dict[_Broken, list[Row]] = {}
        for row in plan.rows[done:]:
            broken = _broken(app_id, row)
            failures = self._failures.get(broken)
            if failures is not None and failures.quarantined and time.monotonic() < failures.probe_at:
                out.setdefault(broken, []).append(row)
        for broken, rows in out.items():
            failures = self._failures[broken]
            mutation = rows[0].bound.mutation
            message = (
                f"{failures.rows} events in a row failed, so this mutation of {mutation.place} is left out until it "
                "works again; mend the rule, restart the workers, and retry this letter"
            )
            why = LeftOut(
                rule=mutation.rule,
                mutation=mutation.id,
                offsets=tuple(row.work.entry.offset for row in sorted(rows, key=lambda row: row.number)),
                reason="quarantined",
                message=message,
                extends=letter.id if (letter := failures.letters.get(partition)) else None,
            )
            plan, done = await self._pass_over(partition, app_id, plan, done, why), 0
        return plan, done

    def _probing(self, app_id: str, plan: Plan, done: int) -> _Careful | None:
        """Let a single row find out whether a mutation in quarantine works again."""
        for row in plan.rows[done:]:
            failures = self._failures.get(_broken(app_id, row))
            if failures is not None and failures.quarantined:
                return _Careful(row.bound.mutation.cypher.statement, 1)
        return None

    def _failed(self, app_id: str, row: Row, message: str) -> None:
        if len(self._failures) >= _REMEMBERED:
            self._failures = {broken: failures for broken, failures in self._failures.items() if failures.quarantined}
        failures = self._failures.setdefault(_broken(app_id, row), _Failures())
        failures.rows += 1
        if failures.rows < FAILURES_TO_QUARANTINE:
            return
        if failures.quarantined:
            failures.probe_after_s = min(failures.probe_after_s * 2, _LAST_PROBE_S)
        else:
            mutation = row.bound.mutation
            logger.error(
                "mutation_quarantined", app_id=app_id, rule=mutation.rule, mutation=mutation.id,
                place=str(mutation.place), failures=failures.rows, message=message,
                next="mend the rule, restart the workers, then: graphweft dlq retry --all",
            )  # fmt: skip
        failures.quarantined = True
        failures.probe_at = time.monotonic() + failures.probe_after_s

    def _succeeded(self, app_id: str, rows: Sequence[Row]) -> None:
        for row in rows:
            failures = self._failures.pop(_broken(app_id, row), None)
            if failures is not None and failures.quarantined:
                mutation = row.bound.mutation
                logger.info("quarantine_ended", app_id=app_id, rule=mutation.rule, mutation=mutation.id)

    # Dead letters

    async def _tell(self, partition: int, why: LeftOut, works: Sequence[EventWork]) -> None:
        """Write the dead letter of rows that are left out; writing it again changes nothing."""
        by_offset = {work.entry.offset: work for work in works}
        there = [by_offset[offset] for offset in why.offsets if offset in by_offset]
        if why.reason != "quarantined":
            for work in there:
                await self._bury(
                    partition, work, rule=why.rule, mutation=why.mutation, reason=why.reason, message=why.message
                )
        elif there:
            await self._tell_quarantined(partition, why, there)

    async def _tell_gone(self, partition: int, rows: Sequence[tuple[str, str, str]]) -> None:
        """Write dead letters of rows of a half-done plan that today's rules do not have; again changes nothing."""
        if not rows:
            return
        offsets = list(dict.fromkeys(offset for offset, _, _ in rows))
        entries = {entry.offset: entry for entry in await self._bus.entries(partition, offsets)}
        for offset, rule, mutation in rows:
            entry = entries.get(offset)
            message = (
                f"the rules changed while this event was half applied, and {rule}/{mutation} is not in them, or not "
                "for this event; restore it and retry this letter"
            )
            if entry is None:
                logger.error("event_gone", position=f"{partition}:{offset}", rule=rule, mutation=mutation)
                continue
            event = wire.decode(entry.fields, received=entry.received)
            letter = letter_for(partition, entry, "missing_rule", message, event=event, rule=rule, mutation=mutation)
            await self._bus.bury([letter])

    async def _tell_quarantined(self, partition: int, why: LeftOut, works: Sequence[EventWork]) -> None:
        first = works[0]
        offsets = tuple(work.entry.offset for work in works)
        letter = letter_for(
            partition, first.entry, why.reason, why.message,
            event=first.event, rule=why.rule, mutation=why.mutation, place=_place(first, why.rule, why.mutation),
        ).of_entries(offsets)  # fmt: skip
        while why.extends and (earlier := await self._bus.dead_letter(why.extends)) is not None:
            if earlier.reason != "quarantined" or len(earlier.offsets) >= MOST_OFFSETS:
                break
            known = set(earlier.offsets)
            fresh = tuple(offset for offset in offsets if offset not in known)
            longer = earlier.of_entries((*earlier.offsets, *fresh))
            if not fresh or await self._bus.extend(earlier, longer):
                self._remember(partition, first, why, longer)
                return
        await self._bus.bury([letter])
        self._remember(partition, first, why, letter)

    def _remember(self, partition: int, work: EventWork, why: LeftOut, letter: DeadLetter) -> None:
        failures = self._failures.get((work.event.appid, work.event.workflow, why.rule, why.mutation))
        if failures is not None:
            failures.letters[partition] = letter

    async def _bury(
        self, partition: int, work: EventWork, *, rule: str, mutation: str, reason: DeadLetterReason, message: str
    ) -> None:
        place = _place(work, rule, mutation)
        event = work.event
        letter = letter_for(
            partition, work.entry, reason, message, event=event, rule=rule, mutation=mutation, place=place
        )
        await self._bus.bury([letter])
        cause = (rule, mutation, reason)
        times = self._buried[cause] = self._buried.get(cause, 0) + 1
        if len(self._buried) > _REMEMBERED:
            self._buried.clear()
        # The 1st, 10th, 100th … of a rule: dead letters have them all, and a broken rule must not drown the log.
        level = logger.error if str(times).strip("0") == "1" else logger.debug
        level(
            "mutation_buried", times=times, rule=rule, mutation=mutation, place=place, reason=reason,
            message=message, event_id=event.id, position=letter.position,
        )  # fmt: skip


def _place(work: EventWork, rule: str, mutation: str) -> str | None:
    found = (bound.mutation for bound in work.mutations)
    return next((str(each.place) for each in found if (each.rule, each.id) == (rule, mutation)), None)


def _broken(app_id: str, row: Row) -> _Broken:
    return (app_id, row.work.event.workflow, row.bound.mutation.rule, row.bound.mutation.id)


def _log_defect(error: Exception, app_id: str) -> None:
    defect = defect_of(error)
    logger.error("defect", app_id=app_id, error=defect.kind, frames=defect.frames)
