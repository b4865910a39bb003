"""Corrections of dead letters: an event with other data takes the place of the one that failed, for one mutation.

A correction is a new event with a new id, which names the old one. It is published as a retry, so only the mutation of
the letter runs: the others may have taken effect for the old event. The letter is dropped in the same step.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, cast
from uuid import uuid4

from pydantic import ValidationError

from graphweft.transport import Outgoing, check_sizes
from graphweft_contracts import DeadLetter, Event, InvalidEvent, wire
from graphweft_contracts.signatures import SIGNATURE
from graphweft_contracts.wire import WHOLE
from graphweft_workers.engine.failures.letter_payloads import payload_of
from graphweft_workers.engine.log.read import EXTRACT
from graphweft_workers.ports.bus import Bus
from graphweft_workers.ports.dead_letters import drop_entry

CORRECTS: Final = "corrects"
"""The extension attribute of a corrected event: the id of the one whose place it takes."""
_ID: Final = 200
"""Characters of the old id that the new one begins with."""


def refusal_of(bus: Bus, letter: DeadLetter, fields: Mapping[bytes, bytes] | None = None) -> str:
    """Return why the event of a letter cannot be corrected; "" if it can.

    ``fields`` are those of the event, if they are known. Without keys, a process does not know that workers have some;
    but then the event that a worker has let through is signed.
    """
    if letter.rule is None or letter.mutation in (None, WHOLE) or (letter.rule, letter.mutation) == EXTRACT:
        return "the letter is not about one mutation: emit a corrected event with a new id, and drop this letter"
    if letter.count > 1:
        return f"the letter stands for {letter.count} events: correct the rule, or emit corrected events with new ids"
    if bus.judge is not None:
        return (
            "the events of apps with keys are signed, and only the app may sign a corrected one: emit it there with a "
            "new id, and drop this letter"
        )
    if fields is not None and SIGNATURE in fields:
        return (
            "the event is signed, and workers with the key of its app refuse a corrected one, which only the app may "
            "sign: emit it there with a new id, and drop this letter"
        )
    return ""


async def event_of(bus: Bus, letter: DeadLetter) -> tuple[Event, bytes]:
    """Return the event of a letter, and when the log recorded it.

    Raises ``InvalidEvent`` if it is nowhere any more, or signed, and ``BusUnavailable``.
    """
    fields = wire.unpack(await payload_of(bus, letter))
    if not fields:
        raise InvalidEvent("the event is nowhere any more: emit it again with a new id, and drop this letter")
    if fault := refusal_of(bus, letter, fields):
        raise InvalidEvent(fault)
    return wire.decode(fields), fields.get(wire.RECORDED, letter.time.isoformat().encode())


def corrected(event: Event, changes: Mapping[str, Any]) -> Event:
    """Return a new event with changed data, by the rules of a JSON merge patch (RFC 7396): null removes a value.

    Raises ``InvalidEvent`` if it would violate the contract, or be larger than an event may be.
    """
    body = event.model_dump(mode="json", exclude_none=True)
    body["id"] = f"{event.id[:_ID]}-corrected-{uuid4().hex[:12]}"
    body[CORRECTS] = event.id
    body["data"] = _merged(body.get("data", {}), changes)
    try:
        found = Event.model_validate(body)
    except ValidationError as error:
        raise InvalidEvent(f"the corrected event is not valid: {wire.explain(error)}") from None
    check_sizes([Outgoing(key=found.key, fields=wire.encode(found))])
    return found


async def publish(bus: Bus, letter: DeadLetter, event: Event, recorded: bytes) -> bool:
    """Append a corrected event for the letter's mutation, and drop the letter, in one step.

    ``recorded`` is what ``event_of`` returns for the old event.

    Return False, and do nothing, if the letter has changed. Raises ``BusUnavailable``.
    """
    # Not the letter's id: the letters of skips of one cause have the same one after each other.
    again = wire.Retry.of_corrected(letter.partition, letter.offset, letter.rule or "", letter.mutation or "")
    entry = {**wire.encode(event), wire.RECORDED: recorded, wire.RETRY: again.encode()}
    return await bus.dead_letters.requeue(letter, [entry, drop_entry(letter)])


def _merged(value: Any, changes: Any) -> Any:
    if not isinstance(changes, Mapping):
        return changes
    given = cast("Mapping[str, Any]", changes)
    found: dict[str, Any] = dict(cast("Mapping[str, Any]", value)) if isinstance(value, Mapping) else {}
    for name, each in given.items():
        if each is None:
            found.pop(name, None)
        else:
            found[name] = _merged(found.get(name), each)
    return found
