"""The records of workers that cannot write the effects stream, as ``status`` reads them. Pure."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final

EFFECTS: Final = "effects:"
"""Begins the key of the record of a worker that cannot write the stream."""
_SHOWN_S: Final = 60.0
"""A worker that could not write in this time is named."""


def refusals(records: Mapping[str, bytes], now: float) -> list[str]:
    """Return which workers cannot write the effects stream and since when, by their records; old ones are left out."""
    return [
        f"worker {key.removeprefix(EFFECTS)} cannot write the effects stream since {said}"
        for key, body in records.items()
        if key.startswith(EFFECTS) and (said := _fresh(body, now)) is not None
    ]


def ended(records: Mapping[str, bytes], name: str, now: float) -> list[str]:
    """Return the keys of records that a worker of this name removes at its start: its own, and those of workers that
    say nothing any more.
    """
    return [
        key
        for key, body in records.items()
        if key == f"{EFFECTS}{name}" or (key.startswith(EFFECTS) and _fresh(body, now) is None)
    ]


def _fresh(body: bytes, now: float) -> str | None:
    """Return since when and why a worker cannot write; None for a record that is old, or cannot be read."""
    with contextlib.suppress(ValueError, KeyError, TypeError, OverflowError):
        record = json.loads(body)
        since = datetime.fromtimestamp(float(record["since"]), UTC)
        if now - float(record["at"]) < _SHOWN_S:
            return f"{since:%Y-%m-%d %H:%M:%SZ}: {str(record['error'])[:300]}"
    return None
