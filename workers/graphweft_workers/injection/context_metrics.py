"""Counts context requests by what became of them."""

from __future__ import annotations

from graphweft_contracts import ContextReply
from graphweft_workers.telemetry.metrics import (
    CONTEXT_BUDGET,
    CONTEXT_DURATION,
    CONTEXT_REQUESTS,
    CONTEXT_SHED,
    CONTEXT_TOKENS,
)


def count_answer(app_id: str, reply: ContextReply, *, took_s: float, left_s: float) -> None:
    """Count a reply that took ``took_s`` of the ``left_s`` that there were to its deadline."""
    outcome = "empty" if reply.reason else "partial" if reply.partial or reply.missing else "whole"
    CONTEXT_REQUESTS.add(1, outcome, reply.reason or "", app=app_id)
    CONTEXT_DURATION.record(took_s, app=app_id)
    CONTEXT_TOKENS.record(reply.tokens)
    if left_s > 0:
        CONTEXT_BUDGET.record(took_s / left_s)


def count_refusal(app_id: str, reason: str) -> None:
    """Count a request that is refused, for a reason code."""
    CONTEXT_REQUESTS.add(1, "refused", reason, app=app_id)
    if reason == "overloaded":
        CONTEXT_SHED.add()


def count_expired(app_id: str) -> None:
    """Count a request whose deadline was over before it was begun."""
    CONTEXT_REQUESTS.add(1, "expired", "", app=app_id)
