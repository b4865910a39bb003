"""Retention gives each app its turn, and an app that fails keeps no other one back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.services.buses import applied
from tests.services.rules import rule_set
from tests.services.workers import working

from graphweft import Event
from graphweft.transport import Outgoing, Transport
from graphweft_contracts import GraphUnavailable, wire
from graphweft_workers.drivers.falkordb.store import FalkorDBStore
from graphweft_workers.features.memory.retention import Retention
from graphweft_workers.ports.bus import Bus
from graphweft_workers.ports.job import JobSkip

pytestmark = pytest.mark.integration

T0 = datetime(2026, 2, 1, 10, 0, tzinfo=UTC)
USERS = {"a": 1, "b": 1, "big": 12, "small": 1}


class Watched:
    """The graph, with the number of queries of each app; those of some apps are unavailable."""

    def __init__(self, inner: FalkorDBStore) -> None:
        self._inner = inner
        self.asked: Counter[str] = Counter()
        self.away: Sequence[str] = ()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def apps(self) -> list[str]:
        return list(USERS)

    async def read(self, app_id: str, *given: Any, **more: Any) -> Any:
        self.asked[app_id] += 1
        if app_id in self.away:
            raise GraphUnavailable(f"the graph of {app_id} is away", retry_after_s=1)
        return await self._inner.read(app_id, *given, **more)


@pytest.fixture
async def watched(bus: Bus, graph: FalkorDBStore, transport: Transport) -> Watched:
    """Of each user one memory is to be forgotten."""
    events = [
        Event.create(
            "memory.add", app_id=app, chat_id="c", id=f"{user}-{number}", source="/test", time=T0,
            data={"messages": [{"role": "user", "text": f"text {number}"}], "user_id": f"u{user}"},
        )
        for app, users in USERS.items() for user in range(users) for number in range(2)
    ]  # fmt: skip
    async with working(bus, graph, rule_set()):
        await transport.append([Outgoing(key=event.key, fields=wire.encode(event)) for event in events])
        await applied(bus)
    return Watched(graph)


def retention(graph: Any) -> Retention:
    return Retention(graph, keep_count=1)


async def due(kept: Retention) -> tuple[list[str], list[str], bool]:
    """Return the apps with events, those that were left out, and whether it is an outage."""
    events: list[str] = []
    skips: list[str] = []
    try:
        async for some in kept.due(T0 + timedelta(days=1)):
            for each in some:
                (skips if isinstance(each, JobSkip) else events).append(
                    each.app_id if isinstance(each, JobSkip) else each.appid
                )
    except GraphUnavailable:
        return events, skips, True
    return events, skips, False


async def test_an_app_with_many_users_keeps_no_other_one_waiting(watched: Watched) -> None:
    async for some in retention(watched).due(T0 + timedelta(days=1)):
        if any(isinstance(each, Event) and each.appid == "small" for each in some):
            break
    assert watched.asked["big"] <= 3
    kept = retention(watched)
    events, skips, outage = await due(kept)
    assert (Counter(events), skips, outage) == (Counter(USERS), [], False)
    assert await due(kept) == ([], [], False), "they are on the bus"


async def test_an_app_whose_graph_is_away_is_counted_and_passed_over(watched: Watched) -> None:
    watched.away = ["a", "big"]
    events, skips, outage = await due(retention(watched))
    assert (sorted(events), sorted(skips), outage) == (["b", "small"], ["a", "big"], False)


async def test_an_outage_asks_few_and_the_next_round_goes_on_behind_them(watched: Watched) -> None:
    watched.away = ["a", "b", "big"]
    kept = retention(watched)
    assert await due(kept) == ([], [], True)
    assert set(watched.asked) == {"a", "b", "big"}
    watched.away = list(USERS)
    assert await due(kept) == ([], [], True)
    watched.away = ()
    assert Counter((await due(kept))[0]) == Counter(USERS)


async def test_a_wall_of_graphs_that_are_away_hides_no_other(watched: Watched) -> None:
    kept = retention(watched)
    watched.away = ["a", "b", "small"]
    kept._last = "b"
    assert await due(kept) == (["big"] * 12, ["small", "a", "b"], False)


async def test_an_outage_in_the_middle_of_a_round_asks_few(watched: Watched) -> None:
    kept = retention(watched)
    kept._last = "b"
    run = kept.due(T0 + timedelta(days=1))
    assert await anext(run)
    watched.asked.clear()
    watched.away = list(USERS)
    with pytest.raises(GraphUnavailable):
        await anext(run)
    assert watched.asked == {"small": 1, "a": 1, "b": 1, "big": 1}
