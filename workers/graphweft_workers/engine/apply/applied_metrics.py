"""Counts the events of an app that have taken effect."""

from __future__ import annotations

from typing import Final

from graphweft_contracts import wire
from graphweft_contracts.clock import Clock
from graphweft_workers.engine.apply.app_queue import AppQueue
from graphweft_workers.telemetry.metrics import (
    BATCH_DURATION,
    BATCH_EVENTS,
    EVENT_VISIBLE,
    EVENTS_APPLIED,
    OTHER,
    RETRIES,
    RULE_MATCHES,
)

_MEASURED: Final = 16
"""Events of a batch whose time is measured: all of a batch take effect within the same part of a second."""


def count_applied(queue: AppQueue, clock: Clock) -> None:
    """Count the events in hand, once they have taken effect. While nobody collects metrics it does nothing."""
    if EVENTS_APPLIED.sink is None:
        return
    events = [event for batch in queue.applying for event in batch.events]
    if not events:
        return
    app_id, now = queue.app_id, clock.now().timestamp()
    EVENTS_APPLIED.add(len(events), app=app_id)
    BATCH_EVENTS.record(len(events))
    BATCH_DURATION.record(clock.monotonic() - queue.busy_since)
    for event in events[:: -(-len(events) // _MEASURED)]:
        # The bus's time: an import has events of years ago, and a sender may claim any time.
        EVENT_VISIBLE.record(max(0.0, now - event.entry.received.timestamp()), app=app_id)
    matches: dict[tuple[str | None, str], int] = {}
    retries = 0
    for event in events:
        workflow = event.plain.workflow
        for bound in event.mutations:
            key = workflow, bound.mutation.rule
            matches[key] = matches.get(key, 0) + 1
        retries += wire.RETRY in event.entry.fields
    workflows = events[-1].rules.workflows
    for (workflow, rule), number in matches.items():
        # A workflow that has no rules is a text of the event, and no label.
        known = workflow if workflow is not None and workflow in workflows else OTHER
        RULE_MATCHES.add(number, known, rule)
    if retries:
        RETRIES.add(retries)
