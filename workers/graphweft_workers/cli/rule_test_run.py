"""Runs the cases of rule tests: by matching alone, or on one server that all cases share."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from graphweft_contracts import DeadLetter, GraphUnavailable, QueryFailed, Transient, wire
from graphweft_contracts.clock import SYSTEM_CLOCK, PastClock
from graphweft_rules import RuleSet
from graphweft_rules.matching.explain import why_no_rule
from graphweft_rules.rule_tests.model import Case, ContextCheck, CountCheck, GraphCheck
from graphweft_rules.rule_tests.outcome import CaseOutcome, CaseRows, Counts, NotRan, Ran, Trouble, UnmatchedEvent
from graphweft_workers.engine.failures.dead_letter_counts import count_causes
from graphweft_workers.engine.log.duplicates import RecentEvents
from graphweft_workers.engine.log.read import Range, letter_for, read_range
from graphweft_workers.ports.dead_letters import all_letters
from graphweft_workers.ports.event_log import Entry
from graphweft_workers.ports.graph_store import INTERNAL_PREFIX
from graphweft_workers.rule_sets.active_rules import FixedRules
from graphweft_workers.settings.settings import Settings
from graphweft_workers.support.tasks import end_tasks

if TYPE_CHECKING:  # the bus answers before what replays is loaded
    from graphweft_workers.wiring.rule_tests import RuleTestServer

_APPLY_S: Final = 300.0
_QUERY_S: Final = 30.0
_END_S: Final = 1.0


async def run_cases(settings: Settings, rules: RuleSet, cases: Sequence[Case]) -> list[CaseOutcome]:
    """Return the outcome of each case. The server is started only if a case needs it.

    Raises ``RulesError`` if the server refuses a query of the rules, and ``NotRunning`` if it does not start or ends.
    """
    outcomes = [_match(rules, case) for case in cases]
    served = [(case, outcome) for case, outcome in zip(cases, outcomes, strict=True) if case.needs_server]
    if served:
        from graphweft_workers.wiring.rule_tests import rule_test_server

        async with rule_test_server(settings) as server:
            await _serve(server, rules, served)
    return outcomes


def _match(rules: RuleSet, case: Case) -> CaseOutcome:
    """Return what the rules do with the events, and everything that is known without a graph."""
    entries = [
        Entry(offset=str(number), fields=wire.encode(event), received=event.time)
        for number, event in enumerate(case.events, start=1)
    ]
    read = read_range(0, entries, FixedRules(rules), RecentEvents())
    return CaseOutcome(
        ran=[
            Ran(name=f"{part.rule}/{part.id}", params={name: bound.params[name] for name, _ in part.sources})
            for event in read.apps.get(case.app_id, ())
            for bound in event.mutations
            if not rules.is_packed((part := bound.mutation).rule, part.id)
        ],
        skipped=[
            NotRan(name=f"{skip.rule}/{skip.mutation}", reason=skip.message)
            for skip in read.skips
            if skip.reason == "skipped"
        ],
        troubles=_troubles(_letters(read)),
        unmatched=[
            UnmatchedEvent(type=event.type, message=why, place=place)
            for event, place in zip(case.events, case.event_places, strict=True)
            if event.workflow in rules.workflows and (why := why_no_rule(rules, event)) is not None
        ],
    )


def _letters(read: Range) -> list[DeadLetter]:
    skips = [
        letter_for(
            0, skip.entry, skip.reason, skip.message,
            event=skip.event, rule=skip.rule, mutation=skip.mutation, place=skip.place,
        )
        for skip in read.skips
    ]  # fmt: skip
    return [*read.letters, *skips]


def _troubles(letters: Sequence[DeadLetter]) -> list[Trouble]:
    """Return the causes of dead letters, each event type of a cause by itself."""
    by_type: dict[str | None, list[DeadLetter]] = {}
    for letter in letters:
        by_type.setdefault(letter.event_type, []).append(letter)
    return [
        Trouble(
            reason=cause.reason,
            rule=cause.rule,
            mutation=cause.mutation,
            workflow=cause.workflow,
            type=type,
            message=cause.message,
            place=cause.place,
            events=cause.events,
        )
        for type, some in by_type.items()
        for cause in count_causes(some)
    ]


async def _serve(server: RuleTestServer, rules: RuleSet, served: Sequence[tuple[Case, CaseOutcome]]) -> None:
    """Complete the outcomes by the dead letters, graphs and contexts of a server."""
    working = asyncio.create_task(_apply_and_ask(server, rules, served))
    ended = asyncio.create_task(server.ended())
    try:
        await asyncio.wait([working, ended], return_when=asyncio.FIRST_COMPLETED)
        if working.done() and isinstance(working.exception(), Transient):
            await asyncio.wait([ended], timeout=_END_S)  # a server that ended is the better reason
        (ended if ended.done() else working).result()
    finally:
        await end_tasks(working, ended)


async def _apply_and_ask(server: RuleTestServer, rules: RuleSet, served: Sequence[tuple[Case, CaseOutcome]]) -> None:
    from graphweft_workers.wiring.query_check import refuse_wrong_queries

    await refuse_wrong_queries(server.graph, (*rules.mutations, *rules.injections))
    letters = await _apply(server, rules, [case for case, _ in served])
    for case, outcome in served:
        outcome.troubles = _troubles([letter for letter in letters if letter.app_id == case.app_id])
        for check in case.graph:
            outcome.graph.append(await _run_check(server, case.app_id, check))
        for context in case.context:
            outcome.replies.append(await _context(server, rules, case.app_id, context))


async def _apply(server: RuleTestServer, rules: RuleSet, cases: Sequence[Case]) -> Sequence[DeadLetter]:
    """Let a worker apply the events of all cases; return the dead letters, an event or mutation each."""
    events = [event for case in cases for event in case.events]
    if not events:
        return ()
    from graphweft_workers.reports.delivery import send, wait_until_applied

    worker = server.worker(rules)
    working = asyncio.create_task(worker.run())
    try:
        sent = await send(server.transport, events)
        waiting = asyncio.create_task(wait_until_applied(server.bus, sent.last, timeout_s=_APPLY_S))
        await asyncio.wait([working, waiting], return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            working.result()
        if not await waiting:
            raise GraphUnavailable(f"not all events were applied within {_APPLY_S:.0f} s: select cases with --match")
        return await all_letters(server.bus.dead_letters)
    finally:
        worker.stop()
        await end_tasks(working)


async def _run_check(server: RuleTestServer, app_id: str, check: GraphCheck) -> CaseRows | Counts | str:
    if isinstance(check, CountCheck):
        return await _counts(server, app_id, check)
    try:
        table = await server.graph.read(app_id, check.query, check.params, timeout_s=_QUERY_S)
    except QueryFailed as error:
        return str(error)
    return CaseRows(columns=table.columns, rows=table.rows)


async def _counts(server: RuleTestServer, app_id: str, check: CountCheck) -> Counts:
    counts: Counter[str] = Counter()
    if check.of == "nodes":
        async for node in server.graph.whole.nodes(app_id):
            if not node.is_internal:
                counts.update(["", *node.labels])
    else:
        async for edge in server.graph.whole.edges(app_id):
            if not edge.type.startswith(INTERNAL_PREFIX):
                counts.update(["", edge.type])
    return Counts(by_name=counts)


async def _context(server: RuleTestServer, rules: RuleSet, app_id: str, check: ContextCheck) -> Any:
    clock = PastClock(check.time, SYSTEM_CLOCK)
    deadline_ms = int(clock.now().timestamp() * 1000) + check.budget_ms
    request = check.request.model_copy(update={"app_id": app_id, "deadline_ms": deadline_ms})
    pipeline = server.pipeline(rules, clock)
    try:
        return await pipeline.answer(request)
    finally:
        await pipeline.aclose()
