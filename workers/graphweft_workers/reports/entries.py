"""What an entry of the log is to a worker: an event, a retry, an activation of rules, a drop, or invalid."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from graphweft_contracts import Event, InvalidEvent, wire
from graphweft_contracts.rules_log import Activation, announced
from graphweft_workers.ports.event_log import Entry

type Kind = Literal["event", "retry", "activation", "drop", "invalid"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodedEntry:
    """One entry of a partition, decoded as a worker decodes it."""

    partition: int
    entry: Entry
    kind: Kind
    event: Event | None = None
    """The event, or the event that is retried."""
    retry: wire.Retry | None = None
    activation: Activation | None = None
    """The activation that the entry names. A worker ignores the entry, whatever else it holds."""
    dropped: wire.Dropped | None = None
    """The dead letter that somebody dropped."""
    fault: str = ""
    """Why the entry cannot be decoded."""
    note: str = ""
    """What is unusual about it."""

    @property
    def position(self) -> str:
        """``partition:offset``."""
        return f"{self.partition}:{self.entry.offset}"

    @property
    def app_id(self) -> str | None:
        """The app of the event."""
        return self.event.appid if self.event else None


def see(partition: int, entry: Entry, activations: Sequence[Activation]) -> DecodedEntry:
    """Decode an entry. ``activations`` are all activations of the bus, in order."""
    note = ""
    if wire.ACTIVATION in entry.fields:
        number = announced(entry.fields)
        if number is not None and 0 < number <= len(activations):
            activation = activations[number - 1]
            if activation.positions.get(partition) != entry.offset:
                note = "forged: the bus records this activation at another place, so this entry has no effect"
            return DecodedEntry(partition=partition, entry=entry, kind="activation", activation=activation, note=note)
        note = "forged: it claims an activation of rules that the bus does not record"
    try:
        dropped = wire.dropped_of(entry.fields)
        if dropped is not None:
            return DecodedEntry(partition=partition, entry=entry, kind="drop", dropped=dropped, note=note)
        event = wire.decode(entry.fields, received=entry.received)
        retry = wire.retry_of(entry.fields)
    except InvalidEvent as error:
        return DecodedEntry(partition=partition, entry=entry, kind="invalid", fault=str(error), note=note)
    except Exception as error:  # noqa: BLE001 - a worker makes it a dead letter too
        return DecodedEntry(partition=partition, entry=entry, kind="invalid", fault=type(error).__name__, note=note)
    kind: Kind = "event" if retry is None else "retry"
    return DecodedEntry(partition=partition, entry=entry, kind=kind, event=event, retry=retry, note=note)
