"""What an erasure of a user reaches: decided by the log, never by the clock of whoever sends an event.

Within a partition, the log has an order: what came before the erasure goes, and what comes later stays. Partitions have
no order among each other. There the times count at which the log took the entries, so the clocks of its servers must
agree. A retry has no place in the order, because it is older than its entry; its event's time counts.

Erasures and additions of different partitions may apply in any order, with the same result. So the profile of a user
keeps the latest erasure, as its time and its partition in one text, and the latest one of all other partitions.
"""

from __future__ import annotations

from typing import Any, Final

from graphweft_contracts.memory import MemoryErase
from graphweft_rules.matching.clock import utc_text
from graphweft_rules.matching.pack import LogTime
from graphweft_workers.retrieval.records import PROFILE

_PART: Final = -2
"""Stands for a partition where an erasure goes by times alone."""
NOT_ERASED: Final = (
    "CASE WHEN u.erased_before ENDS WITH $place THEN coalesce(u.erased_elsewhere, '') "
    "ELSE coalesce(u.erased_before, '') END < $recorded"
)
"""The condition of adding a record of the user ``u``; its parameters are ``logged_params``."""
IS_ERASED: Final = (
    "({0}.recorded <= $before OR {0}.partition = $partition OR ({0}.partition IS NULL AND $partition >= 0))"
)
"""The condition of erasing a record. Records of versions without ``partition`` are older than any erasure."""
_USER: Final = f"MERGE (u:{PROFILE} {{id: $user_id}}) SET u.user_id = $user_id, "
MARKS: Final = (
    f"{_USER}u.erased_elsewhere = CASE WHEN u.erased_before ENDS WITH $place THEN u.erased_elsewhere "
    "WHEN u.erased_before < $mark THEN u.erased_before "
    "WHEN u.erased_before IS NOT NULL AND coalesce(u.erased_elsewhere, '') < $mark THEN $mark "
    "ELSE u.erased_elsewhere END",
    f"{_USER}u.erased_before = CASE WHEN coalesce(u.erased_before, '') < $mark THEN $mark ELSE u.erased_before END",
)
"""Keep an erasure at the profile of its user, in this order. Doing it twice is the same as once."""


def logged_params(logged: LogTime) -> dict[str, Any]:
    """Return what a record keeps of its place in the log, and ``place``, by which erasures before it are told."""
    place = f" {logged.partition}" if logged.partition >= 0 else " none"
    return {"recorded": utc_text(logged.time), "partition": logged.partition, "place": place}


def erasure_of(erase: MemoryErase, logged: LogTime) -> dict[str, Any]:
    """Return the parameters of an erasure; it never reaches beyond its own time."""
    whole = erase.before is None or erase.before >= logged.time
    before = utc_text(logged.time if whole or erase.before is None else erase.before)
    place = f" {logged.partition}"
    return {
        "before": before,
        "mark": before + place,
        "place": place,
        # Records of retries have no partition either, but they may be younger than an erasure that is retried.
        "partition": logged.partition if whole and logged.partition >= 0 else _PART,
    }
