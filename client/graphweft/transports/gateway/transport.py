"""The transport through a gateway. The gateway decides by the token what may be written and read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

from pydantic_core import from_json, to_json

from graphweft.time_limit import time_limit
from graphweft.timing import CLIENT_TIMING, ClientTiming
from graphweft.transport import Outgoing, check_sizes, encoded, read_reply, seconds_left
from graphweft.transports.gateway.address import GatewayAddress
from graphweft.transports.gateway.exchange import HttpAnswer, NoAnswer, post
from graphweft_contracts import (
    BusUnavailable,
    ContextReply,
    ContextRequest,
    InvalidEvent,
    PartitionRefused,
    ReasonCode,
    wire,
)
from graphweft_contracts.clock import SYSTEM_CLOCK, Clock
from graphweft_contracts.trace_context import TraceContext

_BATCH_TYPE: Final = "application/cloudevents-batch+json"
_JSON_TYPE: Final = "application/json"
_PROBLEM: Final = "urn:graphweft:problem:"
_REFUSALS: Final = frozenset({400, 403, 413, 415, 422, 507})
"""What the gateway answers to a request that it will never take."""
_PARTITION_REFUSED: Final = "partition-refused"
_MAX_BATCH_BYTES: Final = 3_900_000
_MAX_BATCH_VALUES: Final = 250_000
"""The gateway takes 300,000 values in a request."""
_MAX_BUDGET_MS: Final = 10_000
_MAX_TEXT: Final = 300
"""Characters of what a gateway says about an error."""
_QUESTION: Final = ("app_id", "workflow", "agent", "chat_id", "user_id", "context", "max_tokens", "after", "explain")
_NEXT: Final = "check GRAPHWEFT_GATEWAY_URL, and that the gateway runs (`graphweft run gateway`)"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Problem:
    """An answer with a status other than success."""

    status: int
    text: str
    code: str = ""
    refused: bool
    """Whether the gateway itself refuses this request for good."""


class GatewayTransport:
    """The ``Transport`` through a gateway. It keeps no connection, follows no redirect, and signs nothing."""

    system: Final = "http"
    """The product, as spans name it."""

    def __init__(
        self, url: str, *, token: str | None = None, clock: Clock = SYSTEM_CLOCK, timing: ClientTiming = CLIENT_TIMING
    ) -> None:
        """Raise ``InvalidSettings`` for an invalid URL or token; nothing is connected yet."""
        self._address = GatewayAddress.parse(url, token)
        self._clock = clock
        self._append_s = timing.append_s

    async def append(self, events: Sequence[Outgoing]) -> list[str]:
        """See ``Transport.append``. An unknown or expired token raises ``BusUnavailable``: events wait,
        because an operator may renew the token.
        """
        check_sizes(events)
        positions: list[str] = []
        for count, body in _batches(events):
            try:
                async with time_limit(self._append_s):
                    answer = await post(self._address, "/v1/events", _BATCH_TYPE, body)
            except TimeoutError:
                raise BusUnavailable(f"{self._named} gave no answer within {self._append_s:.0f} s") from None
            except NoAnswer as error:
                raise BusUnavailable(f"{self._named} does not answer: {error}; {_NEXT}") from None
            if answer.status != 202:
                problem = self._problem(answer)
                if problem.code == _PARTITION_REFUSED:
                    raise PartitionRefused(problem.text)
                raise (InvalidEvent if problem.refused else BusUnavailable)(problem.text)
            positions += self._positions(answer, count)
        return positions

    async def request(self, request: ContextRequest) -> ContextReply:
        """See ``Transport.request``. What the gateway refuses is a reply with a reason."""
        checked = encoded(request, "")
        if isinstance(checked, ContextReply):
            return checked
        left_s = seconds_left(request, self._clock)
        try:
            async with time_limit(left_s):
                trace = TraceContext.of(request.traceparent, request.tracestate)
                question = _question(request, left_s)
                answer = await post(self._address, "/v1/context", _JSON_TYPE, question, trace=trace)
        except NoAnswer as error:
            raise BusUnavailable(f"{self._named} does not answer: {error}; {_NEXT}") from None
        if answer.status == 200:
            try:
                return read_reply(request, answer.body, self._clock).model_copy(update={"id": request.id})
            except BusUnavailable:
                raise BusUnavailable(f"{self._named} gave an answer that is no reply; {_NEXT}") from None
        problem = self._problem(answer)
        reason: ReasonCode = "bus_unavailable"
        if problem.refused or problem.status == 401:
            reason = "invalid_request"
        elif problem.status == 429:
            reason = "overloaded"
        return ContextReply(id=request.id, reason=reason, detail=problem.text, partial=True)

    async def aclose(self) -> None:
        """Do nothing: each request closes its own connection."""

    @property
    def _named(self) -> str:
        return f"the gateway {self._address}"

    def _positions(self, answer: HttpAnswer, count: int) -> list[str]:
        try:
            read: Any = from_json(answer.body)
        except ValueError:
            read = None
        found: object = cast("dict[str, Any]", read).get("positions") if isinstance(read, dict) else None
        positions = cast("list[object]", found) if isinstance(found, list) else []
        if len(positions) != count or not all(isinstance(each, str) for each in positions):
            raise BusUnavailable(f"{self._named} gave an answer without the positions of the events; {_NEXT}")
        return cast("list[str]", positions)

    def _problem(self, answer: HttpAnswer) -> _Problem:
        status = answer.status
        said = _said(answer)
        if said is None:
            redirected = ", a redirect, which is not followed" if status // 100 == 3 else ""
            text = f"{self._named} is no graphweft gateway: it answers {status}{redirected}; {_NEXT}"
            return _Problem(status=status, text=text, refused=False)
        text = "".join(sign if sign.isprintable() else " " for sign in said)
        if self._address.token is not None:  # a hostile server repeats what it was sent
            text = text.replace(self._address.token, "[REDACTED]")
        text = text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]}…"
        text = f"{self._named} answers {status}: {text}"
        return _Problem(status=status, text=text, code=said.partition(";")[0], refused=status in _REFUSALS)


def _said(answer: HttpAnswer) -> str | None:
    """Return what a problem document of a gateway says; None for any other answer."""
    try:
        read: Any = from_json(answer.body)
    except ValueError:
        return None
    if not isinstance(read, dict):
        return None
    problem = cast("dict[str, Any]", read)
    kind, detail = problem.get("type"), problem.get("detail")
    if not isinstance(kind, str) or not kind.startswith(_PROBLEM):
        return None
    faults = problem.get("errors")
    first: object = cast("list[object]", faults)[0] if isinstance(faults, list) and faults else None
    fault: Mapping[str, Any] = cast("dict[str, Any]", first) if isinstance(first, dict) else {}
    parts = (kind[len(_PROBLEM) :], detail, fault.get("pointer"), fault.get("detail"))
    return "; ".join(part for part in parts if isinstance(part, str) and part)


def _batches(events: Sequence[Outgoing]) -> Iterator[tuple[int, bytes]]:
    """Yield the bodies for events, in order, and how many each has."""
    parts: list[bytes] = []
    size = values = 0
    for event in events:
        part = _event_of(event)
        signs = part.count(b",") + part.count(b"[") + part.count(b"{")  # no fewer than its values
        if parts and (size + len(part) + 1 > _MAX_BATCH_BYTES or values + signs > _MAX_BATCH_VALUES):
            yield len(parts), b"[" + b",".join(parts) + b"]"
            parts, size, values = [], 0, 0
        parts.append(part)
        size += len(part) + 1
        values += signs
    if parts:
        yield len(parts), b"[" + b",".join(parts) + b"]"


def _event_of(event: Outgoing) -> bytes:
    """Return the event as JSON, which is the wire form that ``Client`` writes."""
    if event.fields.get(wire.CONTENT_TYPE) == wire.STRUCTURED:
        return event.fields[wire.DATA]
    return wire.encode(wire.decode(event.fields))[wire.DATA]


def _question(request: ContextRequest, left_s: float) -> bytes:
    """Return the body for the gateway, whose answer has to come back within the time that is left."""
    fields: dict[str, Any] = {name: value for name in _QUESTION if (value := getattr(request, name)) is not None}
    left_ms = left_s * 1000
    fields["budget_ms"] = max(1, min(_MAX_BUDGET_MS, int(left_ms - min(50.0, left_ms / 10))))
    if request.search is not None:
        fields["search"] = request.search.model_dump(exclude_none=True, include={*request.search.sent})
    return to_json(fields)
