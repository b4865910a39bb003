"""How commands print entries of the event log."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from typing import Final

from graphweft_contracts.plurals import counted
from graphweft_workers.cli.output import printable, short
from graphweft_workers.reports.entries import DecodedEntry

_PREVIEW: Final = 60
_FAULT: Final = 200
_LISTED: Final = 3


def clock(time: datetime) -> str:
    """Return a time in UTC with milliseconds."""
    return time.astimezone(UTC).isoformat(sep=" ", timespec="milliseconds").replace("+00:00", "Z")


def line_of(seen: DecodedEntry) -> str:
    """Return an entry as one line: time, app, chat, type, id, position, marks, and the beginning of its data."""
    marks: list[str] = []
    event, activation = seen.event, seen.activation
    if activation is not None:
        what = "rules.activated" if activation.restates is None else "rules.restated"
        names = (activation.restates or activation.scope, "-", what, f"#{activation.number} {activation.digest[:12]}")
    elif event is not None:
        names = (event.appid, event.chatid, event.type, event.id)
        if seen.retry is not None:
            marks.append(f"[retry of {seen.retry.rule}/{seen.retry.mutation}]")
    elif seen.dropped is not None:
        what = "the event" if seen.dropped.rule is None else f"{seen.dropped.rule}/{seen.dropped.mutation}"
        names = (seen.dropped.app_id or "-", "-", "dead_letter.dropped", "-")
        marks.append(f"[drop of {what} at {', '.join(seen.dropped.offsets[:_LISTED]) or 'trimmed events'}]")
    else:
        names = ("-", "-", "-", "-")
        marks.append(f"[cannot be decoded: {short(seen.fault, _FAULT)}]")
    if seen.note:
        marks.append(f"[{seen.note}]")
    if event is not None and event.data:
        marks.append(short(json.dumps(event.data, ensure_ascii=False, default=str), _PREVIEW))
    return printable("  ".join((clock(seen.entry.received), *names, seen.position, *marks)))


def tell_progress(entries: int) -> None:
    """Say on standard error how many entries were read."""
    sys.stderr.write(f"{counted(entries, 'entry')} read\n")
    sys.stderr.flush()
