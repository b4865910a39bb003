"""All roles are restarted one after the other under load, in order and by kills: no event and no request is lost.

By default the load is small and the budget of a request long, so that a busy machine passes: only a request that nobody
answers takes so long. ``GRAPHWEFT_ROLLING_EVENTS`` sets the events a second, with 50 requests a second of 500 ms
(``GRAPHWEFT_ROLLING_BUDGET_MS``), and then 99.9 % of the requests must be complete.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from uuid import uuid4

import pytest

from .rolling import Load, RollingRestart
from .servers import Servers
from .stack import Stack

pytestmark = [
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.asyncio(loop_scope="session"),
]

_EVENTS = int(os.environ.get("GRAPHWEFT_ROLLING_EVENTS", "0"))
_BUDGET_MS = int(os.environ.get("GRAPHWEFT_ROLLING_BUDGET_MS", "500"))
_SHORT = Load(events_per_s=200, requests_per_s=20, budget_ms=20_000)
_FULL = Load(events_per_s=_EVENTS, requests_per_s=50, budget_ms=_BUDGET_MS)
_TERM, _KILL = signal.SIGTERM, signal.SIGKILL
# In the first round each kind of role has one that ends in order and one that is killed; then the other way round.
_ROUNDS = [{"1": _TERM, "2": _KILL}, {"1": _KILL, "2": _TERM}][: 2 if _EVENTS else 1]


@pytest.mark.long
@pytest.mark.soak("kafka")
@pytest.mark.parametrize(("bus", "graph"), [("redis", "falkordb"), ("kafka", "falkordb"), ("kafka", "neo4j")])
async def test_a_rolling_restart_loses_no_event_and_no_request(
    servers: Servers, tmp_path: Path, bus: str, graph: str
) -> None:
    stack = await Stack.of(servers, bus, graph)
    restart = RollingRestart(stack, _FULL if _EVENTS else _SHORT, app=f"rolling{uuid4().hex[:8]}", folder=tmp_path)
    try:
        await restart.run(*_ROUNDS)
    except BaseException:
        await servers.drop(bus, graph)
        raise
    finally:
        print(restart.tally)
    if _EVENTS:
        assert restart.tally.share >= 0.999
        assert not restart.tally.late.total()
    else:
        assert not restart.tally.incomplete
