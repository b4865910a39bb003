"""The name of a span as events, requests and headers carry it: W3C Trace Context (https://www.w3.org/TR/trace-context/).

Anybody may send one. A value of another form is ignored; its event or request is taken without it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:  # the class of the client is imported without it
    from typing_extensions import Self

TRACEPARENT_PATTERN: Final = r"^00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$"
TRACESTATE_PATTERN: Final = r"^[ -~]{1,512}$"
"""The lengths that every participant has to carry; a longer one may be dropped."""
_PARENT: Final = re.compile(TRACEPARENT_PATTERN)
_STATE: Final = re.compile(TRACESTATE_PATTERN)
_NO_TRACE: Final = "0" * 32
_NO_SPAN: Final = "0" * 16


class TraceContext(NamedTuple):
    """The name of a span."""

    traceparent: str
    tracestate: str | None = None
    """What tracing systems add to it; no part of the name."""

    @classmethod
    def of(cls, traceparent: str | None, tracestate: str | None = None) -> Self | None:
        """Return the name that two headers give; None if the first is none. A second of another form is left out."""
        if traceparent is None or not _PARENT.fullmatch(traceparent):
            return None
        found = cls(traceparent, tracestate if tracestate and _STATE.fullmatch(tracestate) else None)
        return None if found.trace_id == _NO_TRACE or found.span_id == _NO_SPAN else found

    @classmethod
    def of_ids(cls, trace_id: str, span_id: str) -> Self | None:
        """Return the name of a recorded span with these ids, which are hexadecimal digits."""
        return cls.of(f"00-{trace_id}-{span_id}-01")

    @property
    def trace_id(self) -> str:
        """32 hexadecimal digits."""
        return self.traceparent[3:35]

    @property
    def span_id(self) -> str:
        """16 hexadecimal digits."""
        return self.traceparent[36:52]

    @property
    def sampled(self) -> bool:
        """Whether its program records the trace."""
        return bool(int(self.traceparent[53:], 16) & 1)
