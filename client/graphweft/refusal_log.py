"""The log of events that are not sent: one line for each reason, and not for each event."""

from __future__ import annotations

import logging
import threading
from typing import Final

from graphweft.background_loop import renew_after_fork
from graphweft_contracts.bounded_dict import BoundedDict

_LOG_EVERY: Final = 1_000
"""Of the events that are not sent for one reason, every so many are logged."""
_MAX_REASONS: Final = 1_000
"""Reasons that are known. One that was forgotten is logged again."""


class RefusalLog:
    """Logs the first event that is not sent for a reason, and then every thousandth with their number. Thread-safe."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._counts: BoundedDict[str, int] = BoundedDict(_MAX_REASONS)
        self._lock = threading.Lock()
        renew_after_fork(self, threading.Lock)

    def note(self, event: object, why: object) -> None:
        """Count an event, and log it with the reason unless that is known."""
        text = str(why)
        with self._lock:
            count = self._counts.get(text, 0)
            self._counts[text] = count + 1
        if count % _LOG_EVERY == 0:  # without the lock: log handlers may be user code
            before = f", nor {count} before it" if count else ""
            self._logger.error("event %s is not sent%s: %s", event, before, text)

    def clear(self, why: str) -> None:
        """Log the next event with this reason again: meanwhile others were sent."""
        with self._lock:
            self._counts.pop(why, None)
