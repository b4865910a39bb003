"""Which events wrote a node, by which rules, and what each changed."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from graphweft_contracts.plurals import counted
from graphweft_rules.cypher.node_writes import NodeTarget
from graphweft_workers.replay.node_state import Change, State
from graphweft_workers.replay.recording import RecordResult, Writer
from graphweft_workers.replay.why import LogFindings
from graphweft_workers.reports.report import Notice, Part
from graphweft_workers.reports.short_texts import clock, plain, short
from graphweft_workers.support.printable import printable

_VALUE: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class WhyReport:
    """What wrote a node; exact if the log was replayed for it."""

    target: NodeTarget
    found: LogFindings
    recorded: RecordResult | None = None
    """What the replay found; None without one."""
    older: str = ""
    """Why the app's graph is from before an erasure or a restatement, and what to do; empty: it is not."""
    near: Sequence[str] = ()
    """Hints where nothing was found."""
    seconds: float = 0.0
    payload: bool = False
    """Whether to show the data of the events."""

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain values, for JSON."""
        newest = self.found.newest if self.recorded is None else self.recorded.newest
        result: dict[str, Any] = {
            "label": self.target.label,
            "key": {name: list(values) for name, values in self.target.keys.items()},
            "property": self.target.property,
            "relationship": self.target.relationship,
            "entries": self.found.entries,
            "lost": sum(each.entries for each in self.found.gaps),
            "may_have_written": self.found.rows,
            "exact": self.recorded is not None or not self.found.rows,
            "total": self.found.rows if self.recorded is None else self.recorded.changed,
            "writes": [_writer_dict(writer, payload=self.payload) for writer in newest],
            "hints": list(self.near),
            "older": self.older or None,
            "seconds": round(self.seconds, 3),
        }
        if self.recorded is not None:
            result |= {
                "replayed_events": self.recorded.events,
                "not_recorded": self.recorded.unseen,
                "dead_letters": [letter.model_dump(mode="json") for letter in self.recorded.letters],
                "now": [
                    {"labels": list(each.labels), "relationship": each.arrow, "properties": dict(each.properties)}
                    for each in self.recorded.state.values()
                ],
                "like_live": self.recorded.like_live,
            }
        return result

    def parts(self) -> Iterator[Part]:
        """Yield it for people."""
        yield from map(printable, _lines(self.target, self.found, self.recorded, payload=self.payload))
        yield from (Notice(printable(line)) for line in self.near)
        if self.older:
            yield Notice(f"{self.older[:1].upper()}{self.older[1:]}. This is what the log says, which has it no more.")
        yield from _notices(self.found, self.recorded, compared=not self.older)


def _lines(target: NodeTarget, found: LogFindings, recorded: RecordResult | None, *, payload: bool) -> Iterator[str]:
    if not found.rows:
        yield f"{_target_text(target)}: no event has written it; {entries_read(found)}"
        return
    if recorded is None:
        newest, total = found.newest, found.rows
        yield f"{_target_text(target)}: {counted(total, 'mutation')} may have written it; {entries_read(found)}"
    else:
        newest, total = recorded.newest, recorded.changed
        yield f"{_target_text(target)}: {counted(total, 'write')}; {entries_read(found)}"
    if total > len(newest):
        yield f"The newest {len(newest):,} of them:"
    for writer in newest:
        event = writer.event
        retry = " (retry)" if writer.retried else ""
        position = f"{writer.partition}:{writer.offset}"
        yield f"{position}  {clock(writer.received)}  {event.type}  {event.source} {event.id}{retry}"
        user = f", user {event.userid}" if event.userid is not None else ""
        rules = f", rules {writer.rules[:12]}" if writer.rules else ""
        name = f"{event.workflow or '-'}/{writer.rule}/{writer.mutation}"
        yield f"    chat {event.chatid}{user}; {name} ({writer.place}){rules}"
        if recorded is None:
            yield f"    may have written it: {writer.reason}"
        yield from (f"    {_change(change)}" for change in writer.changes)
        if payload:
            yield f"    data {json.dumps(event.data, ensure_ascii=False, default=plain)}"
    if recorded is not None:
        yield from _now(recorded.state, target)


def entries_read(found: LogFindings) -> str:
    """Return how many entries of the log were read, as text."""
    return f"{counted(found.entries, 'entry was', 'entries were')} read"


def _now(state: State, target: NodeTarget) -> Iterator[str]:
    if not state:
        yield "now: it does not exist" if target.relationship is None else "now: none"
    for thing in state.values():
        arrow = f"{_arrow(thing.arrow)} " if thing.arrow else ""
        if target.property is None:
            yield f"now: {arrow}{_value(dict(thing.properties))}"
        else:
            yield f"now: {arrow}{target.property} = {_value(thing.properties.get(target.property))}"


def _change(change: Change) -> str:
    arrow = f"{_arrow(change.relationship)} " if change.relationship else ""
    match change.kind:
        case "created":
            return f"{arrow}created {_value(change.after)}"
        case "deleted":
            return f"{arrow}deleted {_value(change.before)}"
        case "labels":
            return f"labels: {_value(change.before)} -> {_value(change.after)}"
        case "property":
            return f"{arrow}{change.name}: {_value(change.before)} -> {_value(change.after)}"


def _arrow(arrow: tuple[str, str, str]) -> str:
    name, direction, other = arrow
    return f"-[:{name}]->{other}" if direction == "out" else f"<-[:{name}]-{other}"


def _value(value: Any) -> str:
    return "(none)" if value is None else short(json.dumps(value, ensure_ascii=False, default=plain), _VALUE)


def _target_text(target: NodeTarget) -> str:
    keys = ", ".join(f"{name}: {_value(values[0])}" for name, values in target.keys.items())
    what = f"(:{target.label} {{{keys}}})"
    if target.relationship is not None:
        what += f"-[:{target.relationship}]-"
    return what if target.property is None else f"{what}.{target.property}"


def _notices(found: LogFindings, recorded: RecordResult | None, *, compared: bool) -> Iterator[Part]:
    if found.gaps:
        lost = "; ".join(map(str, found.gaps))
        yield Notice(f"The log lacks {lost}: events in them are not counted.")
    if recorded is None:
        return
    if recorded.unseen:
        yield Notice(
            f"{counted(recorded.unseen, 'older mutation')} may have written it too. What is replayed in batches is not "
            "counted."
        )
    for letter in recorded.letters:
        what = f"{letter.rule}/{letter.mutation} at {letter.offset}"
        yield Notice(f"failed, and has not failed live: {what}: {letter.message}")
    if compared and recorded.like_live is False:
        yield Notice(
            "The app's graph has another content than this: something else than the rules has written to it, or a rule "
            "gives other results each time."
        )


def _writer_dict(writer: Writer, *, payload: bool) -> dict[str, Any]:
    event = writer.event
    found: dict[str, Any] = {
        "position": f"{writer.partition}:{writer.offset}",
        "received": writer.received.isoformat(),
        "time": event.time.isoformat(),
        "type": event.type,
        "source": event.source,
        "id": event.id,
        "chat": event.chatid,
        "user": event.userid,
        "retry": writer.retried,
        "workflow": event.workflow,
        "rule": writer.rule,
        "mutation": writer.mutation,
        "place": writer.place,
        "rules": writer.rules,
        "reason": writer.reason,
        "changes": [
            {"change": each.kind, "name": each.name or None, "relationship": each.relationship}
            | {"before": each.before, "after": each.after}
            for each in writer.changes
        ],
    }
    return found | ({"data": event.data} if payload else {})
