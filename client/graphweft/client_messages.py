"""What a client writes and reads. It needs the models, so it is imported when a client is made, not with its class."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, cast

from pydantic import ValidationError
from pydantic_core import PydanticSerializationError, from_json, to_json

from graphweft.json_copy import MAX_DEPTH, json_copy
from graphweft.outbox import EncodedEvent
from graphweft.tracing import with_trace
from graphweft.transport import MAX_BUDGET_MS, TOO_LARGE, Outgoing, with_bus_step
from graphweft_contracts import (
    BusUnavailable,
    ContextReply,
    ContextRequest,
    Event,
    Permanent,
    ReasonCode,
    Transient,
    wire,
)
from graphweft_contracts.admission import check_admission

logger = logging.getLogger("graphweft.client")

BUDGET_FORM: Final = "budget_ms: expected a number of milliseconds"
_MAX_VALUES: Final = 200_000
"""Values of a context that are looked at: some tenths of a second at worst."""


def encoded_event(event: Event) -> EncodedEvent:
    """Return an event and what is sent of it; raises what ``encoded`` raises. It may run in a thread."""
    return EncodedEvent(event=event, outgoing=encoded(event))


def encoded(event: Event) -> Outgoing:
    """Return an event as a transport takes it, with the current trace unless it names one.

    Raises ``InvalidEvent``, and whatever its values raise.
    """
    check_admission(event)
    return Outgoing(key=event.key, fields=wire.encode(with_trace(event)))


def no_event(given: object) -> str | None:
    """Return what to pass in place of something that is no event; None for an event."""
    if isinstance(given, Event):
        return None
    kind = type(given).__name__
    made = "Event.create(type, app_id=…, chat_id=…, data={…})"
    whole = ", or Event.model_validate(…) for a whole CloudEvent" if isinstance(given, Mapping) else ""
    return f"expected an Event, found {kind}: pass {made}{whole}"


def request_of(fields: Mapping[str, Any]) -> ContextRequest:
    """Return the request with these fields. Raises ``ValidationError``."""
    return ContextRequest(**fields)


class JsonContext(NamedTuple):
    """Context variables that JSON can represent, and the names of those that it could not."""

    values: dict[str, Any]
    names: Sequence[str]


def json_context(context: Mapping[str, Any]) -> JsonContext | None:
    """Return a copy of context variables that JSON can represent.

    None if it can represent the variables themselves, or if they hold more than ``_MAX_VALUES`` values.
    """
    try:
        check = _JsonCheck(_MAX_VALUES)
        names = [name for name, value in context.items() if not (check.passes(name) and check.passes(value))]
        return JsonContext(json_copy(context), [repr(name)[1:-1] for name in names]) if names else None
    except _TooManyValues:
        return None


def is_unwritable(outcome: ContextReply | Exception) -> bool:
    """Return whether a request may have failed because JSON cannot represent a value in it."""
    if isinstance(outcome, Exception):
        return isinstance(outcome, PydanticSerializationError)
    return outcome.reason == "invalid_request" and outcome.detail != TOO_LARGE


class _TooManyValues(Exception):
    pass


class _JsonCheck:
    """Finds out whether JSON can represent values, without reading an iterator in them."""

    def __init__(self, most: int) -> None:
        self._left = most

    def passes(self, value: object, above: tuple[int, ...] = ()) -> bool:
        self._left -= 1
        if self._left < 0:
            raise _TooManyValues
        if isinstance(value, dict | list | tuple | set | frozenset):
            container = cast("dict[object, object] | list[object]", value)
            if id(container) in above or len(above) >= MAX_DEPTH:
                return False
            inside = (*above, id(container))
            if isinstance(container, dict) and not all(self.passes(name, inside) for name in container):
                return False
            return all(
                self.passes(each, inside) for each in (container.values() if isinstance(container, dict) else container)
            )
        if hasattr(type(value), "__next__"):
            return False
        try:
            text = to_json(value, inf_nan_mode="constants")
            from_json(text)
            return text == to_json(value, inf_nan_mode="null") if isinstance(value, float) else True
        except Exception:  # noqa: BLE001 - code of a value
            return False


def empty_reply(request_id: str, reason: ReasonCode, detail: str) -> ContextReply:
    """Return a reply without context."""
    return ContextReply(id=request_id, reason=reason, detail=detail, partial=True)


def failed_reply(request_id: str, error: Exception, *, budget_ms: int, is_search: bool) -> ContextReply:
    """Return a reply that says why a request failed."""
    match error:
        case TimeoutError():
            detail = (
                f"no answer within {budget_ms} ms; is a responder running? `graphweft up` and `graphweft run "
                "injection` start one"
            )
            return empty_reply(request_id, "timeout", detail)
        case BusUnavailable():
            return empty_reply(request_id, "bus_unavailable", with_bus_step(str(error)))
        case Transient() | Permanent():
            return empty_reply(request_id, "bus_unavailable", str(error))
        case ValidationError():
            return empty_reply(request_id, "invalid_request", wire.explain(error))
        case PydanticSerializationError():  # its text names types, not values
            what = "context or params" if is_search else "context"
            return empty_reply(request_id, "invalid_request", f"{what} is not JSON: {error}")
        case _:
            logger.error("the context request failed", exc_info=error)
            return empty_reply(request_id, "internal_error", f"{type(error).__name__}: {error}")


def milliseconds(budget: object) -> int | None:
    """Return the budget within its bounds, or None if it is not a number: callers may be untyped."""
    if not issubclass(type(budget), int | float):
        return None
    number = cast("float", budget)
    return None if number != number else int(min(max(number, 0), MAX_BUDGET_MS))  # noqa: PLR0124 - true for NaN only
