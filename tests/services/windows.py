"""Small windows of copies, so that a short log is much longer than one."""

from __future__ import annotations

from typing import Final

import pytest

from graphweft_workers.engine.log import duplicates, history, series
from graphweft_workers.engine.log.duplicates import RecentEvents
from graphweft_workers.engine.partition import Partition

SMALL: Final = 12
"""Entries of a small window."""


def use_small_windows(patch: pytest.MonkeyPatch) -> None:
    """Let readers of this process know the last ``SMALL`` entries of an app, and store marks often."""
    patch.setattr(RecentEvents.__init__, "__defaults__", (SMALL, 50 * SMALL))
    patch.setattr(Partition._commit_now, "__kwdefaults__", {"least": 5})
    for module, values in (
        (duplicates, {"_MARK": 3}),
        (history, {"WINDOW": SMALL, "READ_BACK": SMALL + 3, "REACH": 10_000, "_PAGE": 7}),
        (series, {"_BLOCK": 2}),
    ):
        for name, value in values.items():
            patch.setattr(module, name, value)
