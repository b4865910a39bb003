"""Counts the events of an app that have taken effect."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Final

from graphweft_contracts import wire
from graphweft_contracts.clock import Clock
from graphweft_workers.engine.apply.app_queue import AppQueue
from graphweft_workers.engine.log.read import MatchedEvent
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
    for (workflow, rule), number in Counter(_matches(events)).items():
        RULE_MATCHES.add(number, workflow, rule)
    if retries := sum(wire.RETRY in event.entry.fields for event in events):
        RETRIES.add(retries)


def _matches(events: Iterable[MatchedEvent]) -> Iterator[tuple[str, str]]:
    """Yield workflow and rule of each mutation. A workflow that has no rules is a text of the event, and no label."""
    for event in events:
        workflow = event.event.workflow
        known = workflow if workflow is not None and workflow in event.rules.workflows else OTHER
        for bound in event.mutations:
            yield known, bound.mutation.rule
