"""Dead letters: events and mutations that could not be applied, with the reason."""

from __future__ import annotations

from typing import Any, Final, Literal, cast

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, model_validator

DeadLetterReason = Literal[
    "invalid_event",
    "unreadable",
    "query_error",
    "invalid_value",
    "timeout",
    "unresponsive",
    "internal_error",
    "missing_rule",
    "skipped",
    "no_rules",
    "set_aside",
    "quarantined",
    "trimmed",
    "extraction_failed",
    "unsigned",
    "bad_signature",
    "over_quota",
]
"""Why an event or a mutation had no effect.

- ``invalid_event``: the event violates the contract.
- ``unreadable``: the bus holds the event's record, but it cannot be unpacked: an unknown codec, or a wrong checksum.
- ``query_error``, ``timeout``: the graph server refused a mutation, or aborted it at its time limit.
- ``invalid_value``: a value of the event has a type that the mutation cannot take.
- ``unresponsive``: the graph server became unavailable each time it got this mutation.
- ``internal_error``: graphweft itself failed on this event; the worker's log has the traceback.
- ``missing_rule``: a retried mutation is no longer in the rules.
- ``skipped``: a rule matched, but lacked a value.
- ``no_rules``: no rules are loaded for the workflow of the event.
- ``set_aside``: an operator told the worker to pass over the event.
- ``quarantined``: the mutation was switched off for a while after repeated failures.
- ``trimmed``: the events left the bus before they were read.
- ``extraction_failed``: no model could read the episode, or compare the statements.
- ``unsigned``: the event has no signature, and its app has keys.
- ``bad_signature``: the signature is not one that a key of the app, valid at that time, makes of this event.
- ``over_quota``: the app's graph would have more names of properties than it may have, or takes more memory.
"""
REFUSED: Final[frozenset[DeadLetterReason]] = frozenset({"unsigned", "bad_signature"})
"""Reasons of an entry that its signature keeps from having an effect. A retry looks at the signature again."""
UNREAD: Final[frozenset[DeadLetterReason]] = frozenset(
    {"invalid_event", "unreadable", "internal_error", "unsigned", "bad_signature"}
)
"""Reasons of an entry that does not count as an event: later entries are no copies of it."""


class DeadLetter(BaseModel):
    """One event, or one mutation of it, that has no effect on the graph; or one mutation of several events.

    ``id`` derives from partition, rule and mutation: writing the same failure twice keeps one letter. A letter with
    ``offsets`` stands for exactly these entries of the partition that ``position`` names, so it never reaches into
    another partition; ``fields`` are the first one's. Of the letters of one event, one keeps the event.
    """

    model_config = ConfigDict(defer_build=True, frozen=True, extra="forbid")

    id: str
    reason: DeadLetterReason
    message: str = Field(description="What was wrong, where, and what to do; never payload text.")
    position: str = Field(description="`partition:offset` of the event on the bus; of several, the first one's.")
    offsets: tuple[str, ...] = Field(
        default=(), description="Offsets of all entries that the letter stands for, in order; empty for a single one."
    )
    heeded: tuple[str, ...] | None = Field(
        default=None,
        description="Of a `set_aside` letter: those of `offsets` that workers pass over for sure, in order. The others "
        "may have taken effect. Null in letters of older versions, and in all others.",
    )
    count: int = Field(default=1, ge=1, description="How many events, or rows of one mutation, the letter stands for.")
    time: AwareDatetime = Field(description="When the letter was written.")
    app_id: str | None = None
    event_id: str | None = None
    event_type: str | None = None
    workflow: str | None = None
    rule: str | None = None
    mutation: str | None = None
    place: str | None = Field(default=None, description="file:line of the mutation.")
    fields: dict[str, str] = Field(
        description="The entry as it stood on the bus; each value base64 of the bytes. Empty if the letter refers to "
        "the event on the bus: `offsets` says where it is."
    )

    @model_validator(mode="before")
    @classmethod
    def _of_older_versions(cls, read: Any) -> Any:
        """Drop ``until``, which letters of older versions have instead of ``offsets``."""
        if isinstance(read, dict):
            return {name: value for name, value in cast("dict[str, Any]", read).items() if name != "until"}
        return read

    @model_validator(mode="after")
    def _counts_its_offsets(self) -> DeadLetter:
        if self.offsets and (self.count != len(self.offsets) or self.offsets[0] != self.offset):
            raise ValueError("`offsets` must hold `count` offsets, beginning with that of `position`")
        return self

    @property
    def partition(self) -> int:
        """The partition of all its entries."""
        return int(self.position.partition(":")[0])

    @property
    def offset(self) -> str:
        """The offset of the first entry."""
        return self.position.partition(":")[2]

    @property
    def until(self) -> str:
        """`partition:offset` of the last entry."""
        return f"{self.partition}:{self.entries[-1]}"

    def without_event(self) -> DeadLetter:
        """Return the letter of one mutation of one event, which refers to the event on the bus."""
        return self.of_entries((self.offset,)).model_copy(update={"fields": {}})

    def of_entries(self, offsets: tuple[str, ...]) -> DeadLetter:
        """Return the letter for other entries of the same partition: at least one offset, in order."""
        changed = {"position": f"{self.partition}:{offsets[0]}", "offsets": offsets, "count": len(offsets)}
        if self.heeded is not None:
            among = set(offsets)
            changed["heeded"] = tuple(offset for offset in self.heeded if offset in among)
        return self.model_copy(update=changed)

    @property
    def entries(self) -> tuple[str, ...]:
        """The offsets of all its entries, in order."""
        return self.offsets or (self.offset,)

    @property
    def passed_over(self) -> tuple[str, ...]:
        """The offsets whose events or rows have no effect: all, but of a `set_aside` letter those that are heeded."""
        return self.entries if self.heeded is None else self.heeded
