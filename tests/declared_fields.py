"""Checks the events that our own code emits: each field of their data is declared in ``contracts``, with its type.

Events of others may have any further field, so no model refuses one. These checks do.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

from jsonschema import Draft202012Validator

from graphweft_contracts import Event, wire
from graphweft_contracts.events import payload_of, registered_payloads

__all__ = ("check_declared", "undeclared")


def undeclared(type: str, data: Mapping[str, Any]) -> list[str]:
    """Return the faults of an event's data: fields that its payload model does not declare, and values of other types.

    ``data`` is JSON. A type that a user has invented has no faults.
    """
    if type not in registered_payloads():
        return []
    return [f"{type}: {fault.message}" for fault in _strict(type).iter_errors(dict(data))]


def check_declared(events: Iterable[Event]) -> None:
    """Fail for an event with a fault."""
    written = [json.loads(wire.encode(event)[wire.DATA]) for event in events]
    assert [fault for each in written for fault in undeclared(each["type"], each.get("data", {}))] == []


@cache
def _strict(type: str) -> Draft202012Validator:
    return Draft202012Validator({**payload_of(type).model_json_schema(), "additionalProperties": False})
