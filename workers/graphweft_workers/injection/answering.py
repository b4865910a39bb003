"""From a context request to its reply: finds the rules, runs their queries at once, answers before the deadline."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime
from typing import Final

import structlog

from graphweft_contracts import (
    Block,
    ContextReply,
    ContextRequest,
    GraphUnavailable,
    Missing,
    QueryFailed,
    ReasonCode,
)
from graphweft_rules import BoundQuery, Ruleset, Skipped
from graphweft_rules.formats import assemble, render
from graphweft_workers.graph.store import GraphStore

__all__ = ("answer",)

logger = structlog.get_logger("graphweft.injection")

_ROAD_SHARE: Final = 0.1
_ROAD_S: Final = (0.005, 0.05)
"""Share of the budget, its least and its most, that is kept back for formatting and the way to the client. A hop takes
1 to 5 ms, and up to 20 ms while slow queries load the server; a reply that comes late loses every block in it."""


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
