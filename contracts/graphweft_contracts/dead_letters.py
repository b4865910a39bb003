"""What could not be applied, kept with its reason until somebody decides."""

from __future__ import annotations

from typing import Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field

__all__ = ("DeadLetter", "DeadLetterReason")

DeadLetterReason = Literal[
    "invalid_event", "query_error", "timeout", "missing_rule", "quarantined", "trimmed", "extraction_failed"
]
"""``quarantined``: left out because its mutation fails again and again; ``trimmed``: gone before it was read;
``extraction_failed``: no model could read the episode."""


class DeadLetter(BaseModel):
    """One event, or one mutation of it, that has no effect on the graph; or one mutation of a range of events.

    ``id`` derives from position, rule and mutation: writing the same failure twice keeps one letter. A letter with
    ``until`` stands for the events from ``position`` to there: ``count`` of them were left out, and ``fields`` are the
    first one's.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str
    reason: DeadLetterReason
    message: str = Field(description="What was wrong, where, and what to do; never payload text.")
    position: str = Field(description="`partition:offset` of the event on the bus, of a range the first one's.")
    until: str | None = Field(default=None, description="`partition:offset` of the last event of a range.")
    count: int = Field(default=1, ge=1, description="How many events, or rows of one mutation, the letter stands for.")
    time: AwareDatetime = Field(description="When the letter was written.")
    app_id: str | None = None
    event_id: str | None = None
    event_type: str | None = None
    workflow: str | None = None
    rule: str | None = None
    mutation: str | None = None
    place: str | None = Field(default=None, description="file:line of the mutation.")
    fields: dict[str, str] = Field(description="The entry as it stood on the bus; each value base64 of the bytes.")
