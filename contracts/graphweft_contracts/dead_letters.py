"""What could not be applied, kept with its reason until somebody decides."""

from __future__ import annotations

from typing import Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field

__all__ = ("DeadLetter", "DeadLetterReason")

DeadLetterReason = Literal["invalid_event", "query_error", "timeout", "missing_rule"]


class DeadLetter(BaseModel):
    """One event, or one mutation of it, that has no effect on the graph.

    ``id`` derives from position, rule and mutation: writing the same failure twice keeps one letter.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str
    reason: DeadLetterReason
    message: str = Field(description="What was wrong, where, and what to do; never payload text.")
    position: str = Field(description="`partition:offset` of the event on the bus.")
    time: AwareDatetime = Field(description="When the letter was written.")
    app_id: str | None = None
    event_id: str | None = None
    event_type: str | None = None
    workflow: str | None = None
    rule: str | None = None
    mutation: str | None = None
    place: str | None = Field(default=None, description="file:line of the mutation.")
    fields: dict[str, str] = Field(description="The entry as it stood on the bus; each value base64 of the bytes.")
