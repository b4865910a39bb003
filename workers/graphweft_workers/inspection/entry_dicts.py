"""Entries of the event log as plain values."""

from __future__ import annotations

from typing import Any

from graphweft_contracts import wire
from graphweft_contracts.rules_log import Activation
from graphweft_workers.inspection.entries import Seen


def dict_of(seen: Seen) -> dict[str, Any]:
    """Return an entry with all of its content, for JSON."""
    found: dict[str, Any] = {
        "position": seen.position,
        "partition": seen.partition,
        "offset": seen.entry.offset,
        "received": seen.entry.received.isoformat(),
        "kind": seen.kind,
    }
    if seen.event is not None:
        found["event"] = seen.event.model_dump(exclude_none=True)
    if seen.retry is not None:
        found["retry"] = {"letter": seen.retry.letter, "rule": seen.retry.rule, "mutation": seen.retry.mutation}
    if seen.activation is not None:
        found["activation"] = activation_dict(seen.activation)
    if seen.dropped is not None:
        found["dropped"] = dict(zip(wire.Dropped._fields, seen.dropped, strict=True))
    if seen.event is None:
        found["fields"] = wire.pack(seen.entry.fields)
    if seen.fault:
        found["fault"] = seen.fault
    if seen.note:
        found["note"] = seen.note
    return found


def activation_dict(activation: Activation) -> dict[str, Any]:
    """Return an activation for JSON, without its positions."""
    return {
        "number": activation.number,
        "scope": activation.restates or activation.scope,
        "restates": activation.restates is not None,
        "rules": activation.digest,
        "time": activation.time.isoformat(),
    }
