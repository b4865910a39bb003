"""Refuses events of apps that are above a quota, and counts what it refuses."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from graphweft.outbox import EncodedEvent
from graphweft.token_bucket import TokenBucket
from graphweft_contracts.clock import SYSTEM_CLOCK, Clock
from graphweft_workers.apps import QuotaName, Quotas
from graphweft_workers.gateway.problems import Problem

_ERASING: Final = frozenset({"memory.erase", "memory.forget"})
_STORED_RETRY_S: Final = 60
_UNITS: Final[Mapping[QuotaName, str]] = {
    "events_per_s": "events a second",
    "bytes_per_s": "bytes a second",
    "stored_bytes": "stored bytes",
    "dead_letters": "dead letters",
    "graph_bytes": "bytes of its graph",
}
_LARGER: Final = "or ask the operator for a larger quota"
_NEXT: Final[Mapping[QuotaName, str]] = {
    "stored_bytes": "trim the log behind an archive (`graphweft trim`), retry or drop dead letters (`graphweft dlq`)",
    "dead_letters": "retry or drop dead letters (`graphweft dlq`)",
    "graph_bytes": "erase what is not needed (`memory.erase`, `memory.forget`)",
}


class QuotaLimiter:
    """Decides whether the events of a request are taken.

    ``of`` returns the quotas of an app. ``stored`` holds what apps keep, by app and quota; ``GatewayUsage`` replaces
    it. Each gateway counts rates for itself: an app that uses two may send twice as much.
    """

    def __init__(self, of: Callable[[str], Quotas], *, clock: Clock = SYSTEM_CLOCK) -> None:
        self._of = of
        self._clock = clock
        self._buckets: dict[tuple[str, QuotaName], TokenBucket] = {}
        self.stored: Mapping[str, Mapping[QuotaName, int]] = {}
        self.refused: dict[str, Counter[QuotaName]] = {}
        """Refused requests, by app and quota."""

    def check(self, app_id: str) -> None:
        """Raise ``Problem`` with 429 while the app is above a rate. It is for requests whose body is not read yet."""
        quotas = self._of(app_id)
        self._check_rate(app_id, "events_per_s", quotas.events_per_s)
        self._check_rate(app_id, "bytes_per_s", quotas.bytes_per_s)

    def take(self, app_id: str, events: Sequence[EncodedEvent]) -> None:
        """Count events. Raises ``Problem`` (429, or 507 for what is kept) and counts none then.

        An app that keeps too much can still erase.
        """
        self.check(app_id)
        if not all(each.event.type in _ERASING for each in events):
            self._check_stored(app_id)
        if (bucket := self._buckets.get((app_id, "events_per_s"))) is not None:
            bucket.take(len(events))
        if (bucket := self._buckets.get((app_id, "bytes_per_s"))) is not None:
            bucket.take(sum(each.size for each in events))

    def _check_rate(self, app_id: str, quota: QuotaName, per_s: float | None) -> None:
        if per_s is None:
            self._buckets.pop((app_id, quota), None)  # the policies may have changed
            return
        now = self._clock.monotonic()
        bucket = self._buckets.get((app_id, quota))
        if bucket is None or bucket.per_s != per_s:
            bucket = self._buckets[app_id, quota] = TokenBucket(per_s, now)
        wait_s = bucket.wait_s(now)
        if wait_s > 0:
            after = max(1, math.ceil(wait_s))
            step = f"send it again after {after} s"
            raise self._refusal(429, app_id, quota, limit=per_s, used=math.ceil(bucket.used), step=step, after_s=after)

    def _check_stored(self, app_id: str) -> None:
        quotas, stored = self._of(app_id), self.stored.get(app_id, {})
        limits: Mapping[QuotaName, int | None] = {
            "stored_bytes": quotas.stored_bytes,
            "dead_letters": quotas.dead_letters,
            "graph_bytes": quotas.graph_bytes,
        }
        for quota, limit in limits.items():
            used = stored.get(quota, 0)
            if limit is not None and used > limit:
                raise self._refusal(
                    507, app_id, quota, limit=limit, used=used, step=_NEXT[quota], after_s=_STORED_RETRY_S
                )

    def _refusal(
        self, status: int, app_id: str, quota: QuotaName, *, limit: float, used: int, step: str, after_s: int
    ) -> Problem:
        self.refused.setdefault(app_id, Counter())[quota] += 1
        return Problem(
            status,
            "over-quota",
            f"this app has used {used:,} of its {limit:,g} {_UNITS[quota]}; nothing of this request was taken: {step}, "
            f"{_LARGER}",
            headers={"Retry-After": str(after_s)},
            quota=quota,
            limit=limit,
            used=used,
        )
