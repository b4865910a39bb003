"""The injection responder: finds the rules of a request, runs their queries at once, answers before the deadline."""

from __future__ import annotations

import asyncio
import contextlib
import time
from datetime import UTC, datetime
from typing import Final

import structlog
from pydantic import ValidationError

from graphweft_contracts import (
    Block,
    ContextReply,
    ContextRequest,
    GraphUnavailable,
    Missing,
    QueryFailed,
    ReasonCode,
    Transient,
    wire,
)
from graphweft_rules import BoundQuery, Ruleset, Skipped
from graphweft_rules.formats import assemble, render
from graphweft_workers.graph.store import GraphStore
from graphweft_workers.injection.requests import RequestQueue, Waiting

__all__ = ("InjectionResponder", "answer")

logger = structlog.get_logger("graphweft.injection")

_ROAD_SHARE: Final = 0.1
_ROAD_S: Final = (0.005, 0.05)
"""Share of the budget, its least and its most, that is kept back for formatting and the way to the client. A hop takes
1 to 5 ms, and up to 20 ms while slow queries load the server; a reply that comes late loses every block in it."""
_LAST_BACKOFF_S: Final = 2.0


async def answer(request: ContextRequest, rules: Ruleset, graph: GraphStore, *, query_timeout_s: float) -> ContextReply:
    """Return the context for ``request`` before its deadline, with a reason for whatever is missing. Never raises
    on account of graph, rules or request."""
    started = time.perf_counter()
    workflow = rules.workflows.get(request.workflow)
    if workflow is None:
        known = ", ".join(sorted(rules.workflows)) or "none"
        return ContextReply(
            id=request.id,
            reason="no_rules",
            detail=f"there are no rules for the workflow {request.workflow!r}; workflows with rules: {known}",
        )
    matched = rules.match_request(request, datetime.now(UTC))
    # A condition that is false because a variable is absent is a rule that does not apply, not a missing block.
    missing = [_missing_skip(skip) for skip in matched.skipped if skip.reason != "missing_variable"]
    left_s = request.deadline_ms / 1000 - time.time()
    left_s = max(0.001, left_s - min(max(left_s * _ROAD_SHARE, _ROAD_S[0]), _ROAD_S[1]))
    limit_s = min(query_timeout_s, left_s)
    tasks = [asyncio.create_task(_run(bound, request.app_id, graph, limit_s)) for bound in matched.queries]
    if tasks:
        await asyncio.wait(tasks, timeout=min(query_timeout_s + 0.2, left_s))
    blocks: list[Block] = []
    for task, bound in zip(tasks, matched.queries, strict=True):
        if not task.done():
            task.cancel()
            missing.append(_missing(bound, "timeout", f"{bound.query.place}: not ready at the deadline"))
            continue
        outcome = task.result()
        if isinstance(outcome, Block):
            blocks.append(outcome)
        else:
            missing.append(outcome)
    return ContextReply(
        id=request.id,
        blocks=tuple(blocks),
        missing=tuple(missing),
        text=assemble(blocks),
        partial=bool(missing),
        reason=missing[0].reason if missing and not blocks else None,
        detail=missing[0].detail if missing and not blocks else "",
        elapsed_ms=round((time.perf_counter() - started) * 1000, 3),
    )


class InjectionResponder:
    """Answers requests from a queue, many at a time, until ``stop`` is called."""

    def __init__(
        self,
        queue: RequestQueue,
        graph: GraphStore,
        rules: Ruleset,
        *,
        query_timeout_s: float = 5.0,
        max_requests: int = 64,
    ) -> None:
        self._queue = queue
        self._graph = graph
        self._rules = rules
        self._query_timeout_s = query_timeout_s
        self._free = max_requests
        self._freed = asyncio.Event()
        self._stopping = asyncio.Event()
        self.answered = 0
        self.expired = 0

    def stop(self) -> None:
        """Ask the responder to finish the requests in hand and return from ``run``."""
        self._stopping.set()

    async def run(self) -> None:
        """Answer until ``stop``. Outages of the bus are waited out."""
        logger.info("responder_started", workflows=sorted(self._rules.workflows))
        wait_s = 0.1
        async with asyncio.TaskGroup() as tasks:
            while not self._stopping.is_set():
                while not self._free:  # backpressure: what nobody works on stays on the bus, for other replicas
                    self._freed.clear()
                    await self._freed.wait()
                try:
                    waiting = await self._queue.next(self._free)
                except Transient as error:
                    logger.warning("requests_interrupted", error=str(error), retry_after_s=wait_s)
                    await asyncio.sleep(wait_s)
                    wait_s = min(wait_s * 2, _LAST_BACKOFF_S)
                    continue
                wait_s = 0.1
                for one in waiting:
                    self._free -= 1
                    tasks.create_task(self._serve(one))
        logger.info("responder_stopped", answered=self.answered, expired=self.expired)

    async def _serve(self, waiting: Waiting) -> None:
        try:
            await self._answer(waiting)
            await self._queue.done(waiting.token)
        except Transient as error:
            logger.warning("reply_lost", error=str(error))
        except Exception:  # one request must not end the responder
            logger.exception("request_failed")
            with contextlib.suppress(Transient):
                await self._queue.done(waiting.token)
        finally:
            self._free += 1
            self._freed.set()

    async def _answer(self, waiting: Waiting) -> None:
        try:
            request = ContextRequest.model_validate_json(waiting.body)
        except ValidationError as error:
            # It says neither who asks nor until when, so nobody can be answered.
            logger.warning("request_invalid", error=wire.explain(error))
            return
        if request.deadline_ms <= time.time() * 1000:
            self.expired += 1
            return
        try:
            reply = await answer(request, self._rules, self._graph, query_timeout_s=self._query_timeout_s)
        except Exception as error:  # a defect must not cost the caller its whole budget
            logger.exception("answer_failed", workflow=request.workflow, agent=request.agent)
            reply = ContextReply(id=request.id, reason="internal_error", detail=type(error).__name__, partial=True)
        await self._queue.reply(request.reply_to, reply)
        self.answered += 1
        for item in reply.missing:
            logger.warning(
                "block_missing", rule=item.rule, query=item.query, reason=item.reason, detail=item.detail,
                app_id=request.app_id, workflow=request.workflow, agent=request.agent,
            )  # fmt: skip


async def _run(bound: BoundQuery, app_id: str, graph: GraphStore, limit_s: float) -> Block | Missing:
    query = bound.query
    try:
        table = await graph.read(app_id, bound.cypher.statement, bound.params, timeout_s=limit_s)
        rendered = render(query.format, query.inject_as, table.columns, table.rows, query.max_results)
    except QueryFailed as error:
        return _missing(bound, "timeout" if error.code == "timeout" else "query_error", f"{query.place}: {error}")
    except GraphUnavailable as error:
        return _missing(bound, "graph_unavailable", str(error))
    except Exception as error:  # a defect, or a value that we do not understand, must not cost the other blocks
        logger.exception("query_broken", rule=bound.rule, query=query.id, place=str(query.place))
        return _missing(bound, "internal_error", f"{query.place}: {type(error).__name__}")
    return Block(
        name=query.inject_as,
        format=query.format,
        value=rendered.value,
        rows=rendered.rows,
        rule=bound.rule,
        query=query.id,
    )


def _missing(bound: BoundQuery, reason: ReasonCode, detail: str) -> Missing:
    return Missing(name=bound.query.inject_as, rule=bound.rule, query=bound.query.id, reason=reason, detail=detail)


def _missing_skip(skip: Skipped) -> Missing:
    reason: ReasonCode = "missing_param" if skip.reason == "missing_param" else "condition_error"
    detail = f"{skip.place}: {skip.detail}"
    return Missing(name=skip.query, rule=skip.rule, query=skip.query, reason=reason, detail=detail)
