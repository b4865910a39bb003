"""The gateway's part in the use of apps: it learns what they keep, and reports what it refused or ignored."""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final

from graphweft_contracts import Transient
from graphweft_contracts.clock import SYSTEM_CLOCK, Clock
from graphweft_workers.apps import AppPolicies, QuotaName
from graphweft_workers.engine.usage.app_use import GATEWAY, SPANS, Refusals, forgotten, read_uses, refusals_of
from graphweft_workers.gateway.quotas import QuotaLimiter
from graphweft_workers.ports.records import RecordLog
from graphweft_workers.support.lazy_logger import get_logger

logger = get_logger("graphweft.gateway")

EVERY_S: Final = 5.0
_STORED: Final[tuple[QuotaName, ...]] = ("stored_bytes", "dead_letters", "graph_bytes")


class GatewayUsage:
    """Exchanges records of usage with the bus for one gateway. ``name`` stays the same when the gateway restarts."""

    def __init__(
        self,
        log: RecordLog,
        limiter: QuotaLimiter,
        policies: Callable[[], AppPolicies] | None,
        spans: Mapping[str, Counter[str]],
        *,
        name: str,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """Without policies nothing is limited, so nothing is asked of the bus until a span gave no event."""
        self._log = log
        self._limiter = limiter
        self._spans = spans
        self._policies = policies
        self._reporter = f"{GATEWAY}{name}"
        self._clock = clock
        self._before: dict[str, Counter[str]] | None = None
        """Refusals of earlier runs; None until they are read."""
        self._written = 0
        self._failed = False

    async def run(self) -> None:
        """Exchange every few seconds until cancelled."""
        while True:
            await self.exchange()
            await self._clock.sleep(EVERY_S)

    async def exchange(self) -> None:
        """Read what apps keep, and write what was refused. While the bus is unavailable, the last state counts."""
        try:
            await self._exchange()
        except Transient as error:
            if not self._failed:
                logger.warning(
                    "usage_unknown", error=str(error), next="quotas of what apps keep on the bus count as before"
                )
            self._failed = True
        else:
            self._failed = False

    async def _exchange(self) -> None:
        total = sum(each.total() for each in self._limiter.refused.values())
        total += sum(each.total() for each in self._spans.values())
        if self._policies is None and total == self._written:
            return
        now = self._clock.now().timestamp()
        records = (await self._log.after(None)).found
        if self._before is None:
            self._before = refusals_of(records.get(self._reporter)).apps
            for reporter in forgotten(records, GATEWAY, now):
                await self._log.put(reporter, None)
        if self._policies is not None:
            uses, _ = read_uses(records, self._policies(), now)
            self._limiter.stored = {use.app_id: {quota: int(use.used(quota)) for quota in _STORED} for use in uses}
        if total != self._written:
            apps = {app_id: Counter(counts) for app_id, counts in self._before.items()}
            for app_id, refused in self._limiter.refused.items():
                apps.setdefault(app_id, Counter()).update({str(quota): number for quota, number in refused.items()})
            for app_id, spans in self._spans.items():
                apps.setdefault(app_id, Counter()).update({f"{SPANS}{name}": number for name, number in spans.items()})
            await self._log.put(self._reporter, Refusals(time=now, apps=apps).encode())
            self._written = total


def gateway_name(port: int) -> str:
    """Return the name of the gateway on a port of this machine."""
    return f"{socket.gethostname()}:{port}"
