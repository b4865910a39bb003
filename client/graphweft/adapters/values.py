"""How values of runtimes are told: the same in the events of all adapters."""

from __future__ import annotations

import contextlib
import json
import time
from typing import Any

__all__ = ("error_text", "milliseconds", "ms_since", "parsed")


def milliseconds(seconds: float) -> float:
    """Return a duration as events have it."""
    return round(seconds * 1000, 3)


def ms_since(started_s: float) -> float:
    """Return the milliseconds since a time of ``time.monotonic``."""
    return milliseconds(time.monotonic() - started_s)


def parsed(arguments: Any) -> Any:
    """Return what a model's arguments for a tool say in JSON; what is no JSON stays the text that it is."""
    with contextlib.suppress(TypeError, ValueError):
        return json.loads(arguments)
    return arguments


def error_text(error: BaseException) -> str:
    """Return an exception's message, or its type where it has none, or its own code fails."""
    with contextlib.suppress(Exception):
        return str(error) or type(error).__name__
    return type(error).__name__
