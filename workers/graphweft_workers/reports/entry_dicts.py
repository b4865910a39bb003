"""Entries of the event log as plain values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from graphweft_contracts import DeadLetter, wire
from graphweft_contracts.rules_log import Activation
from graphweft_workers.reports.entries import DecodedEntry

if TYPE_CHECKING:
    from graphweft_workers.reports.effects import EntryEffect
    from graphweft_workers.reports.lookup import Relatives


def dict_of(seen: DecodedEntry) -> dict[str, Any]:
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
        found["retry"] = seen.retry._asdict()
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


def fate_dict(
    effect: EntryEffect, relatives: Relatives, elsewhere: Sequence[str], letters: Sequence[DeadLetter]
) -> dict[str, Any]:
    """Return what became of an event; ``elsewhere`` are positions of the same event in other partitions."""
    return {
        "state": effect.state,
        "committed": effect.position,
        "checkpoint": effect.checkpoint,
        "plan": None
        if effect.state != "in_plan"
        else {
            "end": effect.plan_end,
            "rows": [{"rule": rule, "mutation": mutation, "done": done} for rule, mutation, done in effect.planned],
        },
        "parked": effect.parked and asdict(effect.parked),
        "copy_of": relatives.copy_of,
        "copies": relatives.copies,
        "again": relatives.repeats,
        "elsewhere": list(elsewhere),
        "retries": [dict_of(each) | {"event": None} for each in relatives.retries],
        "corrections": [
            dict_of(each) | {"event": None, "id": each.event and each.event.id} for each in relatives.corrections
        ],
        "drops": [dict_of(each) for each in relatives.drops],
        "complete": relatives.complete,
        "dead_letters": [
            each.model_dump(mode="json", exclude={"fields", "offsets"}, exclude_none=True) for each in letters
        ],
    }
