"""What wrote a node, as plain values."""

from __future__ import annotations

from typing import Any

from graphweft_rules.cypher.node_writes import NodeTarget
from graphweft_workers.replay.recording import Recorded, Writer
from graphweft_workers.replay.why import LogFindings


def why_dict(
    target: NodeTarget, found: LogFindings, recorded: Recorded | None, near: list[str], elapsed: float, *, payload: bool
) -> dict[str, Any]:
    """Return what wrote a node; ``recorded`` is what a replay found, None without one."""
    newest = found.newest if recorded is None else recorded.newest
    result: dict[str, Any] = {
        "label": target.label,
        "key": {name: list(values) for name, values in target.keys.items()},
        "property": target.property,
        "relationship": target.relationship,
        "entries": found.entries,
        "lost": found.lost,
        "may_have_written": found.rows,
        "exact": recorded is not None or not found.rows,
        "total": found.rows if recorded is None else recorded.changed,
        "writes": [_writer_dict(writer, payload=payload) for writer in newest],
        "hints": near,
        "seconds": round(elapsed, 3),
    }
    if recorded is not None:
        result |= {
            "replayed_events": recorded.events,
            "not_recorded": recorded.unseen,
            "dead_letters": [letter.model_dump(mode="json") for letter in recorded.letters],
            "now": [
                {"labels": list(each.labels), "relationship": each.arrow, "properties": dict(each.properties)}
                for each in recorded.state.values()
            ],
            "like_live": recorded.like_live,
        }
    return result


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
