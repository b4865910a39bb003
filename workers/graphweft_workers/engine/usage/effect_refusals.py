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
    found: list[str] = []
    for key, body in records.items():
        if key.startswith(EFFECTS):
            with contextlib.suppress(ValueError, KeyError, TypeError, OverflowError):
                record = json.loads(body)
                if _is_fresh(body, now):
                    since = datetime.fromtimestamp(float(record["since"]), UTC)
                    error = str(record["error"])[:300]
                    found.append(
                        f"worker {key.removeprefix(EFFECTS)} cannot write the effects stream since "
                        f"{since:%Y-%m-%d %H:%M:%SZ}: {error}"
                    )
    return found


def ended(records: Mapping[str, bytes], name: str, now: float) -> list[str]:
    """Return the keys of records that a worker of this name removes at its start: its own, and those of workers that
    say nothing any more.
    """
    return [
        key
        for key, body in records.items()
        if key == f"{EFFECTS}{name}" or (key.startswith(EFFECTS) and not _is_fresh(body, now))
    ]


def _is_fresh(body: bytes, now: float) -> bool:
    with contextlib.suppress(ValueError, KeyError, TypeError, OverflowError):
        return now - float(json.loads(body)["at"]) < _SHOWN_S
    return False
