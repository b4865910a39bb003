"""What an entry of the log is to a worker: an event, a retry, an activation of rules, a drop, erased, or invalid."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from graphweft_contracts import Event, InvalidEvent, wire
from graphweft_contracts.rules_log import Activation, announced
from graphweft_workers.ports.event_log import Entry
from graphweft_workers.reports.report import Part
from graphweft_workers.reports.short_texts import clock, short
from graphweft_workers.support.printable import printable

_PREVIEW: Final = 60
_FAULT: Final = 200
_LISTED: Final = 3

type Kind = Literal["event", "retry", "activation", "drop", "erased", "invalid"]


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
    dropped: wire.DroppedLetter | None = None
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

    def to_dict(self) -> dict[str, Any]:
        """Return it with all of its content, for JSON."""
        found: dict[str, Any] = {
            "position": self.position,
            "partition": self.partition,
            "offset": self.entry.offset,
            "received": self.entry.received.isoformat(),
            "kind": self.kind,
        }
        if self.event is not None:
            found["event"] = self.event.model_dump(exclude_none=True)
        if self.retry is not None:
            found["retry"] = self.retry._asdict()
        if self.activation is not None:
            found["activation"] = activation_dict(self.activation)
        if self.dropped is not None:
            found["dropped"] = dict(zip(wire.DroppedLetter._fields, self.dropped, strict=True))
        if self.event is None:
            found["fields"] = wire.pack(self.entry.fields)
        if self.fault:
            found["fault"] = self.fault
        if self.note:
            found["note"] = self.note
        return found

    def parts(self) -> Iterator[Part]:
        """Yield it for people, as one line."""
        yield self.line()

    def line(self) -> str:
        """Return one line: time, app, chat, type, id, position, marks, and the beginning of the data."""
        marks: list[str] = []
        event, activation = self.event, self.activation
        if activation is not None:
            what = "rules.activated" if activation.restates is None else "rules.restated"
            names = (
                activation.restates or activation.scope,
                "-",
                what,
                f"#{activation.number} {activation.digest[:12]}",
            )
        elif event is not None:
            names = (event.appid, event.chatid, event.type, event.id)
            if self.retry is not None:
                marks.append(f"[retry of {self.retry.rule}/{self.retry.mutation}]")
        elif self.dropped is not None:
            what = "the event" if self.dropped.rule is None else f"{self.dropped.rule}/{self.dropped.mutation}"
            names = (self.dropped.app_id or "-", "-", "dead_letter.dropped", "-")
            marks.append(f"[drop of {what} at {', '.join(self.dropped.offsets[:_LISTED]) or 'trimmed events'}]")
        elif self.kind == "erased":
            names = ("-", "-", "-", "-")
            marks.append("[erased]")
        else:
            names = ("-", "-", "-", "-")
            marks.append(f"[cannot be decoded: {short(self.fault, _FAULT)}]")
        if self.note:
            marks.append(f"[{self.note}]")
        if event is not None and event.data:
            marks.append(short(json.dumps(event.data, ensure_ascii=False, default=str), _PREVIEW))
        return printable("  ".join((clock(self.entry.received), *names, self.position, *marks)))


def see(partition: int, entry: Entry, activations: Sequence[Activation]) -> DecodedEntry:
    """Decode an entry. ``activations`` are all activations of the bus, in order."""
    if entry.erased:
        return DecodedEntry(partition=partition, entry=entry, kind="erased")
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


def activation_dict(activation: Activation) -> dict[str, Any]:
    """Return an activation for JSON, without its positions."""
    return {
        "number": activation.number,
        "scope": activation.restates or activation.scope,
        "restates": activation.restates is not None,
        "rules": activation.digest,
        "time": activation.time.isoformat(),
    }
